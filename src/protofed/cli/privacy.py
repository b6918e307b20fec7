"""The command `protofed privacy`."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Optional

from protofed.cli.arguments import AsJson, ExperimentFile, Sets, option


def privacy_command(
    file: ExperimentFile = None,
    sets: Sets = None,
    epsilon: Annotated[
        Optional[float], option("--epsilon", help="Total epsilon to aim for: shows the noise that it needs.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the privacy of an experiment before it is run: epsilon per round and in total, or the noise for an epsilon.

    docs/privacy.md says what the numbers mean.
    """
    from protofed.experiment.config import Config, read_toml

    sets, unknown = list(sets or ()), []
    if epsilon is not None:  # noise that is not set yet is what the user wants to know
        table = read_toml(file).get("privacy", {}) if file else {}
        given = {f"privacy.{key}" for key, value in table.items() if value} | {word.partition("=")[0] for word in sets}
        needed = ("privacy.noise", *(["privacy.step_noise"] if _trains_privately(table, sets) else []))
        unknown = [key for key in needed if key not in given]
    figures = privacy_plan(Config.load(file, [*sets, *(f"{key}=1.0" for key in unknown)]), epsilon)
    if unknown:  # figures of the noise 1.0, which is not the experiment's
        figures = {key: value for key, value in figures.items() if key not in ("deviation", "epsilon")}
    print(json.dumps(figures, indent=2) if as_json else "\n".join(_plan_lines(figures)))


def _trains_privately(table: dict[str, Any], sets: list[str]) -> bool:
    typed = [word.partition("=")[2].strip("\"' ") for word in sets if word.partition("=")[0] == "privacy.encoder"]
    return (typed[-1] if typed else table.get("encoder")) == "dp-sgd"


def privacy_plan(config: Any, target: float | None = None) -> dict[str, Any]:
    """Epsilon of one round and of all rounds for both kinds of neighbours, and the noise for a target."""
    from dataclasses import replace
    from typing import get_args

    from protofed.plugins import label
    from protofed.trust.privacy.accounting import noise_factor, total_epsilon
    from protofed.trust.privacy.release import noise_deviations
    from protofed.trust.privacy.rules import promise_of, round_cost
    from protofed.trust.privacy.section import Neighbours

    privacy, rounds = config.privacy, config.run.rounds
    figures: dict[str, Any] = {"method": label(config.method_name), "rounds": rounds, "noise": privacy.is_on}
    if not privacy.is_on:
        return figures
    promise, cost = promise_of(config.method, privacy), round_cost(config.method, privacy, config.train)
    of_sums, of_counts = noise_deviations(privacy)
    figures |= {
        "formal": promise.formal,
        "encoder": privacy.encoder,
        "delta": privacy.delta,
        "neighbours": privacy.neighbours,
        "deviation": {"sums": of_sums, "counts": of_counts} if promise.means else None,
        "steps": cost.steps,
        "rate": cost.rate,
    }
    if not promise.formal:
        return figures | ({"target": None} if target is not None else {})
    figures["epsilon"] = {
        neighbours: {
            "per_round": total_epsilon(cost, 1, replace(privacy, neighbours=neighbours)),
            "total": total_epsilon(cost, rounds, replace(privacy, neighbours=neighbours)),
        }
        for neighbours in get_args(Neighbours)
    }
    if target is not None:
        needed = cost.scaled(noise_factor(cost, rounds, privacy, target))
        figures["target"] = {"epsilon": target, "noise": needed.sums or None, "step_noise": needed.step_noise or None}
    return figures


def _rounded_up(value: float) -> float:
    """A number with four digits that is not smaller."""
    digit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return math.ceil(value / digit) * digit


def _plan_lines(figures: dict[str, Any]) -> list[str]:
    from protofed.experiment.wording import quantity

    if not figures["noise"]:
        return [
            f"{figures['method']}: no noise, no guarantee. Set [privacy] in the experiment file: privacy.encoder and "
            "privacy.noise (docs/privacy.md)."
        ]
    rounds = quantity(figures["rounds"], "round")
    lines = [f"{figures['method']}, encoder {figures['encoder']}, {rounds}, delta {figures['delta']:g}"]
    if deviation := figures.get("deviation"):
        lines.append(
            f"Noise per upload: standard deviation {deviation['sums']:.4g} on each number of a class sum, "
            f"{deviation['counts']:.4g} on each count."
        )
    if figures["steps"]:
        lines.append(
            f"DP-SGD: {figures['steps']:,} steps per round; an example is in a step with probability "
            f"{figures['rate']:.4g}."
        )
    if not figures["formal"]:
        advice = ' No noise reaches an epsilon: set privacy.encoder = "frozen" or "dp-sgd".' * ("target" in figures)
        text = "Noise, no formal guarantee: the encoder is trained on the data without noise."
        return [*lines, text + advice]
    for neighbours, epsilon in figures.get("epsilon", {}).items():
        chosen = " (privacy.neighbours)" if neighbours == figures["neighbours"] else ""
        lines.append(
            f"{neighbours}{chosen}: epsilon {epsilon['per_round']:.4g} per round, {epsilon['total']:.4g} in total for "
            "a client that takes part in every round"
        )
    if target := figures.get("target"):
        needed = {key: _rounded_up(target[key]) for key in ("noise", "step_noise") if target[key]}
        keys = ", ".join(f"privacy.{key} = {value:.4g}" for key, value in needed.items())
        lines.append(f"For a total epsilon of {target['epsilon']:g} ({figures['neighbours']}): {keys}")
    return lines
