"""FedNH (Dai et al. 2023): Tables 1 to 3 on subsets of CIFAR-10 and CIFAR-100, Fig. 4, and its authors' protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protofed.studies.reproduce.figures import server_in_last_rounds
from protofed.studies.reproduce.published import FEDNH_AUTHORS_CODE, FEDNH_TABLE1, FEDNH_TABLE2, FEDNH_TABLE3
from protofed.studies.reproduce.study import Cell, Study

_FEDNH_ROWS = {
    "fednh": (),
    "fedavg": ("method.name=fedavg", "method.weights=equal"),
    "fedrod": ("method.name=fedrod", "method.weights=equal", "method.personal=after", "method.hyper=192"),
    "local": ("method.name=local", "method.initial_weights=same", "run.rounds=20", "run.sample=1.0", "run.eval_last=0"),
    "fedproto": ("method.name=fedproto", "method.initial_weights=same", "method.pull=0.1", "method.nearest=all"),
    "fedper": ("method.name=fedper", "method.weights=equal", "method.initial_weights=same"),
    "fedrep": ("method.name=fedrep", "method.weights=equal", "method.initial_weights=same"),
    "ditto": ("method.name=ditto", "method.weights=equal"),
    "fedbabu": ("method.name=fedbabu", "method.weights=equal", "method.tune_from=client"),
    "creff": ("method.name=creff", "method.weights=equal", "method.match_lr=0.01", "method.head_batch=64"),
}
"""The changes to the recipe for each method, as in the authors' code: equal weights, and one start for all clients.

