"""FedProto (Tan et al. 2022): Tables 1 and 2 on MNIST, stand-ins for Tables 3 and 4, Fig. 2 to 4, and its Local row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from matplotlib.figure import Figure

from protofed.experiment.stored import StoredRun
from protofed.pictures import scatter
from protofed.pictures.sweep_plot import draw_sweep
from protofed.studies.plan import SweepRun
from protofed.studies.reproduce.fedproto_notes import (
    FEDPROTO_ALL_TABLES,
    FEDPROTO_AUTHORS_CODE,
    FEDPROTO_DIGITS,
    FEDPROTO_FEATURES,
    FEDPROTO_HOLDERS,
    FEDPROTO_SUBSET,
    FEDPROTO_TWO_TABLES,
)
from protofed.studies.reproduce.figures import BY_HEAD, BY_HEAD_OWN, BY_PROTOTYPE, by_head_after
from protofed.studies.reproduce.page import OWN_CLASSES
from protofed.studies.reproduce.published import FEDPROTO_CIFAR10, FEDPROTO_FEMNIST, FEDPROTO_MNIST, FEDPROTO_SENT
from protofed.studies.reproduce.study import Cell, Study
from protofed.studies.sweep import DISTANCE, setting_rows

BASELINES = ("local", "fesem", "fedprox", "fedper", "fedavg", "fedrep")
_AS_IN_CODE = {
    "fedavg equal": ("method.name=fedavg", "method.weights=equal"),
    "fesem 2 groups": ("method.name=fesem", "method.assign=classes", "method.weights=equal"),
}
"""Baselines as the repository of the paper's authors has them, by the name of their row."""
_CLASSES_PER_CLIENT = (3, 4, 5)
_QUICK = ("run.rounds=20", "partition.shots=20", "partition.test=20")
_TEST_EVERY = "run.eval_every=5"
"""Testing in every round would take a tenth of the time, and more for methods with one model."""


def _changes(method: str, data: str) -> tuple[str, ...]:
    """The changes to the recipe for a method. The numbers sent in the paper imply which part of a net is shared."""
    is_cnn = data in ("mnist", "femnist")
    words: tuple[str, ...] = (_TEST_EVERY,) if is_cnn else ()  # other recipes have their own eval_every
    words += _AS_IN_CODE.get(method, (f"method.name={method}",) if method in BASELINES else ())
    if method in ("fedper", "fedrep") and is_cnn:
        words += ("method.shared=convs",)
    return (*words, "method.head_epochs=1") if method == "fedrep" else words


def _table_cells(
    data: str, figures: Mapping[tuple[str, int], tuple[str, ...]], stdevs: Sequence[int], as_in_code: bool = False
) -> tuple[Cell, ...]:
    """The cells of one dataset: rows for every method and read-out, a column per number of classes and their stdev."""
    cells = []
    methods = (*BASELINES, "fedproto", "fedproto mixed", *(_AS_IN_CODE if as_in_code else ()))
    for stdev, method in product(stdevs, methods):
        papers = figures.get((method, stdev), ("",) * len(_CLASSES_PER_CLIENT))
        for ways, paper in zip(_CLASSES_PER_CLIENT, papers, strict=True):
            column = f"n = {ways}" if len(stdevs) == 1 else f"n = {ways}, stdev {stdev}"
            recipe = _RECIPES[data][method == "fedproto mixed"]
            words = (*_changes(method, data), *_split(data, ways, stdev))
            cells += _read_outs(method, column, recipe, words, paper)
    return tuple(sorted(cells, key=lambda cell: cell.figure == BY_HEAD_OWN))  # a block per read-out


def _split(data: str, ways: int, stdev: int) -> tuple[str, ...]:
    """The changes to the recipe for a number of classes per client and its stdev."""
    words = (f"partition.ways={ways}", f"partition.stdev={stdev}")
    return tuple(word for word in words if word not in _IN_RECIPE[data])


def _read_outs(method: str, column: str, recipe: str, words: tuple[str, ...], paper: str = "") -> list[Cell]:
    """A cell per way of predicting. The paper's figure is that of the prototypes, or of the head if there are none."""
    by_head = [
        Cell(method, column, recipe, words, paper),
        Cell(method + OWN_CLASSES, column, recipe, words, figure=BY_HEAD_OWN),
    ]
    if not method.startswith("fedproto"):
        return by_head
    by_head[0] = Cell(f"{method}, by head", column, recipe, words)
    return [Cell(method, column, recipe, words, paper, BY_PROTOTYPE), *by_head]


