"""The sections of an experiment file that do not depend on a name: their keys, defaults and descriptions.

[train] is in `training.py`. [partition], [net] and [method] are the dataclasses that their `name` chooses. `config.py`
puts all sections together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BeforeValidator

from protofed.data.table.client_tables import TableOptions
from protofed.data.table.recipe import Scaling
from protofed.devices import check_device_name
from protofed.experiment.accuracy import Reporting
from protofed.experiment.unknown import Rule
from protofed.nets import Design
from protofed.training import TrainSection
from protofed.trust.privacy.section import PrivacySection
from protofed.trust.trust_sections import AttackSection, TrustSection

TABLE = "table"
"""The name of data that are the tables of the clients."""


def _share_or_number(value: Any) -> Any:
    """Check the value of one of `SHARES_OR_NUMBERS`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and ((value >= 1) if isinstance(value, int) else (0 < value <= 1)):
        return value
    raise ValueError("must be a fraction of the clients above 0 and up to 1.0 (like 0.1), or a whole number of clients")


def _scaling(value: Any) -> Any:
    """Check the value of `data.scaling`."""
    if value in ("client", "federated"):
        return value
    if isinstance(value, Mapping) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in value.values()):
        return {name: tuple(map(float, pair)) for name, pair in value.items()}
    raise ValueError('must be "client", "federated", or a table like {age = [50, 10]} with a mean and a deviation')


@dataclass(frozen=True)
class RunSection:
    """The [run] section: rounds, sampling of clients, and what is written."""

    seed: Annotated[int, Ge(0)] = 0
    """seed of all randomness in the run"""
    rounds: Annotated[int, Ge(1)] = 50
    """number of rounds"""
    seconds: Annotated[float, Ge(0)] = 0.0
    """time budget: the run ends after the round with which its rounds have taken this many seconds; 0: no limit"""
    sample: Annotated[int | float, BeforeValidator(_share_or_number)] = 1.0
    """clients per round: a fraction (1.0 is all clients, 0.1 a tenth of them) or a whole number (1 is one client)"""
    sampling: Literal["uniform", "by_size"] = "uniform"
    """uniform: every client is equally likely; by_size: with probability proportional to its examples"""
    eval_every: Annotated[int, Ge(0)] = 0
    """test the clients every this many rounds, and after the last; 0: every round, or less often with over 1,000"""
    eval_last: Annotated[int, Ge(0)] = 0
    """test the clients in each of the last this many rounds, too, for a mean over them"""
    checkpoint_every: Annotated[int, Ge(1)] = 1
    """write a checkpoint, from which --resume continues, every this many rounds, and after the last"""
    keep_checkpoints: Annotated[int, Ge(0)] = 2
    """number of checkpoints to keep, the newest; 0: all, so that the model can be measured round by round"""
    trace_every: Annotated[int, Ge(0)] = 0
    """save the server's prototypes to trace/ every this many rounds, and after the last; 0: never"""
    monitor: Annotated[int, Ge(0)] = 0
    """every this many rounds, compare the loss with the bound of the method's paper (bounds.jsonl); slow; 0: never"""
    tensorboard: bool = False
    """the same as "tensorboard" in run.watchers"""
    watchers: tuple[str, ...] = ()
    """who gets the numbers of rounds.jsonl, too: "tensorboard", "mlflow", or your own ("./mine.py:Name")"""

    def all_watchers(self) -> tuple[str, ...]:
        """The names of the watchers, each once."""
        return tuple(dict.fromkeys((*(["tensorboard"] if self.tensorboard else []), *self.watchers)))

    def is_over(self, rounds: int, seconds: float) -> bool:
        """Whether the run ends after this number of rounds, which took this many seconds."""
        return rounds >= self.rounds or 0 < self.seconds <= seconds

    def is_tested(self, number: int, last: bool) -> bool:
        """Whether the clients are tested after round `number`."""
        return is_due(number, self.eval_every or 1, last) or number > self.rounds - self.eval_last

    def number_of_tests(self) -> int:
        """The number of rounds after which the clients are tested, if the run has all its rounds."""
        every, last = self.eval_every or 1, min(self.eval_last, self.rounds)
        is_last_extra = not last and self.rounds % every > 0
        return (self.rounds - last) // every + last + is_last_extra


