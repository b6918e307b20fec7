"""Attackers: clients that change what they upload, or the data that they train on.

* `sign_flip`: they send minus `factor` times their prototypes, and go `factor` times as far from the server's model in
  the opposite direction.
* `scale`: they send `factor` times their prototypes, and go `factor` times as far from the server's model.
* `little` (Baruch et al. 2019, "A Little Is Enough"): all send the mean of the attackers' honest uploads minus z
  standard deviations, so little that a good client could have sent it.
* `random`: they send noise with `factor` times the standard deviation of what they would have sent.
* `swap`: they exchange the prototypes of two classes.
* `label_flip`: they train with the label classes - 1 - y in place of y.
* `backdoor`: a part of their training images has a bright corner and the label `classes[0]`.

Other tensors than weights and prototypes are changed as weights are that the server did not send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from protofed import draws
from protofed.core import Upload
from protofed.examples import IGNORED, Examples
from protofed.messages import leaves, with_changed_leaves
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from protofed.trust.trust_sections import AttackSection

ON_DATA = ("label_flip", "backdoor")
"""The kinds that change training data."""
_STRENGTHS = {"sign_flip": 10.0, "scale": 10.0, "random": 1.0}
"""The default of `factor` for the kinds that have a fixed one."""
_TRIGGER_SIDE = 4
"""Pixels of the trigger, per side; of inputs that are not images, the number of values."""


class Round(NamedTuple):
    """What an attacker's function sees: the options, the seed of the round, and the attackers' honest messages."""

    options: AttackSection
    seed: int
    number: int
    uploads: int  # of all clients
    honest: Mapping[int, Any]  # by attacker


def draw_attackers(options: AttackSection, clients: int, seed: int) -> list[int]:
    """The clients that are attackers during all of the run."""
    order = torch.randperm(clients, generator=draws.generator(seed, "attackers", 0, None))
    return sorted(order[: round(options.share * clients)].tolist())


def corrupt_uploads(
    options: AttackSection,
    attackers: Sequence[int],
    uploads: Sequence[Upload[Any]],
    downs: Mapping[int, Any],
    seed: int,
    number: int,
) -> list[Upload[Any]]:
    """The uploads of round `number`, those of attackers changed. `downs`: what the server sent, by client."""
    if options.kind in ON_DATA:
        return list(uploads)
    honest = {upload.client: upload.message for upload in uploads if upload.client in attackers}
    seen = Round(options, seed, number, len(uploads), honest)
    return [
        upload._replace(message=_corrupted(seen, upload.client, upload.message, downs[upload.client]))
        if upload.client in honest
        else upload
        for upload in uploads
    ]


def _corrupted(seen: Round, client: int, message: Any, down: Any) -> Any:
    """What an attacker sends in place of its message."""
    sent = {name: leaf for name, leaf in leaves(down) if isinstance(leaf, Tensor)}

    def change(name: str, leaf: Tensor | Prototypes) -> Tensor | Prototypes:
        if isinstance(leaf, Prototypes):
            return _CHANGES_OF_PROTOTYPES[seen.options.kind](seen, client, name, leaf)
        if not leaf.dtype.is_floating_point:
            return leaf
        start = sent.get(name)
        start = start if start is not None and start.shape == leaf.shape else torch.zeros_like(leaf)
        return start + _new_way(seen, client, name, leaf - start, leaf)

    return with_changed_leaves(message, change)


def _new_way(seen: Round, client: int, name: str, way: Tensor, leaf: Tensor) -> Tensor:
    """By how much an attacker changes a tensor, in place of `way`. `leaf`: the tensor after honest training."""
    kind = seen.options.kind
    if kind in ("sign_flip", "scale"):
        return strength(seen.options) * (way if kind == "scale" else -way)
    if kind == "random":
        return strength(seen.options) * _noise(seen, client, name, way)
    if kind == "little":
        values = torch.stack([dict(leaves(message))[name] for message in seen.honest.values()])  # type: ignore[misc]
        return values.mean(0) - little_factor(seen) * values.std(0, correction=0) - (leaf - way)
    return way


def _noise(seen: Round, client: int, name: str, like: Tensor) -> Tensor:
    """Gaussian noise with the shape and root mean square of a tensor."""
    generator = draws.generator(seen.seed, f"noise of {name}", seen.number, client)
    size = like.square().mean().sqrt() if like.numel() else 0.0
    return torch.randn(like.shape, generator=generator) * size


def _scaled_prototypes(seen: Round, client: int, name: str, prototypes: Prototypes) -> Prototypes:
    sign = -1 if seen.options.kind == "sign_flip" else 1
    return prototypes._replace(mean=sign * strength(seen.options) * prototypes.mean)


def _random_prototypes(seen: Round, client: int, name: str, prototypes: Prototypes) -> Prototypes:
    held = prototypes.support > 0
    mean = prototypes.mean.clone()
    mean[held] = strength(seen.options) * _noise(seen, client, name, prototypes.mean[held])
    return prototypes._replace(mean=mean)


def _little_prototypes(seen: Round, client: int, name: str, prototypes: Prototypes) -> Prototypes:
    """Of each class that the attacker has: the mean minus z standard deviations over the attackers that have it."""
    parts: list[Any] = [dict(leaves(message))[name] for message in seen.honest.values()]
    means, held = torch.stack([part.mean for part in parts]), torch.stack([part.support > 0 for part in parts])
    weight = held.unsqueeze(-1) / held.sum(0).clamp(min=1).unsqueeze(-1)
    mean = (means * weight).sum(0)
    deviation = ((means - mean).square() * weight).sum(0).sqrt()
    moved = mean - little_factor(seen) * deviation
    return prototypes._replace(mean=torch.where(prototypes.support.unsqueeze(-1) > 0, moved, prototypes.mean))


def _swapped_prototypes(seen: Round, client: int, name: str, prototypes: Prototypes) -> Prototypes:
    order = torch.arange(len(prototypes.mean))
    first, second = seen.options.classes
    order[[first, second]] = order[[second, first]]
    return Prototypes(prototypes.mean[order], prototypes.support[order])


_CHANGES_OF_PROTOTYPES: dict[str, Callable[[Round, int, str, Prototypes], Prototypes]] = {
    "sign_flip": _scaled_prototypes,
    "scale": _scaled_prototypes,
    "little": _little_prototypes,
    "random": _random_prototypes,
    "swap": _swapped_prototypes,
}


def strength(options: AttackSection) -> float:
    """`factor`, or the default of the kind."""
    return options.factor or _STRENGTHS[options.kind]


def little_factor(seen: Round) -> float:
    """z of "A Little Is Enough", Algorithm 3: so that the median is still supported by some good clients."""
    if seen.options.factor:
        return seen.options.factor
    clients, bad = seen.uploads, len(seen.honest)
    supporters = clients // 2 + 1 - bad
    share = (clients - bad - supporters) / max(clients - bad, 1)
    return max(NormalDist().inv_cdf(min(max(share, 0.001), 0.999)), 0.0)


def poison_data(options: AttackSection, data: Examples, classes: int, seed: int, client: int) -> Examples:
    """The training examples of an attacker, in arrays of their own."""
    x, y = data.x[data.index].clone(), data.y[data.index].clone()
    mask = None if data.mask is None else data.mask[data.index].clone()
    if options.kind == "label_flip":
        if mask is None:
            y = classes - 1 - y
        else:
            mask = torch.where(mask == IGNORED, mask, classes - 1 - mask)
    else:
        order = torch.randperm(len(y), generator=draws.generator(seed, "backdoor", 0, client))
        chosen = order[: round(options.poisoned * len(y))]
        x[chosen] = with_trigger(x[chosen], data)
        y[chosen] = options.classes[0]
        if mask is not None:
            mask[chosen] = options.classes[0]
    return replace(data, x=x, y=y, mask=mask, index=torch.arange(len(y)))


def with_trigger(x: Tensor, data: Examples) -> Tensor:
    """Raw inputs [n, ...] with the trigger: the last corner, or the last values, as high as any value of the data."""
    x, side = x.clone(), _TRIGGER_SIDE
    known = data.x[data.x.isfinite()]  # without missing values
    highest = known.amax() if known.numel() else torch.ones(())
    if x.dim() == 4:
        x[..., -side:, -side:] = highest
    else:
        x[..., -side:] = highest
    return x


def wanted_labels(options: AttackSection, labels: Tensor, classes: int) -> Tensor:
    """What a targeted attack wants to be predicted for examples with these labels [n]; -1 where it wants nothing."""
    wanted = torch.full_like(labels, -1)
    first, second = options.classes
    if options.kind == "label_flip":
        wanted = classes - 1 - labels
    elif options.kind == "backdoor":
        wanted = torch.full_like(labels, first)
    elif options.kind == "swap":
        wanted = torch.where(labels == first, second, torch.where(labels == second, first, wanted))
    return torch.where(wanted == labels, -1, wanted)
