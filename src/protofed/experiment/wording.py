"""Numbers as people read them."""

from __future__ import annotations


def percent(spread: dict[str, float] | None) -> str:
    """A mean and its spread over clients: "94.4 % ± 5.4"."""
    return "-" if not spread or spread["mean"] is None else f"{100 * spread['mean']:.1f} % ± {100 * spread['std']:.1f}"


def many(number: int, what: str) -> str:
    """A number of things: "1 round", "30 rounds"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: "8 s", "2 min 5 s", "1 h 3 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
