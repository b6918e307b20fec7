"""The scales at which prototype-guided FL's tables and figures are made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MarginScale:
    """A dataset and the size of its runs."""

    suffix: str  # of the studies' names
    data: str  # its name in `published`
    title: str
    recipe: str
    words: tuple[str, ...]
    mu: str  # FedProx's weight of the proximal term, S2
    central: tuple[str, ...]  # the run on pooled data
    quick: tuple[str, ...]
    differences: tuple[str, ...]
    largest: str = ""  # the client that has most of all examples, if there is one


_POOLED = ("partition.name=pooled", "data.clients=1", "run.sample=1.0", "system.slow=0", "method.name=fedavg")
_DENSE = ("net.name=mlp", "net.hidden=[128]", "net.dim=64")
_SMALL = (*_DENSE, "train.epochs=3", "data.limit=10000", "eval.test=dataset")
_DENSE_NET = "The net has dense layers of 128 and 64 units instead of the paper's convolutions."
MARGIN_SCALES = (
    MarginScale(
        "",
        "synthetic",
        "synthetic(1, 1)",
        "protomargin-synthetic",
        (),
        "0.1",
        (*_POOLED, "run.rounds=200", "train.epochs=1"),
        ("run.rounds=20", "train.epochs=2"),
        (
            "The data follow the law and have the client sizes of FedProx's published file, but are another draw. A "
            "seed changes the sampling and the initial weights, not the data.",
        ),
        "client 15",
    ),
    MarginScale(
        "-mnist",
        "mnist",
        "MNIST, 20 epochs, a dense net",
        "protomargin-mnist",
        _DENSE,
        "1.0",
        (*_DENSE, *_POOLED, "run.rounds=60", "train.epochs=1"),
        ("run.rounds=20", "train.epochs=1", "data.limit=20000"),
        (_DENSE_NET,),
    ),
    MarginScale(
        "-small",
        "mnist",
        "MNIST, small: 3 epochs, 10,000 images, a dense net",
        "protomargin-mnist",
        (*_SMALL, "partition.smallest=1"),
        "1.0",
        (*_SMALL, *_POOLED, "run.rounds=60", "train.epochs=1"),
        ("run.rounds=20", "train.epochs=1"),
        (
            _DENSE_NET,
            "3 epochs instead of 20, 10,000 training images instead of 80 % of 69,000, and one image instead of five "
            "of each class before a power law divides the rest.",
            "The test set is MNIST's own, 10,000 images, instead of a fifth of each client, which would be too small.",
        ),
    ),
)
