"""For which methods noise is possible, and when it is a guarantee: what an upload depends on must be known."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from protofed.methods.creff import CReFF
from protofed.methods.ditto import Ditto
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbabu import FedBABU
from protofed.methods.fednh import FedNH
from protofed.methods.fedper import FedPer
from protofed.methods.fedproto import FedProto
from protofed.methods.fedrod import FedROD
from protofed.methods.fedtgp import FedTGP
from protofed.methods.fesem import FeSEM
from protofed.methods.fpl import FPL
from protofed.methods.local import Local
from protofed.methods.mpfedcl import MpFedCL
from protofed.methods.protomargin import ProtoMargin
from protofed.plugins import origin_of
from protofed.trust.privacy.accounting import RoundCost, total_epsilon

if TYPE_CHECKING:
    from protofed.core import AnyMethod
    from protofed.training import TrainSection
    from protofed.trust.privacy.section import PrivacySection

_MEANS: tuple[type, ...] = (FedProto, FedTGP)
"""Clients upload the class means of embeddings, and nothing else."""
_MEANS_AND_WEIGHTS: tuple[type, ...] = (FPL, FedNH, MpFedCL)
_WEIGHTS: tuple[type, ...] = (FedAvg, FedPer, FedBABU, Ditto)
"""Clients upload trained weights, and nothing else. Subclasses, such as FedProx and FedRep, do the same."""
_NO_NOISE: dict[type, str] = {
    CReFF: "it uploads gradients per class, for which no bound is known here",
    FedROD: "its loss depends on the class shares of the client's data, so one example changes all gradients",
    FeSEM: "it uploads the number of a client's classes",
    Local: "it uploads nothing, so there is nothing to protect",
    ProtoMargin: "it scales prototypes by their largest channel and uploads margins, which have no bound",
}


class Promise(NamedTuple):
    """What noise is added to the uploads of a run, and whether this is a guarantee."""

    formal: bool
    means: bool  # class means are uploaded
    weights: bool  # weights are uploaded

    def words(self, epsilon: float, privacy: PrivacySection) -> str:
        """The guarantee in one sentence."""
        if not self.formal:
            return "noise, no formal guarantee: the encoder is trained on the data without noise"
        return f"({epsilon:.3g}, {privacy.delta:g})-differentially private per example ({privacy.neighbours})"


def uploads_of(method: AnyMethod) -> tuple[bool, bool]:
    """Whether clients of a method upload class means, and whether they upload weights."""
    return isinstance(method, _MEANS + _MEANS_AND_WEIGHTS), not isinstance(method, _MEANS)


def promise_of(method: AnyMethod, privacy: PrivacySection) -> Promise:
    """What the options promise, if `privacy_problems` finds no problem."""
    return Promise(privacy.encoder != "none", *uploads_of(method))


def privacy_problems(
    privacy: PrivacySection, name: str, method: AnyMethod, training: TrainSection, normalised_by_data: bool
) -> list[str]:
    """A sentence per option of [privacy] that cannot be used with this method and these inputs."""
    if not privacy.is_on:
        return _unused(privacy)
    if reason := _refusal(name, method):
        return [f"privacy.noise: cannot be used with method {name}: {reason}. docs/privacy.md lists the methods."]
    means, weights = uploads_of(method)
    problems = []
    if privacy.encoder == "frozen" and weights:
        problems.append(
            f'privacy.encoder: "frozen" does not protect the weights that {name} uploads. Use "dp-sgd", or a method '
            "that uploads prototypes only: fedproto or fedtgp."
        )
    if privacy.encoder == "none" and not means:
        problems.append(
            f"privacy.encoder: {name} uploads weights and no prototypes, so that privacy.noise has nothing to act on. "
            'Use "dp-sgd".'
        )
    if privacy.encoder == "dp-sgd":
        problems += _dp_sgd_problems(privacy, means, training)
    elif privacy.step_noise:
        problems.append('privacy.step_noise: applies to privacy.encoder = "dp-sgd" only. Leave it out.')
    if privacy.encoder != "none":
        problems += _data_dependent(method)
        if normalised_by_data:
            problems.append(
                "data.normalise: the inputs are normalised by the clients' data, so that one example changes all of "
                'them. Use constants with [privacy]: data.normalise = "dataset", for tables numbers in data.scaling.'
            )
    return problems


def _unused(privacy: PrivacySection) -> list[str]:
    if privacy.encoder == "none":
        return []
    key = "step_noise" if privacy.encoder == "dp-sgd" else "noise"
    return [
        f'privacy.{key}: got 0, but privacy.encoder = "{privacy.encoder}" protects by noise. Set it; '
        "`protofed privacy FILE.toml --epsilon 2` shows how large it must be."
    ]


def _refusal(name: str, method: AnyMethod) -> str:
    """Why no noise can be added to what a method uploads; "" if it can."""
    if origin_of(type(method)) is not None:
        return "it is not part of protofed, so it is not known what its uploads depend on"
    if isinstance(method, MpFedCL) and method.clustering != "mean":
        clusters = "k-means" if method.clustering == "kmeans" else method.clustering
        return (
            f"its prototypes come from {clusters}, and one example can move other examples from one cluster to "
            'another, so that no bound holds for a prototype. method.clustering = "mean" can be used'
        )
    for kind, reason in _NO_NOISE.items():
        if isinstance(method, kind):
            return reason
    if not isinstance(method, _MEANS + _MEANS_AND_WEIGHTS + _WEIGHTS):
        return "it is not known what its uploads depend on"
    return ""


def _dp_sgd_problems(privacy: PrivacySection, means: bool, training: TrainSection) -> list[str]:
    problems = []
    if not privacy.step_noise:
        problems.append('privacy.step_noise: got 0, but privacy.encoder = "dp-sgd" needs noise in every step. Set it.')
    if means and not privacy.noise:
        problems.append("privacy.noise: got 0, but the method uploads prototypes, which need noise, too. Set it.")
    if not privacy.examples:
        problems.append(
            'privacy.examples: missing. privacy.encoder = "dp-sgd" needs a public number of examples per client, for '
            "example what the smallest client has."
        )
    elif training.batch > privacy.examples:
        problems.append(f"privacy.examples: got {privacy.examples}; must be train.batch ({training.batch}) or more.")
    if training.precision != "float32":
        problems.append(
            f'train.precision: got "{training.precision}", but privacy.encoder = "dp-sgd" computes gradients of single '
            'examples in single precision. Use "float32".'
        )
    if training.drop_last:
        problems.append(
            'train.drop_last: cannot be used with privacy.encoder = "dp-sgd", which draws examples for each step, so '
            "that there is no last batch. Leave it out."
        )
    return problems


def _data_dependent(method: AnyMethod) -> list[str]:
    """Options of methods that make an upload depend on the data in another way than by sums over examples."""
    problems = []
    if getattr(method, "outputs", "all") == "own":
        problems.append('method.outputs: "own" depends on which classes a client has. Use "all" with [privacy].')
    if getattr(method, "pull_schedule", "constant") == "corollary":
        problems.append('method.pull_schedule: "corollary" depends on the data of a client. Use another one.')
    return problems


def round_cost(method: AnyMethod, privacy: PrivacySection, training: TrainSection) -> RoundCost:
    """What one client releases in one round."""
    means, _ = uploads_of(method)
    sums = privacy.noise if means else 0.0
    if privacy.encoder != "dp-sgd":
        return RoundCost(sums)
    steps = sum(
        planned_steps(phase.epochs, privacy, training) for phase in method.phases(planned_epochs(privacy, training))
    )
    return RoundCost(sums, steps, training.batch / privacy.examples, privacy.step_noise)


def planned_epochs(privacy: PrivacySection, training: TrainSection) -> float:
    """The epochs of DP-SGD per round, for `privacy.examples` examples. With `train.steps` they have as many steps."""
    return training.steps * training.batch / privacy.examples if training.steps else training.epochs


def planned_steps(epochs: float, privacy: PrivacySection, training: TrainSection) -> int:
    """The steps of DP-SGD in this number of epochs. They do not depend on the number of a client's examples."""
    return math.ceil(epochs * privacy.examples / training.batch - 1e-9)


def epsilon_after(method: AnyMethod, privacy: PrivacySection, training: TrainSection, rounds: int) -> float | None:
    """Epsilon of a client that took part in this number of rounds; None if there is no formal guarantee."""
    if not promise_of(method, privacy).formal:
        return None
    return total_epsilon(round_cost(method, privacy, training), rounds, privacy)
