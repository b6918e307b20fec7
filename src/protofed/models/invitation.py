"""An invitation: everything that a client needs to join a finished run, and no other client's weights or rows.

It has what the server would send (for fedproto the prototypes), the names of the classes, the method with its options,
and what the newcomer's net must have. As a file it is safetensors with JSON metadata.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from safetensors.torch import save

from protofed import __version__
from protofed.data.table.client_tables import TableOptions
from protofed.data.table.recipe import ColumnRecipe, Recipe
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.config import Config
from protofed.experiment.folder import must_be_new, write_atomically
from protofed.experiment.member_nets import build_nets, initial_layers
from protofed.experiment.sections import TABLE
from protofed.experiment.stored import GIVEN
from protofed.messages import flatten, unflatten
from protofed.models.damaged_files import read_safetensors, understood_metadata
from protofed.models.export import with_sorted_metadata
from protofed.plugins import label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from protofed.core import AnyMethod, Net, Params
    from protofed.experiment.members import Members
    from protofed.experiment.results import Result

_INVITATION = "invitation"
"""The name of the metadata that a file with an invitation has."""
_LAYERS = "initial layers/"
"""What the names of the tensors begin with that the net of the run started from."""
_TABLE_KEYS = ("target", "test", "drop", "categories", "missing", "scaling")
"""What an invitation says about tables. Files of earlier versions have no test."""


@dataclass(frozen=True)
class Invitation:
    """What a newcomer gets of a run."""

    config: Config  # [method], [train], [net], of [run] seed and rounds, of [eval] the rule for unknown inputs
    labels: tuple[str | int, ...]
    clients: int  # of the run; also the number of the newcomer
    message: Any  # what the server sends to a newcomer
    dim: int  # of the embeddings
    shapes: dict[str, tuple[int, ...]]  # of the tensors of the net, if the method combines nets; otherwise {}
    input: dict[str, Any] | None  # shape and constants of the inputs, if they are the same for all clients
    own_statistics: bool  # whether every client normalises its inputs by its own statistics
    table: TableOptions | None = None  # of tables: what the run says about them
    steps: tuple[ColumnRecipe, ...] = ()  # of tables: the columns that are scaled in the same way for all clients
    members: Members | None = None  # the clients of the run, if it is at hand
    layers: Params = field(default_factory=dict)  # in a file: the tensors that the net of the run started from

    @classmethod
    def of(cls, result: Result) -> Invitation:
        """The invitation to a run that is at hand."""
        config, members, server, _ = result.state
        method, inputs = config.method, [train.input for train in members.train]
        table = config.data.table_options() if config.data.name == TABLE else None
        if table is None and members.recipes:  # tables that were given in Python
            table = TableOptions(members.recipes[0].target)
        return cls(
            config,
            members.labels,
            len(members),
            method.broadcast(server, len(members)),
            members.nets[0].dim,
            members.nets[0].shapes if method.needs == "equal nets" else {},
            inputs[0] if all(one == inputs[0] for one in inputs) and not members.recipes else None,
            all(one["shape"] == inputs[0]["shape"] for one in inputs) and any(one != inputs[0] for one in inputs),
            table,
            _common_steps(members.recipes),
            members,
        )

    @property
    def method(self) -> AnyMethod:
        return self.config.method

    @property
    def inputs(self) -> tuple[Examples, ...]:
        """Examples that know how the inputs of the run are normalised, one set per client if these are at hand."""
        if self.members:
            return self.members.train
        return (Examples.empty(**self.input),) if self.input else ()

    def net(self, client: int | None, shape: tuple[int, ...]) -> Net:
        """The newcomer's net if it gives none: that of `client`, or the first of the experiment for its inputs."""
        of_client = self.members.nets[client or 0] if self.members else None
        if of_client and (of_client.shape, of_client.classes) == (shape, len(self.labels)):
            return of_client
        if self.config.nets[0].name == GIVEN:
            raise UserError(
                "The run's nets were given in Python, for other inputs or classes. Give the newcomer a net."
            )
        return build_nets(self.config, [shape], len(self.labels))[0]

    def layers_for(self, client: int | None) -> Params:
        """The tensors that the net of `client`, or of the first client, starts from (net.weights); {}: none."""
        if self.layers or self.config.nets[0].name == GIVEN:
            return self.layers
        if self.members and self.members.nets[client or 0].initial_params:
            return self.members.nets[client or 0].initial_params
        return initial_layers(self.config, client or 0, len(self.members) if self.members else 1)

    def check_net(self, net: Net) -> None:
        """Raise an error if the newcomer's net does not fit those of the run."""
        name, method = label(self.config.method_name), self.method
        if method.needs == "equal dim" and net.dim != self.dim:
            raise UserError(
                f"{name} needs embeddings of the same size: those of the run have {self.dim} numbers, the newcomer's "
                f"net {net.name} has {net.dim}. Set net.dim={self.dim}."
            )
        if method.needs == "equal nets" and net.shapes != self.shapes:
            raise UserError(
                f"{name} cannot average nets of different shapes, and the newcomer's net {net.name} differs from the "
                "run's. Use the net of the run, or a run with a method that shares prototypes (fedproto)."
            )

    def needs(self) -> str:
        """What a newcomer's net must have, in words."""
        if self.method.needs == "nothing":
            return "any net"
        return f"embeddings of {self.dim} numbers" if self.method.needs == "equal dim" else "the net of the run"


