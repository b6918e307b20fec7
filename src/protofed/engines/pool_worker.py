"""The work of one worker of a pool, in another process or on another machine: jobs and answers are bytes.

Both are JSON and safetensors. What clients keep travels with the work: a worker has the data, and no state.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors.torch import load

from protofed.contract import explained_error
from protofed.engines.engine import RoundPlan
from protofed.errors import UserError
from protofed.messages import group_by_first_name, to_bytes, unflatten

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.engines.engine import GroupEngine

Tensors = dict[str, "Tensor"]


class Job(NamedTuple):
    """Work on a few clients."""

    kind: str  # "train", "examine", "test" or "validation"
    round: int
    clients: list[int]
    examined: list[int] = []
    work: dict[str, float] = {}


class Answer(NamedTuple):
    """What a worker reports: JSON per client, and the uploaded tensors by client."""

    clients: list[dict[str, Any]]
    uploads: dict[str, Tensors]


def as_parcels(about: Mapping[str, Any], tree: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """JSON and tensors as bytes."""
    return json.dumps(about).encode(), to_bytes(dict(tree))


def from_parcels(text: bytes, content: bytes) -> tuple[dict[str, Any], dict[str, dict[str, Tensors]]]:
    """What `as_parcels` packed; tensors by the first two parts of their names."""
    tensors = group_by_first_name(load(content))
    return json.loads(text), {name: group_by_first_name(part) for name, part in tensors.items()}


def answer_parcels(engine: GroupEngine, types: Mapping[str, Any], text: bytes, content: bytes) -> tuple[bytes, bytes]:
    """The answer of a worker to a job, or the problem with it, which the parent shows."""
    try:
        return as_parcels(*_work(engine, types, *from_parcels(text, content)))
    except UserError as problem:
        return as_parcels({"problem": str(problem), "user": True}, {})
    except Exception as problem:
        if explained := explained_error(problem, engine.method):
            return as_parcels({"problem": str(explained), "user": True}, {})
        return as_parcels({"problem": f"in a worker process:\n{traceback.format_exc()}", "user": False}, {})


def _work(
    engine: GroupEngine, types: Mapping[str, Any], job: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensors]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer to a job: JSON, and tensors."""
    sent, kept = tensors.get("down", {}), tensors.get("kept", {})
    messages = [unflatten(types["down"], sent.get(str(number), {})) for number in range(1 + max(job["downs"]))]
    downs = {client: messages[number] for client, number in zip(job["clients"], job["downs"], strict=True)}
    engine.restore({client: unflatten(types["kept"], kept.get(str(client), {})) for client in job["joined"]})
    uploads: dict[str, Any] = {}
    changed: list[int] = []
    if job["kind"] == "train":
        plan = RoundPlan(job["examined"], {int(client): amount for client, amount in job["work"].items()})
        reports = engine.train_group(job["round"], downs, plan)
        entries = [
            {
                **{key: getattr(report.upload, key) for key in ("client", "num_examples", "steps", "work")},
                **{key: getattr(report, key) for key in ("terms", "examples_seen", "hits")},
            }
            for report in reports
        ]
        uploads = {str(report.upload.client): report.upload.message for report in reports}
        changed = job["clients"]
    else:
        if job["kind"] == "examine":
            hits = engine.examine(job["round"], downs)
            entries = [{"client": client, "hits": hits[client]} for client in hits]
        else:
            entries = [evaluation._asdict() for evaluation in engine.evaluate(job["round"], downs, job["kind"])]
    state = engine.state()
    about = {"clients": entries, "kept": changed}
    return about, {"up": uploads, "kept": {str(client): state[client] for client in changed}}
