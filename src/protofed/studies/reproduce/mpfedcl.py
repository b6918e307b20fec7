"""MP-FedCL (Qiao et al. 2023): Tables V to VIII and Fig. 5, 8 and 9, with an EfficientNet-Lite0 as the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protofed.studies.reproduce.figures import BY_HEAD, BY_PROTOTYPE
from protofed.studies.reproduce.published import MPFEDCL_TABLE5, MPFEDCL_TABLE6, MPFEDCL_TABLE7, MPFEDCL_TABLE8
from protofed.studies.reproduce.study import Cell, Study

_MPFEDCL_ROWS = {
    "mp": (),
    "sp": ("method.clustering=mean",),
    "dp": ("method.clustering=dbscan",),
    "fedavg": ("method.name=fedavg",),
    "fedprox": ("method.name=fedprox",),
    "fedproto": ("method.name=fedproto", "method.nearest=all"),
    "local": ("method.name=local",),
}
"""The changes to the recipes for each method."""
_BY_PROTOTYPE = ("mp", "sp", "dp", "fedproto")
"""The methods that predict by the nearest prototype in the paper; the others predict by head."""
_ROUNDS = {"fedavg": 110, "fedprox": 100, "fedproto": 100, "local": 100}
"""Table VI: the paper's rounds. mp, sp and dp have 60, as in the recipes; it has none for local and in Table V."""
_ROUNDS_TABLE7 = {**_ROUNDS, "fedavg": 130, "fedproto": 130}
_ROUNDS_FIGURE8 = {**_ROUNDS, "fedavg": 100}
_DOMAINS = {"mnist": "MNIST", "svhn": "SVHN", "usps": "USPS", "synthdigits": "Synth", "mnist_m": "MNIST-M"}
_LABEL_SKEW = ("partition.name=dirichlet", "partition.capped=false", "partition.smallest=10", "data.clients=5")
_FEW = ("partition.shots=10",)
_PRINTED = ("net.logits=relu",)
_DIGIT5, _OFFICE = "mpfedcl-digit5", "mpfedcl-office"
_READOUT_NOTE = (
    "Test accuracy in %, mean over seeds ± the half-width of the 95 % interval over seeds. mp, sp, dp and fedproto "
    "predict with the nearest prototype, the others with the head. "
)
_OWN_NOTE = _READOUT_NOTE + "Every client is tested on its own test set (its domain, or its share of every class)."
_BALANCED_NOTE = _READOUT_NOTE + (
    "The test set has all classes equally often; methods without a shared model have the mean over the clients' models."
)
_LITE0 = (
    "The encoder is an EfficientNet-Lite0 trained on ImageNet (1,280 features, images at 128 pixels). The paper's is a "
    "ResNet18 trained on DomainNet, which is not available here (512 features)."
)
_SUBSETS = "SVHN, MNIST-M and MNIST are subsets, and SynthDigits is re-made from free fonts."
_DP = (
    "dp sends at most the K largest clusters per class; the paper does not say how Eq. (10) treats clients with "
    "different numbers of clusters."
)
_MU = "The paper does not give fedprox's mu; it is 0.1 here."
_MPFEDCL_CHOICES = (
    "The paper does not give fedproto's λ (1 here). k-means starts from k-means++ centres here, from random ones in "
    "the paper.",
)
_TWO_ROUNDS = ("run.rounds=2",)
_MPFEDCL_PAIRS = (("mp", "sp"), ("mp", "dp"), ("mp", "fedavg"), ("mp", "fedproto"), ("mp", "local"))


def _rounds(method: str, rounds: Mapping[str, int] = _ROUNDS) -> tuple[str, ...]:
    """The paper's number of rounds, if it is not the recipe's; a test after the last round only."""
    number = rounds.get(method, 60)
    return (f"run.eval_every={number}", *((f"run.rounds={number}",) if method in rounds else ()))


def _own(method: str) -> str:
    """The figure on the clients' own test sets."""
    return BY_PROTOTYPE if method in _BY_PROTOTYPE else BY_HEAD


def _balanced(method: str) -> str:
    """The figure on the balanced test set: the server's, or the mean over the clients' models if it has none."""
    if method == "fedproto":
        return "personal.prototype.all"
    if method == "local":
        return "personal.all"
    return "global.prototype" if method in _BY_PROTOTYPE else "global.accuracy"


