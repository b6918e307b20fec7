"""MP-FedCL (Qiao et al. 2023): Tables V to VIII, with an EfficientNet-Lite0 as the encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from protofed.studies.reproduce.figures import BY_HEAD, BY_PROTOTYPE
from protofed.studies.reproduce.published import MPFEDCL_TABLE5, MPFEDCL_TABLE6, MPFEDCL_TABLE7, MPFEDCL_TABLE8
from protofed.studies.reproduce.study import Cell, Study

ROWS = {
    "mp": (),
    "sp": ("method.clustering=mean",),
    "dp": ("method.clustering=dbscan",),
    "fedavg": ("method.name=fedavg",),
    "fedprox": ("method.name=fedprox",),
    "fedproto": ("method.name=fedproto", "method.nearest=all"),
    "local": ("method.name=local",),
    "mp, untrained": ("run.rounds=1", "train.lr=1e-9"),
}
"""The changes to the recipes for each method; at the end, the nearest prototype in a net that does not learn."""
_BY_PROTOTYPE = ("mp", "sp", "dp", "fedproto", "mp, untrained")
"""The methods that predict by the nearest prototype in the paper; the others predict by head."""
ROUNDS = {"fedavg": 110, "fedprox": 100, "fedproto": 100, "local": 100}
"""Table VI: the paper's rounds. mp, sp and dp have 60, as in the recipes; it has none for local and in Table V."""
_ROUNDS_TABLE7 = {**ROUNDS, "fedavg": 130, "fedproto": 130}
_DOMAINS = {"mnist": "MNIST", "svhn": "SVHN", "usps": "USPS", "synthdigits": "Synth", "mnist_m": "MNIST-M"}
LABEL_SKEW = ("partition.name=dirichlet", "partition.capped=false", "partition.smallest=10", "data.clients=5")
_FEW = ("partition.shots=10",)
_PRINTED = ("net.logits=relu",)
DIGIT5, OFFICE = "mpfedcl-digit5", "mpfedcl-office"
_READOUT_NOTE = (
    "Test accuracy in %, mean over seeds ± the half-width of the 95 % interval over seeds. mp, sp, dp and fedproto "
    "predict with the nearest prototype, the others with the head. "
)
_UNTRAINED_NOTE = (
    ' "mp, untrained": the nearest prototype in a net that does not learn, after one round with a learning rate of '
    "practically 0."
)
OWN_NOTE = _READOUT_NOTE + "Every client is tested on its own test set (its domain, or its share of every class)."
BALANCED_NOTE = _READOUT_NOTE + (
    "The test set has all classes equally often; methods without a shared model have the mean over the clients' models."
)
LITE0 = (
    "The encoder is an EfficientNet-Lite0 trained on ImageNet (1,280 features, images at 128 pixels). The paper's is a "
    "ResNet18 trained on DomainNet, which is not available here (512 features)."
)
SUBSETS = "SVHN, MNIST-M and MNIST are subsets, and SynthDigits is re-made from free fonts."
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
_MPFEDCL_PAIRS = (
    *(("mp", other) for other in ("sp", "dp", "fedavg", "fedproto", "local", "mp, untrained")),
    ("mp, by head", "fedavg"),
)


def changed_rounds(method: str, rounds: Mapping[str, int] = ROUNDS) -> tuple[str, ...]:
    """The paper's number of rounds, if it is not the recipe's; a test after the last round only."""
    number = rounds.get(method, 60)
    return (f"run.eval_every={number}", *((f"run.rounds={number}",) if method in rounds else ()))


def own_figure(method: str) -> str:
    """The figure on the clients' own test sets."""
    return BY_PROTOTYPE if method in _BY_PROTOTYPE else BY_HEAD


def balanced_figure(method: str) -> str:
    """The figure on the balanced test set: the server's, or the mean over the clients' models if it has none."""
    if method == "fedproto":
        return "personal.prototype.all"
    if method == "local":
        return "personal.all"
    return "global.prototype" if method in _BY_PROTOTYPE else "global.accuracy"


def mpfedcl_study(
    name: str, title: str, cells: Sequence[Cell], note: str, differences: Sequence[str], quick: Sequence[str] = ()
) -> Study:
    """A study of three seeds. Its quick version makes two rounds with one of them, with the changes of `quick`."""
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
        note=note + _UNTRAINED_NOTE if "mp, untrained" in rows else note,
    )


