"""MP-FedCL (Qiao et al. 2023): Fig. 1, 5, 8, 9 and 10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from protofed.experiment.folder import Folder
from protofed.experiment.stored import StoredRun
from protofed.pictures import scatter
from protofed.pictures.bands import BandPanel, draw_bands
from protofed.pictures.tsne import project_by_tsne
from protofed.studies.plan import SweepRun
from protofed.studies.reproduce.mpfedcl import (
    BALANCED_NOTE,
    DIGIT5,
    LABEL_SKEW,
    LITE0,
    OFFICE,
    OWN_NOTE,
    ROUNDS,
    ROWS,
    SUBSETS,
    balanced_figure,
    changed_rounds,
    mpfedcl_study,
    own_figure,
)
from protofed.studies.reproduce.study import Cell

_SKEW = (*LABEL_SKEW, "partition.alpha=0.05")
_MANY = ("partition.name=dirichlet", "partition.capped=false", "partition.smallest=2", "partition.alpha=0.1")
_ROUNDS_FIGURE8 = {**ROUNDS, "fedavg": 100}
_SHOWN_ROUNDS = (5, 20, 60)
_FIGURE10 = {
    "Digit-5, Dir(1.0)": (DIGIT5, (*LABEL_SKEW, "partition.alpha=1.0")),
    "Office, domains": (OFFICE, ()),
}
_RATIOS = ("scatter.mean.ratio", "scatter.pooled.ratio")


def _varied(
    recipe: str,
    methods: Sequence[str],
    columns: Mapping[str, tuple[str, ...]],
    figure: str | None = None,
    rounds: Mapping[str, int] = ROUNDS,
) -> list[Cell]:
    """Cells without a figure of the paper's, which shows them as a plot."""
    return [
        Cell(
            method,
            column,
            recipe,
            (*ROWS[method], *changed_rounds(method, rounds), *words),
            "",
            figure or balanced_figure(method),
        )
        for method in methods
        for column, words in columns.items()
    ]


def _figure9() -> list[Cell]:
    """mp is read out by head, too, as fedavg is, and compared with the nearest prototype in an untrained net."""
    columns = {f"{clients} clients": (*_MANY, f"data.clients={clients}") for clients in (5, 10, 20, 40)}
    cells = _varied("mpfedcl-mnist", ("mp", "fedavg", "fedproto", "mp, untrained"), columns)
    by_head = _varied("mpfedcl-mnist", ("mp",), columns, "global.accuracy")
    return [*cells, *(replace(cell, row="mp, by head") for cell in by_head)]


def _figure10() -> list[Cell]:
    """A column per round that is shown. All of them, and the curves, are from one run."""
    every = ("run.eval_every=5", "eval.personal=false")
    return [
        Cell(
            method,
            f"{data}, round {number}",
            recipe,
            (*ROWS[method], *split, *every),
            "",
            f"round {number}.accuracy_prototype",
        )
        for data, (recipe, split) in _FIGURE10.items()
        for method in ("mp", "sp", "fedproto")
        for number in _SHOWN_ROUNDS
    ]


def draw_curves(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 10: accuracy by the nearest prototype over rounds, a panel per dataset."""
    by_data: dict[str, dict[str, list[dict[int, float]]]] = {}
    for job in jobs:
        method, _, column = job.setting.partition(", ")
        rows = Folder(job.out).rounds()
        curve = {
            row["round"]: 100 * row["accuracy_prototype"] for row in rows if row.get("accuracy_prototype") is not None
        }
        by_data.setdefault(column.rpartition(", round ")[0], {}).setdefault(method, []).append(curve)
    panels = [
        BandPanel(
            data,
            rounds := sorted(set.intersection(*(set(curve) for curves in methods.values() for curve in curves))),
            {name: np.array([[curve[at] for at in rounds] for curve in curves]) for name, curves in methods.items()},
            y_label="accuracy in %",
        )
        for data, methods in by_data.items()
    ]
    return draw_bands(panels, columns=len(panels))


def draw_two_clients(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 1: the test embeddings of two clients of each run with seed 0."""
    return scatter.embeddings(
        [StoredRun.load(job.out) for job in jobs if job.seed == 0], (0, 1), projection=project_by_tsne
    )


MPFEDCL_FIGURES = (
    replace(
        mpfedcl_study(
            "figure1",
            "Fig. 1: embeddings of two clients, MNIST, Dir(0.1)",
            [
                Cell(
                    method,
                    "MNIST, Dir(0.1)",
                    "mpfedcl-mnist",
                    (*ROWS[method], *changed_rounds(method), "partition.alpha=0.1"),
                    "",
                    figure,
                )
                for method, figure in (("local", own_figure("local")), ("fedavg", own_figure("fedavg")))
            ],
            OWN_NOTE,
            ("The paper does not name the data of its figure, nor the number of rounds.",),
        ),
        also=_RATIOS,
        picture=draw_two_clients,
    ),
    mpfedcl_study(
        "figure5",
        "Fig. 5: K on validation sets, Dir(0.05)",
        [
            cell
            for data, recipe, skew in (
                ("MNIST", "mpfedcl-mnist", ()),
                ("Digit-5", DIGIT5, _SKEW),
                ("Office", OFFICE, _SKEW),
            )
            for cell in _varied(
                recipe,
                ["mp"],
                {f"{data}, K = {k}": (*skew, f"method.k={k}", "eval.validation=0.2") for k in (2, 3, 4)},
                "last 1.validation_prototype",
            )
        ],
        "Accuracy in % by prototype on the fifth of its training examples that every client sets aside, mean over "
        "clients and seeds ± the half-width of the 95 % interval over seeds.",
        ("The paper has validation sets, too, and does not say how they were made.", LITE0, SUBSETS),
    ),
    mpfedcl_study(
        "figure8",
        "Fig. 8: alpha, Office-10",
        _varied(
            OFFICE,
            ("mp", "sp", "fedavg", "fedproto", "local"),
            {f"alpha {alpha}": (*LABEL_SKEW, f"partition.alpha={alpha}") for alpha in (0.1, 0.2, 0.5, 1.0)},
            rounds=_ROUNDS_FIGURE8,
        ),
        BALANCED_NOTE,
        ("The paper's figure has Digit-5, too.", LITE0),
    ),
    mpfedcl_study(
        "figure9",
        "Fig. 9: 5 to 40 clients, MNIST, Dir(0.1)",
        _figure9(),
        BALANCED_NOTE,
        ("The paper's figure has Digit-5, too.",),
    ),
    replace(
        mpfedcl_study(
            "figure10",
            "Fig. 10: accuracy over rounds, Digit-5 with Dir(1.0) and Office-10 by domain",
            _figure10(),
            OWN_NOTE,
            (LITE0, SUBSETS),
            ("run.rounds=5", "run.eval_every=1"),
        ),
        quick_columns=tuple(f"{data}, round {_SHOWN_ROUNDS[0]}" for data in _FIGURE10),
        picture=draw_curves,
    ),
)
"""The studies of MP-FedCL's figures."""
