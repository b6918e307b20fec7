"""Prototype-guided FL (Michieli & Ozay 2021): Tables 2 to 4, Fig. 2 to 4 and S2, on synthetic data and MNIST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from protofed.studies.reproduce.figures import server_in_last_rounds
from protofed.studies.reproduce.margin_pictures import (
    draw_accuracy_loss_gradients,
    draw_client_weights,
    draw_margins_and_mmd,
)
from protofed.studies.reproduce.margin_scales import MARGIN_SCALES, MarginScale
from protofed.studies.reproduce.over_slow import SLOW, columns_over_slow, margins_over_slow
from protofed.studies.reproduce.published import (
    PROTOMARGIN_CENTRAL,
    PROTOMARGIN_TABLE2,
    PROTOMARGIN_TABLE3,
    PROTOMARGIN_TABLE4,
)
from protofed.studies.reproduce.study import Cell, Study

_LAST = 20
"""A tenth of 200 rounds, the window of the moving averages in the paper's Fig. 2; `_IN_ALL` has the other reading."""
_ACCURACY, _LOSS = server_in_last_rounds(_LAST), f"last {_LAST}.loss_global"
_DROP = "system.late=drop"
_DEVIATION, _DISTANCE = "method.attention=deviation", "method.exponent=distance"


_IN_ALL = (
    "The batch size is 64 here: the text of the paper that we have lacks the values of that column of its Table 1. It "
    "does not give the options of FedAtt (those of its authors' code here). FedAtt leaves slow clients out, as FedAvg "
    "does; the paper does not say it.",
    "Accuracy and loss are means over the last 20 rounds. The paper's text says that its Table 2 has the models of the "
    "final round, and the table's title that it is from Fig. 2, which shows means over a tenth of the rounds.",
)
_NOTE = (
    "Accuracy of the server's model in % on the test examples of all clients together, and its mean cross-entropy on "
    "all training examples: means over the last 20 rounds and over seeds ± the half-width of the 95 % interval over "
    "seeds. slow: the fraction of a round's clients that do not do all their epochs. protomargin is Eq. (11) as "
    'printed, attention = "margin"; deviation is attention = "deviation".'
)
_METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.name=fedavg", _DROP),
    "fedprox": ("method.name=fedprox", "method.mu=MU"),
    "fedatt": ("method.name=fedatt", _DROP),
    "fedavg + toleration": ("method.name=fedavg",),
    "fairness + toleration": ("method.name=fedavg", "method.weights=equal"),
    "protomargin": (),
    "protomargin, deviation": (_DEVIATION,),
}
_ABLATIONS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.name=fedavg", _DROP),
    "fairness": ("method.name=fedavg", "method.weights=equal", _DROP),
    "fairness, sampling i.i.d.": ("method.name=fedavg", "method.weights=equal", "run.sampling=uniform", _DROP),
    "fedavg + toleration": ("method.name=fedavg",),
    "fairness + toleration": ("method.name=fedavg", "method.weights=equal"),
    "protomargin, no toleration": (_DROP,),
    "protomargin, d+ only": (_DEVIATION, _DISTANCE),
    "protomargin, aggregate margin only": ("method.margins=aggregate",),
    "protomargin, local margin only": ("method.margins=local",),
    "protomargin": (),
    "protomargin, keep": ("method.absent=keep",),
    "protomargin, single -1": ("method.single=minus_one",),
    "protomargin, minus d+ only": (_DISTANCE,),
    "deviation, no toleration": (_DEVIATION, _DROP),
    "deviation, aggregate margin only": (_DEVIATION, "method.margins=aggregate"),
    "deviation, local margin only": (_DEVIATION, "method.margins=local"),
    "protomargin, deviation": (_DEVIATION,),
    "deviation, keep": (_DEVIATION, "method.absent=keep"),
    "deviation, single -1": (_DEVIATION, "method.single=minus_one"),
}
"""Table 3's rows, then the readings that it does not have."""
_MARGIN_PAIRS = (
    ("protomargin, deviation", "fairness + toleration"),
    ("protomargin", "fairness + toleration"),
    ("protomargin, d+ only", "fairness + toleration"),
    ("protomargin, deviation", "protomargin"),
    ("deviation, keep", "protomargin, deviation"),
    ("protomargin, keep", "protomargin"),
    ("protomargin", "fedavg"),
    ("fairness + toleration", "fedavg + toleration"),
    ("fedprox", "fedavg + toleration"),
    ("fedatt", "fedavg"),
)


