"""The rooms of the package: who may import whom, and where names and files are unique."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "protofed"
VOCABULARY = (
    "errors",
    "plugins",
    "draws",
    "devices",
    "params",
    "averages",
    "prototypes",
    "examples",
    "batch",
    "net",
    "messages",
    "core",
    "optimiser",
    "contract",
    "training",
)
"""The modules at the root, in the order in which they may import each other."""
LAYERS = (
    ("theory",),
    ("data", "nets", "methods"),
    ("engines",),
    ("trust",),
    ("experiment",),
    ("measures", "models", "testing"),
    ("pictures",),
    ("report",),
    ("studies", "deploy"),
    ("cli",),
)
"""The rooms from the lowest to the highest. A room may import itself and lower rooms, but none of its own layer."""
LEVEL = {name: level for level, name in enumerate(VOCABULARY)} | {
    name: len(VOCABULARY) + level for level, names in enumerate(LAYERS) for name in names
}
ON_PURPOSE = {"run", "app", "__all__"}
"""Module-level names that are defined twice on purpose: the command `run` and its function, the apps that typer and
Flower start, and lists of public names."""


def room(path: Path) -> str:
    """The room of a file, or the module for the vocabulary."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(source: str) -> set[str]:
    """Every module or name of the package that a file imports, also within functions and for types only."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "protofed.(relative)" if node.level else node.module
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("protofed.") for name in found if name.partition(".")[0] == "protofed"}


def wrong_imports(source: str, own: str) -> list[str]:
    """The imports of a file in room `own` that go up or sideways."""
    names = {name: name.partition(".")[0] for name in imported(source)}
    return sorted(
        name
        for name, other in names.items()
        if other != own and other != "__version__" and LEVEL.get(other, 99) >= LEVEL[own]
    )


FILES = sorted(path for path in SOURCE.rglob("*.py") if path not in (SOURCE / "__init__.py", SOURCE / "__main__.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path):
    assert wrong_imports(path.read_text(encoding="utf-8"), room(path)) == []


@pytest.mark.parametrize(
    ("own", "line"),
    [
        ("core", "from protofed.methods.fedavg import FedAvg"),
        ("methods", "from protofed.nets import NETS"),
        ("theory", "from protofed.methods import METHODS"),
        ("engines", "from protofed.experiment.config import Config"),
        ("engines", "if True:\n    from protofed.trust.guard import sift"),
        ("experiment", "def f():\n    from protofed.measures.intervals import Interval"),
        ("measures", "import protofed.pictures.style"),
        ("studies", "from protofed.cli import app"),
        ("draws", "from protofed import core"),
        ("engines", "from ..experiment.config import Config"),
        ("engines", "import protofed"),
    ],
)
def test_a_planted_import_that_goes_up_or_sideways_is_found(own, line):
    assert wrong_imports(line, own)


def test_an_import_that_goes_down_is_fine():
    assert wrong_imports("from protofed.experiment.run import run\nfrom protofed import __version__", "cli") == []


def test_every_room_has_its_place_and_says_what_it_may_import():
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms == {name for names in LAYERS for name in names}
    for name in rooms:
        text = ast.get_docstring(ast.parse((SOURCE / name / "__init__.py").read_text(encoding="utf-8")))
        assert text, name
        assert "import" in text, name


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/pictures/architecture.svg"])
def test_every_file_that_the_architecture_names_exists(page):
    named = set(re.findall(r"[\w/]+\.py", (SOURCE.parents[1] / page).read_text(encoding="utf-8")))
    assert len(named) > 5
    names = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    short = {name.rpartition("/")[2] for name in names}
    strange = {name.removeprefix("protofed/") for name in named} - names - short
    assert {name for name in strange if not (SOURCE.parents[1] / name).is_file()} == set()


def test_the_root_has_only_the_vocabulary():
    assert {path.stem for path in SOURCE.glob("*.py")} == {"__init__", "__main__", *VOCABULARY}


def test_no_file_has_300_lines():
    assert [path.name for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) >= 300] == []


def test_module_level_names_are_unique():
    homes = defaultdict(set)
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                homes[node.name].add(path)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                if isinstance(target, ast.Name):
                    homes[target.id].add(path)
    assert {name for name, paths in homes.items() if len(paths) > 1} <= ON_PURPOSE


def test_module_names_are_unique_where_the_folder_does_not_tell_them_apart():
    """A command's file is called like what it runs, and a paper's tables like its method."""
    homes = defaultdict(list)
    for path in FILES:
        if path.name != "__init__.py" and room(path) != "cli" and "reproduce" not in path.parts:
            homes[path.stem].append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
