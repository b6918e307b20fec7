"""Lines of a run's summary that say how far its figures can be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protofed.experiment.accuracy import FEW_TESTS
from protofed.experiment.wording import quantity


def size_caution(sizes: Sequence[int]) -> str:
    """A caution if clients have few test examples; "" if none has."""
    few = [size for size in sizes if 0 < size < FEW_TESTS]
    if not few:
        return ""
    tested, have = sum(size > 0 for size in sizes), "has" if len(few) == 1 else "have"
    return (
        f"Careful: {len(few)} of {quantity(tested, 'client')} {have} fewer than {FEW_TESTS} test examples "
        f"(the fewest: {min(few)}), where one example is {100 / min(few):.1f} points of accuracy. clients.csv has the "
        "95 % interval of each accuracy."
    )


def unknown_text(unknown: Mapping[str, Any]) -> str:
    """What the rule for unknown inputs does; "" if it could not be measured."""
    if unknown["false_alarms"] is None:
        return ""
    text = (
        f"Rule for unknown inputs, {unknown['rule']}: it marks {100 * unknown['false_alarms']:.1f} % of test examples "
        f"of a client's own classes (aim: {100 * unknown['aim']:g} %)"
    )
    if unknown["auc"] is not None:
        text += f" and {100 * unknown['found']:.1f} % of examples of other classes (AUC {unknown['auc']:.2f})"
    return f"{text}."