def _cell(
    scale: MarginScale,
    row: str,
    column: str,
    method: Sequence[str],
    slow: str,
    paper: str,
    figure: str,
    percent: bool = False,
) -> Cell:
    """A cell of a method. Without slow clients there is nothing to drop: cells with and without it share runs."""
    words = [word.replace("MU", scale.mu) for word in method if float(slow) or word != _DROP]
    smaller_is_better = figure == _LOSS or figure.endswith((".mmd", ".gradients"))
    words = [*scale.words, *words, f"system.slow={slow}"]
    return Cell(row, column, scale.recipe, tuple(words), paper, figure, percent, smaller_is_better)


def _by_slow(
    scale: MarginScale,
    methods: Mapping[str, Sequence[str]],
    kinds: Mapping[str, str],
    paper: Mapping[str, Sequence[str]],
) -> list[Cell]:
    """A row per method, and for each kind of figure a column per share of slow clients."""
    return [
        _cell(
            scale,
            name,
            f"{kind}slow {slow}",
            words,
            slow,
            papers[position] if not kind else "",
            figure,
            figure != _LOSS,
        )
        for kind, figure in kinds.items()
        for name, words in methods.items()
        for position, slow in enumerate(SLOW)
        for papers in [paper.get(name, ("", "", ""))]
    ]


def _by_figure(scale: MarginScale, methods: Mapping[str, Sequence[str]], figures: Mapping[str, str]) -> list[Cell]:
    """A row per method and share of slow clients, and a column per figure."""
    return [
        _cell(scale, f"{name}, slow {slow}", column, words, slow, "", figure, column == "accuracy")
        for column, figure in figures.items()
        for name, words in methods.items()
        for slow in SLOW
    ]


def _central(scale: MarginScale, column: str, figure: str) -> Cell:
    is_accuracy = column == "accuracy"
    paper = PROTOMARGIN_CENTRAL[scale.data] if is_accuracy else PROTOMARGIN_TABLE4[scale.data]["central"][0]
    return Cell("central", column, scale.recipe, scale.central, paper, figure, is_accuracy)


def _study(name: str, title: str, scale: MarginScale, cells: Sequence[Cell], **more: object) -> Study:
    rows = {cell.row for cell in cells}
    columns = tuple(dict.fromkeys(cell.column for cell in cells))
    by_slow = all("slow" in column for column in columns)
    return Study(
        f"protomargin-{name}",
        f"Prototype-guided FL, {title}: {scale.title}",
        tuple(cells),
        scale.quick,
        tuple(column for column in columns if column.endswith("slow 0.8")) if by_slow else columns,
        (*scale.differences, *_IN_ALL),
        quick_seeds=1,
        pairs=tuple(pair for pair in _MARGIN_PAIRS if rows.issuperset(pair)),
        **more,  # type: ignore[arg-type]
    )


def _table2(scale: MarginScale) -> Study:
    published = PROTOMARGIN_TABLE2[scale.data]
    papers = {
        kind: {
            row: published[row.removesuffix(", deviation")][place]
            for row in _METHODS
            if row.removesuffix(", deviation") in published
        }
        for place, kind in enumerate(("", "loss, "))
    }
    cells = _by_slow(scale, _METHODS, {"": _ACCURACY, "loss, ": _LOSS}, {})
    return _study(
        f"table2{scale.suffix}", "Table 2", scale, cells, note=_NOTE, extra=partial(columns_over_slow, papers=papers)
    )


def _table2_clients(scale: MarginScale) -> Study:
    """The runs of Table 2 by client, where one client has most examples, so that the table mostly shows that one."""
    kinds = {"over clients, ": f"last {_LAST}.accuracy_head", "largest client, ": f"domains.{scale.largest}.head"}
    note = (
        "Accuracy of the server's model in %, over clients: the mean over clients, each on its own test set, in the "
        f"last {_LAST} rounds; largest client: on the test set of the client with most examples, after the last round. "
        "Means over seeds ± the half-width of the 95 % interval over seeds."
    )
    cells = _by_slow(scale, _METHODS, kinds, {})
    return _study(f"table2{scale.suffix}-clients", "Table 2 by client", scale, cells, note=note)


