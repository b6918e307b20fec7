"""A client's part of a federation: it describes itself, trains and evaluates. Flower is not needed here."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from protofed import __version__
from protofed.data.partitions.base import Holding
from protofed.deploy.client_data import ClientData, read_balanced, read_client_data
from protofed.deploy.client_store import ClientStore, StoredRound, newest_run
from protofed.deploy.ledger import Ledger, sent_uploads
from protofed.deploy.policy import Policy, PolicyError
from protofed.deploy.settings import EXPERIMENT_FILE, read_client_settings
from protofed.deploy.tasks import FORGETTABLE, identity_of, kind_of_test
from protofed.devices import choose_device
from protofed.engines.engine import RoundPlan
from protofed.engines.flower.client_answers import MessageFigures
from protofed.engines.flower.wire import content_hash
from protofed.engines.loop import Loop
from protofed.engines.scoring import pixel_counts, tally
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment.calibration import fit_temperatures
from protofed.experiment.config import Config, read_toml
from protofed.experiment.member_copies import placed_members
from protofed.experiment.member_nets import build_nets, counts_by_share, load_net_weights
from protofed.experiment.members import Members
from protofed.experiment.results import client_model
from protofed.experiment.server_model import mean_cross_entropy, server_predictor
from protofed.experiment.unknown import client_calibration
from protofed.messages import flatten, group_by_first_name, unflatten
from protofed.trust.privacy.noise import SecretNoise
from protofed.trust.privacy.private_loop import PrivateLoop

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from protofed.examples import Examples
    from protofed.experiment.model import Model


class Reply(NamedTuple):
    """What a client sends back: tensors by name, and figures."""

    kind: str
    tensors: dict[str, Tensor]
    figures: MessageFigures


class ClientWork:
    """The work of one client, with the files in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings, self.net = read_client_settings(folder)
        file = folder / EXPERIMENT_FILE
        self.config = Config.of(read_toml(file), named_by=file)  # it is the server's file
        self.policy = Policy.read(folder / "policy.toml", self.config.method)
        self.ledger = Ledger(folder, self.settings.keep_sent)

    def data(self) -> ClientData:
        """The client's data. With `small_classes = "drop"`, without the classes that have too few examples."""
        settings = self.settings
        path = self.folder / settings.data
        return self.policy.usable(read_client_data(path, self.config, settings.name, settings.position))

    def describe(self) -> Reply:
        """Enrolment: what the server must know before the first round."""
        data = self.data()
        figures: MessageFigures = {
            "kind": "enrolment",
            "name": self.settings.name,
            "version": __version__,
            "experiment": self.config.digest(),
            "net": self.net_table,
            "input": {"shape": list(data.train.shape)} if data.own_statistics else data.train.input,
            "sizes": [len(data.train), len(data.test), -1 if data.validation is None else len(data.validation)],
            "balanced": (self.folder / "balanced.npz").exists(),
            "pixels": data.train.mask is not None,
            "counts": [self._counts(part, data) for part in (data.train, data.test)],
            "images": self._image_classes(data),
            **{key: getattr(data, key) for key in ("group", "own", "dataset", "remark")},
        }
        return Reply("enrolment", {}, figures)

    @cached_property
    def net_table(self) -> MessageFigures | None:
        """The options of the client's own net without the file of its weights; None: the experiment's net."""
        if self.net is None:
            return None
        table: MessageFigures = self._with_own_net(self.config).table()["net"]
        return {key: value for key, value in table.items() if key != "weights"}

    def _counts(self, part: Examples, data: ClientData) -> list[list[Any]]:
        """The names and numbers of examples of the classes in a part, as far as the policy allows to report them."""
        if "counts" not in self.policy.may_report or self.config.privacy.hides_counts:
            return []
        counts, small = part.class_counts(len(data.classes)).tolist(), self.policy.small(data)
        smallest = max(1, self.policy.min_examples_per_class)
        return [
            [name, count]
            for number, (name, count) in enumerate(zip(data.classes, counts, strict=True))
            if count >= smallest and number not in small
        ]

    def _image_classes(self, data: ClientData) -> list[list[Any]]:
        """The names of the classes of images, if pixels have other ones, as far as the policy allows to report them."""
        if not data.image_classes or "counts" not in self.policy.may_report:
            return []
        counts, smallest = data.train.labels.bincount().tolist(), max(1, self.policy.min_examples_per_class)
        return [[data.image_classes[number], 1] for number, count in enumerate(counts) if count >= smallest]

    def _with_own_net(self, config: Config) -> Config:
        """The experiment with the [net] of client.toml, if there is one; weights are relative to the folder."""
        if self.net is not None:
            config = replace(config, nets=Config.of({"net": self.net}).nets)
        nets = (replace(net, weights=str(self.folder / net.weights) if net.weights else "") for net in config.nets)
        return replace(config, nets=tuple(nets))

    def members(self, task: MessageFigures, data: ClientData) -> Members:
        """All clients of the federation, of which only this one has data."""
        number, clients = task["number"], task["clients"]
        data = data.with_labels(tuple(task["labels"]))
        empty = replace(data.train, index=data.train.index[:0])
        config = self._with_own_net(self.config)
        counts = counts_by_share([choice.share for choice in config.nets], clients)
        choices = [choice for choice, count in zip(config.nets, counts, strict=True) for _ in range(count)]
        config = replace(config, nets=(choices[number],))
        (net,), _ = load_net_weights(config, build_nets(config, [empty.shape], len(data.classes)))

        def alone(part: Examples | None) -> tuple[Examples, ...]:
            return tuple(part if client == number and part else empty for client in range(clients))

        balanced = read_balanced(self.folder / "balanced.npz")
        validation = alone(data.validation) if data.validation is not None else ()
        nothing = np.zeros(0, np.int64)
        return Members(
            data.dataset,
            data.classes,
            (net,) * clients,
            alone(data.train),
            alone(data.test),
            balanced,
            (Holding(nothing, nothing),) * clients,
            validation,
            recipes=(data.recipe,) * clients if data.recipe else (),
        )

    def check_task(self, task: MessageFigures) -> None:
        """Raise an error if the server's message does not belong to this client's experiment."""
        if not re.fullmatch(r"[0-9a-f]{32}", str(task.get("run"))):
            raise UserError(f"The server's message has the run {task.get('run')!r}; must be 32 hexadecimal digits.")
        if task.get("experiment") != self.config.digest():
            raise UserError(
                f"The server runs another experiment than {self.folder / EXPERIMENT_FILE}. Use the server's file."
            )
        number, clients, round = (task.get(key) for key in ("number", "clients", "round"))
        if not (isinstance(number, int) and isinstance(clients, int) and isinstance(round, int)):
            raise UserError("The server's message has no number, clients or round. Use the same version of protofed.")
        if not 0 <= number < clients or round < 0:
            raise UserError(f"The server's message has client {number} of {clients} and round {round}.")

    def train(self, task: MessageFigures, tensors: Mapping[str, Tensor]) -> Reply:
        """One round: train and upload. A message that was answered before gets the same answer."""
        self.check_task(task)
        round, method = task["round"], self.config.method
        message = content_hash(tensors, {key: value for key, value in task.items() if key not in FORGETTABLE})
        store = ClientStore(self.folder / "store", task["run"], method)
        with store.lock:
            stored = store.answer(round, message)
            data = self.data_to_upload(task, is_new=stored is None)
            if stored is None:
                if self.config.privacy.is_on and (
                    round in store.rounds() or sent_uploads(self.folder, task["run"]).get(round)
                ):
                    raise PolicyError(
                        "it has made an upload of this round before, and one with other noise must not leave"
                    )
                stored = self._trained(task, tensors, data, message, store.newest(round))
                store.write(stored, task["oldest"])
        return Reply("train", stored.upload, stored.figures)

    def data_to_upload(self, task: MessageFigures, is_new: bool = False) -> ClientData:
        """The client's data; an error if the policy forbids an upload in this round.

        `is_new`: whether the upload will be another one than those of this round that have left, if any.
        """
        data, is_masked = self.data(), self.config.privacy.secure_sum
        uploads = sent_uploads(self.folder, task["run"], is_masked)
        of_this_round = len(uploads.pop(task["round"], ()))
        is_another = is_new and not is_masked  # masked uploads of a round differ by their masks only
        number = sum(map(len, uploads.values())) + (of_this_round + 1 if is_another else max(1, of_this_round))
        self.policy.check_upload(self.config.method, data, number, is_masked)
        return data

    def _trained(
        self,
        task: MessageFigures,
        tensors: Mapping[str, Tensor],
        data: ClientData,
        message: str,
        before: StoredRound | None,
    ) -> StoredRound:
        """Train from the state before the round."""
        loop, number, round = self._loop(task, data, before), task["number"], task["round"]
        down = self._message("down", tensors)
        examined = [number] if task["examined"] else []
        plan = RoundPlan(examined, {} if task["epochs"] is None else {number: task["epochs"]})
        with one_thread():
            (report,) = loop.train_group(round, {number: down}, plan)
        with_losses = "losses" in self.policy.may_report and not self.config.privacy.is_on  # they have no noise
        figures = {
            **identity_of(task),
            "num_examples": report.upload.num_examples,
            "steps": report.upload.steps,
            "work": report.upload.work,
            "terms": report.terms if with_losses else {},
            "examples_seen": report.examples_seen if with_losses else 0.0,
            "hits": report.hits if "scores" in self.policy.may_report else {},
            "started_from": before.round if before else -1,
        }
        return StoredRound(round, message, loop.state()[number], flatten(report.upload.message), figures)

    def _loop(self, task: MessageFigures, data: ClientData, before: StoredRound | None) -> Loop:
        """The specification of all engines, for this client alone, with the state that the client kept."""
        config = self.config
        members = placed_members(self.members(task, data), choose_device(config.engine.device))
        parts = (members, config.method, config.train, config.run.seed)
        if config.privacy.is_on and data.own_statistics and config.privacy.encoder != "none":
            raise UserError("privacy.encoder: the inputs are normalised by this client's data. Use constants.")
        # the noise must not follow from the seed, which the server knows
        private = config.privacy.is_on
        loop = PrivateLoop(*parts, config.privacy, SecretNoise) if private else Loop(*parts, patience=None)
        if before:
            loop.update({task["number"]: before.kept})
        return loop

    def _message(self, part: str, tensors: Mapping[str, Tensor]) -> Any:
        """The server's message ("down") or its state ("server") from the tensors that it sent."""
        return unflatten(self.config.method.types()[part], group_by_first_name(dict(tensors)).get(part, {}))

    def evaluate(self, task: MessageFigures, tensors: Mapping[str, Tensor]) -> Reply:
        """Test the model that the client holds, and the server's own model if it was sent. Nothing is stored."""
        self.check_task(task)
        number, round, kind = task["number"], task["round"], kind_of_test(task)
        data = self.data()
        store = ClientStore(self.folder / "store", task["run"], self.config.method)
        with store.lock:
            store.write_message(task, tensors)
            self.policy.check_scores(data)
            loop = self._loop(task, data, store.newest(round + 1))
        downs = {number: self._message("down", tensors)}
        figures = identity_of(task)
        with one_thread():
            if kind == "examine":
                return Reply(kind, {}, {**figures, "hits": loop.examine(round, downs)[number]})
            (evaluation,) = loop.evaluate(round, downs, "test" if kind == "evaluate" else "validation")
            figures |= {"correct": evaluation.correct, "total": evaluation.total, "pixels": evaluation.pixels}
            if task.get("server"):
                figures["server"] = self._server_scores(task, loop, self._message("server", tensors))
        return Reply(kind, {}, figures)

    def model(self) -> Model:
        """The client's model after the last round that it was tested in, for predictions and exports."""
        store = ClientStore(self.folder / "store", newest_run(self.folder / "store"), self.config.method)
        task, tensors = store.message()
        number, round, data = task["number"], task["round"], self.data()
        _, kept = self._loop(task, data, store.newest(round + 1)).client(number, round)
        config, members = self.config.with_rounds(round + 1), self.members(task, data)
        model = client_model(config, members, number, kept, self._message("down", tensors))
        if data.validation is not None and len(data.validation):
            examples = members.validation[number]
            model = replace(model, temperatures=fit_temperatures(model, examples))
        calibration = client_calibration(model, config.eval, members)
        return replace(model, unknown=calibration.rule) if calibration else model

    def _server_scores(self, task: MessageFigures, loop: Loop, server: Any) -> MessageFigures:
        """The server's own model on this client's test set and, with `eval.training_loss`, on its training set."""
        members, number = loop.clients, task["number"]
        assert isinstance(members, Members)
        predict = server_predictor(self.config.method, members, server)
        test, train = members.test[number], members.train[number]
        may_tell = "losses" in self.policy.may_report and not self.config.privacy.is_on
        with_loss = self.config.eval.training_loss and may_tell
        return {
            "correct": tally(predict, test),
            "total": test.num_labels,
            "pixels": {} if test.mask is None else pixel_counts(predict, [test], members.classes),
            "loss": mean_cross_entropy(predict, [train]) if with_loss else None,
            "loss_total": train.num_labels,
        }
