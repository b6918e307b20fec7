"""The types that everything shares: what a client sees, what is sent, and the hooks of a method.

The engines trace exactly one hook, `loss`. It is written for one client and one batch, and the engine may map it over
many clients at once: see docs/what-a-method-may-do.md. Every other hook is plain Python on one client's view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, cast, get_args, get_origin

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed import draws
from protofed.batch import Batch
from protofed.messages import KeptModel, Nothing, Weights, average
from protofed.net import Net, Params
from protofed.prototypes import Prototypes, first_prototypes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protofed.examples import Examples

__all__ = [
    "AnyMethod",
    "Batch",
    "Client",
    "KeptModel",
    "Loss",
    "Method",
    "Needs",
    "Net",
    "Nothing",
    "Params",
    "Phase",
    "Prototypes",
    "Scores",
    "Site",
    "Trained",
    "Upload",
    "Weights",
    "average",
    "average_uploads",
    "cross_entropy",
    "weighted_mean",
]

Server = TypeVar("Server")
Down = TypeVar("Down")
Up = TypeVar("Up")
Kept = TypeVar("Kept")

Scores = dict[str, Tensor]
"""Scores [n, classes] per way of predicting ("head", "prototype"). The highest score wins; -inf is never predicted."""

Needs = Literal["nothing", "equal dim", "equal nets"]
"""What the nets of the clients must have in common: nothing, the embedding size, or all shapes."""


class Phase(NamedTuple):
    """A part of local training, with an optimiser of its own."""

    epochs: float
    trains: tuple[str, ...] = ("",)  # the parts that train, as `net.selected` names them; "" is all
    clipped_separately: tuple[str, ...] = ()  # parts that `train.clip` scales down separately from the rest


class Upload(NamedTuple, Generic[Up]):
    """What one client sends to the server after its local training."""

    client: int
    num_examples: int
    steps: int
    work: float  # share of the planned epochs that was done
    message: Up
    round: int | None = None  # the round that it answers, from 0; None: it does not say


class Loss:
    """Named terms, which are summed for the gradient and logged separately.

    `observed` holds tensors that the engine sums over the steps of the last epoch; hooks find them in `Trained`.
    """

    def __init__(self, observed: tuple[Tensor, ...] = (), **terms: Tensor) -> None:
        self.terms = terms
        self.observed = observed

    @property
    def total(self) -> Tensor:
        """The sum of all terms."""
        first, *rest = self.terms.values()
        return sum(rest, start=first)


@dataclass(frozen=True)
class Site:
    """Where a hook runs: at the server, or at a client. It is the only source of randomness."""

    net: Net
    seed: int
    round: int
    client: int | None  # None: the server
    clients: int

    def generator(self, purpose: str) -> torch.Generator:
        """A generator for this purpose, round and client alone."""
        return draws.generator(self.seed, purpose, self.round, self.client)

    def fresh_params(self, same: bool = False) -> Params:
        """New parameters for this site's net. The same seed, round and client give the same parameters.

        `same`: the draw of the server before the first round, which is the same for all clients with equal nets.
        """
        return self.net.init(draws.generator(self.seed, "init", 0, None) if same else self.generator("init"))


@dataclass(frozen=True)
class Client(Site):
    """A client with its training data."""

    data: Examples

    @property
    def num_examples(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class Trained(Client, Generic[Down, Kept]):
    """A client after its local training."""

    kept: Kept
    down: Down
    start: Params  # the parameters that training started from
    params: Params  # the parameters that training ended with
    lr: float  # the mean learning rate of the steps
    steps: int
    observed: tuple[Tensor, ...]  # () if no step was made

    def features(self, before: bool = False) -> tuple[Tensor, Tensor]:
        """Embeddings [n, dim] and labels [n] of the client's training data, without dropout.

        `before`: computed with the parameters that training started from.
        """
        return self.net.features(self.start if before else self.params, self.data)


@dataclass(frozen=True)
class Method(Generic[Server, Down, Up, Kept]):
    """A federated method. Its fields are its options; its hooks follow the order of an algorithm box.

    One round: the server sends `broadcast` to each sampled client. The client trains from `receive` by minimising
    `loss`, keeps what `keep` returns, and sends what `upload` returns. The server combines the uploads in `aggregate`.
    The type parameters are the state of the server, the message to a client, the message back, and what a client keeps.

    A complete method, FedAvg with equal weights:

    >>> @dataclass(frozen=True)
    ... class PlainAverage(Method[Weights, Weights, Weights, Nothing]):
    ...     needs: ClassVar[Needs] = "equal nets"
    ...     def start(self, site):
    ...         return Weights(site.fresh_params())
    ...     def receive(self, kept, down):
    ...         return down.params
    ...     def upload(self, trained):
    ...         return Weights(trained.params)
    ...     def aggregate(self, site, server, uploads):
    ...         return Weights(average_uploads(uploads, equal=True))
    >>> import protofed
    >>> result = protofed.run({"run": {"rounds": 2}, "data": {"clients": 3}, "method": {"name": PlainAverage}})
    >>> len(result.rounds), sorted(result.rounds[-1]["loss"])
    (2, ['supervised'])

    docs/what-a-method-may-do.md has the rules, and `protofed check` checks them.
    """

    needs: ClassVar[Needs] = "nothing"
    calls_head: ClassVar[bool] = False
    """Whether a hook calls the head on single embeddings (`net.head`), which nets that label pixels do not allow."""
    sums_uploads: ClassVar[bool] = False
    """Whether `aggregate` needs one upload at a time (a weighted sum); otherwise all of a round are in memory."""
    compares_classes: ClassVar[bool] = False
    """Whether `loss` compares an example with prototypes of other classes; if so, a newcomer downloads all of them."""

    def start(self, site: Site) -> Server:
        """Server: its state before the first round."""
        return cast("Server", ())

    def broadcast(self, server: Server, client: int) -> Down:
        """Server: the message to a client; by default the state itself."""
        return cast("Down", server)

    def join(self, client: Client) -> Kept:
        """Client: what it keeps before its first round. Called whenever it is needed, always with the same result."""
        return cast("Kept", ())

    def receive(self, kept: Kept, down: Down) -> Params:
        """Client: the parameters that training starts from, and that are evaluated."""
        raise TypeError(
            f"{type(self).__name__} must define receive(kept, down): the parameters that training starts from"
        )

    def prepare(self, down: Down) -> Any:
        """Client, before training: what `loss` gets as `down`; by default the message itself."""
        return down

    def phases(self, epochs: float) -> tuple[Phase, ...]:
        """Client: which parameters train, and for how many epochs."""
        return (Phase(epochs),)

    def loss(self, net: Net, params: Params, batch: Batch, down: Any, kept: Kept) -> Loss:
        """Client, TRACED: the loss of one batch; `down` is what `prepare` returned."""
        return Loss(supervised=cross_entropy(net(params, batch.x)[1], batch))

    def keep(self, trained: Trained[Down, Kept]) -> Kept:
        """Client: what it keeps until its next round."""
        return cast("Kept", ())

    def upload(self, trained: Trained[Down, Kept]) -> Up:
        """Client: the message to the server."""
        return cast("Up", ())

    def aggregate(self, site: Site, server: Server, uploads: Sequence[Upload[Up]]) -> Server:
        """Server: its next state. It is not called in a round without uploads."""
        return server

    def log_entries(self, server: Server) -> dict[str, Any]:
        """Server: extra entries for this round's line in rounds.jsonl."""
        return {}

    def server_prototypes(self, net: Net, server: Server) -> Prototypes | None:
        """Server: its prototypes, for measures and pictures; by default the first ones found in the state."""
        return first_prototypes(server)

    def compared_embeddings(self, z: Tensor) -> Tensor | None:
        """Embeddings [n, dim] in the space of the server's prototypes; None if the two cannot be compared."""
        return z

    def tune(self, epochs: float) -> tuple[Phase, ...]:
        """Client: training before an evaluation, whose result is discarded afterwards."""
        return ()

    def tune_start(self, kept: Kept, down: Down) -> Params:
        """Client: the parameters that tuning starts from; by default those that training starts from."""
        return self.receive(kept, down)

    def predict(self, net: Net, params: Params, x: Tensor, down: Down, kept: Kept) -> Scores:
        """Client: the scores of every way of predicting that the method has."""
        return {"head": net(params, x)[1]}

    def exportable_params(self, params: Params, kept: Kept) -> Params:
        """Client: parameters of one net that predicts as `predict` does by head. They are what `export` writes."""
        return params

    def predict_global(self, net: Net, server: Server, x: Tensor) -> Scores:
        """Server: the scores of its own model; {} if it has no model."""
        return {}

    def model_state(self, server: Server) -> Server:
        """Server: its state without what `predict_global` does not need; clients get it if they test that model."""
        return server

    @classmethod
    def types(cls) -> dict[str, Any]:
        """The declared types of the server's state, of both messages, and of what a client keeps."""
        bases = (base for kind in cls.__mro__ for base in kind.__dict__.get("__orig_bases__", ()))
        declared = next(base for base in bases if get_origin(base) is Method)
        return dict(zip(("server", "down", "up", "kept"), get_args(declared), strict=True))


AnyMethod = Method[Any, Any, Any, Any]


def weighted_mean(values: Tensor, weight: Tensor) -> Tensor:
    """The weighted mean [] of values [n]; 0 if all weights are 0. A value of weight 0 may be infinite."""
    if values.shape != weight.shape:
        raise ValueError(f"values of shape {tuple(values.shape)} need weights of that shape, got {tuple(weight.shape)}")
    return (torch.where(weight > 0, values, 0) * weight).sum() / weight.sum().clamp(min=1e-12)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """The mean cross-entropy of logits [n, classes] over the examples, or pixels, with a weight."""
    chosen = F.log_softmax(logits, 1).gather(1, batch.y.unsqueeze(1)).squeeze(1)  # F.nll_loss under vmap imports sympy
    return weighted_mean(-chosen, batch.weight)


def average_uploads(uploads: Sequence[Upload[Any]], equal: bool = False) -> Params:
    """The average of the uploaded parameters, weighted by the clients' numbers of examples.

    `equal`: not weighted, but a client without examples does not count, as it has nothing to train on.
    """
    weights = [min(1, upload.num_examples) if equal else upload.num_examples for upload in uploads]
    return average((upload.message.params for upload in uploads), weights)
