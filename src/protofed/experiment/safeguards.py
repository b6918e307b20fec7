"""What a run does about bad clients: attackers for experiments, the guard, the quorum, and robust averages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from protofed.averages import averaging_by
from protofed.engines.scoring import predicted
from protofed.errors import UserError
from protofed.experiment.secure_round import SecureRound
from protofed.experiment.wording import quantity
from protofed.plugins import label
from protofed.trust.attack import ON_DATA, corrupt_uploads, draw_attackers, poison_data, wanted_labels, with_trigger
from protofed.trust.guard import Expected, sift
from protofed.trust.robust import RobustRule

if TYPE_CHECKING:
    from protofed.core import Upload
    from protofed.engines.engine import Evaluation, Report
    from protofed.experiment.config import Config
    from protofed.experiment.members import Members
    from protofed.experiment.results import RoundRow, State


class Safeguards:
    """The sections [attack] and [trust] of a run. `members` are the clients, attackers with the data they train on."""

    def __init__(self, config: Config, members: Members) -> None:
        self.trust, self.attack, self.seed = config.trust, config.attack, config.run.seed
        self.method, self.name = config.method, label(config.method_name)
        self.attackers = draw_attackers(config.attack, len(members), config.run.seed)
        if self.attackers and max(config.attack.classes) >= members.classes:
            raise UserError(
                f"attack.classes: got {list(config.attack.classes)}, but classes are numbered from 0 to "
                f"{members.classes - 1}. Use two of these."
            )
        if self.attackers and config.attack.kind in ON_DATA and config.engine.name == "flower":
            raise UserError(
                f"attack.kind: {config.attack.kind} changes the training data of clients, which stay on their own "
                "machines. Use a kind that changes uploads, such as sign_flip, or a run on one machine."
            )
        self.members = members_with_attackers(config, members)
        train = self.members.train
        self.expected = Expected(
            0,
            len(members),
            lambda client: len(train[client]),
            lambda client: _known_classes(train[client].class_counts(members.classes)),
            count_labels=train[0].mask is None,
            exact=not config.privacy.is_on,
        )
        self.rule, self.void = RobustRule(self.trust), False
        self.secure = SecureRound(config)
        self.used = self.warned = False

    def notes(self) -> list[str]:
        """A remark for the user, if there are attackers."""
        if not self.attackers:
            return []
        clients = ", ".join(map(str, self.attackers))
        return [f"attack.kind = {self.attack.kind}: {quantity(len(self.attackers), 'attacker')}, clients {clients}"]

    def corrupt(self, number: int, reports: Sequence[Report], downs: Mapping[int, Any]) -> list[Report]:
        """The reports as they arrive, by client: those of attackers with what these upload."""
        reports = sorted(reports, key=lambda report: report.upload.client)
        if not self.attackers:
            return reports
        sent = [report.upload for report in reports]
        uploads = corrupt_uploads(self.attack, self.attackers, sent, downs, self.seed, number)
        return [report._replace(upload=upload) for report, upload in zip(reports, uploads, strict=True)]

    def sift(self, number: int, reports: Sequence[Report]) -> tuple[list[Upload[Any]], dict[int, str]]:
        """The usable uploads of a round, and per rejected client the reason."""
        uploads = [report.upload for report in reports]
        return sift(uploads, self.expected._replace(round=number), self.trust.norm_cap)

    def above_quorum(self, uploads: list[Upload[Any]], clients: int) -> list[Upload[Any]]:
        """The usable uploads of a round with `clients` clients; none if they are too few, so that the round is void."""
        self.used, self.void = False, len(uploads) < math.ceil(self.trust.quorum * clients - 1e-9)
        self.rule, self.secure.problem = RobustRule(self.trust), ""
        return [] if self.void else uploads

    def seen_by_server(self, number: int, uploads: list[Upload[Any]], clients: Sequence[int]) -> list[Upload[Any]]:
        """The usable uploads, or their secure total; none if a round with these clients is void."""
        if self.void:
            return []
        seen = self.secure.seen(number, uploads, clients)
        self.void = bool(self.secure.problem)
        return seen

    def aggregate(self, number: int, server: Any, uploads: Sequence[Upload[Any]]) -> Any:
        """The next state of the server, with the averages that [trust] names."""
        self.used = self.rule.changes_weights or self.rule.changes_prototypes
        with averaging_by(self.rule if self.used else None):
            return self.method.aggregate(self.members.server(self.seed, number), server, uploads)

    def columns(self, evaluations: Sequence[Evaluation]) -> RoundRow:
        """A round's columns; only those of options that are set."""
        row: RoundRow = {}
        if self.trust.quorum or self.secure.is_on:
            row["void"] = self.void
        if self.secure.problem:
            row["void_reason"] = self.secure.problem
        row |= self.honest(evaluations)
        if self.rule.combined:
            row["unprotected"] = {str(number): count for number, count in self.rule.too_few_for_classes.items()}
            row["too_few_uploads"] = self.rule.too_few_for_models
        return row

    def honest(self, evaluations: Sequence[Evaluation]) -> RoundRow:
        """A round's column about the clients that are no attackers; {} without attackers."""
        return {"honest": honest_accuracies(self.attackers, evaluations)} if self.attackers else {}

    def warning(self) -> str:
        """After the first round in which a rule cannot do what it is for: why; otherwise an empty text."""
        if self.warned or not self.used:
            return ""
        rule, trust, texts = self.rule, self.trust, []
        if trust.weights != "mean" and "weights" not in rule.combined:
            texts.append(f"trust.weights = {trust.weights}: {self.name} averages no weights, so it has no effect.")
        if trust.prototypes != "mean" and "prototypes" not in rule.combined:
            texts.append(
                f"trust.prototypes = {trust.prototypes}: {self.name} averages no prototypes, so it has no effect."
            )
        share = f"{100 * trust.assumed:g} % bad uploads (trust.assumed)"
        if rule.too_few_for_models:
            texts.append(
                f"trust.weights = {trust.weights}: {rule.too_few_for_models} uploads are too few to withstand {share}."
            )
        if rule.too_few_for_classes:
            labels = self.members.labels
            counts = ", ".join(f"{labels[number]} ({n})" for number, n in sorted(rule.too_few_for_classes.items()))
            texts.append(
                f"trust.prototypes = {trust.prototypes}: too few clients contribute to some classes to withstand "
                f"{share}. Classes, with their clients: {counts}."
            )
        self.warned = bool(texts)
        return " ".join(texts)


