"""What is summed securely for a method: products with a weight, and the weights, so that their quotient is a mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from protofed.core import Upload
from protofed.errors import UserError
from protofed.messages import Weights
from protofed.methods.ditto import Ditto
from protofed.methods.fedatt import FedAtt
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbabu import FedBABU
from protofed.methods.fedper import FedPer
from protofed.methods.fedproto import Bank, FedProto
from protofed.methods.fedrod import FedROD
from protofed.plugins import origin_of
from protofed.prototypes import Prototypes, safe_divide
from protofed.trust.secure_sum.field import LARGEST, MOST_CLIENTS, SecureSumError, Vector, from_field, to_field

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from protofed.core import AnyMethod

_AVERAGES: tuple[type, ...] = (FedAvg, FedPer, FedBABU, Ditto, FedROD)
"""The server needs the weighted average of the uploaded weights, and nothing else."""


def secure_sum_problems(name: str, method: AnyMethod, rule: str = "mean") -> list[str]:
    """Why a method, or a robust rule for uploads in place of the mean, cannot be used with secure sums."""
    if rule != "mean":
        return [
            f'privacy.secure_sum: cannot be used with the rule "{rule}", which compares single uploads: with secure '
            "sums the server sees only their total. Use one or the other."
        ]
    if isinstance(method, FedProto) and origin_of(type(method)) is None:
        if method.send == "own":
            return ['privacy.secure_sum: method.send = "own" needs the classes of single clients. Use "all".']
        if method.pooling == "written":
            return ['privacy.secure_sum: method.pooling = "written" cannot be used. Use "examples" or "clients".']
        return []
    if not isinstance(method, _AVERAGES) or isinstance(method, FedAtt) or origin_of(type(method)) is not None:
        return [
            f"privacy.secure_sum: cannot be used with method {name}: its server needs single uploads, or it is not "
            "known whether it does. Use fedproto, fedavg, fedprox, fedper, fedrep, fedbabu, fedrod or ditto."
        ]
    return []


def summed_upload(
    method: AnyMethod, uploads: Sequence[Upload[Any]], clients: Iterable[int], round: int, threshold: float
) -> Upload[Any]:
    """One upload in place of all: the mean over the clients. The server sees nothing but it and the sums of weights.

    `clients`: all that take part in the round; `threshold`: the share of them that must upload.
    """
    try:
        from protofed.trust.secure_sum.protocol import secure_total
    except ImportError:
        raise UserError(
            "privacy.secure_sum: secure sums need the package cryptography, which is not installed. "
            "Install it: pip install 'protofed[privacy]'"
        ) from None
    numbers = sorted(clients)
    vectors = {upload.client: upload_vector(method, upload) for upload in uploads}
    total = secure_total(vectors, numbers, round, needed_clients(threshold, len(numbers)))
    return upload_of_total(method, uploads[0], total)


def needed_clients(threshold: float, clients: int) -> int:
    """The number of clients that must upload, of all that take part in a round."""
    if clients > MOST_CLIENTS:
        raise UserError(f"privacy.secure_sum: got {clients:,} clients per round; use {MOST_CLIENTS:,} or fewer.")
    return max(1, math.ceil(threshold * clients - 1e-9))  # 0.55 * 100 is 55.00000000000001


def upload_vector(method: AnyMethod, upload: Upload[Any]) -> Vector:
    """What a client adds to the total, as elements of the field."""
    return to_field(_vector(method, upload))


def summed_numbers(method: AnyMethod, message: Any) -> int:
    """The length of the vector of an upload like this one."""
    if isinstance(method, FedProto):
        classes, _, dim = message.prototypes.mean.shape
        return int(classes * (dim + 2))
    return int(sum(value.numel() for value in message.params.values())) + 2


def _vector(method: AnyMethod, upload: Upload[Any]) -> np.ndarray:
    """What a client sums: weighted values, then their weights."""
    if isinstance(method, FedProto):
        prototypes: Prototypes = upload.message.prototypes
        support, mean = prototypes.support[:, 0].double(), prototypes.single()[:, 0].double()
        weight = (support > 0).double() if method.pooling == "clients" else support
        return _in_a_row(torch.where(support > 0, mean.T * weight, 0.0), weight, support)
    is_equal = getattr(method, "weights", "size") == "equal"  # as in `core.average_uploads`
    weight = torch.tensor(float(min(1, upload.num_examples) if is_equal else upload.num_examples)).double()
    parts = [value.double().flatten() for _, value in sorted(upload.message.params.items())]
    largest = max((float(part.abs().max()) for part in parts if part.numel()), default=0.0) * float(weight)
    if largest > LARGEST:
        raise UserError(
            f"privacy.secure_sum: weights times numbers of examples reach {largest:,.0f}, above {LARGEST:,.0f}, which "
            'cannot be summed securely. Use method.weights = "equal".'
        )
    return _in_a_row(*(part * weight for part in parts), weight, torch.tensor(float(upload.num_examples)).double())


def _in_a_row(*parts: Tensor) -> np.ndarray:
    return torch.cat([part.flatten() for part in parts]).numpy()


def upload_of_total(method: AnyMethod, like: Upload[Any], summed: Vector) -> Upload[Any]:
    """The mean from the total of the field's elements, in the form of a client's upload."""
    total = torch.from_numpy(from_field(summed))
    if isinstance(method, FedProto):
        shape = like.message.prototypes.mean.shape
        classes, dim = shape[0], shape[2]
        values, weight, support = total.split([classes * dim, classes, classes])
        mean = safe_divide(values.reshape(dim, classes), weight).T.float()
        prototypes = Prototypes(mean.unsqueeze(1).contiguous(), support.float().unsqueeze(1))
        return like._replace(num_examples=round(float(support.sum())), message=Bank(prototypes))
    weight, examples = total[-2], round(float(total[-1]))
    if weight <= 0:
        raise SecureSumError("the clients of the round have no examples, so that their average has no weight")
    params, first = {}, 0
    for name, value in sorted(like.message.params.items()):
        part = total[first : first + value.numel()].reshape(value.shape) / weight
        params[name] = (part if value.is_floating_point() else part.round()).to(value.dtype)
        first += value.numel()
    return like._replace(num_examples=examples, message=Weights(params))