_RECIPES = {
    "mnist": ("fedproto-mnist-n3", "fedproto-mnist-n3-mixed"),
    "femnist": ("fedproto-femnist", "fedproto-femnist-mixed"),
    "cifar10": ("fedproto-cifar10", "fedproto-cifar10-mixed"),
    "cifar10 features": ("fedproto-cifar10-encoder", "fedproto-cifar10-encoder-mixed"),
}
"""Per dataset, the recipe with equal nets and the recipe with different nets."""
_IN_RECIPE = {
    "mnist": ("partition.ways=3", "partition.stdev=2"),
    "femnist": ("partition.ways=3", "partition.stdev=1"),
    "cifar10": ("partition.ways=3", "partition.stdev=1"),
    "cifar10 features": ("partition.ways=3", "partition.stdev=1"),
}
"""Settings that the recipes already have."""
_PAIRS = (
    ("fedproto", "local, own classes"),
    ("fedproto", "fedavg, own classes"),
    ("fedproto, own classes", "local, own classes"),
    ("fedproto, own classes", "fedavg, own classes"),
    ("fedproto, own classes", "fedper, own classes"),
    ("fedavg, own classes", "local, own classes"),
    ("fedproto mixed", "fedproto"),
    ("fedproto, by head", "local"),
    ("fedproto, by head", "fedavg"),
)
"""Differences that the tables show; most of them with an equal read-out."""


