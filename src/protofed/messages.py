"""Messages and states as flat, named tensors: what a file or a wire carries, and what it costs.

A message is a tensor, `Prototypes`, a dict, or a NamedTuple of such; its type is declared by the method, so it is read
back by type and nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from safetensors.torch import save
from torch import Tensor

from protofed.net import Params
from protofed.prototypes import Prototypes

Nothing = tuple[()]
"""The type of a message or state with nothing in it."""


class Weights(NamedTuple):
    """The parameters of a model, as a message or as the state of the server."""

    params: Params


class KeptModel(NamedTuple):
    """A model that stays with its client."""

    params: Params


class Size(NamedTuple):
    """What a message costs."""

    params: int = 0  # numbers that are model weights or prototypes
    counts: int = 0  # numbers that say how many examples stand behind a prototype
    bytes: int = 0  # everything, with the rows' places

    def __add__(self, other: object) -> Size:
        return Size(*(a + b for a, b in zip(self, other, strict=True))) if isinstance(other, Size) else NotImplemented


def share_equal_messages(messages: dict[int, Any]) -> dict[int, Any]:
    """The messages; those that are made of the very same tensors are one object."""
    first: dict[Any, Any] = {}
    return {client: first.setdefault(_identity(message), message) for client, message in messages.items()}


def _identity(tree: Any) -> Any:
    """The same for trees of the same tensors in the same places."""
    if isinstance(tree, dict):
        return tuple((key, _identity(tree[key])) for key in sorted(tree))
    return tuple(map(_identity, tree)) if isinstance(tree, tuple) else id(tree)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor | Prototypes]]:
    """The tensors and the prototypes of a message, by "/"-joined names."""
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
            f"a message is made of tensors, Prototypes, dicts and NamedTuples, got {type(tree).__name__} at {prefix!r}"
        )
    for key, part in parts.items():
        yield from leaves(part, _joined(prefix, str(key)))


def flatten(tree: Any) -> dict[str, Tensor]:
    """Tensors by "/"-joined names; of prototypes only the rows with support."""
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
    """A message or state as a safetensors file; a tensor that is there twice is written twice."""
    flat: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in flatten(tree).items():
        place = value.untyped_storage().data_ptr()
        flat[name] = value.clone() if place in seen else value
        seen.add(place)
    return save(flat)


def unflatten(kind: Any, flat: dict[str, Tensor]) -> Any:
    """The inverse of `flatten` for a declared type; what does not fit the type is an error, never dropped."""
    parts = group_by_first_name(flat)
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        return {key: unflatten(inner, part) for key, part in parts.items()}
    kinds = _parts_of(kind)
    if strange := parts.keys() - kinds.keys():
        raise ValueError(f"a {getattr(kind, '__name__', kind)} has no {min(strange)!r}")
    if kind is Tensor:
        return flat[""]
    if kind is Prototypes:
        return Prototypes.unpack(flat)
    if kind == Nothing:
        return ()
    return kind(**{key: unflatten(inner, parts.get(key, {})) for key, inner in kinds.items()})


def _parts_of(kind: Any) -> dict[str, Any]:
    """The names that a declared type may have below it, and their types."""
    if kind is Tensor:
        return {"": Tensor}
    if kind is Prototypes:
        return dict.fromkeys(("mean", "support", "rows", "shape"), Tensor)
    return {} if kind == Nothing else get_type_hints(kind)


def group_by_first_name(flat: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The entries under each first name, with that name taken off."""
    groups: dict[str, dict[str, Tensor]] = {}
    for name, value in flat.items():
        first, _, rest = name.partition("/")
        groups.setdefault(first, {})[rest] = value
    return groups


def message_size(message: Any) -> Size:
    """Numbers and bytes of a message as it goes on the wire.

    >>> import torch
    >>> message_size(Prototypes.of(torch.ones(4, 50), torch.tensor([0, 0, 7, 7]), classes=10))
    Size(params=100, counts=2, bytes=428)
    """
    total = Size()
    for _, leaf in leaves(message):
        tensors = leaf.pack() if isinstance(leaf, Prototypes) else {"": leaf}
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        if isinstance(leaf, Prototypes):
            total += Size(tensors["mean"].numel(), tensors["support"].numel(), size)
        else:
            total += Size(params=leaf.numel(), bytes=size)
    return total
