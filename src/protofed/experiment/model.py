"""A model as a run left it: what a client, or the server, answers to new inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofed.engines.threads import one_thread
from protofed.errors import UserError, did_you_mean
from protofed.net import EVALUATE

if TYPE_CHECKING:
    from protofed.core import Net, Params, Scores
    from protofed.examples import Examples

Reach = list[float | None]
"""For each class the largest distance of a training example to its prototype; None: the client had no such example."""


@dataclass(frozen=True)
class Model:
    """A client's model, or the server's own (`client` is None)."""

    client: int | None
    net: Net
    params: Params  # {}: the server's; it answers, but which of its tensors are the net's is the method's secret
    answer: Callable[[Tensor], Scores]
    data: Examples  # its own training examples, if they are here; how inputs are normalised
    labels: tuple[str | int, ...]
    reach: Reach | None = None

    def predict(self, x: Any, by: str = "head") -> np.ndarray:
        """For raw inputs [n, ...] an array [n] with the fields `label` and `scores` [classes]; by prototype also
        `distance`, to the nearest one, and `unknown`: is it farther than that class ever was in training?"""
        self.must_be_finite()
        inputs = self.data.checked(x)
        with torch.no_grad(), one_thread():
            found = [self.way(self.answer(self.data.normalised(part)), by) for part in inputs.split(EVALUATE)]
        scores = torch.cat([torch.zeros(0, len(self.labels)), *found]).numpy()
        best, names = scores.argmax(-1), np.array(self.labels)
        out: dict[str, np.ndarray] = {"label": names[best], "scores": scores}
        if by.startswith("prototype"):
            out["distance"] = -scores.max(-1, initial=-np.inf)
            if self.reach:
                limit = np.array([-1.0 if far is None else far for far in self.reach], np.float32)
                slack = 1 + 1e-5  # the same input alone and in a batch differs in the last bits
                out["unknown"] = ~(out["distance"] <= slack * limit[best])
        table = np.zeros(len(scores), [(name, column.dtype, column.shape[1:]) for name, column in out.items()])
        for name, column in out.items():
            table[name] = column
        return table

    def must_be_finite(self) -> None:
        """Refuse a model of a run that has diverged."""
        if not all(torch.isfinite(value).all() for value in self.params.values()):
            raise UserError("This model's weights are not finite: its run has diverged. Try a smaller train.lr.")

    def way(self, scores: Scores, by: str) -> Tensor:
        if by not in scores:
            raise UserError(f"This model cannot predict by {by!r}. {did_you_mean(by, scores)}")
        return scores[by]

    @torch.no_grad()
    def farthest(self) -> Reach | None:
        """The `reach` of its own training examples, if it can predict by prototype."""
        far = torch.full((len(self.labels),), -torch.inf)
        for x, y in self.data.batches(EVALUATE):
            scores = self.answer(x)
            if "prototype" not in scores:
                return None
            far = far.scatter_reduce(0, y, -scores["prototype"].gather(1, y.unsqueeze(1)).squeeze(1), "amax")
        return [float(value) if torch.isfinite(value) else None for value in far]
