"""DP-SGD (Abadi et al. 2016): the gradient of each example is clipped, and noise is added to their sum.

Examples are drawn for each step independently of each other (Poisson sampling), as the accounting assumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from protofed import draws
from protofed.core import Batch
from protofed.examples import augmenter
from protofed.optimiser import separate_parts
from protofed.training import Optimiser, Outcome, in_training, trainable_names
from protofed.trust.privacy.rules import planned_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protofed.core import AnyMethod, Client, Loss, Params, Phase
    from protofed.examples import Augmentation
    from protofed.training import TrainSection
    from protofed.trust.privacy.noise import Noise
    from protofed.trust.privacy.section import PrivacySection

_CHUNK = 64
"""Examples for which gradients are computed at once; it bounds the memory."""


def train_privately(
    method: AnyMethod,
    client: Client,
    start: Params,
    down: Any,
    kept: Any,
    phases: Sequence[Phase],
    training: TrainSection,
    privacy: PrivacySection,
    noise: Noise,
) -> Outcome:
    """Train one client by DP-SGD. `down` is what `Method.prepare` returned."""
    net, outcome = client.net, Outcome({name: value.clone() for name, value in start.items()})
    total = sum(planned_steps(phase.epochs, privacy, training) for phase in phases)
    rate = training.batch / privacy.examples
    with in_training(net):
        for phase in phases:
            names = trainable_names(net, start, phase)
            state = Optimiser(training, 0.0).start({name: outcome.params[name] for name in names})
            for _ in range(planned_steps(phase.epochs, privacy, training)):
                chosen = (noise.uniform(client.num_examples) < rate).nonzero().squeeze(1)
                keys = (noise.uniform(len(chosen)) * 2**62).long()
                x, y = client.data.take(chosen, _private_augmenter(training.augment, noise))
                trainable = {name: outcome.params[name] for name in names}
                # one of the parts is uploaded: with several, an upload would depend on several clipped gradients
                parts = separate_parts(trainable, phase.clipped_separately)
                sums, terms = clipped_gradient_sums(
                    method, client, outcome.params, parts, (x, y, keys), down, kept, privacy.step_clip
                )
                deviation = privacy.step_noise * privacy.step_clip
                noisy = {
                    name: ((value + deviation * noise.normal(*value.shape)) / training.batch).to(trainable[name].dtype)
                    for name, value in sums.items()
                }
                rate_now = training.rate(client.round, outcome.steps, total)
                optimiser = Optimiser(training, rate_now, phase.clipped_separately)
                with torch.no_grad():
                    new_params, state = optimiser.step(trainable, noisy, state)
                outcome.params |= new_params
                outcome.steps += 1
                outcome.examples_seen += len(chosen)
                for name, value in terms.items():
                    outcome.terms[name] = outcome.terms.get(name, torch.zeros(())) + value
    return outcome


def _private_augmenter(names: tuple[Augmentation, ...], noise: Noise) -> Callable[[Tensor], Tensor] | None:
    """The function that augments a step's examples, with a key that is as secret as the noise.

    An image's crop depends on its position among the drawn examples. With a key that the server knows, one example
    more would change the crops of all later ones, and so more than one clipped gradient.
    """
    return augmenter(names, int(noise.uniform(1) * 2**62)) if names else None


def clipped_gradient_sums(
    method: AnyMethod,
    client: Client,
    params: Params,
    parts: Sequence[Params],
    examples: tuple[Tensor, Tensor, Tensor],
    down: Any,
    kept: Any,
    clip: float,
) -> tuple[Params, Params]:
    """The sum over examples of the gradients, each scaled down to the norm `clip`, and the sums of the loss's terms.

    `parts`: the trained parameters, in parts of which each is scaled down by itself. `examples`: inputs [n, ...],
    labels [n], and the keys [n] of their dropout.
    """

    def loss(trained: Params, x: Tensor, y: Tensor, key: Tensor) -> tuple[Tensor, Params]:
        with draws.DerivedDropout(key):
            batch = Batch(x.unsqueeze(0), y.unsqueeze(0), x.new_ones(1))
            terms: Loss = method.loss(client.net, params | trained, batch, down, kept)
        return terms.total, terms.terms

    trainable = {name: value for part in parts for name, value in part.items()}
    sums = {name: torch.zeros(value.shape, dtype=torch.double) for name, value in trainable.items()}
    terms: Params = {}
    mapped = vmap(grad(loss, has_aux=True), in_dims=(None, 0, 0, 0))
    for x, y, keys in zip(*(part.split(_CHUNK) for part in examples), strict=True):
        if not len(x):
            continue
        gradients, values = mapped(trainable, x, y, keys)
        for part in parts:
            flat = torch.cat([gradients[name].detach().double().reshape(len(x), -1) for name in part], dim=1)
            norm = flat.norm(dim=1)
            scale = torch.where(torch.isfinite(norm), clip / norm.clamp(min=clip), 0.0)
            summed = torch.where(torch.isfinite(flat), flat, 0.0).T @ scale
            for name, one in zip(part, summed.split([value.numel() for value in part.values()]), strict=True):
                sums[name] += one.reshape(sums[name].shape)
        terms = {name: terms.get(name, 0) + value.detach().sum() for name, value in values.items()}
    return sums, terms
