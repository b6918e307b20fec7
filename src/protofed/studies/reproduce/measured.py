"""Figures measured on the finished runs of a study: the server's model round by round, and the weights of clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from protofed.core import cross_entropy
from protofed.engines.threads import one_thread
from protofed.errors import UserError
from protofed.experiment.checkpoint import checkpoint_names, read_checkpoint
from protofed.experiment.folder import Folder, write_atomically
from protofed.experiment.kept_states import states_of_all
from protofed.experiment.reading import read_json
from protofed.experiment.results import Result
from protofed.experiment.roster import draw_roster
from protofed.experiment.store import DamageError
from protofed.measures.discrepancy import bandwidth, gradient_dissimilarity, mean_mmd
from protofed.measures.of_features import (
    FEATURES_OF_OTHER_RUN,
    FEATURES_PER_CLIENT,
    evenly_spaced_rows,
    mean_margins,
    model_prototypes,
)
from protofed.measures.question import state_with_data

MEASURED, WEIGHTS = "measured", "weights"
"""How their names begin: "measured.KEY" after the last round, "measured N.KEY" after round N, "weights.std" over all
clients and rounds, "weights.client N" of one client, on average over the rounds in which it took part."""
_MEASURED_FILE = "measured.json"


def measure_checkpoints(out: Path, central: Path) -> None:
    """Measure the server's model at every checkpoint of a finished run, and write the figures to measured.json.

    `central`: the finished run on pooled data, with whose features MMD compares. The run must share one model, and
    must have kept its checkpoints (`run.keep_checkpoints = 0`). Per checkpoint:

    margin, margin_round: Eq. (15) as the mean distance between classes, of the model's prototypes on the training
    examples of all clients, or of those sampled in the round; mmd: Eq. (16), over the clients sampled in the round;
    gradients: Fig. 2, third row, over all clients.
    """
    if (out / _MEASURED_FILE).exists():
        return
    with one_thread():
        reference = Result.load(central)
        centre = state_with_data(reference).model(0)
        q = evenly_spaced_rows(centre.net.features(centre.params, centre.data)[0], FEATURES_OF_OTHER_RUN)
        width = bandwidth(q)
        state = state_with_data(Result.load(out))
        config, members, method, net = state.config, state.members, state.config.method, state.members.nets[0]
        rows: list[dict[str, float]] = []
        folder = Folder(out).checkpoints
        for name in reversed(checkpoint_names(folder)):
            try:
                checkpoint = read_checkpoint(folder, name, method, config.digest())
            except DamageError as problem:
                text = f"Checkpoint {name} in {folder} is damaged ({problem}). Delete {out} to run it again."
                raise UserError(text) from problem
            if not checkpoint.rounds:
                continue
            kept = states_of_all(config, len(members), checkpoint.kept, lambda: members)
            params = method.receive(kept[0], method.broadcast(checkpoint.server, 0))
            sampled = [members.train[client] for client in draw_roster(config, members, checkpoint.rounds - 1).sampled]
            features = [evenly_spaced_rows(net.features(params, part)[0], FEATURES_PER_CLIENT) for part in sampled]
            rows.append(
                {
                    "round": checkpoint.rounds,
                    "margin": mean_margins(model_prototypes(net, params, members.train))["between"],
                    "margin_round": mean_margins(model_prototypes(net, params, sampled))["between"],
                    "mmd": mean_mmd(features, q, width),
                    "gradients": gradient_dissimilarity(net, params, members.train, cross_entropy),
                }
            )
    write_atomically(out / _MEASURED_FILE, json.dumps({"rounds": rows}, indent=1).encode())


def measured_rounds(out: Path) -> list[dict[str, Any]]:
    """The figures of `measure_checkpoints`, by round; [] if the run was not measured."""
    return read_json(out / _MEASURED_FILE, "rounds")["rounds"] if (out / _MEASURED_FILE).exists() else []


def measured_figure(out: Path, name: str) -> float | None:
    """The figure with this name; None if the run was not measured."""
    section, _, key = name.partition(".")
    if section == WEIGHTS:
        rounds = client_weights(out)
        if key == "std":
            return float(np.std([weight for weights in rounds for weight in weights.values()]))
        client = int(key.removeprefix("client "))
        return float(np.mean([weights[client] for weights in rounds if client in weights]))
    number = section.removeprefix(MEASURED).strip()
    rows = [row for row in measured_rounds(out) if not number or row["round"] == int(number)]
    return float(rows[-1][key]) if rows else None


def client_weights(out: Path) -> list[dict[int, float]]:
    """Fig. S2: the weights of clients, by number, in all rounds but the first. Without attention: shares by size.

    Rounds in which the server combined nothing are left out.
    """
    folder = Folder(out)
    rounds = folder.rounds()
    if any("attention" in row for row in rounds):
        return [dict(zip(_combined(row), row["attention"], strict=True)) for row in rounds[1:] if "attention" in row]
    sizes = [len(client["train"]) for client in (folder.partition() or {})["clients"]]
    by_size = [{client: sizes[client] for client in _combined(row)} for row in rounds[1:]]
    return [
        {client: size / max(sum(weights.values()), 1) for client, size in weights.items()}
        for weights in by_size
        if weights
    ]


def _combined(row: Mapping[str, Any]) -> list[int]:
    """The clients of a round whose uploads were not rejected."""
    return [client for client in row["clients"] if str(client) not in row.get("rejected", {})]
