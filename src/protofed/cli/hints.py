"""A hint for options that are keys of the experiment file: `run --rounds 5` should be `run --set run.rounds=5`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import click
from typer.core import TyperCommand


class SetsKeys(TyperCommand):
    """A command with --set. An unknown option that is a key of the experiment file gets a hint."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as problem:
            if hint := _set_hint(problem.option_name, given):
                raise click.UsageError(f"There is no option {problem.option_name}. {hint}", ctx) from None
            raise


def _set_hint(name: str, args: list[str]) -> str:
    """How to set the key of this name; "" if no section has such a key."""
    from protofed.experiment.config import Config

    key = name.lstrip("-").replace("-", "_").partition("=")[0]
    table: dict[str, Any] = Config.load().table()
    sections = [section for section, keys in table.items() if key in keys]
    if not sections:
        return ""
    values = [after for word, after in pairwise(args) if word == name]
    values += [word.partition("=")[2] for word in args if word.startswith(f"{name}=")]
    value = values[0] if values else "VALUE"
    return "Did you mean " + " or ".join(f"--set {section}.{key}={value}" for section in sections) + "?"
