"""Prototypes: what a class looks like in embedding space, with how many examples stand behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

Pooling = Literal["clients", "examples", "written"]


class Prototypes(NamedTuple):
    """One or several centres per class. A class nobody has seen has support 0 and a mean of zeros, never a `None`."""

    mean: Tensor  # [classes, modes, dim]
    support: Tensor  # [classes, modes]: the number of examples behind each

    @classmethod
    def empty(cls, classes: int, dim: int, modes: int = 1) -> Prototypes:
        """No class seen yet."""
        return cls(torch.zeros(classes, modes, dim), torch.zeros(classes, modes))

    @classmethod
    def of(cls, z: Tensor, y: Tensor, classes: int) -> Prototypes:
        """FedProto Eq. (3): the mean embedding of each class, from embeddings [n, dim] and labels [n].

        >>> z = torch.tensor([[0.0, 2.0], [2.0, 4.0], [5.0, 5.0]])
        >>> Prototypes.of(z, torch.tensor([0, 0, 2]), classes=3).mean.squeeze(1).tolist()
        [[1.0, 3.0], [0.0, 0.0], [5.0, 5.0]]
        """
        sums = z.new_zeros(classes, z.shape[-1]).index_add_(0, y, z)
        counts = z.new_zeros(classes).index_add_(0, y, z.new_ones(len(y)))
        return cls.from_sums(sums, counts)

    @classmethod
    def from_sums(cls, sums: Tensor, counts: Tensor) -> Prototypes:
        """The same from the sum of embeddings [classes, dim] and the number of examples [classes] of each class."""
        return cls(ratio(sums, counts.unsqueeze(-1)).unsqueeze(1), counts.unsqueeze(1))

    @classmethod
    def pool(cls, parts: Sequence[Prototypes], by: Pooling = "clients") -> Prototypes:
        """FedProto Eq. (6): one prototype per class from those of the clients that have the class.

        `clients`: their plain mean, as in the authors' code. `examples`: weights |D_ij| / N_j, which sum to 1, as in
        the paper's appendix. `written`: Eq. (6) to the letter, which divides by the number of clients once more.
        """
        support = torch.stack([part.support for part in parts])
        holds = (support > 0).to(support.dtype)
        mean = torch.stack([part.single() for part in parts]).masked_fill(support.unsqueeze(-1) == 0, 0)
        holders, total = holds.sum(0), support.sum(0)
        weight = ratio(holds, holders) if by == "clients" else ratio(support, total)
        if by == "written":
            weight = ratio(weight, holders)
        return cls((mean * weight.unsqueeze(-1)).sum(0), total)

    def of_classes(self, held: Tensor) -> Prototypes:
        """Those of the classes [classes] that are true; the others as if nobody had seen them."""
        return Prototypes(
            torch.where(held[:, None, None], self.mean, 0.0), torch.where(held[:, None], self.support, 0.0)
        )

    def single(self) -> Tensor:
        """The means, where there is one per class: several are neither averaged nor looked up by their number."""
        if self.mean.shape[1] != 1:
            raise ValueError(f"this wants one prototype per class, got {self.mean.shape[1]}")
        return self.mean

    def or_else(self, other: Prototypes) -> Prototypes:
        """These, and for classes they have not seen those of `other`."""
        seen = self.support > 0
        return Prototypes(
            torch.where(seen.unsqueeze(-1), self.mean, other.mean), torch.where(seen, self.support, other.support)
        )

    def lookup(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """For labels [n] the (single) prototype of each one's class [n, dim], and whether there is one [n], 0 or 1."""
        return self.single()[y, 0], (self.support[y, 0] > 0).to(self.mean.dtype)

    def distances(self, z: Tensor) -> Tensor:
        """L2 distances of embeddings [n, dim] to the nearest prototype of each class [n, classes]; unseen: inf."""
        classes, modes, dim = self.mean.shape
        every = torch.cdist(z, self.mean.reshape(-1, dim), compute_mode="donot_use_mm_for_euclid_dist")
        return every.reshape(-1, classes, modes).masked_fill(self.support == 0, torch.inf).amin(-1)

    def pack(self) -> dict[str, Tensor]:
        """What goes on the wire: only the rows with support, and which rows they are."""
        rows = self.support.reshape(-1).nonzero().squeeze(1)
        return {
            "mean": self.mean.reshape(-1, self.mean.shape[-1])[rows],
            "support": self.support.reshape(-1)[rows],
            "rows": rows.to(torch.int32),
            "shape": torch.tensor(self.mean.shape, dtype=torch.int32),
        }

    @classmethod
    def unpack(cls, packed: dict[str, Tensor]) -> Prototypes:
        """The inverse of `pack`; refuses what `pack` cannot have made."""
        shape, rows = packed["shape"].tolist(), packed["rows"].long()
        if (
            len(shape) != 3
            or min(shape) < 0
            or packed["mean"].shape != (len(rows), shape[2])
            or packed["support"].shape != rows.shape
        ):
            raise ValueError(
                f"prototypes of shape {shape} do not fit {tuple(packed['mean'].shape)} means for {len(rows)} rows"
            )
        classes, modes, dim = shape
        if len(rows) and (rows.min() < 0 or rows.max() >= classes * modes or len(rows.unique()) < len(rows)):
            raise ValueError(f"prototypes of shape {shape} cannot have the rows {rows.tolist()}")
        mean = packed["mean"].new_zeros(classes * modes, dim).index_copy_(0, rows, packed["mean"])
        support = packed["support"].new_zeros(classes * modes).index_copy_(0, rows, packed["support"])
        return cls(mean.reshape(classes, modes, dim), support.reshape(classes, modes))


def first_prototypes(state: Any) -> Prototypes | None:
    """The first prototypes in a state, if it has any."""
    if isinstance(state, Prototypes):
        return state
    return next(filter(None, map(first_prototypes, state)), None) if isinstance(state, tuple) else None


def ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b; where b is 0, a."""
    return a / torch.where(b > 0, b, 1)
