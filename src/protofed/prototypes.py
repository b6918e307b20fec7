"""Prototypes: class centres in embedding space, each with the number of examples it was computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from protofed.averages import current_rule

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Pooling", "Prototypes", "first_prototypes", "mean_over_clients", "safe_divide"]

Pooling = Literal["clients", "examples", "written"]
"""How the prototypes of several clients are combined; see `Prototypes.pool`."""


class Prototypes(NamedTuple):
    """One or several centres (modes) per class. A class without examples has support 0 and a mean of zeros."""

    mean: Tensor  # [classes, modes, dim]
    support: Tensor  # [classes, modes]: the number of examples behind each mean

    @classmethod
    def empty(cls, classes: int, dim: int, modes: int = 1) -> Prototypes:
        """Prototypes with support 0 for every class."""
        return cls(torch.zeros(classes, modes, dim), torch.zeros(classes, modes))

    @classmethod
    def of(cls, z: Tensor, y: Tensor, classes: int) -> Prototypes:
        """FedProto Eq. (3): the mean embedding per class, from embeddings [n, dim] and labels [n].

        >>> z = torch.tensor([[0.0, 2.0], [2.0, 4.0], [5.0, 5.0]])
        >>> Prototypes.of(z, torch.tensor([0, 0, 2]), classes=3).mean.squeeze(1).tolist()
        [[1.0, 3.0], [0.0, 0.0], [5.0, 5.0]]
        """
        sums = z.new_zeros(classes, z.shape[-1]).index_add_(0, y, z)
        counts = z.new_zeros(classes).index_add_(0, y, z.new_ones(len(y)))
        return cls.from_sums(sums, counts)

    @classmethod
    def from_sums(cls, sums: Tensor, counts: Tensor) -> Prototypes:
        """The mean embedding per class, from sums of embeddings [classes, dim] and numbers of examples [classes]."""
        return cls(safe_divide(sums, counts.unsqueeze(-1)).unsqueeze(1), counts.unsqueeze(1))

    @classmethod
    def pool(cls, parts: Sequence[Prototypes], by: Pooling = "clients") -> Prototypes:
        """FedProto Eq. (6): one prototype per class, combined from the clients that have examples of the class.

        `clients`: the plain mean over clients, as in the authors' code. `examples`: weights |D_ij| / N_j, which sum to
        1, as in the paper's appendix. `written`: Eq. (6) literally, which also divides by the number of clients.
        Inside `averages.averaging_by`, its rule replaces the weighted mean.
        """
        support = torch.stack([part.support for part in parts])
        has_class = (support > 0).to(support.dtype)
        mean = torch.stack([part.single() for part in parts]).masked_fill(support.unsqueeze(-1) == 0, 0)
        num_clients, total = has_class.sum(0), support.sum(0)
        weight = safe_divide(has_class, num_clients) if by == "clients" else safe_divide(support, total)
        if by == "written":
            weight = safe_divide(weight, num_clients)
        if rule := current_rule():
            combined = rule.of_prototypes(mean[:, :, 0], weight[:, :, 0]).unsqueeze(1)
            return cls(combined.to(mean.dtype), total)
        return cls((mean * weight.unsqueeze(-1)).sum(0), total)

    def of_classes(self, mask: Tensor) -> Prototypes:
        """The prototypes of the classes where the mask [classes] is true; the other classes get support 0."""
        return Prototypes(
            torch.where(mask[:, None, None], self.mean, 0.0), torch.where(mask[:, None], self.support, 0.0)
        )

    def single(self) -> Tensor:
        """The means [classes, 1, dim]; an error if there are several per class."""
        if self.mean.shape[1] != 1:
            raise ValueError(f"this needs one prototype per class, got {self.mean.shape[1]}")
        return self.mean

    def or_else(self, other: Prototypes) -> Prototypes:
        """These prototypes, and those of `other` where the support is 0."""
        seen = self.support > 0
        return Prototypes(
            torch.where(seen.unsqueeze(-1), self.mean, other.mean), torch.where(seen, self.support, other.support)
        )

    def lookup(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """For labels [n]: the prototype of each label's class [n, dim], and whether it has support [n], as 0 or 1."""
        return self.single()[y, 0], (self.support[y, 0] > 0).to(self.mean.dtype)

    def distances(self, z: Tensor) -> Tensor:
        """L2 distances [n, classes] from embeddings [n, dim] to the nearest prototype of each class; inf if unseen."""
        classes, modes, dim = self.mean.shape
        distances = torch.cdist(z, self.mean.reshape(-1, dim), compute_mode="donot_use_mm_for_euclid_dist")
        return distances.reshape(-1, classes, modes).masked_fill(self.support == 0, torch.inf).amin(-1)

    def pack(self) -> dict[str, Tensor]:
        """What is sent or stored: only the rows with support, and their positions."""
        rows = self.support.reshape(-1).nonzero().squeeze(1)
        return {
            "mean": self.mean.reshape(-1, self.mean.shape[-1])[rows],
            "support": self.support.reshape(-1)[rows],
            "rows": rows.to(torch.int32),
            "shape": torch.tensor(self.mean.shape, dtype=torch.int32),
        }

    @classmethod
    def unpack(cls, packed: dict[str, Tensor]) -> Prototypes:
        """The inverse of `pack`; an error for tensors that `pack` cannot return."""
        shape, rows = packed["shape"].tolist(), packed["rows"].long()
        if (
            len(shape) != 3
            or min(shape) < 0
            or packed["mean"].shape != (len(rows), shape[2])
            or packed["support"].shape != rows.shape
        ):
            raise ValueError(
                f"prototypes of shape {shape} do not match means of shape {tuple(packed['mean'].shape)} and "
                f"support of shape {tuple(packed['support'].shape)} for {len(rows)} rows"
            )
        classes, modes, dim = shape
        if len(rows) and (rows.min() < 0 or rows.max() >= classes * modes or len(rows.unique()) < len(rows)):
            raise ValueError(f"prototypes of shape {shape} cannot have the rows {rows.tolist()}")
        mean = packed["mean"].new_zeros(classes * modes, dim).index_copy_(0, rows, packed["mean"])
        support = packed["support"].new_zeros(classes * modes).index_copy_(0, rows, packed["support"])
        return cls(mean.reshape(classes, modes, dim), support.reshape(classes, modes))


def mean_over_clients(parts: Sequence[Prototypes]) -> Tensor:
    """The mean prototypes [classes, dim] over clients, in double precision; one without a class counts with 0.

    Clients without any prototype do not count. Inside `averages.averaging_by`, its rule combines the prototypes of the
    clients that have the class.
    """
    parts = [part for part in parts if part.support.any()] or parts
    means = torch.stack([part.single()[:, 0] for part in parts]).double()
    if rule := current_rule():
        has_class = torch.stack([part.support[:, 0] > 0 for part in parts])
        return rule.of_prototypes(means, has_class.double() / len(parts))
    return means.mean(0)


def first_prototypes(state: Any) -> Prototypes | None:
    """The first prototypes in a state, or None."""
    if isinstance(state, Prototypes):
        return state
    return next(filter(None, map(first_prototypes, state)), None) if isinstance(state, tuple) else None


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; the numerator itself where the denominator is not positive."""
    return numerator / torch.where(denominator > 0, denominator, 1)
