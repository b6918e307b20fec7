"""FedProto (Tan et al. 2022): Tables 1 and 2 on MNIST, stand-ins for Tables 3 and 4, and Fig. 2 to 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.figure import Figure

from protofed.pictures import scatter
from protofed.pictures.runs import FinishedRun
from protofed.pictures.sweep_plot import draw_sweep
from protofed.studies.reproduce.study import Cell, Study
from protofed.studies.sweep import SweepRun, setting_rows

BASELINES = ("local", "fesem", "fedprox", "fedper", "fedavg", "fedrep")
_CLASSES_PER_CLIENT = (3, 4, 5)
_PAPER_MNIST = {  # the paper's figures for n = 3, 4, 5, by method and stdev of n
    ("local", 2): ("94.05 ± 2.93", "93.35 ± 3.26", "92.92 ± 3.17"),
    ("local", 3): ("93.44 ± 3.57", "94.24 ± 2.49", "93.97 ± 2.97"),
    ("fesem", 2): ("95.26 ± 3.48", "97.06 ± 2.72", "96.31 ± 2.41"),
    ("fesem", 3): ("96.40 ± 3.35", "95.82 ± 3.94", "95.98 ± 2.46"),
    ("fedprox", 2): ("96.26 ± 2.89", "96.40 ± 3.33", "95.65 ± 3.38"),
    ("fedprox", 3): ("96.65 ± 3.28", "95.25 ± 3.73", "95.34 ± 2.85"),
    ("fedper", 2): ("95.57 ± 2.96", "96.44 ± 2.62", "95.55 ± 3.13"),
    ("fedper", 3): ("96.57 ± 2.65", "95.93 ± 2.76", "96.07 ± 2.80"),
    ("fedavg", 2): ("95.04 ± 6.48", "94.32 ± 4.89", "93.22 ± 4.39"),  # Table 2 has 91.40 for n = 3
    ("fedavg", 3): ("94.57 ± 4.91", "91.99 ± 6.89", "92.19 ± 3.97"),
    ("fedrep", 2): ("94.96 ± 2.78", "95.18 ± 3.80", "94.94 ± 2.81"),
    ("fedrep", 3): ("95.01 ± 3.92", "95.55 ± 2.79", "95.38 ± 2.97"),
    ("fedproto", 2): ("97.13 ± 0.30", "96.80 ± 0.41", "96.70 ± 0.29"),
    ("fedproto", 3): ("96.71 ± 0.43", "96.87 ± 0.28", "96.47 ± 0.23"),
    ("fedproto mixed", 2): ("97.07 ± 0.50", "96.65 ± 0.31", "96.22 ± 0.36"),
    ("fedproto mixed", 3): ("96.48 ± 0.43", "96.84 ± 0.33", "95.56 ± 0.31"),
}
_PAPER_FEMNIST = {
    ("local", 1): ("92.50 ± 10.42", "91.16 ± 5.64", "87.91 ± 8.44"),
    ("local", 2): ("92.11 ± 6.02", "90.34 ± 6.42", "89.70 ± 6.33"),
    ("fesem", 1): ("93.39 ± 6.75", "91.06 ± 6.43", "89.61 ± 7.89"),
    ("fesem", 2): ("94.19 ± 4.90", "93.52 ± 4.47", "90.77 ± 6.70"),
    ("fedprox", 1): ("94.53 ± 5.33", "90.71 ± 6.24", "91.33 ± 7.32"),
    ("fedprox", 2): ("93.49 ± 5.30", "93.74 ± 5.02", "89.49 ± 6.74"),
    ("fedper", 1): ("93.47 ± 5.44", "90.22 ± 7.63", "87.73 ± 9.64"),
    ("fedper", 2): ("92.27 ± 6.16", "91.99 ± 6.33", "87.54 ± 8.14"),
    ("fedavg", 1): ("94.50 ± 5.29", "91.39 ± 5.23", "90.95 ± 7.22"),
    ("fedavg", 2): ("94.13 ± 4.92", "93.02 ± 5.77", "89.80 ± 6.94"),
    ("fedrep", 1): ("93.36 ± 5.34", "91.41 ± 5.89", "89.98 ± 6.88"),
    ("fedrep", 2): ("92.28 ± 5.40", "91.56 ± 7.02", "88.23 ± 6.97"),
    ("fedproto", 1): ("96.82 ± 1.75", "94.93 ± 1.61", "93.67 ± 2.23"),
    ("fedproto", 2): ("94.93 ± 1.29", "94.69 ± 1.50", "93.03 ± 2.50"),
    ("fedproto mixed", 1): ("97.10 ± 1.63", "94.83 ± 1.60", "93.76 ± 2.30"),
    ("fedproto mixed", 2): ("95.33 ± 1.30", "94.98 ± 1.69", "92.94 ± 2.34"),
}
_PAPER_CIFAR10 = {
    ("local", 1): ("79.72 ± 9.45", "67.62 ± 7.15", "58.64 ± 6.57"),
    ("local", 2): ("68.15 ± 9.88", "61.03 ± 11.83", "58.81 ± 12.90"),
    ("fesem", 1): ("80.19 ± 3.31", "76.40 ± 3.23", "74.17 ± 3.51"),
    ("fesem", 2): ("76.12 ± 4.15", "72.11 ± 3.48", "70.89 ± 3.39"),
    ("fedprox", 1): ("83.25 ± 2.44", "79.20 ± 1.31", "76.19 ± 2.23"),
    ("fedprox", 2): ("79.83 ± 2.35", "72.56 ± 1.90", "71.39 ± 2.36"),
    ("fedper", 1): ("84.38 ± 4.58", "78.73 ± 4.59", "76.21 ± 4.27"),
    ("fedper", 2): ("84.51 ± 4.39", "73.31 ± 4.76", "72.43 ± 4.55"),
    ("fedavg", 1): ("81.72 ± 2.77", "76.77 ± 2.37", "75.74 ± 2.61"),
    ("fedavg", 2): ("78.99 ± 2.34", "72.73 ± 2.58", "70.93 ± 2.82"),
    ("fedrep", 1): ("81.44 ± 10.48", "76.93 ± 7.46", "73.36 ± 7.04"),
    ("fedrep", 2): ("76.70 ± 11.79", "73.54 ± 11.42", "70.30 ± 8.00"),
    ("fedproto", 1): ("84.49 ± 1.97", "79.12 ± 2.03", "77.08 ± 1.98"),
    ("fedproto", 2): ("81.75 ± 1.39", "74.98 ± 1.61", "71.17 ± 1.29"),
    ("fedproto mixed", 1): ("83.63 ± 1.60", "79.49 ± 1.78", "76.94 ± 1.33"),
    ("fedproto mixed", 2): ("79.90 ± 1.08", "75.78 ± 1.05", "72.67 ± 1.09"),
}
_SENT = {
    "mnist": {
        "local": "0, 0",
        "fesem": "430, 150",
        "fedprox": "430, 110",
        "fedper": "106, 100",
        "fedavg": "430, 150",
        "fedrep": "110, 100",
        "fedproto": "4, 100",
        "fedproto mixed": "4, 100",
    },
    "femnist": {
        "local": "0, 0",
        "fesem": "16,000, 200",
        "fedprox": "16,000, 300",
        "fedper": "102, 250",
        "fedavg": "16,000, 300",
        "fedrep": "102, 200",
        "fedproto": "4, 120",
        "fedproto mixed": "4, 120",
    },
    "cifar10": {
        "local": "0, 0",
        "fesem": "235,000, 120",
        "fedprox": "235,000, 150",
        "fedper": "225,000, 130",
        "fedavg": "235,000, 150",
        "fedrep": "225,000, 110",
        "fedproto": "41, 110",
        "fedproto mixed": "41, 110",
    },
}
"""The paper's thousands of numbers sent per round, and rounds to converge, by method."""
_ALL_TABLES = (
    "The paper does not give the settings of its baselines. FeSEM's centres and FedProx's mu are the defaults of "
    "docs/methods, FedPer and FedRep share the convolutions (the numbers they send in the paper imply it), and all "
    "methods have the same rounds, batches and learning rate.",
    "In its authors' code, FedProto's ± is the spread of a running average over clients; the paper does not say how "
    "the baselines' was computed. Ours is given in both ways.",
    "Every seed has its own split of the data, which all methods share; the paper does not say how many runs it had.",
    "fedproto predicts by the nearest prototype among the client's own classes (Eq. 4). Heads, also those of the same "
    'runs ("by head"), choose among all classes, as in the authors\' code. The rows do not answer the same question.',
)
"""Known differences from the paper in all tables."""
_TWO_TABLES = (
    "The paper has two figures for FedAvg at n = 3: 95.04 in Table 1, which is shown here, and 91.40 in Table 2, with "
    "which FedAvg would be the worst method.",
)
_QUICK = ("run.rounds=20", "partition.shots=20", "partition.test=20")
_TEST_EVERY = "run.eval_every=5"
"""Testing in every round would take a tenth of the time, and more for methods with one model."""


