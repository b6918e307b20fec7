"""What the README shows is true: its code runs, its experiment file is valid, the files it names are there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from protofed.config import Config

TOP = Path(__file__).parents[1]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
README = (TOP / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_python_blocks_run(capsys):
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {})
    assert "mean" in capsys.readouterr().out


def test_experiment_file_is_valid():
    (text,) = blocks("toml")
    made = Config.of(tomllib.loads(text))
    assert [net.design.hidden for net in made.nets] == [(64,), (96, 64)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_every_method_has_a_page():
    from protofed.methods import METHODS

    assert all((TOP / "docs" / "methods" / f"{name}.md").exists() for name in METHODS)
