"""The sections of an experiment file that belong to no method, net or partition: their keys, defaults and meanings.

[train] lives in `local.py`; `config.py` puts them together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator

from protofed.experiment.accuracy import Reporting
from protofed.nets import Design


def _share_or_number(value: Any) -> Any:
    """Check `run.sample`."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and ((value >= 1) if isinstance(value, int) else (0 < value <= 1)):
        return value
    raise ValueError("must be a share of the clients above 0 and up to 1.0 (like 0.1), or a whole number of clients")


@dataclass(frozen=True)
class RunSection:
    """[run]"""

    seed: Annotated[int, Ge(0)] = 0
    """all randomness comes from it"""
    rounds: Annotated[int, Ge(1)] = 50
    """how many rounds the run has"""
    sample: Annotated[int | float, BeforeValidator(_share_or_number)] = 1.0
    """clients in a round: 1.0 is all of them, 0.1 a tenth, 1 a single one"""
    sampling: Literal["uniform", "by_size"] = "uniform"
    """who they are: everybody alike, or in proportion to their training examples"""
    eval_every: Annotated[int, Ge(1)] = 1
    """test the clients every so many rounds, and after the last one"""
    checkpoint_every: Annotated[int, Ge(1)] = 1
    """store the state every so many rounds, and after the last one: what --resume goes on from"""
    trace_every: Annotated[int, Ge(0)] = 0
    """keep the server's prototypes in trace/ every so many rounds, and after the last one; 0: never"""
    tensorboard: bool = False
    """write the numbers of rounds.jsonl for TensorBoard, too, in tensorboard/ (extra protofed[tensorboard])"""


@dataclass(frozen=True)
class DataSection:
    """[data]"""

    name: str = "digits"
    """`protofed list datasets` shows them"""
    root: str = ""
    """the folder that has the data files; "": $PROTOFED_DATA, else ~/.cache/protofed"""
    clients: Annotated[int, Ge(0)] = 0
    """how many clients there are; 0: as many as the data have by themselves in this partition, else 20"""
    limit: Annotated[int, Ge(0)] = 0
    """use only so many training examples, drawn from run.seed; 0: all"""
    encoder: str = ""
    """a file of `protofed export` or `pretrain`: its body, frozen, makes features of the inputs, once; "": none"""
    normalise: Literal["dataset", "client"] = "dataset"
    """dataset: as docs/data.md says, mostly by constants; client: each client by its own means and deviations"""


@dataclass(frozen=True)
class EvalSection:
    """[eval]"""

    test: Literal["dataset", "own"] = "dataset"
    """dataset: clients are tested on their part of the data's test set; own: on a fifth of each class they hold"""
    validation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """the share of its training examples that every client sets aside to choose the best round by"""
    personal: bool = False
    """score each client's latest model on the balanced test set as FedNH does; takes as many passes as clients"""
    clients: Literal["all", "round"] = "all"
    """whose personal models are scored: all clients' (never trained: what it would start from), or the last round's"""
    reporting: Reporting = "clients"
    """clients: mean and spread over the clients; running: the running average that FedProto's authors print"""


@dataclass(frozen=True)
class SystemSection:
    """[system]"""

    slow: Annotated[float, Ge(0), Le(1)] = 0.0
    """the share of a round's clients, drawn anew, that are slow: they do 0 to train.epochs epochs, at random"""
    late: Literal["keep", "drop"] = "keep"
    """what becomes of them: their partial work counts, or they are left out of the round"""


@dataclass(frozen=True)
class EngineSection:
    """[engine]"""

    name: Literal["auto", "loop", "stacked"] = "auto"
    """loop: one client after the other; stacked: clients of one net at once; auto: chosen by a fixed rule"""
    workers: Annotated[int, Ge(0)] = 0
    """processes; 0: one a core where the work is worth it. The result does not depend on it"""
    reason: str = ""
    """why `auto` chose as it did; written by the run"""


@dataclass(frozen=True)
class GivenInPython:
    """What is given in Python has no options here."""


@dataclass(frozen=True)
class NetChoice:
    """A net, how many of the clients have it, relative to the other nets, and the file it starts from."""

    name: str
    design: Design
    share: float = 1.0
    weights: str = ""


@dataclass(frozen=True)
class NetKeys:
    """The keys of a [net] that every net has."""

    share: Annotated[float, Gt(0), Le(1e6)] = 1.0
    """how many of the clients have this net, relative to the other [[net]]s"""
    weights: str = ""
    """a .safetensors file, or a .pt state dict, with layers to start from: the body's, or all; "": random ones"""