def is_due(number: int, every: int, last: bool) -> bool:
    """Whether something that happens every so many rounds, and after the last, happens after round `number`."""
    return every > 0 and (number % every == 0 or last)


@dataclass(frozen=True)
class DataSection:
    """The [data] section: the dataset, and the number of clients."""

    name: str = "digits"
    """name of the dataset; `protofed list datasets` shows all"""
    root: str = ""
    """folder with the data files; "": $PROTOFED_DATA, or ~/.cache/protofed if that is not set"""
    clients: Annotated[int, Ge(0)] = 0
    """number of clients; 0: the number the partition implies (domains, subjects, 1 if pooled), otherwise 20"""
    domains: tuple[str, ...] = ()
    """names of the domains (subjects, hospitals, ...) to use, for training and testing; []: all"""
    limit: Annotated[int, Ge(0)] = 0
    """number of training examples to use, drawn at random with run.seed; 0: all"""
    encoder: str = ""
    """frozen encoder of the inputs: efficientnet_lite0, a file, or "./mine.py:name"; "": none (docs/nets.md)"""
    encoder_net: str = ""
    """net whose weights the file has, with its options ("resnet18 stem=imagenet"); "": the file says it"""
    encoder_size: Annotated[int, Ge(0)] = 0
    """images are resized to this number of pixels squared for the encoder; 0: they keep their size, if it fits"""
    encoder_mean: tuple[float, ...] = ()
    """means that the encoder's input is normalised by, of values from 0 to 1, per channel; []: the encoder's own"""
    encoder_std: tuple[float, ...] = ()
    """standard deviations, like encoder_mean"""
    encoder_output: str = ""
    """name of the output of an .onnx file that has the features; "": the first"""
    normalise: Literal["dataset", "client", "pooled", "weights"] = "dataset"
    """dataset: constants in docs/data.md; client: a client's statistics; pooled: all clients'; weights: net.weights'"""
    target: str = ""
    """tables (name = "table", docs/tables.md): name of the column with the labels"""
    client: str = ""
    """tables: name of the column that says which client a row belongs to; "": every file of the folder is a client"""
    test: str = ""
    """tables: name of the column that says which rows are for tests (test or train); "": a fifth of each class is"""
    drop: tuple[str, ...] = ()
    """tables: names of columns that are not used; "hospital_b:ca" is the column ca of the client hospital_b only"""
    categories: tuple[str, ...] = ()
    """tables: names of columns with numbers that are categories"""
    missing: tuple[str, ...] = ()
    """tables: texts that mean a missing value in a CSV file, in addition to an empty cell, NA, NaN, null and None"""
    scaling: Annotated[Scaling, BeforeValidator(_scaling)] = "client"
    """tables: by a client's training rows; federated: by all clients'; {column = [mean, deviation], ...}: by these"""
    min_classes: Annotated[int, Ge(1)] = 2
    """tables: smallest number of classes of a client; with fewer classes its table is refused"""

    def normalised_by_data(self) -> bool:
        """Whether inputs are normalised by the data of the clients instead of constants."""
        of_tables = self.name == TABLE and isinstance(self.scaling, str)
        return self.normalise in ("client", "pooled") or of_tables

    def table_options(self) -> TableOptions:
        """The options of tables."""
        return TableOptions(**{key: getattr(self, key) for key in (field.name for field in fields(TableOptions))})


@dataclass(frozen=True)
class EvalSection:
    """The [eval] section: how clients are tested."""

    test: Literal["dataset", "own", "merged"] = "dataset"
    """dataset: a client tests on its part of the test set; own: on a fifth of its own; merged: own, of all examples"""
    validation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """fraction of its training examples that every client sets aside to choose the best round"""
    personal: bool = False
    """whether each client's latest model is scored on the balanced test set, as in FedNH; takes one pass per client"""
    clients: Literal["all", "round"] = "all"
    """whose models `personal` scores; all: all (never trained: the one it would start from); round: the last round's"""
    clients_sampled: Annotated[int | float, BeforeValidator(_share_or_number)] = 1.0
    """clients that are tested: a fraction (1.0: all) or a whole number; drawn once, the same ones for every method"""
    training_loss: bool = False
    """whether the server's model is also tested on all training examples (loss_global in rounds.jsonl)"""
    unknown: Rule = "softmax"
    """rule that marks predictions for inputs unlike a client's classes (docs/own-data.md); none: no marks"""
    false_alarms: Annotated[float, Gt(0), Lt(1)] = 0.05
    """share of inputs of a client's own classes that may be marked as unknown; it sets the limit of the rule"""
    reporting: Reporting = "clients"
    """clients: mean and spread over the clients; running: the running average that FedProto's authors print"""


