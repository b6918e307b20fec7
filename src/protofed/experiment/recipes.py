"""The experiment files in recipes/ and the kept tables, in a source tree or as a wheel installs them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from protofed.errors import UserError

_SOURCE_TREE = Path(__file__).parents[3]


def shipped_files(folder: str, ending: str) -> list[Path]:
    """The files that come with protofed: in `folder` of the source tree, or in share/protofed/ of an installation."""
    if (_SOURCE_TREE / "pyproject.toml").is_file():
        return sorted((_SOURCE_TREE / folder).glob(f"*{ending}"))
    try:
        files = metadata.files("protofed") or []
    except metadata.PackageNotFoundError:
        files = []
    name = folder.rpartition("/")[2]
    installed = [file for file in files if file.parts[-4:-1] == ("share", "protofed", name) and file.suffix == ending]
    return sorted(Path(str(file.locate())).resolve() for file in installed)


def recipe_files() -> list[Path]:
    """The experiment files in ./recipes, or those that come with protofed."""
    folder = Path("recipes")
    return sorted(folder.glob("*.toml")) if folder.is_dir() else shipped_files("recipes", ".toml")


def recipe_file(name: str) -> Path:
    """The file of the recipe with this name, which is without the ending .toml."""
    for file in (*recipe_files(), *shipped_files("recipes", ".toml")):
        if file.stem == name:
            return file
    raise UserError(f"There is no recipes/{name}.toml. `protofed list recipes` shows the recipes.")


def kept_file(path: Path) -> Path:
    """A file with kept figures: this one or, if there is none, the one of that name that comes with protofed."""
    if path.exists():
        return path
    return next((file for file in shipped_files("docs/results/data", ".json") if file.name == path.name), path)
