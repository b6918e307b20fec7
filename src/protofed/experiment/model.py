"""A trained model of a client or the server, and its predictions for new inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from protofed.engines.threads import one_thread
from protofed.errors import UserError, did_you_mean
from protofed.experiment.unknown import UnknownRule
from protofed.net import EVALUATION_BATCH

if TYPE_CHECKING:
    from protofed.core import Net, Params, Scores
    from protofed.data.table.recipe import Recipe
    from protofed.examples import Examples


@dataclass(frozen=True)
class Model:
    """A client's model, or the server's own model (`client` is None)."""

    client: int | None
    net: Net
    params: Params  # {} for the server, which can predict, but does not say which of its tensors are the net's
    compute_scores: Callable[[Tensor], Scores]  # of normalised inputs
    data: Examples  # training examples of the client (server: of client 0), if loaded, and how to normalise inputs
    labels: tuple[str | int, ...]
    unknown: UnknownRule | None = None  # which inputs are unlike the client's classes
    recipe: Recipe | None = None  # of tables: how rows become inputs
    temperatures: Mapping[str, float] = field(default_factory=dict)
    """By way of predicting: what scores are divided by before they become probabilities; 1 if there is none."""
    not_one_net: str = ""
    """Why no net alone predicts as this model does: it predicts and embeds, but `params` has only the body; "": one
    does."""

    def predict(self, x: Any, by: str = "head") -> np.ndarray:
        """Predictions for raw inputs [n, ...]: an array [n] with the fields `label` and `scores` [classes].

        Raw inputs of tables are the rows of a DataFrame.

        If the net labels pixels, these and the other fields are [height, width] and [height, width, classes].
        By prototype also `distance`, to the nearest prototype. If the model has a rule for it, also `unknown`: whether
        the input is unlike the client's classes.
        """
        self.must_be_finite()
        inputs = self.raw_inputs(x)
        with torch.no_grad(), one_thread():
            size = EVALUATION_BATCH // 16 if self.net.grid else EVALUATION_BATCH  # scores per pixel take much memory
            score_batches, unknown_batches = [], []
            for batch in map(self.data.normalised, inputs.split(size)):
                score_batches.append(self._scores_by(by, self.compute_scores(batch)))
                if self.unknown:
                    unknown_batches.append(self.unknown.exceeded(self.unknown_scores(self.unknown, batch)))
        scores = torch.cat([torch.zeros(0, len(self.labels)), *score_batches]).numpy()
        if self.net.grid:
            scores = scores.reshape(len(inputs), *self.net.shape[1:], -1)
        best, names = scores.argmax(-1), np.array(self.labels)
        columns: dict[str, np.ndarray] = {"label": names[best], "scores": scores}
        if by.startswith("prototype"):
            columns["distance"] = -scores.max(-1, initial=-np.inf)
        if self.unknown:
            columns["unknown"] = torch.cat([torch.zeros(0, dtype=torch.bool), *unknown_batches]).numpy()
        table = np.zeros(len(scores), [(name, column.dtype, column.shape[1:]) for name, column in columns.items()])
        for name, column in columns.items():
            table[name] = column
        return table

    def raw_inputs(self, x: Any) -> Tensor:
        """Raw inputs [n, ...] as a tensor, if their shape is right; of a DataFrame, those that the recipe makes."""
        if self.recipe is None:
            return self.data.checked_inputs(x)
        if not hasattr(x, "columns"):
            columns = ", ".join(step.name for step in self.recipe.steps)
            raise UserError(
                f"This model takes rows of a table. Give a DataFrame (or a CSV file) with the columns {columns}."
            )
        return self.data.checked_inputs(self.recipe.transform(x, "The input"))

    def ways(self) -> list[str]:
        """The ways of predicting that the model has."""
        with torch.no_grad():
            return list(self.compute_scores(torch.zeros(1, *self.data.shape)))

    def probabilities(self, predicted: np.ndarray, by: str = "head") -> np.ndarray:
        """The probabilities [n, classes] of predictions made this way: the softmax of scores / temperature."""
        scores = predicted["scores"].astype(np.float64) / self.temperatures.get(by, 1.0)
        shifted = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray(shifted / shifted.sum(-1, keepdims=True))

    def must_be_finite(self) -> None:
        """Raise an error if the run has diverged."""
        if not all(torch.isfinite(value).all() for value in self.params.values()):
            raise UserError("The weights of this model are not finite: its run has diverged. Try a smaller train.lr.")

    def must_be_one_net(self) -> None:
        """Raise an error if no net alone predicts as this model does."""
        if self.not_one_net:
            raise UserError(self.not_one_net)

    def _scores_by(self, by: str, scores: Scores) -> Tensor:
        """The scores of one way of predicting; an error if the model does not have it."""
        if by not in scores:
            raise UserError(f'This model cannot predict by "{by}". {did_you_mean(by, scores)}')
        return scores[by]

    def unknown_scores(self, rule: UnknownRule, x: Tensor) -> Tensor:
        """How unlike the client's classes normalised inputs are [n], by this rule."""
        return rule.scores(self.compute_scores(x), lambda: self.net.embed(self.params, x))
