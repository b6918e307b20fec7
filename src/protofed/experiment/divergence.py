"""What the user sees if training diverges: a pull to prototypes that gets out of hand, or no usable upload."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from protofed.errors import StoppedRunError

if TYPE_CHECKING:
    from protofed.experiment.config import Config
    from protofed.experiment.folder import Folder
    from protofed.experiment.results import RoundRow

_LARGE = 1000
"""The pull is too strong from this multiple of the cross-entropy on, or of 1 if that is larger."""


def pull_warning(config: Config, rows: Sequence[RoundRow]) -> str:
    """The first round in which the loss term `pull` is far too large or makes the loss infinite; "" if there is none.

    `rows`: rounds in a row. A loss that is not finite is blamed on the pull if it was finite in the round before, in
    which there was no pull yet.
    """
    pull_option = getattr(config.method, "pull", None)  # a method of the user's may have the term without the option
    option = "" if pull_option is None else f"method.pull (it is {pull_option:g}) or "
    advice = f"Try a smaller {option}train.lr (it is {config.train.lr:g})."
    supervised_before, pull_before = math.nan, math.nan
    for row in rows:
        supervised, pull = (_number(row["loss"].get(term)) for term in ("supervised", "pull"))
        if math.isfinite(supervised + pull):
            if pull > _LARGE * max(1, supervised):
                return (
                    f"Round {row['round']}: the term pull of the loss is {pull:.2g} and the cross-entropy "
                    f"{supervised:.2g}, so that clients follow the prototypes and do not learn. {advice}"
                )
        elif pull_before == 0 and supervised_before < _LARGE:
            return f"Round {row['round']}: the loss is not finite since clients are pulled to prototypes. {advice}"
        supervised_before, pull_before = supervised, pull
    return ""


def has_uploads(row: RoundRow) -> bool:
    """Whether the server got a usable upload in a round."""
    return len(row["rejected"]) < len(row["clients"])


def nobody_answered(number: int, failures: Mapping[int, str]) -> StoppedRunError:
    """Why a run stops if no client has answered in any of its rounds. Later, a round without answers is void."""
    return StoppedRunError(
        f"Round {number}: no client has sent a usable upload since the run began (clients by reason: "
        f"{_clients_by_reason(failures)})."
    )


def _clients_by_reason(reasons: Mapping[int, str]) -> str:
    """For example "not finite: 0, 3; of another shape: 1"."""
    clients: dict[str, list[str]] = {}
    for client, reason in reasons.items():
        clients.setdefault(reason, []).append(str(client))
    return "; ".join(f"{reason}: {', '.join(numbers)}" for reason, numbers in clients.items())


def all_rejected(
    config: Config, rows: Sequence[RoundRow], rejected: Mapping[int, str], folder: Folder | None
) -> StoppedRunError:
    """Why a run stops if all uploads of a round were rejected. `rows`: the round before, if any, and this round."""
    number, loss = rows[-1]["round"], rows[-1]["loss"]
    sentences = [
        f"Round {number}: all {len(rejected)} uploads were rejected, so the run stops (clients by reason: "
        f"{_clients_by_reason(rejected)})."
    ]
    if not all(math.isfinite(_number(term)) for term in loss.values()):
        advice = f"Try a smaller train.lr (it is {config.train.lr:g}), or train.clip."
        sentences.append(pull_warning(config, rows) or f"The loss is not finite: the run has diverged. {advice}")
    next_step = ""
    needs_tests = config.eval.personal or config.run.eval_last  # fewer rounds would need tests that were not made
    if folder and number > 1 and not needs_tests:
        next_step = (
            f"The rounds before are intact: `protofed run --resume --out {shlex.quote(str(folder.path))} "
            f"--set run.rounds={number - 1}` writes their results."
        )
    return StoppedRunError(" ".join(sentences), next_step)


def _number(value: float | None) -> float:
    """A term of the loss; NaN if there is none, or if rounds.jsonl has null because it is not finite."""
    return math.nan if value is None else value
