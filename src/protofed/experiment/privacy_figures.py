"""What the rounds of a run cost in privacy: for the plan before it, and for result.json after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from protofed.experiment.wording import quantity
from protofed.trust.privacy.rules import epsilon_after, promise_of

if TYPE_CHECKING:
    from protofed.experiment.config import Config


def privacy_summary(config: Config, rounds: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The entry `privacy` of result.json; None without noise.

    Epsilon is that of the client that took part in the most rounds. A client's rounds compose, however often the run
    was stopped and resumed: a round that is computed again has the same noise. Examples of different clients are
    different examples, so clients do not add up.
    """
    if not config.privacy.is_on:
        return None
    parts = Counter(client for row in rounds for client in row["clients"])
    most = max(parts.values(), default=0)
    epsilon = epsilon_after(config.method, config.privacy, config.train, most)
    promise = promise_of(config.method, config.privacy)
    return {
        "encoder": config.privacy.encoder,
        "noise": config.privacy.noise,
        "step_noise": config.privacy.step_noise,
        "rounds": most,
        "epsilon": epsilon,
        "delta": config.privacy.delta if promise.formal else None,
        "neighbours": config.privacy.neighbours,
        "guarantee": promise.words(epsilon or 0.0, config.privacy),
    }


def privacy_text(summary: Mapping[str, Any] | None) -> str:
    """The sentence about privacy in a verdict; "" without noise."""
    if not summary:
        return ""
    if summary["epsilon"] is None:
        return f"Privacy: {summary['guarantee']}."
    return f"Privacy: the uploads of a client in {quantity(summary['rounds'], 'round')} are {summary['guarantee']}."
