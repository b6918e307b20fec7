"""The rounds of a deployed federation, in which clients test the server's model if the server has no test set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from protofed.deploy.secure_engine import SecureRemote
from protofed.engines.flower.remote import Remote
from protofed.experiment.pixels import server_overlap_columns
from protofed.experiment.results import RoundRow
from protofed.experiment.runner import Runner
from protofed.experiment.server_model import server_columns, server_predictor


class DeployedRunner(Runner):
    """A run whose clients are other machines."""

    engine: Remote

    def connect(self) -> None:
        """Let the engine ask for what it sends to clients."""
        self.engine.server_state = self._state_to_test
        self.engine.oldest = self.checkpoints.oldest
        if isinstance(self.engine, SecureRemote):
            self.safeguards.secure.summed = self.engine.summed_upload

    def resume(self) -> None:
        """Continue the run. The engine learns who has uploaded before, so that it notices a state that was lost."""
        super().resume()
        self.engine.trained |= {
            client for row in self.rounds for client in row["clients"] if str(client) not in row["rejected"]
        }

    def _state_to_test(self) -> Any:
        """The server's state if clients are to test its model: it has one, and the server cannot test it alone."""
        members = self.members
        alone = bool(members.balanced) and not any(part.own for part in members.parts)
        if (alone and not self.config.eval.training_loss) or not self._has_model():
            return None
        return self.method.model_state(self.server)

    def _has_model(self) -> bool:
        """Whether the server has a model of its own."""
        predict = server_predictor(self.method, self.members, self.server)
        with torch.no_grad():
            return bool(predict(torch.zeros(1, *self.members.nets[0].shape)))

    def _server_columns(self) -> RoundRow:
        """The columns about the server's own model: from its own test set, or else from what clients counted."""
        members, scores = self.members, self.engine.server_scores
        total = sum(score["total"] for score in scores)
        ways = dict.fromkeys(way for score in scores for way in score["correct"])
        shares = {way: sum(score["correct"].get(way, 0) for score in scores) / total for way in ways if total}
        if members.balanced:
            predict = server_predictor(self.method, members, self.server)
            row = server_columns(predict, replace(members, parts=()), training_loss=False)
        else:
            row = {"accuracy_global": shares.get("head")}
            row |= {f"accuracy_global_{way}": share for way, share in shares.items() if way != "head"}
            pixels = [score["pixels"]["head"] for score in scores if "head" in score["pixels"]]
            row |= server_overlap_columns(torch.tensor(pixels).sum(0).tolist(), members.labels) if pixels else {}
        if any(part.own for part in members.parts):
            row["accuracy_global_union"] = shares.get("head")
        if self.config.eval.training_loss:
            losses = [(score["loss"], score["loss_total"]) for score in scores if score["loss"] is not None]
            number = sum(count for _, count in losses)
            row["loss_global"] = sum(loss * count for loss, count in losses) / number if number else None
        return row
