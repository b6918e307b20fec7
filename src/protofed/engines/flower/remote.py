"""The engine whose clients are other machines. A client that fails is left out of its round, and the round goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protofed.engines.engine import (
    ORDINARY,
    Clients,
    Evaluation,
    Report,
    RoundPlan,
    Split,
    hold_in_memory,
    ignore_progress,
)
from protofed.engines.flower.client_answers import (
    EnrolledSizes,
    has_finite_terms,
    one_line,
    read_evaluation,
    read_hits,
    read_report,
    read_server_scores,
)
from protofed.engines.flower.exchange import Exchange, Parcel, Post
from protofed.engines.loop import Loop
from protofed.messages import flatten

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import AnyMethod
    from protofed.engines.flower.client_answers import MessageFigures
    from protofed.engines.scoring import Hits
    from protofed.training import TrainSection


@dataclass(frozen=True)
class Agreement:
    """What the server and its clients agreed on at enrolment."""

    run: str  # an id of the run
    experiment: str  # the digest of the experiment
    labels: tuple[str | int, ...]
    sizes: tuple[EnrolledSizes, ...]  # the numbers of examples of each client
    classes: tuple[Tensor | None, ...]  # per client whether it enrolled with each class [classes]; None: not reported
    examinable: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """per client that has the balanced test set: the number of examples of each class that its net can take"""


class Remote:
    """Sends each client its message and collects the answers. What clients keep stays on their machines."""

    def __init__(
        self,
        post: Post,
        agreement: Agreement,
        without_data: Clients,
        method: AnyMethod,
        training: TrainSection,
        seed: int,
    ) -> None:
        self.post, self.agreement, self.method = post, agreement, method
        self.like = Loop(without_data, method, training, seed)
        self.templates: dict[int, Any] = {}
        self.trained: set[int] = set()  # the clients that have uploaded something
        self.failures: Mapping[int, str] = {}
        self.on_trained: Callable[[int], None] = ignore_progress
        self.hold: Callable[[Report], Report] = hold_in_memory
        self.server_scores: list[
            MessageFigures
        ] = []  # what clients counted for the server's model in the last evaluation
        self.has_noise = False
        """Whether clients add noise to their numbers of examples ([privacy])."""
        self.server_state: Callable[[], Any] = lambda: None
        """The state of the server, if clients are to test its model, otherwise None."""
        self.oldest: Callable[[], int] = lambda: 0
        """The number of rounds of the oldest checkpoint, to which the server may go back."""

    def state(self) -> Mapping[int, Any]:
        """Nothing: clients keep their states themselves."""
        return {}

    def restore(self, kept: MutableMapping[int, Any]) -> None:
        """Nothing: the number of a round says which of its states a client uses."""

    def close(self) -> None:
        pass

    def train(self, round: int, downs: Mapping[int, Any], plan: RoundPlan = ORDINARY) -> list[Report]:
        """Let all clients train that were sent a message. `failures` has those without a usable upload."""
        examinable = self.agreement.examinable
        examined = examinable.keys() & set(plan.examined)
        tasks = {
            number: self._parcel(
                "train",
                round,
                number,
                down,
                epochs=plan.work.get(number),
                examined=number in examined,
                oldest=self.oldest(),
            )
            for number, down in downs.items()
        }
        exchange = self._trained(round, tasks)
        reports = []
        for number, parcel in sorted(exchange.answers.items()):
            try:
                report = self._report(number, downs[number], parcel)
                hits = read_hits(parcel.figures, examinable[number]) if number in examined else {}
                reports.append(self.hold(report._replace(hits=hits)))
            except ValueError as problem:
                exchange.failures[number] = str(problem)
        self.failures = {number: one_line(reason) for number, reason in sorted(exchange.failures.items())}
        self.on_trained(len(reports))
        return self._with_finite_losses(reports)

    def _trained(self, round: int, tasks: dict[int, Parcel]) -> Exchange:
        """Send the messages that let clients train, and collect the answers."""
        return self.post.exchange(round, tasks)

    def _with_finite_losses(self, reports: list[Report]) -> list[Report]:
        """The reports without losses that are not finite, unless all are: then it is the run that diverges."""
        if not any(report.terms and has_finite_terms(report) for report in reports):
            return reports
        usable = []
        for report in reports:
            if not has_finite_terms(report):
                self.post.say(report.upload.client, "its loss is not finite and not part of the round's loss")
                report = report._replace(terms={}, examples_seen=0.0)
            usable.append(report)
        return usable

    def _report(self, number: int, down: Any, parcel: Parcel) -> Report:
        """A client's report, checked against what it enrolled with."""
        size = self.agreement.sizes[number].train
        report = self._read(number, down, parcel)
        if report.upload.num_examples != size and not self.has_noise:
            raise ValueError(f"num_examples is {report.upload.num_examples}, but it enrolled with {size}")
        if number in self.trained and parcel.figures.get("started_from") == -1:
            self.post.say(number, "its earlier state is lost, it started again from its initial weights")
        self.trained.add(number)
        return report

    def _read(self, number: int, down: Any, parcel: Parcel) -> Report:
        """A client's report from its answer; an error (ValueError) if it cannot be read."""
        template = self._template(number, down)
        return read_report(self.method, number, *parcel, template, self.agreement.classes[number])

    def _template(self, number: int, down: Any) -> Any:
        """This client's upload as it would be without examples: it has the right names, types and shapes."""
        if number not in self.templates:
            (report,) = self.like.train_group(0, {number: down})
            self.templates[number] = report.upload.message
        return self.templates[number]

    def evaluate(self, round: int, downs: Mapping[int, Any], on: Split = "test") -> list[Evaluation]:
        """Let clients test their models. The evaluation of a client that fails is empty."""
        kind, server = ("evaluate", self.server_state()) if on == "test" else ("validation", None)
        state = {} if server is None else {f"server/{name}": value for name, value in flatten(server).items()}
        tasks = {
            number: self._parcel(kind, round, number, down, state, server=server is not None)
            for number, down in downs.items()
        }
        exchange, num_classes = self.post.exchange(round, tasks), len(self.agreement.labels)
        evaluations, scores = {}, []
        for number, parcel in sorted(exchange.answers.items()):
            try:
                sizes = self.agreement.sizes[number]
                evaluation = read_evaluation(number, parcel.figures, num_classes, sizes, on)
                scores += [read_server_scores(parcel.figures, num_classes, sizes)] if server is not None else []
                evaluations[number] = evaluation
            except ValueError as problem:
                exchange.failures[number] = str(problem)
        if on == "test":
            self.server_scores = scores
        self._say_failures(kind, round, exchange.failures)
        return [evaluations.get(number) or Evaluation(number, {}, 0) for number in downs]

    def examine(self, round: int, downs: Mapping[int, Any]) -> dict[int, Hits]:
        """Let the clients that have the balanced test set score their models on it."""
        examinable = {number: down for number, down in downs.items() if number in self.agreement.examinable}
        if not examinable:
            return {}
        tasks = {number: self._parcel("examine", round, number, down) for number, down in examinable.items()}
        exchange, hits = self.post.exchange(round, tasks), {}
        for number, parcel in sorted(exchange.answers.items()):
            try:
                hits[number] = read_hits(parcel.figures, self.agreement.examinable[number])
            except ValueError as problem:
                exchange.failures[number] = str(problem)
        self._say_failures("examine", round, exchange.failures)
        return hits

    def _say_failures(self, kind: str, round: int, failures: Mapping[int, str]) -> None:
        for number, reason in sorted(failures.items()):
            self.post.say(number, f"no result of {kind} in round {round + 1}: {reason}")

    def _parcel(
        self,
        kind: str,
        round: int,
        number: int,
        down: Any,
        state: Mapping[str, Tensor] | None = None,
        **more: Any,
    ) -> Parcel:
        """A message to a client: its tensors, and what the client is to do with them."""
        agreement = self.agreement
        figures = {
            "kind": kind,
            "run": agreement.run,
            "round": round,
            "number": number,
            "clients": len(agreement.sizes),
            "labels": list(agreement.labels),
            "experiment": agreement.experiment,
            **more,
        }
        return Parcel({f"down/{name}": value for name, value in flatten(down).items()} | dict(state or {}), figures)