def _figure2_panels(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 2: the test embeddings of the runs with seed 0."""
    return scatter.tsne([StoredRun.load(job.out) for job in jobs if job.seed == 0])


def draw_varied(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 3 and 4: accuracy along the varied setting, and for Fig. 4 the distance of prototypes.

    A head among all classes is drawn for fedavg only: personal heads have seen no other classes.
    """
    rows = setting_rows([job._replace(setting=_as_sweep_setting(job)) for job in jobs])
    for row in rows:
        if not row.setting.endswith("=fedavg"):
            row.figures.pop("by head", None)
    return draw_sweep(rows, ("by prototype", "own classes", "by head"))


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
        cells += _read_outs(method, word, _RECIPES[data][0], words)
    return tuple(cells)


_EPOCHS = (3, 4, 5, 6, 7, 10, 100)


def _local_cells() -> tuple[Cell, ...]:
    """Table 1's and 2's Local after several numbers of epochs. The short runs are tested after every epoch."""
    cells = []
    for epochs, stdev in product(_EPOCHS, (2, 3)):
        for ways, paper in zip(_CLASSES_PER_CLIENT, FEDPROTO_MNIST["local", stdev], strict=True):
            words = (*_changes("local", "mnist"), *_split("mnist", ways, stdev))
            figure = by_head_after(epochs)
            if epochs < 100:
                words = (*words[1:], "run.rounds=10")
            row, column = f"{epochs} epochs", f"n = {ways}, stdev {stdev}"
            cells.append(Cell(row, column, _RECIPES["mnist"][0], words, paper, figure))
    return tuple(sorted(cells, key=lambda cell: cell.column.partition(", ")[2]))


_FIGURE2 = tuple(
    Cell(name, "n = 3", _RECIPES["mnist"][0], _changes(name, "mnist"), figure=figure)
    for name, figure in (("fedproto", BY_PROTOTYPE), ("fedavg", BY_HEAD), ("fesem", BY_HEAD), ("fedper", BY_HEAD))
)
_SCATTER = tuple(f"scatter.{row}.{part}" for row in ("mean", "pooled") for part in ("within", "between", "ratio"))
_FIGURE3 = _varied_cells(
    "mnist", ("fedproto", "fedavg", "local"), "partition.shots", (10, 20, 40, 60, 80, 100), in_recipe=100
)
_PULLS = (0, 0.5, 1, 2, 4)
_FIGURE4 = (
    *_varied_cells("femnist", ("fedproto",), "method.pull", _PULLS, in_recipe=1),
    *_read_outs("local", "method.pull=0", _RECIPES["femnist"][0], _changes("local", "femnist")),
)
_HOLDERS = tuple(
    cell
    for pull, (classes, data) in product(_PULLS, ((10, ()), (100, ("data.name=cifar100",))))
    for cell in _read_outs(
        f"fedproto, {classes} classes",
        f"method.pull={pull}",
        _RECIPES["cifar10 features"][0],
        (*data, "partition.shots=15", "partition.test=10", f"method.pull={pull}"),
    )
)
FEDPROTO_STUDIES = (
    Study(
        "fedproto-table1",
        "FedProto, Table 1: MNIST, stdev 2",
        _table_cells("mnist", FEDPROTO_MNIST, (2,), as_in_code=True),
        _QUICK,
        ("n = 3",),
        (*FEDPROTO_TWO_TABLES, *FEDPROTO_ALL_TABLES, *FEDPROTO_AUTHORS_CODE),
        FEDPROTO_SENT["mnist"],
        pairs=_PAIRS,
    ),
    Study(
        "fedproto-table2",
        "FedProto, Table 2: MNIST, stdev 3",
        _table_cells("mnist", FEDPROTO_MNIST, (3,), as_in_code=True),
        _QUICK,
        ("n = 3",),
        (*FEDPROTO_ALL_TABLES, *FEDPROTO_AUTHORS_CODE),
        FEDPROTO_SENT["mnist"],
        pairs=_PAIRS,
    ),
    Study(
        "fedproto-table3",
        "FedProto, Table 3: FEMNIST (a stand-in), stdev 1 and 2",
        _table_cells("femnist", FEDPROTO_FEMNIST, (1, 2)),
        _QUICK,
        ("n = 3, stdev 1",),
        (*FEDPROTO_DIGITS, *FEDPROTO_ALL_TABLES),
        FEDPROTO_SENT["femnist"],
        pairs=_PAIRS,
    ),
    Study(
        "fedproto-table4",
        "FedProto, Table 4: CIFAR-10 (features of a subset), stdev 1 and 2",
        _table_cells("cifar10 features", FEDPROTO_CIFAR10, (1, 2)),
        _QUICK,
        ("n = 3, stdev 1",),
        (*FEDPROTO_FEATURES, *FEDPROTO_ALL_TABLES),
        FEDPROTO_SENT["cifar10"],
        quick_seeds=1,
        pairs=_PAIRS,
    ),
    Study(
        "fedproto-table4-resnet",
        "FedProto, Table 4: CIFAR-10 (a subset, ResNet18 from scratch), stdev 1 and 2",
        _table_cells("cifar10", FEDPROTO_CIFAR10, (1, 2)),
        ("run.rounds=2", "partition.shots=4", "partition.test=4"),
        ("n = 3, stdev 1",),
        (*FEDPROTO_SUBSET, *FEDPROTO_ALL_TABLES),
        FEDPROTO_SENT["cifar10"],
        quick_seeds=1,
        pairs=_PAIRS,
    ),
    Study(
        "fedproto-local",
        "FedProto, the Local row of Tables 1 and 2: how long did it train?",
        _local_cells(),
        ("partition.shots=20", "partition.test=20"),
        ("n = 3, stdev 2",),
        (
            "The paper does not say how many epochs its Local trained for, so that its figure stands next to each of "
            "ours. A number of epochs that fits is a hypothesis: it was looked for in the columns of stdev 2; those of "
            "stdev 3 were not used.",
        ),
        dict.fromkeys((f"{epochs} epochs" for epochs in _EPOCHS), "0, 0"),
        quick_seeds=1,
    ),
    Study(
        "fedproto-figure2",
        "FedProto, Fig. 2: t-SNE of test embeddings, MNIST, n = 3",
        _FIGURE2,
        _QUICK,
        ("n = 3",),
        (),
        picture=_figure2_panels,
        quick_seeds=1,
        also=_SCATTER,
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
        FEDPROTO_DIGITS,
        picture=draw_varied,
        also=(DISTANCE,),
    ),
    Study(
        "fedproto-figure4-holders",
        "FedProto, Fig. 4 with few and many holders per class: λ, on features of CIFAR-10 and CIFAR-100",
        _HOLDERS,
        ("run.rounds=20",),
        tuple(f"method.pull={pull}" for pull in (0, 1, 4)),
        FEDPROTO_HOLDERS,
        quick_seeds=1,
        also=(DISTANCE,),
    ),
)
"""The studies of FedProto's tables and figures."""
