"""The content of result.json and clients.csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protofed.engines.engine import Evaluation
from protofed.experiment.accuracy import majority_accuracy, wilson_interval
from protofed.experiment.config import Config
from protofed.experiment.members import Members
from protofed.experiment.personal import PERSONAL_KEYS, Personal, mean_and_std
from protofed.experiment.pixels import client_overlap, overlap_summary
from protofed.experiment.privacy_figures import privacy_summary
from protofed.experiment.provenance import versions_and_processor
from protofed.experiment.results import RoundRow, accuracy_over_clients, ways_of_predicting
from protofed.experiment.unknown import Calibration, unknown_summary
from protofed.plugins import label


def result_summary(
    config: Config,
    members: Members,
    rounds: Sequence[RoundRow],
    evaluations: Sequence[Evaluation],
    personal: Personal,
    calibrations: Mapping[int, Calibration],
) -> RoundRow:
    """The content of result.json. Values that the method does not have are null."""
    last = rounds[-1]

    def total(key: str) -> float:
        return float(sum(row[key] for row in rounds))

    return {
        "method": label(config.method_name),
        "dataset": members.dataset,
        "remark": members.remark,
        "seed": config.run.seed,
        "rounds": len(rounds),
        "ended_by": "rounds" if len(rounds) == config.run.rounds else "seconds",
        "clients": len(members),
        "accuracy": {
            way: accuracy_over_clients(evaluations, way, config.eval.reporting)
            for way in ways_of_predicting(evaluations)
        },
        "tested": len(evaluations),
        "majority": majority_baseline(members, [evaluation.client for evaluation in evaluations]),
        "domains": accuracies_by_domain(members, evaluations),
        "best": _best_round(rounds),
        "global": {
            "accuracy": last["accuracy_global"],
            "prototype": last.get("accuracy_global_prototype"),
            "union": last.get("accuracy_global_union"),
            "training_loss": last.get("loss_global"),
        },
        "personal": {
            **mean_and_std(list(personal.get("head", {}).values())),
            **{way: mean_and_std(list(by_client.values())) for way, by_client in personal.items() if way != "head"},
            "clients": config.eval.clients if personal else None,
        },
        "miou": overlap_summary(last, members),
        "unknown": unknown_summary(config.eval.unknown, config.eval.false_alarms, calibrations),
        "privacy": privacy_summary(config, rounds),
        "loss": last["loss"],
        "cost": {
            **{key: round(total(key) / len(rounds)) for key in ("up_params", "down_params", "up_counts")},
            **{key: round(total(key)) for key in ("up_bytes", "down_bytes")},
        },
        "rejected": sum(len(row["rejected"]) for row in rounds),
        "seconds": {"total": total("seconds"), "per_round": total("seconds") / len(rounds)},
        "engine": config.engine.name,
        "versions": versions_and_processor(),
    }


def majority_baseline(members: Members, clients: Sequence[int] | None = None) -> float:
    """The mean over clients (None: all) of `majority_accuracy`; NaN if none has both training and test examples."""
    pairs = [(members.train[c], members.test[c]) for c in (range(len(members)) if clients is None else clients)]
    shares = [majority_accuracy(*(part.class_counts(members.classes) for part in pair)) for pair in pairs]
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known else float("nan")


def accuracies_by_domain(members: Members, evaluations: Sequence[Evaluation]) -> RoundRow | None:
    """The mean accuracies over the clients of each domain, hospital or subject; None if clients have no single one."""
    if not members.groups or not all(members.groups):
        return None
    by_group = {
        group: [evaluation for evaluation in evaluations if members.groups[evaluation.client] == group]
        for group in dict.fromkeys(members.groups)
    }
    return {
        group: {
            way: (accuracy := accuracy_over_clients(of_group, way, "clients")) and accuracy["mean"]
            for way in ways_of_predicting(evaluations)
        }
        for group, of_group in by_group.items()
    }


def _best_round(rounds: Sequence[RoundRow]) -> RoundRow | None:
    """The first round with the highest accuracy on the validation sets, and its test accuracies."""
    way = next((way for way in ("head", "prototype") if any(row.get(f"validation_{way}") for row in rounds)), None)
    if way is None:
        return None
    best = max(rounds, key=lambda row: row.get(f"validation_{way}") or 0.0)
    return {
        "round": best["round"],
        "validation": best[f"validation_{way}"],
        **{key: best[key] for key in best if key.startswith("accuracy_") and not key.endswith("_std")},
    }


def _intervals(evaluation: Evaluation, ways: Sequence[str]) -> RoundRow:
    """The ends of the 95 % interval of each accuracy. They assume independent examples, which pixels are not."""
    ends: RoundRow = {}
    for way in ways:
        total = evaluation.total if way in evaluation.correct else 0
        low, high = wilson_interval(evaluation.correct.get(way, 0), total) or (None, None)
        ends |= {f"wilson_low_{way}": low, f"wilson_high_{way}": high}
    return ends


def client_rows(
    members: Members,
    evaluations: Sequence[Evaluation],
    personal: Personal,
    temperatures: Mapping[int, Mapping[str, float]],
) -> list[RoundRow]:
    """The rows of clients.csv. `temperatures`: by client and way of predicting."""
    separator = "; " if any(" " in str(label) for label in members.example_labels) else " "
    calibrated = dict.fromkeys(way for by_way in temperatures.values() for way in by_way)
    ways, labels_pixels = ways_of_predicting(evaluations), members.train[0].mask is not None

    def row(evaluation: Evaluation) -> RoundRow:
        client, correct, total = evaluation.client, evaluation.correct, evaluation.total
        train = members.train[client]
        return {
            "client": client,
            **({"name": members.names[client]} if members.names else {}),
            "net": members.nets[client].name,
            **({"group": members.groups[client]} if any(members.groups) else {}),
            "classes": separator.join(str(members.example_labels[label]) for label in train.labels.unique().tolist()),
            "train": len(train),
            "test": len(members.test[client]),
            **{f"accuracy_{way}": correct[way] / total if total and way in correct else None for way in ways},
            **({} if labels_pixels else _intervals(evaluation, ways)),
            **{f"miou_{way}": client_overlap(evaluation, way) for way in (ways if labels_pixels else ())},
            **{
                f"personal_{key}" + ("" if way == "head" else f"_{way}"): by_client.get(client, {}).get(key)
                for way, by_client in personal.items()
                for key in PERSONAL_KEYS
            },
            **{f"temperature_{way}": temperatures.get(client, {}).get(way) for way in calibrated},
        }

    return [row(evaluation) for evaluation in evaluations]