def _changes(method: str, data: str) -> tuple[str, ...]:
    """The changes to the recipe for a method. The numbers sent in the paper imply which part of a net is shared."""
    words: tuple[str, ...] = () if data == "cifar10" else (_TEST_EVERY,)  # cifar10's recipes have their own eval_every
    words += (f"method.name={method}",) if method in BASELINES else ()
    if method in ("fedper", "fedrep") and data != "cifar10":
        words += ("method.shared=convs",)
    return (*words, "method.head_epochs=1") if method == "fedrep" else words


def _table_cells(
    data: str, figures: Mapping[tuple[str, int], tuple[str, ...]], stdevs: Sequence[int]
) -> tuple[Cell, ...]:
    """The cells of one dataset: a row per method, a column per number of classes and standard deviation."""
    plain, mixed = _RECIPES[data]
    cells = []
    for stdev, method in product(stdevs, (*BASELINES, "fedproto", "fedproto mixed")):
        for ways, paper in zip(_CLASSES_PER_CLIENT, figures[method, stdev], strict=True):
            split = tuple(
                word for word in (f"partition.ways={ways}", f"partition.stdev={stdev}") if word not in _IN_RECIPE[data]
            )
            column = f"n = {ways}" if len(stdevs) == 1 else f"n = {ways}, stdev {stdev}"
            words = (*_changes(method, data), *split)
            if method in BASELINES:
                cells.append(Cell(method, column, plain, words, paper))
            else:
                file = mixed if method == "fedproto mixed" else plain
                cells.append(Cell(method, column, file, words, paper, "prototype"))
                cells.append(Cell(f"{method}, by head", column, file, words))
    return tuple(cells)