def _with_untrained(table: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """A table of the paper's and a row without its figures: MP-FedCL in a net that does not learn."""
    return {**table, "mp, untrained": ("",) * len(table["mp"])}


def _table5(extra: Sequence[str], with_relu: bool = False) -> list[Cell]:
    """A column per domain and their mean, and the mean with a ReLU on the logits."""
    cells = []
    for method, values in _with_untrained(MPFEDCL_TABLE5).items():
        words = (*ROWS[method], *changed_rounds(method), *extra)
        way = own_figure(method).split(".")[1]
        figures = [*(f"domains.{domain}.{way}" for domain in _DOMAINS), own_figure(method)]
        for column, figure, value in zip((*_DOMAINS.values(), "mean"), figures, values, strict=True):
            cells.append(Cell(method, column, DIGIT5, words, value, figure))
        if with_relu:
            cells.append(Cell(method, "mean, ReLU", DIGIT5, (*words, *_PRINTED), values[-1], own_figure(method)))
    return cells


def _table6() -> list[Cell]:
    cells = []
    for method, (value, _, _) in _with_untrained(MPFEDCL_TABLE6).items():
        words = (*ROWS[method], *changed_rounds(method))
        for column, figure, extra, paper in (
            ("balanced", balanced_figure(method), (), value),
            ("balanced, ReLU", balanced_figure(method), _PRINTED, value),
            ("own", own_figure(method), (), ""),
            ("own, ReLU", own_figure(method), _PRINTED, ""),
        ):
            cells.append(Cell(method, column, "mpfedcl-mnist", (*words, *extra), paper, figure))
    return cells


def _label_cells(recipe: str, found: int, one: str) -> list[Cell]:
    """Table VI on data with domains: all domains mixed, and one of them."""
    skew = (*LABEL_SKEW, "partition.alpha=0.05")
    return [
        Cell(method, column, recipe, (*ROWS[method], *changed_rounds(method), *skew, *extra), values[found], figure)
        for method, values in _with_untrained(MPFEDCL_TABLE6).items()
        for column, figure, extra in (
            ("all domains", balanced_figure(method), ()),
            (f"{one} only", balanced_figure(method), (f'data.domains=["{one}"]',)),
        )
    ]


def _both_cells(found: Mapping[str, tuple[str, ...]], extra: Sequence[str], table7: bool) -> list[Cell]:
    """Tables VII and VIII: Dirichlet 0.5 (Table VII: the balanced test set) and by domain (own test sets).

    A run with a budget of seconds cannot score personal models, because it does not know its last round in advance.
    """
    skew = (*LABEL_SKEW, "partition.alpha=0.5")
    cells = []
    for method, values in found.items():
        words = (*ROWS[method], *(changed_rounds(method, _ROUNDS_TABLE7) if table7 else ()), *extra)
        columns = (
            ("Digit-5, Dir(0.5)", DIGIT5, skew, balanced_figure(method) if table7 else own_figure(method)),
            ("Digit-5, domains", DIGIT5, (), own_figure(method)),
            ("Office, Dir(0.5)", OFFICE, skew, balanced_figure(method) if table7 else own_figure(method)),
            ("Office, domains", OFFICE, (), own_figure(method)),
        )
        for (column, recipe, split, figure), value in zip(columns, values, strict=True):
            cells.append(Cell(method, column, recipe, (*words, *split), value, figure))
    return cells


_BUDGET = ("run.seconds=20", "run.rounds=1000", "run.eval_every=1000", "eval.personal=false")

MPFEDCL_STUDIES = (
    mpfedcl_study(
        "table5", "Table V: Digit-5 by domain, all images", _table5(()), OWN_NOTE, (LITE0, SUBSETS, _DP, _MU)
    ),
    mpfedcl_study(
        "table5-few",
        "Table V: Digit-5 by domain, 10 images per class and client",
        _table5(_FEW, with_relu=True),
        OWN_NOTE + ' "ReLU": the net as Table III prints it, with a ReLU on the logits.',
        (
            "The paper does not say how many images a client has. FedPCL, which it cites, takes 10 per class.",
            LITE0,
            SUBSETS,
            _DP,
            _MU,
        ),
    ),
    mpfedcl_study(
        "table6",
        "Table VI: label skew on MNIST, Dir(0.05), 5 clients",
        _table6(),
        BALANCED_NOTE
        + ' "own": the clients\' own test sets. ReLU: the net as Table III prints it, with a ReLU on the logits.',
        ("The paper does not say on which test set its figures are.", _DP, _MU),
    ),
    mpfedcl_study(
        "table6-digit5",
        "Table VI: label skew on Digit-5, Dir(0.05), 5 clients",
        _label_cells(DIGIT5, 1, "mnist_m"),
        BALANCED_NOTE,
        (
            '"Same feature distribution" can mean that every client has all domains, or that all clients have the same '
            "single domain (FedPCL: MNIST-M).",
            LITE0,
            SUBSETS,
            _DP,
            _MU,
        ),
    ),
    mpfedcl_study(
        "table6-office",
        "Table VI: label skew on Office-10, Dir(0.05), 5 clients",
        _label_cells(OFFICE, 2, "caltech"),
        BALANCED_NOTE,
        ('"Same feature distribution": see mpfedcl-table6-digit5.', LITE0, _DP, _MU),
    ),
    mpfedcl_study(
        "table7",
        "Table VII: Digit-5 and Office-10, Dir(0.5) and by domain",
        _both_cells(_with_untrained(MPFEDCL_TABLE7), (), True),
        _READOUT_NOTE + "Dir(0.5): the balanced test set; by domain: every client's own.",
        (LITE0, SUBSETS, _DP),
    ),
    replace(
        mpfedcl_study(
            "table8",
            "Table VIII: equal time, 20 seconds per run",
            _both_cells(MPFEDCL_TABLE8, _BUDGET, False),
            OWN_NOTE,
            (
                "The paper has about 600 (Digit-5) and 380 seconds on its machine, with its encoder. How many rounds a "
                "run has in its time depends on the machine, so these figures do not repeat exactly.",
                LITE0,
                SUBSETS,
                _DP,
            ),
            ("run.seconds=2",),
        ),
        also=("rounds",),
    ),
)
"""The studies of MP-FedCL's tables."""
