"""FedProto (Tan et al. 2022): Tables 1 and 2 on MNIST, stand-ins for Tables 3 and 4, and Fig. 2 to 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.figure import Figure

from protofed.pictures import scatter
from protofed.pictures.runs import FinishedRun
from protofed.pictures.sweep_plot import draw_sweep
from protofed.studies.reproduce.published import FEDPROTO_CIFAR10, FEDPROTO_FEMNIST, FEDPROTO_MNIST, FEDPROTO_SENT
from protofed.studies.reproduce.study import BY_HEAD, BY_PROTOTYPE, Cell, Study
from protofed.studies.sweep import SweepRun, setting_rows

BASELINES = ("local", "fesem", "fedprox", "fedper", "fedavg", "fedrep")
_CLASSES_PER_CLIENT = (3, 4, 5)
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
                cells.append(Cell(method, column, file, words, paper, BY_PROTOTYPE))
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
            cells.append(Cell(method, word, _RECIPES[data][0], words, figure=BY_PROTOTYPE))
        name = method if method in BASELINES else f"{method}, by head"
        cells.append(Cell(name, word, _RECIPES[data][0], words))
    return tuple(cells)


_FIGURE2 = tuple(
    Cell(name, "n = 3", _RECIPES["mnist"][0], _changes(name, "mnist"), figure=figure)
    for name, figure in (("fedproto", BY_PROTOTYPE), ("fedavg", BY_HEAD), ("fesem", BY_HEAD), ("fedper", BY_HEAD))
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

FEDPROTO_STUDIES = (
    Study(
        "fedproto-table1",
        "FedProto, Table 1: MNIST, stdev 2",
        _table_cells("mnist", FEDPROTO_MNIST, (2,)),
        _QUICK,
        ("n = 3",),
        (*_TWO_TABLES, *_ALL_TABLES),
        FEDPROTO_SENT["mnist"],
    ),
    Study(
        "fedproto-table2",
        "FedProto, Table 2: MNIST, stdev 3",
        _table_cells("mnist", FEDPROTO_MNIST, (3,)),
        _QUICK,
        ("n = 3",),
        _ALL_TABLES,
        FEDPROTO_SENT["mnist"],
    ),
    Study(
        "fedproto-table3",
        "FedProto, Table 3: FEMNIST (a stand-in), stdev 1 and 2",
        _table_cells("femnist", FEDPROTO_FEMNIST, (1, 2)),
        _QUICK,
        ("n = 3, stdev 1",),
        (*_DIGITS, *_ALL_TABLES),
        FEDPROTO_SENT["femnist"],
    ),
    Study(
        "fedproto-table4",
        "FedProto, Table 4: CIFAR-10 (a subset), stdev 1 and 2",
        _table_cells("cifar10", FEDPROTO_CIFAR10, (1, 2)),
        ("run.rounds=2", "partition.shots=4", "partition.test=4"),
        ("n = 3, stdev 1",),
        (*_SUBSET, *_ALL_TABLES),
        FEDPROTO_SENT["cifar10"],
    ),
    Study(
        "fedproto-figure2",
        "FedProto, Fig. 2: t-SNE of test embeddings, MNIST, n = 3",
        _FIGURE2,
        _QUICK,
        ("n = 3",),
        (),
        picture=_figure2_panels,
        seeds=1,
        quick_seeds=1,
    ),
    Study(
        "fedproto-figure3",
        "FedProto, Fig. 3: MNIST with fewer images per class",
        _FIGURE3,
        ("run.rounds=20",),
        ("partition.shots=10", "partition.shots=20", "partition.shots=40"),
        ("The paper does not say which numbers of images it used.",),
        picture=draw_varied,
    ),
    Study(
        "fedproto-figure4",
        "FedProto, Fig. 4: λ, on the stand-in for FEMNIST",
        _FIGURE4,
        ("run.rounds=20",),
        tuple(f"method.pull={pull}" for pull in (0, 1, 4)),
        _DIGITS,
        picture=draw_varied,
    ),
)
"""The studies of FedProto's tables and figures."""
