"""Messages and states as flat, named tensors: how they are stored and sent, and how large they are.

A message is a tensor, `Prototypes`, or a dict or NamedTuple of these. The method declares its type; messages are read
back by that type, and nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import torch
from safetensors.torch import save
from torch import Tensor

from protofed.averages import AverageRule, current_rule
from protofed.errors import UserError
from protofed.net import Params
from protofed.prototypes import Prototypes

__all__ = [
    "KeptModel",
    "Nothing",
    "Size",
    "Weights",
    "average",
    "flatten",
    "group_by_first_name",
    "is_readable",
    "leaves",
    "message_size",
    "share_equal_messages",
    "to_bytes",
    "unflatten",
    "with_changed_leaves",
    "with_sorted_names",
    "wrong_leaf",
]

Nothing = tuple[()]
"""The type of an empty message or state."""


class Weights(NamedTuple):
    """The parameters of a model, as a message or as the state of the server."""

    params: Params


class KeptModel(NamedTuple):
    """A model that stays with its client."""

    params: Params


def average(parts: Iterable[Params], weights: Sequence[float]) -> Params:
    """The weighted average of several models, summed in double precision; the plain average if all weights are 0.

    It looks at one model after the other, so that they need not all be in memory. Inside `averages.averaging_by`, its
    rule replaces the average and gets all of them.

    >>> average([{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}], [1, 3])["w"].item()
    3.0
    """
    total = float(sum(weights))
    if not math.isfinite(total):
        raise UserError(f"The weights of an average must be finite; got {list(weights)}.")
    shares = [weight / total for weight in weights] if total > 0 else [1 / len(weights)] * len(weights)
    if rule := current_rule():
        return _average_by_rule(rule, list(parts), shares)
    sums: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    for part, share in zip(parts, shares, strict=True):
        dtypes = dtypes or {name: tensor.dtype for name, tensor in part.items()}
        for name in dtypes:
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.double)) + part[name].double() * share
    return {
        name: (sums[name] if dtype.is_floating_point else sums[name].round()).to(dtype)
        for name, dtype in dtypes.items()
    }


def _average_by_rule(rule: AverageRule, parts: Sequence[Params], shares: Sequence[float]) -> Params:
    """One model, whose floating-point tensors are one vector for the rule; of whole numbers (counters) the median."""
    names = sorted(name for name, value in parts[0].items() if value.dtype.is_floating_point)
    vectors = torch.stack([torch.cat([part[name].double().reshape(-1) for name in names]) for part in parts])
    combined = rule.of_models(vectors, torch.tensor(shares, dtype=torch.double))
    pieces = dict(zip(names, combined.split([parts[0][name].numel() for name in names]), strict=True))
    return {
        name: pieces[name].reshape(value.shape).to(value.dtype)
        if name in pieces
        else torch.stack([part[name] for part in parts]).median(0).values
        for name, value in parts[0].items()
    }


class Size(NamedTuple):
    """The size of a message."""

    params: int = 0  # numbers in model weights and prototypes
    counts: int = 0  # numbers of examples, one per prototype
    bytes: int = 0  # everything, including the positions of the prototypes

    def __add__(self, other: object) -> Size:
        return Size(*(a + b for a, b in zip(self, other, strict=True))) if isinstance(other, Size) else NotImplemented


def share_equal_messages(messages: dict[int, Any]) -> dict[int, Any]:
    """The messages by client, where messages made of the same tensor objects are replaced by one object."""
    by_identity: dict[Any, Any] = {}
    return {client: by_identity.setdefault(_identity(message), message) for client, message in messages.items()}


def _identity(tree: Any) -> Any:
    """A key that is equal for messages with the same tensor objects under the same names."""
    if isinstance(tree, dict):
        return tuple((key, _identity(tree[key])) for key in sorted(tree))
    return tuple(map(_identity, tree)) if isinstance(tree, tuple) else id(tree)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor | Prototypes]]:
    """The tensors and prototypes of a message, with their names joined by "/"."""
    if isinstance(tree, Tensor | Prototypes):
        yield prefix, tree
        return
    if isinstance(tree, dict):
        parts = tree
    elif hasattr(tree, "_asdict"):
        parts = tree._asdict()
    elif tree == ():
        parts = {}
    else:
        raise TypeError(
            "a message must consist of tensors, Prototypes, dicts and NamedTuples, "
            f"got {type(tree).__name__} at {prefix!r}"
        )
    for key, part in parts.items():
        yield from leaves(part, _joined(prefix, str(key)))


def wrong_leaf(tree: Any, prefix: str = "") -> tuple[str, Any] | None:
    """The name and value of the first part of a tree that cannot be part of a message; None if there is none."""
    if isinstance(tree, Tensor | Prototypes) or (isinstance(tree, tuple) and not tree):
        return None
    if not isinstance(tree, dict) and not hasattr(tree, "_asdict"):
        return prefix, tree
    parts = tree if isinstance(tree, dict) else tree._asdict()
    found = (wrong_leaf(part, _joined(prefix, str(key))) for key, part in parts.items())
    return next(filter(None, found), None)


def with_changed_leaves(tree: Any, change: Callable[[str, Any], Any], prefix: str = "") -> Any:
    """A message with every tensor and all prototypes replaced by what `change` returns for their name and them."""
    if isinstance(tree, Tensor | Prototypes):
        return change(prefix, tree)
    parts = tree if isinstance(tree, dict) else tree._asdict() if hasattr(tree, "_asdict") else {}
    changed = {key: with_changed_leaves(part, change, _joined(prefix, str(key))) for key, part in parts.items()}
    if isinstance(tree, dict):
        return changed
    return type(tree)(**changed) if changed else tree


def with_sorted_names(tree: Any) -> Any:
    """The same message or state, with the names of its dicts in the order that they have after `unflatten`."""
    if isinstance(tree, dict):
        return {name: with_sorted_names(tree[name]) for name in sorted(tree, key=str)}
    if isinstance(tree, Prototypes) or not hasattr(tree, "_make"):
        return tree
    return tree._make(map(with_sorted_names, tree))


def flatten(tree: Any) -> dict[str, Tensor]:
    """The tensors of a message by their names, joined by "/". Prototypes are packed: only rows with support."""
    flat: dict[str, Tensor] = {}
    for name, leaf in leaves(tree):
        if isinstance(leaf, Prototypes):
            flat |= {_joined(name, key): value for key, value in leaf.pack().items()}
        else:
            flat[name] = leaf.contiguous()
    return flat


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def to_bytes(tree: Any) -> bytes:
    """A message or state in the safetensors format. Tensors that share memory are written separately."""
    flat: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, value in flatten(tree).items():
        address = value.untyped_storage().data_ptr()
        flat[name] = value.clone() if address in addresses else value
        addresses.add(address)
    return save(flat)


def unflatten(declared: Any, flat: dict[str, Tensor]) -> Any:
    """The inverse of `flatten` for a declared type; an error if a name is not part of the type.

    The names of a dict are sorted: safetensors reads the same bytes in another order each time.
    """
    parts = group_by_first_name(flat)
    if get_origin(declared) is dict:
        inner = get_args(declared)[1]
        return {key: unflatten(inner, parts[key]) for key in sorted(parts)}
    fields = _field_types(declared)
    if unknown := parts.keys() - fields.keys():
        raise ValueError(f"a {getattr(declared, '__name__', declared)} has no {min(unknown)!r}")
    if declared is Tensor:
        return flat[""]
    if declared is Prototypes:
        return Prototypes.unpack(flat)
    if declared == Nothing:
        return ()
    return declared(**{key: unflatten(inner, parts.get(key, {})) for key, inner in fields.items()})


def _field_types(declared: Any) -> dict[str, Any]:
    """The first names that the tensors of a declared type may have, and their types."""
    if declared is Tensor:
        return {"": Tensor}
    if declared is Prototypes:
        return dict.fromkeys(("mean", "support", "rows", "shape"), Tensor)
    return {} if declared == Nothing else get_type_hints(declared)


def group_by_first_name(flat: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors grouped by the first part of their names, which is removed."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        first, _, rest = name.partition("/")
        groups.setdefault(first, {})[rest] = value
    return groups


def is_readable(message: Any) -> bool:
    """Whether a message has a form that can be sent."""
    try:
        flatten(message)
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    return True


def message_size(message: Any) -> Size:
    """The size of a message as it is sent.

    >>> message_size(Prototypes.of(torch.ones(4, 50), torch.tensor([0, 0, 7, 7]), classes=10))
    Size(params=100, counts=2, bytes=428)
    """
    total = Size()
    for _, leaf in leaves(message):
        tensors = leaf.pack() if isinstance(leaf, Prototypes) else {"": leaf}
        num_bytes = sum(value.numel() * value.element_size() for value in tensors.values())
        if isinstance(leaf, Prototypes):
            total += Size(tensors["mean"].numel(), tensors["support"].numel(), num_bytes)
        else:
            total += Size(params=leaf.numel(), bytes=num_bytes)
    return total