@dataclass(frozen=True)
class SystemSection:
    """The [system] section: clients that are slow."""

    slow: Annotated[float, Ge(0), Le(1)] = 0.0
    """fraction of a round's clients that are slow; each does a random number of epochs, 0 to train.epochs (or steps)"""
    late: Literal["keep", "drop"] = "keep"
    """keep: the partial work of slow clients counts; drop: slow clients are left out of the round"""


@dataclass(frozen=True)
class EngineSection:
    """The [engine] section: how the clients of a round are computed."""

    name: Literal["auto", "loop", "stacked", "ray", "flower"] = "auto"
    """loop: one client after another; stacked: clients with the same net at once; auto: chosen by a fixed rule;
    ray: as auto, in workers of a Ray cluster (docs/cluster.md); flower: other machines, set by `protofed deploy`"""
    workers: Annotated[int, Ge(0)] = 0
    """number of processes; 0: one per core if the run is large enough to benefit; results do not depend on it"""
    address: str = ""
    """ray: address of the cluster, such as "10.0.0.1:6379"; "": one is started on this machine for the run"""
    memory: Annotated[float, Gt(0)] = 1.0
    """gigabytes of memory for what clients keep, and for the uploads of a round; more is read from disk when needed"""
    device: Annotated[str, BeforeValidator(check_device_name)] = "cpu"
    """where clients train and are tested: cpu, cuda, cuda:1 (the second GPU), mps, or auto (a GPU if there is one)"""
    reason: str = ""
    """why `auto` chose this engine; filled in by the run, leave it empty"""


@dataclass(frozen=True)
class GivenInPython:
    """A partition or net that was given in Python: it has no options in an experiment file."""


@dataclass(frozen=True)
class NetChoice:
    """A net, its share of the clients relative to the other nets, and the file with its initial weights."""

    name: str
    design: Design
    share: float = 1.0
    weights: str = ""


@dataclass(frozen=True)
class NetKeys:
    """The keys of [net] that do not depend on the net."""

    share: Annotated[float, Gt(0), Le(1e6)] = 1.0
    """share of the clients that have this net, relative to the other [[net]] tables"""
    weights: str = ""
    """file with the initial weights of the body or of all layers: .safetensors, or a .pt state dict; "": random ones"""


def table_problems(data: DataSection, partition: Mapping[str, Any] | None) -> list[str]:
    """What is wrong with the options of tables. `partition`: the [partition] section, if the experiment has one."""
    defaults = {field.name: field.default for field in fields(DataSection)}
    options = [field.name for field in fields(TableOptions)]
    others = [key for key in defaults if key not in ("name", "root", "clients", "domains", *options)]
    if data.name != TABLE:
        used = [key for key in options if getattr(data, key) != defaults[key]]
        return [f'data.{key}: applies to tables only. Set data.name = "table", or leave it out' for key in used]
    used = [key for key in others if getattr(data, key) != defaults[key]]
    problems = [f"data.{key}: does not apply to tables. Leave it out" for key in used]
    if not data.target:
        problems.append("data.target: missing. Give the name of the column with the labels")
    if partition and partition.get("name") != "natural":
        problems.append("[partition]: tables are divided among clients already. Leave the section out")
    return problems


SECTIONS: dict[str, type[Any]] = {
    "run": RunSection,
    "data": DataSection,
    "train": TrainSection,
    "eval": EvalSection,
    "system": SystemSection,
    "privacy": PrivacySection,
    "engine": EngineSection,
    "trust": TrustSection,
    "attack": AttackSection,
}
"""The sections that do not depend on a name."""
