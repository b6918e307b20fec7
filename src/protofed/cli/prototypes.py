"""The command that shows where FedNH's prototypes start."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer


def prototypes_command(
    classes: Annotated[int, typer.Option("--classes", min=2, help="How many classes.")],
    dim: Annotated[int, typer.Option("--dim", min=1, help="The size of the embedding.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="How they are turned, and where the search begins.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how far apart fednh's first prototypes are: directions as far apart as possible, and orthonormal ones."""
    from protofed.methods.parts.sphere import cosines, orthonormal, uniform

    found = {}
    for name, made in (("uniform", uniform), ("orthonormal", orthonormal)):
        smallest, largest = cosines(made(classes, dim, seed))
        found[name] = {"smallest": smallest, "largest": largest, "angle": math.degrees(math.acos(min(1.0, largest)))}
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"{classes} directions in {dim} dimensions")
    for name, about in found.items():
        remark = " (at random: more than dim cannot be orthonormal)" if name == "orthonormal" and classes > dim else ""
        print(
            f"{name + ':':<12}  cosines from {about['smallest']:.4f} to {about['largest']:.4f}, "
            f"nearest two {about['angle']:.1f} degrees apart{remark}"
        )
    if classes <= dim + 1:
        print(f"A simplex: every cosine is -1/{classes - 1}, the best there is.")
