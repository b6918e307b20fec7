"""The command `protofed prototypes`: the initial prototypes of FedNH."""

from __future__ import annotations

import json
import math
from typing import Annotated

from protofed.cli.arguments import AsJson, option


def prototypes_command(
    classes: Annotated[int, option("--classes", min=2, help="Number of classes.")],
    dim: Annotated[int, option("--dim", min=1, help="Size of the embedding.")],
    seed: Annotated[int, option("--seed", min=0, help="Seed of their rotation and of the search for them.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the angles between fednh's initial prototypes: directions as far apart as possible, and orthonormal ones."""
    from protofed.methods.parts.sphere import cosine_range, orthonormal, uniform

    figures = {}
    for name, directions in (("uniform", uniform), ("orthonormal", orthonormal)):
        smallest, largest = cosine_range(directions(classes, dim, seed))
        figures[name] = {"smallest": smallest, "largest": largest, "angle": math.degrees(math.acos(min(1.0, largest)))}
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    print(f"{classes} directions in {dim} dimensions")
    for name, row in figures.items():
        remark = (
            " (random directions: at most dim can be orthonormal)" if name == "orthonormal" and classes > dim else ""
        )
        print(
            f"{name + ':':<12}  cosines from {row['smallest']:z.4f} to {row['largest']:z.4f}, "
            f"smallest angle {row['angle']:.1f} degrees{remark}"
        )
    if classes <= dim + 1:
        print(f"The uniform directions form a simplex: every cosine is -1/{classes - 1}, the smallest value possible.")