def _common_steps(recipes: Sequence[Recipe]) -> tuple[ColumnRecipe, ...]:
    """The columns that several clients have, and that all of these scale in the same way, without their medians."""
    by_name: dict[str, list[ColumnRecipe]] = {}
    for recipe in recipes:
        for step in recipe.steps:
            by_name.setdefault(step.name, []).append(replace(step, fill=0.0))
    return tuple(steps[0] for steps in by_name.values() if len(steps) > 1 and all(step == steps[0] for step in steps))


def write_invitation(invitation: Invitation, path: Path) -> None:
    """Write an invitation to a .safetensors file."""
    must_be_new(path)
    if path.suffix != ".safetensors":
        raise UserError(f"--prototypes: got {path.name}; its name must end in .safetensors.")
    experiment = invitation.config.table()
    table = invitation.table
    about = {
        "method": experiment["method"],
        "train": experiment["train"],
        "net": experiment["net"],
        "run": {key: experiment["run"][key] for key in ("seed", "rounds")},
        "eval": {key: experiment["eval"][key] for key in ("unknown", "false_alarms")},
        "privacy": experiment["privacy"],
        "labels": list(invitation.labels),
        "clients": invitation.clients,
        "dim": invitation.dim,
        "shapes": {name: list(shape) for name, shape in invitation.shapes.items()},
        "needs": invitation.needs(),
        "input": invitation.input,
        "own_statistics": invitation.own_statistics,
        "table": table and {key: getattr(table, key) for key in _TABLE_KEYS},
        "steps": [vars(step) for step in invitation.steps],
    }
    tensors = {name: value.clone() for name, value in flatten(invitation.message).items()}
    layers = invitation.layers_for(None)
    tensors |= {f"{_LAYERS}{name}": value.clone() for name, value in layers.items()}
    content = save(tensors, {_INVITATION: json.dumps(about), "protofed": __version__})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, with_sorted_metadata(content))


def read_invitation(path: Path) -> Invitation:
    """The invitation in a file."""
    advice = "Give the file that `protofed export DIR --prototypes FILE.safetensors` wrote, or a run folder."
    flat, metadata = read_safetensors(path, advice)
    if _INVITATION not in metadata:
        raise UserError(f"{path} has no prototypes that a client could join with: it is another file. {advice}")
    with understood_metadata(path, advice):
        return _invitation_from(json.loads(metadata[_INVITATION]), flat, path)


def _invitation_from(about: Mapping[str, Any], flat: dict[str, Tensor], path: Path) -> Invitation:
    """The invitation from the metadata and the tensors of its file."""
    sections = {key: about[key] for key in ("run", "method", "train", "net")}
    later = {key: about.get(key, {}) for key in ("eval", "privacy")}  # files of earlier versions lack them
    config = Config.of({**sections, **later}, named_by=path)
    layers = {name.removeprefix(_LAYERS): flat.pop(name) for name in list(flat) if name.startswith(_LAYERS)}
    table = about["table"] and {
        key: tuple(value) if isinstance(value, list) else value for key, value in about["table"].items()
    }
    return Invitation(
        config,
        tuple(about["labels"]),
        about["clients"],
        unflatten(config.method.types()["down"], flat),
        about["dim"],
        {name: tuple(shape) for name, shape in about["shapes"].items()},
        about["input"],
        about["own_statistics"],
        TableOptions(**table) if table else None,
        tuple(ColumnRecipe(**{**step, "values": tuple(step["values"])}) for step in about["steps"]),
        layers=layers,
    )
