"""Prototype-guided FL (Michieli & Ozay 2021), section 5.2: Fig. 5, segmentation, on pets with masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from protofed.experiment.folder import Folder
from protofed.pictures.bands import BandPanel, draw_bands
from protofed.studies.plan import SweepRun
from protofed.studies.reproduce.over_slow import SLOW
from protofed.studies.reproduce.study import Cell, Study

_RECIPE = "masks-quick"
_ALPHAS = ("0.01", "0.1", "1.0")
_DECISIVE = (("0.1", "0"), ("0.1", "0.8"))
"""The pairs of alpha and the share of slow clients that are run with three seeds; all others have one."""
_FIGURE5_DATA: dict[str, tuple[str, tuple[str, ...]]] = {
    "figure5": ("pets_masks_macro", ("miou.per_class.cat", "miou.per_class.dog")),
    "figure5-breeds": ("pets_masks", ()),
}
"""The studies, the data of each (background, cat and dog; background and 20 breeds), and the classes that are shown."""
_EQUAL = "equal weights + toleration"
"""The row that separates the effect of margins from that of weights that do not depend on sizes."""
_ROWS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.name=fedavg", "system.late=drop"),
    "fedavg + toleration": ("method.name=fedavg",),
    _EQUAL: ("method.name=fedavg", "method.weights=equal"),
    "protomargin": (),
    "protomargin, deviation": ("method.attention=deviation",),
    "local": ("method.name=local",),
}
_ENTROPIES = ("entropy.mean.softmax", "entropy.mean.features")
"""H_S and H_E, of which the paper's Fig. 6 shows maps."""
_SERVER, _CLIENTS = "miou.mean", "miou.clients.head.mean"
_SEGMENTATION_NOTE = (
    "mIoU in %, the background included: of the server's model on the test set, after the last round, mean over seeds "
    "± the half-width of the 95 % interval over seeds. local: the mean over clients, each on its own test set, none of "
    "them slow. central: one model trained on all images, for two epochs per round. slow: the fraction of a round's "
    'clients that do not do all their epochs. protomargin is Eq. (11) as printed; deviation is attention = "deviation".'
    " Three seeds with alpha 0.1 and slow 0 or 0.8; (1): one seed."
)
_ENCODER_NOTE = (
    "mIoU in %, the background included, of the server's model on the test set, after the last round. The decoder "
    "always starts at random. From random weights, images are normalised with the constants of the data instead of "
    "those of the weights. alpha 0.1, no slow clients."
)
_DIFFERENCES = (
    "Pets (1,600 images of 64x64 pixels, 20 breeds) stand in for Pascal VOC 2012 (6,665 images with one class).",
    "A small U-Net from random weights instead of DeepLab-V3+ with an encoder trained on ImageNet; learning rate 0.003 "
    "instead of 0.0001.",
    "20 clients and 30 rounds instead of 100 and 440.",
)
_SEGMENTATION_PAIRS = (
    ("protomargin, deviation", _EQUAL),
    ("protomargin", _EQUAL),
    (_EQUAL, "fedavg + toleration"),
    ("protomargin, deviation", "fedavg + toleration"),
    ("protomargin", "fedavg + toleration"),
    ("protomargin, deviation", "fedavg"),
    ("protomargin", "fedavg"),
    ("protomargin, deviation", "protomargin"),
)
_SEGMENTATION_QUICK = (
    "run.rounds=2",
    "train.decay_rounds=2",
    "run.eval_every=1",
    "data.limit=120",
    "net.channels=[4, 8]",
)


def _column(alpha: str, slow: str) -> str:
    return f"alpha {alpha}, slow {slow}"