def _known_classes(counts: torch.Tensor) -> torch.Tensor | None:
    """Which classes a client has; None if it does not say."""
    return counts > 0 if counts.any() else None


def members_with_attackers(config: Config, members: Members) -> Members:
    """The clients with the data that they train on: those of attackers may be poisoned."""
    if config.attack.kind not in ON_DATA:
        return members
    attackers = draw_attackers(config.attack, len(members), config.run.seed)
    train = [
        poison_data(config.attack, data, members.classes, config.run.seed, client)
        if client in attackers and len(data)
        else data
        for client, data in enumerate(members.train)
    ]
    return replace(members, train=tuple(train))


def honest_accuracies(attackers: Sequence[int], evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """The mean accuracy over the clients that are no attackers, per way of predicting."""
    tested = [one for one in evaluations if one.client not in attackers and one.total]
    ways = dict.fromkeys(way for one in tested for way in one.correct)
    return {way: sum(one.correct[way] / one.total for one in tested) / len(tested) for way in ways}


def attack_summary(attackers: Sequence[int], state: State, evaluations: Sequence[Evaluation]) -> RoundRow:
    """The entry "attack" of result.json; {} without attackers."""
    if not attackers:
        return {}
    honest = [client for client in range(len(state.members)) if client not in attackers]
    return {
        "attack": {
            "kind": state.config.attack.kind,
            "attackers": list(attackers),
            "honest": honest_accuracies(attackers, evaluations),
            "success": attack_success(state, [client for client in honest if client in state.kept]),
        }
    }


@torch.no_grad()
def attack_success(state: State, clients: Sequence[int]) -> dict[str, float] | None:
    """The share of test examples for which these clients predict what a targeted attack wants; None if it has no aim.

    The mean over clients, per way of predicting. Examples for which the attack wants nothing are not counted, nor are
    images in which every pixel has a label.
    """
    options, members = state.config.attack, state.members
    shares: dict[str, list[float]] = {}
    for client in clients:
        test = members.test[client]
        wanted = wanted_labels(options, test.labels, members.classes)
        rows = (wanted >= 0).nonzero()[:, 0]
        if test.mask is not None or not len(rows):
            continue
        raw = test.x[test.index[rows]]
        raw = with_trigger(raw, test) if options.kind == "backdoor" else raw
        for way, scores in state.model(client).compute_scores(test.normalised(raw)).items():
            shares.setdefault(way, []).append(float((predicted(scores) == wanted[rows]).double().mean()))
    return {way: sum(values) / len(values) for way, values in shares.items()} or None
