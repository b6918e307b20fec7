"""The experiment files in recipes/."""

from __future__ import annotations

from pathlib import Path

from protofed.errors import UserError


def recipe_files() -> list[Path]:
    """The experiment files in ./recipes, or in the source tree that protofed runs from."""
    folder = Path("recipes")
    if not folder.is_dir():
        folder = Path(__file__).parents[3] / "recipes"
    return sorted(folder.glob("*.toml"))


def recipe_file(name: str) -> Path:
    """The file of the recipe with this name, which is without the ending .toml."""
    for file in recipe_files():
        if file.stem == name:
            return file
    raise UserError(f"There is no recipes/{name}.toml. Run this in a checkout of protofed, which has the recipes.")