def _figure5(name: str, data: str, classes: tuple[str, ...]) -> Study:
    """A row per method, and a column per concentration of classes and share of slow clients."""
    cells = []
    for alpha in _ALPHAS:
        for slow in SLOW:
            for row, method in _ROWS.items():
                if row == "local" and float(slow):
                    continue  # nobody waits for a client that shares nothing
                if row == _EQUAL and (alpha, slow) not in _DECISIVE:
                    continue
                words = [word for word in method if float(slow) or word != "system.late=drop"]
                words += [f"data.name={data}", f"partition.alpha={alpha}", f"system.slow={slow}"]
                figure = _CLIENTS if row == "local" else _SERVER
                most_seeds = 0 if (alpha, slow) in _DECISIVE else 1
                cells.append(Cell(row, _column(alpha, slow), _RECIPE, tuple(words), "", figure, most_seeds=most_seeds))
    central = ("method.name=local", f"data.name={data}", "partition.name=pooled", "data.clients=1", "run.sample=1.0")
    cells.append(Cell("central", "all images", _RECIPE, central, "", _CLIENTS, most_seeds=1))
    return Study(
        f"protomargin-{name}",
        f"Prototype-guided FL, Fig. 5: {data}",
        tuple(cells),
        _SEGMENTATION_QUICK,
        tuple(_column(*pair) for pair in _DECISIVE),
        _DIFFERENCES,
        picture=draw_overlap_by_alpha,
        quick_seeds=1,
        pairs=_SEGMENTATION_PAIRS,
        note=_SEGMENTATION_NOTE,
        also=(_CLIENTS, *classes, *_ENTROPIES),
    )


_ENCODER_STARTS = {"from ImageNet": (), "from random weights": ("net.weights=", "data.normalise=dataset")}
"""How the encoder starts, and the images normalised: as the encoder's, or with the constants of the data."""


def _encoder_study() -> Study:
    """A row per method, and a column per start of the encoder."""
    cells = [
        Cell(row, column, "masks-encoder", (*method, *words), "", _SERVER)
        for row, method in (("fedavg", ("method.name=fedavg",)), ("protomargin", ()))
        for column, words in _ENCODER_STARTS.items()
    ]
    return Study(
        "protomargin-encoder",
        "Prototype-guided FL, section 5.2: an encoder trained on ImageNet",
        tuple(cells),
        ("run.rounds=1", "train.decay_rounds=1", "run.eval_every=1", "data.limit=60", "run.sample=4"),
        tuple(_ENCODER_STARTS),
        (
            _DIFFERENCES[0],
            "20 clients, none of them slow, and 6 rounds instead of 100 and 440.",
            "An EfficientNet-Lite0 instead of a MobileNetV2; learning rate 0.0003 instead of 0.0001.",
        ),
        seeds=1,
        quick_seeds=1,
        note=_ENCODER_NOTE,
        also=(_CLIENTS, *_FIGURE5_DATA["figure5"][1], *_ENTROPIES),
    )


def draw_overlap_by_alpha(jobs: Sequence[SweepRun]) -> Figure:
    """Fig. 5: the server's mIoU over rounds, a panel per alpha, with the mean and a band over shares of slow clients.

    A share's curve is the mean over its seeds. The level of central is that of its last round. Equal weights, which do
    not have all shares, are left out.
    """
    central: list[float] = []
    by_alpha: dict[str, dict[str, dict[str, list[dict[int, float]]]]] = {}  # alpha, row, share: a curve per seed
    for job in jobs:
        row, separator, column = job.setting.partition(", alpha ")
        lines = Folder(job.out).rounds()
        if row.startswith("central"):
            central.append(100 * lines[-1]["miou_head"])
        values = {line["round"]: 100 * line["miou"] for line in lines if line.get("miou") is not None}
        if separator and values and row != _EQUAL:
            alpha, _, slow = column.partition(", slow ")
            by_alpha.setdefault(alpha, {}).setdefault(row, {}).setdefault(slow, []).append(values)
    panels = []
    for alpha, rows in by_alpha.items():
        every = [values for shares in rows.values() for runs in shares.values() for values in runs]
        rounds = sorted(set.intersection(*map(set, every)))
        curves = {
            row: np.array([np.mean([[one[at] for at in rounds] for one in runs], 0) for runs in shares.values()])
            for row, shares in rows.items()
        }
        levels = {"central": float(np.mean(central))} if central else {}
        panels.append(BandPanel(f"alpha = {alpha}", rounds, curves, y_label="mIoU in %", levels=levels))
    picture = draw_bands(panels, columns=len(panels))
    shown = [axis for axis in picture.axes if axis.get_visible()]
    low, high = (
        choose(limits)
        for choose, limits in zip((min, max), zip(*(axis.get_ylim() for axis in shown), strict=True), strict=True)
    )
    for axis in shown:
        axis.set_ylim(low, high)
    return picture


SEGMENTATION_STUDIES = (*(_figure5(name, *data) for name, data in _FIGURE5_DATA.items()), _encoder_study())
"""The studies of prototype-guided FL's segmentation."""