def _table3(scale: MarginScale) -> Study:
    papers = {"": {row: figures[3] for row, figures in PROTOMARGIN_TABLE3.items()}}
    cells = _by_slow(scale, _ABLATIONS, {"": _ACCURACY}, PROTOMARGIN_TABLE3)
    return _study(
        "table3-small" if scale.suffix == "-small" else "table3",
        "Table 3",
        scale,
        cells,
        note=_NOTE,
        extra=partial(columns_over_slow, papers=papers),
    )


_MARGINS = {
    "accuracy": _ACCURACY,
    "margin": "measured.margin",
    "margin (round)": "measured.margin_round",
    "MMD": "measured.mmd",
    "gradients": "measured.gradients",
}
_MEASURED_NOTE = (
    "Figures of the server's model after the last round (accuracy: over the last 20 rounds), mean over seeds ± the "
    "half-width of the 95 % interval over seeds. margin: the mean distance of its class prototypes, on the training "
    "examples of all clients; margin (round): on those of the round's clients. MMD: Eq. (16), the distance of the "
    "features of the round's clients from those of the central model. gradients: the mean over all clients of the "
    "squared distance of their gradient from the overall one."
)


def _table4(scale: MarginScale) -> Study:
    published = {**PROTOMARGIN_TABLE4[scale.data]}
    published["protomargin, deviation"] = published["protomargin"]
    cells = _by_figure(scale, _METHODS, _MARGINS)
    cells += [
        _central(scale, column, figure)
        for column, figure in _MARGINS.items()
        if "margin" in column or column == "accuracy"
    ]
    return _study(
        f"table4{scale.suffix}",
        "Table 4",
        scale,
        cells,
        note=_MEASURED_NOTE,
        extra=partial(margins_over_slow, paper=published),
        central=_central(scale, "accuracy", _ACCURACY),
    )


def _figure2(scale: MarginScale) -> Study:
    cells = _by_figure(scale, _METHODS, {"accuracy": _ACCURACY, "loss": _LOSS, "gradients": "measured.gradients"})
    cells.append(_central(scale, "accuracy", _ACCURACY))
    return _study(
        f"figure2{scale.suffix}",
        "Fig. 2",
        scale,
        cells,
        note=_MEASURED_NOTE,
        picture=draw_accuracy_loss_gradients,
        central=cells[-1],
    )


def _figure3(scale: MarginScale) -> Study:
    figures = {
        f"{key}, {when}": f"measured{number}.{key}"
        for key in ("margin", "mmd")
        for when, number in (("round 20", " 20"), ("end", ""))
    }
    cells = _by_figure(scale, _METHODS, figures)
    cells.append(_central(scale, "accuracy", _ACCURACY))
    return _study(
        f"figure3{scale.suffix}",
        "Fig. 3 and 4",
        scale,
        cells,
        note=_MEASURED_NOTE,
        picture=draw_margins_and_mmd,
        central=cells[-1],
    )


def _figure_s2(scale: MarginScale) -> Study:
    methods = {name: _METHODS[name] for name in ("fedavg + toleration", "protomargin", "protomargin, deviation")}
    figures, note = (
        {"std of weights": "weights.std"},
        (
            "The standard deviation of the weights of clients over all rounds but the first, mean over seeds ± the "
            "half-width of the 95 % interval over seeds. Ten clients per round: an equal weight is 0.1."
        ),
    )
    if scale.largest:
        figures["largest client"] = f"weights.{scale.largest}"
        note += " largest client: the mean weight of the client with most examples in the rounds in which it took part."
    cells = _by_figure(scale, methods, figures)
    return _study(f"figureS2{scale.suffix}", "Fig. S2", scale, cells, note=note, picture=draw_client_weights)


PROTOMARGIN_STUDIES = tuple(
    make(scale)
    for make in (_table2, _table2_clients, _table3, _table4, _figure2, _figure3, _figure_s2)
    for scale in MARGIN_SCALES
    if (make is not _table3 or scale.data == "mnist") and (make is not _table2_clients or scale.largest)
)
"""The studies of prototype-guided FL's tables and figures, at three scales."""
