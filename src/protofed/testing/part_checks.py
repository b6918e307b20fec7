"""`check_net` and `check_partition`: a net trains, and a partition divides the examples that there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch

from protofed.batch import Batch
from protofed.core import cross_entropy
from protofed.data.partitions import PARTITIONS
from protofed.data.partitions.base import Labels, check_holdings
from protofed.draws import DerivedDropout, generator, random_state
from protofed.errors import ConfigError, UserError
from protofed.experiment.options import check
from protofed.nets import NETS, make_net
from protofed.plugins import label
from protofed.training import in_training


def _made(section: str, registry: Any, part: Any, options: Mapping[str, Any]) -> tuple[str, Any]:
    """The short name and the object of a class, a name, or an object with its options."""
    if is_dataclass(part) and not isinstance(part, type):
        return type(part).__name__, part
    name, kind = registry.find(part, section)
    problems: list[str] = []
    made = check(section, kind, options, problems, label(name))
    if made is None:
        raise ConfigError(problems)
    return label(name), made


def check_net(
    net: Any, options: Mapping[str, Any] | None = None, *, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10
) -> list[str]:
    """Check a net for inputs of a shape: a name such as "./mine.py:Net", a module class, a function, or a design."""
    name, design = _made("net", NETS, net, options or {})
    try:
        built = make_net(name, design, shape, classes)
    except UserError:
        raise
    except Exception as problem:  # a net of another author may raise anything
        raise UserError(f"{name} cannot be built for inputs of shape {shape}: {problem}") from problem
    params, again = built.init(generator("a")), built.init(generator("a"))
    if any(not torch.equal(params[key], again[key]) for key in params):
        raise UserError(f"{name} starts from other weights for the same seed. Let torch's layers draw their weights.")
    x = torch.randn(4, *shape, generator=generator("x"))
    y = torch.zeros(4 if not built.grid else 4 * shape[1] * shape[2], dtype=torch.long)
    trainable = {key: value.clone().requires_grad_(key in built.trainable) for key, value in params.items()}
    with in_training(built), DerivedDropout(torch.tensor(0)):
        z, logits = built(trainable, x)
        loss = cross_entropy(logits, Batch(x, y, torch.ones(len(y))))
    if z.dim() != 2 or logits.shape != (len(y), classes):
        raise UserError(
            f"{name} returns embeddings {list(z.shape)} and logits {list(logits.shape)} for 4 inputs; must be [4, dim] "
            f"and [4, {classes}]."
        )
    names = [key for key in trainable if trainable[key].requires_grad]
    grads = torch.autograd.grad(loss, [trainable[key] for key in names], allow_unused=True)
    unused = [key for key, grad in zip(names, grads, strict=True) if grad is None]
    if unused:
        raise UserError(f"{name}: the parameter {unused[0]} has no influence on the logits. Use it, or remove it.")
    if not all(torch.isfinite(grad).all() for grad in grads):
        raise UserError(f"{name} has gradients that are not finite for standard normal inputs.")
    numbers = sum(value.numel() for value in params.values())
    stack = "trains alone, not in stacks" if built.trains_alone else "can be stacked"
    return [
        f"{name} is a net: {numbers:,} numbers, embeddings of size {built.dim}, {classes} logits.",
        "It starts from the same weights for the same seed, and every parameter trains.",
        f"It {stack}.",
    ]


def check_partition(partition: Any, options: Mapping[str, Any] | None = None, *, clients: int = 5) -> list[str]:
    """Check a partition: a name such as "./mine.py:Mine", a class, or an object with its options."""
    name, made = _made("partition", PARTITIONS, partition, options or {})
    draw = random_state("check partition")
    labels = Labels(draw.randint(0, 4, 400), draw.randint(0, 4, 120), 4)
    before = _generator_states()
    try:
        first, second, other = (made.split(labels, clients, seed) for seed in (0, 0, 1))
    except UserError:
        raise
    except Exception as problem:  # a partition of another author may raise anything
        raise UserError(f"{name}.split failed with {type(problem).__name__}: {problem}") from problem
    if _generator_states() != before:
        raise UserError(f"{name}.split draws from a global generator. Use protofed.draws.random_state(seed, 'mine').")
    holdings = check_holdings(first, labels, clients, name)
    if not all(np.array_equal(*both) for pair in zip(first, second, strict=True) for both in zip(*pair, strict=True)):
        raise UserError(f"{name}.split gives another partition for the same seed. It may depend on its arguments only.")
    every = np.concatenate([part.train for part in holdings])
    shared = len(every) - len(np.unique(every))
    same = all(np.array_equal(one.train, two.train) for one, two in zip(first, other, strict=True))
    return [
        f"{name} is a partition: {len(holdings)} clients with {min(len(part.train) for part in holdings)} to "
        f"{max(len(part.train) for part in holdings)} of {len(labels.train)} training examples.",
        "The same seed gives the same partition"
        + (", and so does another seed." if same else ", another seed another."),
        f"{shared} examples are with several clients." if shared else "No training example is with two clients.",
    ]


def _generator_states() -> tuple[bytes, ...]:
    """The states of the global generators of numpy and torch."""
    state: Any = np.random.get_state()
    return state[1].tobytes(), torch.get_rng_state().numpy().tobytes()