def _mpfedcl_study(
    name: str, title: str, cells: Sequence[Cell], note: str, differences: Sequence[str], quick: Sequence[str] = ()
) -> Study:
    columns, rows = (tuple(dict.fromkeys(getattr(cell, key) for cell in cells)) for key in ("column", "row"))
    pairs = tuple(pair for pair in _MPFEDCL_PAIRS if set(pair) <= set(rows))
    return Study(
        f"mpfedcl-{name}",
        f"MP-FedCL, {title}",
        tuple(cells),
        (*_TWO_ROUNDS, *quick),
        columns,
        (*differences, *_MPFEDCL_CHOICES),
        quick_seeds=1,
        pairs=pairs,
        note=note,
    )


def _table5(extra: Sequence[str], with_relu: bool = False) -> list[Cell]:
    """A column per domain and their mean, and the mean with a ReLU on the logits."""
    cells = []
    for method, values in MPFEDCL_TABLE5.items():
        words = (*_MPFEDCL_ROWS[method], *_rounds(method), *extra)
        way = _own(method).split(".")[1]
        figures = [*(f"domains.{domain}.{way}" for domain in _DOMAINS), _own(method)]
        for column, figure, value in zip((*_DOMAINS.values(), "mean"), figures, values, strict=True):
            cells.append(Cell(method, column, _DIGIT5, words, value, figure))
        if with_relu:
            cells.append(Cell(method, "mean, ReLU", _DIGIT5, (*words, *_PRINTED), values[-1], _own(method)))
    return cells


def _table6() -> list[Cell]:
    cells = []
    for method, (value, _, _) in MPFEDCL_TABLE6.items():
        words = (*_MPFEDCL_ROWS[method], *_rounds(method))
        for column, figure, extra, paper in (
            ("balanced", _balanced(method), (), value),
            ("balanced, ReLU", _balanced(method), _PRINTED, value),
            ("own", _own(method), (), ""),
            ("own, ReLU", _own(method), _PRINTED, ""),
        ):
            cells.append(Cell(method, column, "mpfedcl-mnist", (*words, *extra), paper, figure))
    return cells


def _label_cells(recipe: str, found: int, one: str) -> list[Cell]:
    """Table VI on data with domains: all domains mixed, and one of them."""
    skew = (*_LABEL_SKEW, "partition.alpha=0.05")
    return [
        Cell(method, column, recipe, (*_MPFEDCL_ROWS[method], *_rounds(method), *skew, *extra), values[found], figure)
        for method, values in MPFEDCL_TABLE6.items()
        for column, figure, extra in (
            ("all domains", _balanced(method), ()),
            (f"{one} only", _balanced(method), (f'data.domains=["{one}"]',)),
        )
    ]


def _both_cells(found: Mapping[str, tuple[str, ...]], extra: Sequence[str], table7: bool) -> list[Cell]:
    """Tables VII and VIII: Dirichlet 0.5 (Table VII: the balanced test set) and by domain (own test sets).

    A run with a budget of seconds cannot score personal models, because it does not know its last round in advance.
    """
    skew = (*_LABEL_SKEW, "partition.alpha=0.5")
    cells = []
    for method, values in found.items():
        words = (*_MPFEDCL_ROWS[method], *(_rounds(method, _ROUNDS_TABLE7) if table7 else ()), *extra)
        columns = (
            ("Digit-5, Dir(0.5)", _DIGIT5, skew, _balanced(method) if table7 else _own(method)),
            ("Digit-5, domains", _DIGIT5, (), _own(method)),
            ("Office, Dir(0.5)", _OFFICE, skew, _balanced(method) if table7 else _own(method)),
            ("Office, domains", _OFFICE, (), _own(method)),
        )
        for (column, recipe, split, figure), value in zip(columns, values, strict=True):
            cells.append(Cell(method, column, recipe, (*words, *split), value, figure))
    return cells


def _varied(
    recipe: str,
    methods: Sequence[str],
    columns: dict[str, tuple[str, ...]],
    figure: str | None = None,
    rounds: Mapping[str, int] = _ROUNDS,
) -> list[Cell]:
    """Cells without a figure of the paper's, which shows them as a plot."""
    return [
        Cell(
            method,
            column,
            recipe,
            (*_MPFEDCL_ROWS[method], *_rounds(method, rounds), *words),
            "",
            figure or _balanced(method),
        )
        for method in methods
        for column, words in columns.items()
    ]


