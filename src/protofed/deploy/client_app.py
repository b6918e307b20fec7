"""The app that Flower starts at a client, in a new process for every message.

Its modules are imported when they are needed, so that an error in them is written to the client's log.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

if TYPE_CHECKING:
    from protofed.deploy.client_work import ClientWork, Reply

app = ClientApp()
CLIENT_LOG = "client.log"
"""The file of a client with the full text of errors, which never leaves its machine."""
REFUSED = 2
"""The code of an answer that is an error, as Flower gives it to an app that fails."""


@app.query("enrol")
def enrol(message: Message, context: Context) -> Message:
    """Describe this client."""
    return _answered(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, and return the upload."""
    return _answered(message, context)


@app.query("keys")
def send_keys(message: Message, context: Context) -> Message:
    """Begin a secure sum."""
    return _answered(message, context)


@app.query("shares")
def send_shares(message: Message, context: Context) -> Message:
    """Send the other clients shares of the secrets behind this client's masks."""
    return _answered(message, context)


@app.query("reveal")
def reveal_shares(message: Message, context: Context) -> Message:
    """Reveal the shares that remove the masks of a total."""
    return _answered(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test this client's model."""
    return _answered(message, context)


def _answered(message: Message, context: Context) -> Message:
    """The answer to a message; if there is none, an error without anything that the client's data could have caused."""
    folder = Path(str(context.node_config["folder"]))
    try:
        from protofed.deploy.client_work import ClientWork
        from protofed.engines.flower.wire import to_records

        work = ClientWork(folder)
        reply = _reply(work, message)
        sent = work.ledger.record(reply.kind, reply.tensors, reply.figures)
        _say(f"{_task_text(reply.kind, reply.figures)}: sent {sent:,} bytes")
        return Message(to_records(reply.tensors, reply.figures), reply_to=message)
    except Exception as problem:
        reason = _reason(problem)
        try:
            _write_down(folder, problem, reason, message)
        except OSError:
            reason = "it failed, and cannot write to its folder"
        return Message(Error(REFUSED, reason), reply_to=message)


def _say(text: str) -> None:
    """Print a line for the operator. The beginning tells it apart from Flower's lines."""
    print(f"protofed: {text}", flush=True)


def _task_text(kind: str, figures: dict[str, Any]) -> str:
    return f"round {figures['round'] + 1}: {kind}" if "round" in figures else kind


def _reply(work: ClientWork, message: Message) -> Reply:
    """What the client answers to a message."""
    from protofed.engines.flower.wire import record_figures, record_tensors

    if message.metadata.message_type == "query.enrol":
        return work.describe()
    task, tensors = record_figures(message.content), record_tensors(message.content)
    kind, secure = message.metadata.message_type, work.config.privacy.secure_sum
    if secure or kind.startswith("query"):
        from protofed.deploy.secure_client import SecureSteps

        steps = SecureSteps(work, task)
        if kind != "evaluate":
            return steps.answer(tensors)
        steps.forget()
    return work.train(task, tensors) if kind == "train" else work.evaluate(task, tensors)


def _reason(problem: Exception) -> str:
    """What the server may know about a problem: the text of a refusal, otherwise the kind of the error only."""
    from protofed.deploy.policy import PolicyError
    from protofed.trust.secure_sum.field import SecureSumError

    if isinstance(problem, PolicyError | SecureSumError):
        return str(problem)
    return f"it failed ({type(problem).__name__}); {CLIENT_LOG} in its folder has the details"


def _write_down(folder: Path, problem: Exception, reason: str, message: Message) -> None:
    """Write the full text of a problem to the client's log, and what is sent about it to its ledger."""
    from protofed.deploy.ledger import Ledger
    from protofed.engines.flower.wire import record_figures
    from protofed.errors import UserError

    details = str(problem) if isinstance(problem, UserError) else "".join(traceback.format_exception(problem))
    for line in details.rstrip().splitlines():
        _say(f"error: {line}")
    with (folder / CLIENT_LOG).open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {details.rstrip()}\n")
    try:
        task = record_figures(message.content)
    except ValueError:
        task = {}
    identity = {key: task[key] for key in ("run", "round") if isinstance(task.get(key), int | str)}
    Ledger(folder, False).record("refusal", {}, {**identity, "reason": reason})
