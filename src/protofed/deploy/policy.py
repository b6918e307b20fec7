"""A client's policy: what may leave its machine. The client enforces it; the server cannot change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge
from torch import Tensor

from protofed.deploy.settings import checked_file, read_settings_file, require_policy
from protofed.errors import UserError, did_you_mean
from protofed.messages import Nothing
from protofed.methods import METHODS
from protofed.params import Params
from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.core import AnyMethod
    from protofed.deploy.client_data import ClientData

Figure = Literal["counts", "losses", "scores"]


class PolicyError(UserError):
    """The policy forbids a message. Its text is sent to the server, so it never names a class or a number of it."""


@dataclass(frozen=True)
class Policy:
    """The keys of policy.toml."""

    may_send: tuple[str, ...] = ("prototypes",)
    """kinds of tensors that uploads may have: "prototypes", "weights", and other fields of messages by their names"""
    may_report: tuple[Figure, ...] = ("counts", "losses", "scores")
    """figures that may leave: numbers of examples per class (at enrolment), terms of the loss, results of tests"""
    min_examples_per_class: Annotated[int, Ge(0)] = 0
    """classes with fewer training examples are never mentioned, in no message; see small_classes"""
    small_classes: Literal["refuse", "drop"] = "refuse"
    """refuse: nothing is uploaded while there is such a class; drop: its examples are not used at all"""
    max_rounds: Annotated[int, Ge(0)] = 0
    """number of uploads of a run that may leave, one per round unless the server repeats a round; 0: no limit"""

    require_secure_sum: bool = False
    """whether uploads may leave only as part of a secure sum (privacy.secure_sum)"""

    @classmethod
    def read(cls, path: Path, method: AnyMethod | None = None) -> Policy:
        """The policy in a file, which must exist: a lost file must not allow more. `method`: the experiment's."""
        require_policy(path)
        policy: Policy = checked_file(path, cls, read_settings_file(path))
        known = {"prototypes", "weights"} | {kind for ours in METHODS.values() for kind in kinds_sent(ours)}
        known |= kinds_sent(method) if method else set()
        for kind in policy.may_send:
            if kind in get_args(Figure):
                raise UserError(f"{path}: may_send has {kind!r}, which is a figure. Put it into may_report.")
            if kind not in known:
                raise UserError(f"{path}: may_send has {kind!r}. {did_you_mean(kind, known)}")
        return policy

    def usable(self, data: ClientData) -> ClientData:
        """The data that the client works with: with small_classes = "drop", those without classes it never mentions.

        These are the small classes, and classes that only the test set has, with fewer examples than the minimum.
        """
        if self.small_classes != "drop":
            return data
        train, test = (part.class_counts(len(data.classes)) for part in (data.train, data.test))
        small = self.min_examples_per_class
        return data.without_classes(((train < small) & ((train > 0) | (test < small))).nonzero().flatten().tolist())

    def small(self, data: ClientData) -> list[int]:
        """The classes with some training examples, but fewer than the minimum."""
        counts = data.train.class_counts(len(data.classes))
        return ((counts > 0) & (counts < self.min_examples_per_class)).nonzero().flatten().tolist()

    def check_upload(self, method: AnyMethod, data: ClientData, uploads: int, secure: bool = False) -> None:
        """Raise an error if the client may not upload.

        `uploads`: those of this run, with this one; `secure`: whether the upload is part of a secure sum.
        """
        if self.require_secure_sum and not secure:
            raise PolicyError("its policy allows uploads in secure sums only (require_secure_sum)")
        if forbidden := sorted(kinds_sent(type(method)) - set(self.may_send)):
            raise PolicyError(f"its policy does not allow to send {', '.join(forbidden)} (may_send)")
        if self.max_rounds and uploads > self.max_rounds:
            raise PolicyError(f"its policy allows {self.max_rounds} uploads of a run only (max_rounds)")
        if self.small(data):
            raise PolicyError(
                f"its policy allows no upload while a class has fewer than {self.min_examples_per_class} examples "
                "(min_examples_per_class)"
            )

    def check_scores(self, data: ClientData) -> None:
        """Raise an error if the results of tests may not leave. Those of pixels have a row per class."""
        if "scores" not in self.may_report:
            raise PolicyError("its policy does not allow to report the results of tests (may_report)")
        if data.train.mask is not None and self.small(data):
            raise PolicyError("its policy does not allow to report tests of pixels (min_examples_per_class)")


def kinds_sent(method: type[AnyMethod] | AnyMethod) -> set[str]:
    """The kinds of tensors that clients of a method upload, as `may_send` names them.

    Each field of the message is a kind. Parameters in a field `params` are "weights".

    >>> sorted(kinds_sent(METHODS["protomargin"]))
    ['local_margins', 'prototypes', 'weights']
    """
    return message_kinds(method.types()["up"])


def message_kinds(declared: Any) -> set[str]:
    """The kinds of tensors in a message of this type."""
    if declared == Nothing:
        return set()
    if declared in (Tensor, Prototypes) or get_origin(declared) is dict:
        return {_kind("prototypes" if declared is Prototypes else "message", declared)}
    return {_kind(name, kind) for name, kind in get_type_hints(declared).items()}


def _kind(name: str, declared: Any) -> str:
    """The kind of a field. One that is called like a kind, but has another type, gets a name that no policy has."""
    if name == "params" and declared == Params:
        return "weights"
    if name == "weights" or (name == "prototypes" and declared not in (Prototypes, dict[str, Prototypes])):
        return f"{name} ({getattr(declared, '__name__', declared)})"
    return name
