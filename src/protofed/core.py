"""The types that everything shares: what a client sees, what travels, and the hooks of a method.

Exactly one hook is traced by the engines: `loss`. It is written for one client and one batch, never branches on the
value of a tensor, and may be mapped over many clients at once. Every other hook is plain Python on one client's view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed import draws
from protofed.messages import Nothing
from protofed.net import Batch, Net, Params
from protofed.prototypes import Prototypes, first_prototypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.examples import Examples

__all__ = [
    "AnyMethod",
    "Batch",
    "Client",
    "Loss",
    "Method",
    "Net",
    "Nothing",
    "Params",
    "Phase",
    "Private",
    "Prototypes",
    "Scores",
    "Site",
    "Trained",
    "Upload",
    "Weights",
    "average",
    "cross_entropy",
    "weighted_mean",
]

Server = TypeVar("Server")
Down = TypeVar("Down")
Up = TypeVar("Up")
Kept = TypeVar("Kept")

Scores = dict[str, Tensor]
"""For each way to predict ("head", "prototype") the scores [n, classes]; the highest is predicted, -inf is never."""


class Weights(NamedTuple):
    """The weights of a model that travel."""

    params: Params


class Private(NamedTuple):
    """A model that stays with its client."""

    params: Params


class Phase(NamedTuple):
    """A stretch of local training with an optimiser of its own."""

    epochs: int
    trains: tuple[str, ...] = ("",)  # the parts that move, as `net.selected` names them; "" is all


class Upload(NamedTuple, Generic[Up]):
    client: int
    examples: int
    steps: int
    work: float  # share of the planned epochs that was done
    message: Up


class Loss:
    """Named terms, summed for the gradient and logged one by one; `observed` is summed over the last epoch."""

    def __init__(self, observed: tuple[Tensor, ...] = (), **terms: Tensor) -> None:
        self.terms = terms
        self.observed = observed

    @property
    def total(self) -> Tensor:
        first, *rest = self.terms.values()
        for term in rest:
            first = first + term
        return first


@dataclass(frozen=True)
class Site:
    """Where a hook runs; the only source of randomness."""

    net: Net
    seed: int
    round: int
    client: int | None  # None: the server
    clients: int

    def generator(self, purpose: str) -> torch.Generator:
        """A generator of its own for this purpose, round and client."""
        return draws.generator(self.seed, purpose, self.round, self.client)


@dataclass(frozen=True)
class Client(Site):
    """A client when it joins."""

    data: Examples

    @property
    def examples(self) -> int:
        return len(self.data)

    @property
    def params(self) -> Params:
        """Fresh parameters of this client's own."""
        return self.net.init(self.generator("init"))


@dataclass(frozen=True)
class Trained(Client, Generic[Down, Kept]):
    """A client after its local training."""

    kept: Kept
    down: Down
    start: Params
    end: Params
    lr: float
    steps: int
    observed: tuple[Tensor, ...]  # () when no step was made

    @property
    def params(self) -> Params:
        """The parameters that training ended with."""
        return self.end

    def features(self, before: bool = False) -> tuple[Tensor, Tensor]:
        """Embeddings [n, dim] and labels [n] of all the client's examples, without dropout; `before`: with `start`."""
        return self.net.features(self.start if before else self.end, self.data)


@dataclass(frozen=True)
class Method(Generic[Server, Down, Up, Kept]):
    """A federated method; its fields are its options; its hooks stand in the order of an algorithm box."""

    needs: ClassVar[Literal["nothing", "equal dim", "equal nets"]] = "nothing"
    """What the clients' nets must have in common."""

    def start(self, site: Site) -> Server:
        """Server, before round 0."""
        return cast("Server", ())

    def broadcast(self, server: Server, client: int) -> Down:
        """Server: what this client is sent; by default the state itself."""
        return cast("Down", server)

    def join(self, client: Client) -> Kept:
        """Client, once: what it owns."""
        return cast("Kept", ())

    def receive(self, kept: Kept, down: Down) -> Params:
        """Client: where training starts, and what is evaluated."""
        raise TypeError(f"{type(self).__name__} must say where training starts: define receive(kept, down)")

    def prepare(self, down: Down) -> Any:
        """Client, before it trains: what `loss` gets as `down`; by default the message itself."""
        return down

    def phases(self, epochs: int) -> tuple[Phase, ...]:
        """Client: what trains, for how long."""
        return (Phase(epochs),)

    def loss(self, net: Net, params: Params, batch: Batch, down: Any, kept: Kept) -> Loss:
        """Client, TRACED; `down` is what `prepare` made of the message."""
        return Loss(supervised=cross_entropy(net(params, batch.x)[1], batch))

    def keep(self, trained: Trained[Down, Kept]) -> Kept:
        """Client: what stays."""
        return cast("Kept", ())

    def upload(self, trained: Trained[Down, Kept]) -> Up:
        """Client: what leaves."""
        return cast("Up", ())

    def aggregate(self, site: Site, server: Server, uploads: Sequence[Upload[Up]]) -> Server:
        """Server; never called with no uploads."""
        return server

    def noted(self, server: Server) -> dict[str, Any]:
        """Server: what else a line of rounds.jsonl tells of a round."""
        return {}

    def known(self, server: Server) -> Prototypes | None:
        """Server: its prototypes, to look at; by default those that its state has."""
        return first_prototypes(server)

    def tune(self, epochs: int) -> tuple[Phase, ...]:
        """Client: training before evaluation that is forgotten afterwards."""
        return ()

    def predict(self, net: Net, params: Params, x: Tensor, down: Down, kept: Kept) -> Scores:
        """Client: every way of predicting that the method has."""
        return {"head": net(params, x)[1]}

    def single(self, params: Params, kept: Kept) -> Params:
        """Client: one net's parameters that answer as `predict` does by head; what is exported."""
        return params

    def predict_global(self, net: Net, server: Server, x: Tensor) -> Scores:
        """The server's own model, if there is one."""
        return {}

    @classmethod
    def types(cls) -> dict[str, Any]:
        """The types of the server's state, of both messages and of what a client keeps, as the class declares them."""
        bases = (base for kind in cls.__mro__ for base in kind.__dict__.get("__orig_bases__", ()))
        declared = next(base for base in bases if get_origin(base) is Method)
        return dict(zip(("server", "down", "up", "kept"), get_args(declared), strict=True))


AnyMethod = Method[Any, Any, Any, Any]


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean [] of values [n]; 0 where all weights are 0."""
    return (values * weight).sum() / weight.sum().clamp(min=1e-12)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy of logits [n, classes] over the examples that count."""
    return weighted_mean(F.cross_entropy(logits, batch.y, reduction="none"), batch.weight)


def average(parts: Sequence[Params], weights: Sequence[float]) -> Params:
    """The weighted average of the clients' parameters, summed in double precision; if all weights are 0, the plain one.

    >>> average([{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}], [1, 3])["w"].item()
    3.0
    """
    total = float(sum(weights))
    shares = [weight / total for weight in weights] if total > 0 else [1 / len(parts)] * len(parts)

    def one(tensors: list[Tensor]) -> Tensor:
        summed = sum(
            (tensor.double() * share for tensor, share in zip(tensors, shares, strict=True)),
            start=torch.zeros((), dtype=torch.double),
        )
        kind = tensors[0].dtype
        return (summed if kind.is_floating_point else summed.round()).to(kind)

    return {name: one([part[name] for part in parts]) for name in parts[0]}