_RECIPES = {
    "mnist": ("fedproto-mnist-n3", "fedproto-mnist-n3-mixed"),
    "femnist": ("fedproto-femnist", "fedproto-femnist-mixed"),
    "cifar10": ("fedproto-cifar10", "fedproto-cifar10-mixed"),
}
"""Per dataset, the recipe with equal nets and the recipe with different nets."""
_IN_RECIPE = {
    "mnist": ("partition.ways=3", "partition.stdev=2"),
    "femnist": ("partition.ways=3", "partition.stdev=1"),
    "cifar10": ("partition.ways=3", "partition.stdev=1"),
}
"""Settings that the recipes already have."""


def _figure2_panels(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 2: the test embeddings of the runs with seed 0."""
    return scatter.tsne([FinishedRun.load(job.out) for job in jobs if job.seed == 0])


def draw_varied(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 3 and 4: accuracy along the varied setting, and for Fig. 4 the distance of prototypes."""
    return draw_sweep(setting_rows([job._replace(setting=_as_sweep_setting(job)) for job in jobs]))


def _as_sweep_setting(job: SweepRun) -> str:
    """The setting of a run as a sweep writes it: the varied setting, then the method."""
    method, _, value = job.setting.partition(", ")
    return f"{value} method.name={method}"


def _varied_cells(
    data: str, methods: Sequence[str], key: str, values: Sequence[float], in_recipe: float
) -> tuple[Cell, ...]:
    """A cell per method, value and way of predicting. The recipe already has the value `in_recipe`."""
    cells = []
    for method, value in product(methods, values):
        word = f"{key}={value}"
        words = _changes(method, data) + ((word,) if value != in_recipe else ())
        if method not in BASELINES:
            cells.append(Cell(method, word, _RECIPES[data][0], words, way="prototype"))
        name = method if method in BASELINES else f"{method}, by head"
        cells.append(Cell(name, word, _RECIPES[data][0], words))
    return tuple(cells)


_FIGURE2 = tuple(
    Cell(name, "n = 3", _RECIPES["mnist"][0], _changes(name, "mnist"), way=way)
    for name, way in (("fedproto", "prototype"), ("fedavg", "head"), ("fesem", "head"), ("fedper", "head"))
)
_FIGURE3 = _varied_cells("mnist", ("fedproto", "fedavg"), "partition.shots", (10, 20, 40, 60, 80, 100), in_recipe=100)
_FIGURE4 = _varied_cells("femnist", ("fedproto",), "method.pull", (0, 0.5, 1, 2, 4), in_recipe=1)
_DIGITS = (
    "FEMNIST's letters and writers are not available here. 5,997 handwritten digits of 12 clients stand in for them: "
    "10 classes instead of 62, and 30 images per class and client instead of 100, which every split can supply. The "
    "first kernel is 5; the numbers sent in the paper imply 3.",
)
_SUBSET = (
    "10,000 of CIFAR-10's 50,000 training images, 60 instead of 100 images per class and client, and no crops and "
    "flips. ResNet18 with group norm, trained from scratch; the paper has batch norm and weights pre-trained on "
    "ImageNet, which have not been used here yet.",
)

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Study(
            "fedproto-table1",
            "FedProto, Table 1: MNIST, stdev 2",
            _table_cells("mnist", _PAPER_MNIST, (2,)),
            _QUICK,
            ("n = 3",),
            (*_TWO_TABLES, *_ALL_TABLES),
            _SENT["mnist"],
        ),
        Study(
            "fedproto-table2",
            "FedProto, Table 2: MNIST, stdev 3",
            _table_cells("mnist", _PAPER_MNIST, (3,)),
            _QUICK,
            ("n = 3",),
            _ALL_TABLES,
            _SENT["mnist"],
        ),
        Study(
            "fedproto-table3",
            "FedProto, Table 3: FEMNIST (a stand-in), stdev 1 and 2",
            _table_cells("femnist", _PAPER_FEMNIST, (1, 2)),
            _QUICK,
            ("n = 3, stdev 1",),
            (*_DIGITS, *_ALL_TABLES),
            _SENT["femnist"],
        ),
        Study(
            "fedproto-table4",
            "FedProto, Table 4: CIFAR-10 (a subset), stdev 1 and 2",
            _table_cells("cifar10", _PAPER_CIFAR10, (1, 2)),
            ("run.rounds=2", "partition.shots=4", "partition.test=4"),
            ("n = 3, stdev 1",),
            (*_SUBSET, *_ALL_TABLES),
            _SENT["cifar10"],
        ),
        Study(
            "fedproto-figure2",
            "FedProto, Fig. 2: t-SNE of test embeddings, MNIST, n = 3",
            _FIGURE2,
            _QUICK,
            ("n = 3",),
            (),
            {},
            _figure2_panels,
            seeds=1,
        ),
        Study(
            "fedproto-figure3",
            "FedProto, Fig. 3: MNIST with fewer images per class",
            _FIGURE3,
            ("run.rounds=20",),
            ("partition.shots=10", "partition.shots=20", "partition.shots=40"),
            ("The paper does not say which numbers of images it used.",),
            {},
            draw_varied,
        ),
        Study(
            "fedproto-figure4",
            "FedProto, Fig. 4: λ, on the stand-in for FEMNIST",
            _FIGURE4,
            ("run.rounds=20",),
            tuple(f"method.pull={pull}" for pull in (0, 1, 4)),
            _DIGITS,
            {},
            draw_varied,
        ),
    )
}