Their code trains a client of `local` for 20 rounds in succession, a tenth of 200.
"""
_COLUMNS = ("GM", "PM(V)", "PM(L)")
_GM_AND_PM_NOTE = (
    "Accuracy in % on the balanced test set, mean over seeds ± the half-width of the 95 % interval over seeds. GM: the "
    "server's model, mean over the last 20 rounds. PM(V), PM(L): each client's latest model, with all of its classes "
    "counting equally (V) or by their frequency in its training examples (L)."
)
_IN_ALL_TABLES = (
    "The data are subsets: 10,000 of CIFAR-10's and 5,000 of CIFAR-100's 50,000 training images, and 2,000 and 1,000 "
    "of 10,000 test images. Accuracies are expected to be far below the paper's; only differences can be compared.",
    "The personal heads of fedrod and the personal models of ditto train with momentum, as everything else; in the "
    "authors' code with plain SGD.",
)
_FROM_THE_PAPER = (
    "GM is the mean over the last 20 rounds. The paper does not say over which round or rounds it is; in our runs it "
    "changes by several points from round to round.",
    "fednh follows the paper (Eq. 1 and equal weights in Eq. 4). The authors' code starts from orthonormal prototypes "
    "and weights class means by their counts (options `initial`, `weights`, `unit_means`).",
    "local trains every client for 20 rounds, as the authors' code does; in the paper's appendix a client trains as "
    "often as it was sampled.",
)
_FEWER_CLIENTS = ("run.rounds=4", "run.eval_last=4", "data.limit=3000", "data.clients=20", "partition.smallest=5")


def _most_seeds(method: str) -> int:
    """One for the methods that decide nothing about fednh, to save hours; 0: as many as the study has."""
    return 0 if method in ("fednh", "fedavg", "fedrod") else 1


def _three_figures(
    recipe: str, found: Mapping[str, Sequence[str]], extra: Sequence[str] = (), last: int = 20
) -> list[Cell]:
    """Three cells per method, one for each figure that the method has."""
    cells = []
    for method, values in found.items():
        way = "prototype." if method == "fedproto" else ""
        figures = (server_in_last_rounds(last), f"personal.{way}v", f"personal.{way}l")
        for column, figure, value in zip(_COLUMNS, figures, values, strict=True):
            if value:
                words = (*_FEDNH_ROWS[method], *extra)
                cells.append(Cell(method, column, recipe, words, value, figure, most_seeds=_most_seeds(method)))
    return cells


_FEDNH_PAIRS = (
    ("fednh", "fedavg"),
    ("fedrod", "fedavg"),
    ("fednh", "fedrod"),
    ("fedavg", "local"),
    ("fednh", "local"),
    ("fedproto", "local"),
)


def _fednh_study(
    name: str,
    title: str,
    cells: Sequence[Cell],
    differences: Sequence[str] = _FROM_THE_PAPER,
    seeds: int = 5,
    note: str = _GM_AND_PM_NOTE,
) -> Study:
    rows = {cell.row for cell in cells}
    return Study(
        f"fednh-{name}",
        f"FedNH, {title}",
        tuple(cells),
        _FEWER_CLIENTS,
        tuple(dict.fromkeys(cell.column for cell in cells)),
        (*_IN_ALL_TABLES, *differences),
        seeds=seeds,
        quick_seeds=1,
        pairs=tuple(pair for pair in _FEDNH_PAIRS if rows.issuperset(pair)),
        note=note,
    )


_ALPHA1 = ("partition.alpha=1.0",)
_CODE = ("run.rounds=40", "run.eval_last=3", "eval.clients=round")
_CODE_SETTINGS = ("method.initial=orthonormal", "method.weights=count", "method.unit_means=true")
_RHO = (0.1, 0.3, 0.5, 0.7, 0.9)

FEDNH_STUDIES = (
    _fednh_study(
        "table1",
        "Table 1: CIFAR-10 (a subset), Dir(0.3)",
        _three_figures("fednh-cifar10", FEDNH_TABLE1["cifar10", 0.3]),
    ),
    _fednh_study(
        "table1-dir1",
        "Table 1: CIFAR-10 (a subset), Dir(1.0)",
        _three_figures("fednh-cifar10", FEDNH_TABLE1["cifar10", 1.0], _ALPHA1),
        seeds=3,
    ),
    _fednh_study(
        "table1-cifar100",
        "Table 1: CIFAR-100 (a subset), Dir(0.3)",
        _three_figures("fednh-cifar100", FEDNH_TABLE1["cifar100", 0.3]),
        seeds=3,
    ),
    _fednh_study(
        "table1-cifar100-dir1",
        "Table 1: CIFAR-100 (a subset), Dir(1.0)",
        _three_figures("fednh-cifar100", FEDNH_TABLE1["cifar100", 1.0], _ALPHA1),
        seeds=3,
    ),
    _fednh_study(
        "table2",
        "Table 2: fairness, CIFAR-10 (a subset), Dir(0.3)",
        [
            Cell(
                method,
                "spread of PM(L)",
                "fednh-cifar10",
                _FEDNH_ROWS[method],
                value,
                f"personal.{'prototype.' if method == 'fedproto' else ''}l_std",
                smaller_is_better=True,
                most_seeds=_most_seeds(method),
            )
            for method, value in FEDNH_TABLE2.items()
        ],
        (*_FROM_THE_PAPER, "A smaller spread is better. The runs are those of Table 1."),
        note="The standard deviation of PM(L) over clients in points, mean over seeds ± the half-width of the 95 % "
        "interval over seeds.",
    ),
    _fednh_study(
        "table3",
        "Table 3: 30 % of the clients per round, CIFAR-10 (a subset), Dir(0.3)",
        _three_figures("fednh-cifar10", FEDNH_TABLE3, ("run.sample=0.3",)),
        seeds=3,
    ),
    _fednh_study(
        "figure4",
        "Fig. 4: rho, CIFAR-10 (a subset), Dir(0.3), 60 rounds",
        [
            Cell(
                f"rho = {rho}",
                column,
                "fednh-cifar10",
                ("run.rounds=60", *((f"method.rho={rho}",) if rho != 0.9 else ())),
                figure=figure,
            )
            for rho in _RHO
            for column, figure in zip(_COLUMNS, (server_in_last_rounds(20), "personal.v", "personal.l"), strict=True)
        ],
        (*_FROM_THE_PAPER, "The paper shows gains over rho = 0.1 in a figure, without numbers."),
        seeds=1,
    ),
    _fednh_study(
        "protocol",
        "the protocol of the authors' code, 40 rounds, CIFAR-10 (a subset), Dir(0.3)",
        [
            replace(cell, words=(*cell.words, *_CODE_SETTINGS)) if cell.row == "fednh" else cell
            for cell in _three_figures("fednh-cifar10", FEDNH_AUTHORS_CODE, _CODE, last=3)
        ],
        (
            'The columns "paper" have figures of the authors\' code, run on the same subset with 40 instead of 200 '
            "rounds. fednh and fedavg have two seeds there, the others one.",
        ),
        seeds=2,
        note="Accuracy in % on the balanced test set, mean over seeds ± the half-width of the 95 % interval over "
        "seeds. GM: the server's model, mean over rounds 38 to 40. PM(V), PM(L): the ten clients of the last round.",
    ),
)
"""The studies of FedNH's tables and figures."""