_SKEW = (*_LABEL_SKEW, "partition.alpha=0.05")
_BUDGET = ("run.seconds=20", "run.rounds=1000", "run.eval_every=1000", "eval.personal=false")
_MANY = ("partition.name=dirichlet", "partition.capped=false", "partition.smallest=2", "partition.alpha=0.1")

MPFEDCL_STUDIES = (
    _mpfedcl_study(
        "table5", "Table V: Digit-5 by domain, all images", _table5(()), _OWN_NOTE, (_LITE0, _SUBSETS, _DP, _MU)
    ),
    _mpfedcl_study(
        "table5-few",
        "Table V: Digit-5 by domain, 10 images per class and client",
        _table5(_FEW, with_relu=True),
        _OWN_NOTE + ' "ReLU": the net as Table III prints it, with a ReLU on the logits.',
        (
            "The paper does not say how many images a client has. FedPCL, which it cites, takes 10 per class.",
            _LITE0,
            _SUBSETS,
            _DP,
            _MU,
        ),
    ),
    _mpfedcl_study(
        "table6",
        "Table VI: label skew on MNIST, Dir(0.05), 5 clients",
        _table6(),
        _BALANCED_NOTE
        + ' "own": the clients\' own test sets. ReLU: the net as Table III prints it, with a ReLU on the logits.',
        ("The paper does not say on which test set its figures are.", _DP, _MU),
    ),
    _mpfedcl_study(
        "table6-digit5",
        "Table VI: label skew on Digit-5, Dir(0.05), 5 clients",
        _label_cells(_DIGIT5, 1, "mnist_m"),
        _BALANCED_NOTE,
        (
            '"Same feature distribution" can mean that every client has all domains, or that all clients have the same '
            "single domain (FedPCL: MNIST-M).",
            _LITE0,
            _SUBSETS,
            _DP,
            _MU,
        ),
    ),
    _mpfedcl_study(
        "table6-office",
        "Table VI: label skew on Office-10, Dir(0.05), 5 clients",
        _label_cells(_OFFICE, 2, "caltech"),
        _BALANCED_NOTE,
        ('"Same feature distribution": see mpfedcl-table6-digit5.', _LITE0, _DP, _MU),
    ),
    _mpfedcl_study(
        "table7",
        "Table VII: Digit-5 and Office-10, Dir(0.5) and by domain",
        _both_cells(MPFEDCL_TABLE7, (), True),
        _READOUT_NOTE + "Dir(0.5): the balanced test set; by domain: every client's own.",
        (_LITE0, _SUBSETS, _DP),
    ),
    _mpfedcl_study(
        "table8",
        "Table VIII: equal time, 20 seconds per run",
        _both_cells(MPFEDCL_TABLE8, _BUDGET, False),
        _OWN_NOTE,
        (
            "The paper has about 600 (Digit-5) and 380 seconds on its machine, with its encoder. How many rounds a run "
            "has in its time depends on the machine, so these figures do not repeat exactly.",
            _LITE0,
            _SUBSETS,
            _DP,
        ),
        ("run.seconds=2",),
    ),
    _mpfedcl_study(
        "figure5",
        "Fig. 5: K on validation sets, Dir(0.05)",
        [
            cell
            for data, recipe, skew in (
                ("MNIST", "mpfedcl-mnist", ()),
                ("Digit-5", _DIGIT5, _SKEW),
                ("Office", _OFFICE, _SKEW),
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
        ("The paper has validation sets, too, and does not say how they were made.", _LITE0, _SUBSETS),
    ),
    _mpfedcl_study(
        "figure8",
        "Fig. 8: alpha, Office-10",
        _varied(
            _OFFICE,
            ("mp", "sp", "fedavg", "fedproto", "local"),
            {f"alpha {alpha}": (*_LABEL_SKEW, f"partition.alpha={alpha}") for alpha in (0.1, 0.2, 0.5, 1.0)},
            rounds=_ROUNDS_FIGURE8,
        ),
        _BALANCED_NOTE,
        ("The paper's figure has Digit-5, too.", _LITE0),
    ),
    _mpfedcl_study(
        "figure9",
        "Fig. 9: 5 to 40 clients, MNIST, Dir(0.1)",
        _varied(
            "mpfedcl-mnist",
            ("mp", "fedavg", "fedproto"),
            {f"{clients} clients": (*_MANY, f"data.clients={clients}") for clients in (5, 10, 20, 40)},
        ),
        _BALANCED_NOTE,
        ("The paper's figure has Digit-5, too.",),
    ),
)
"""The studies of MP-FedCL's tables and figures."""
