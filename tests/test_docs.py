"""What the docs show is true: their code and commands run, their experiment files are valid, their links lead somewhere."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import test_parity
from protofed import cli
from protofed.experiment.config import Config
from protofed.methods import METHODS

TOP = Path(__file__).parents[1]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [(language, text) for language, text in found if language in languages]


def follow(page: Path, where: Path, monkeypatch) -> None:
    """Do what the page says, block by block, in an empty folder."""
    monkeypatch.chdir(where)
    monkeypatch.syspath_prepend(where)
    names: dict = {"__name__": "page"}
    for language, text in blocks(page, "python", "console", "toml"):
        if language == "toml" and not text.startswith("# file: "):
            continue
        if language == "console":
            for line in text.splitlines():
                command, _, remark = line.removeprefix("$ ").partition("  #")
                expected = int(remark.split()[-1]) if "exits with" in remark else 0
                program, *words = shlex.split(command)
                if program == "python":
                    monkeypatch.setattr(sys, "argv", words)
                    runpy.run_path(str(TOP / words[0]), run_name="__main__")
                    continue
                monkeypatch.setattr(sys, "argv", [program, *words])
                with pytest.raises(SystemExit) as ended:
                    cli.entry()
                assert (ended.value.code or 0) == expected, line
        elif text.startswith("# file: "):
            name, _, code = text.removeprefix("# file: ").partition("\n")
            (where / name).write_text(code)
        elif language == "python":
            exec(compile(text, page.name, "exec"), names)


SLOW_PAGES = ("own-data.md", "start.md", "sweep.md", "tables.md", "write-a-method.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in SLOW_PAGES))
        for page in PAGES
        if blocks(page, "python", "console")
    ],
)
def test_code_and_commands_run(page, tmp_path, monkeypatch, capsys):
    try:
        with torch.random.fork_rng(devices=[]):  # a reader's own nets draw where they like
            follow(page, tmp_path, monkeypatch)
    finally:
        METHODS.pop("protoavg", None)
        sys.modules.pop("protoavg", None)
    shown = [text for _, text in blocks(page, "") if text.startswith("Client 0 has the digits")]
    assert len(shown) == (page.name == "start.md")
    printed = capsys.readouterr().out
    assert all(text in printed for text in shown)  # the predictions next to the true labels


def tutorial_code() -> str:
    """The file of docs/write-a-method.md."""
    ((_, text),) = [block for block in blocks(TOP / "docs" / "write-a-method.md", "python") if "# file:" in block[1]]
    return text


@pytest.fixture
def tutorial(tmp_path, monkeypatch):
    """The method of docs/write-a-method.md, registered."""
    (tmp_path / "protoavg.py").write_text(tutorial_code())
    monkeypatch.syspath_prepend(tmp_path)
    METHODS["protoavg"] = importlib.import_module("protoavg").ProtoAvg
    yield "protoavg"
    del METHODS["protoavg"], sys.modules["protoavg"]


@pytest.mark.slow
def test_the_tutorials_method_passes_the_parity_test(tutorial):
    for engine in sorted(test_parity.ENGINES):
        for wire in (False, True):
            test_parity.agree(tutorial, test_parity.ENGINES[engine], wire)
    test_parity.test_the_wire_changes_no_bit(tutorial)
    for variant in test_parity.variants():
        if type(variant) is METHODS[tutorial]:
            test_parity.test_loss_can_be_mapped_over_clients(variant)
    for bug in (test_parity.SwappedClients, test_parity.DroppedMask, test_parity.BlindEvaluation):
        test_parity.test_planted_bugs_are_found(tutorial, bug)


def test_experiment_file_is_valid():
    ((_, text),) = blocks(TOP / "README.md", "toml")
    made = Config.of(tomllib.loads(text))
    assert [net.design.hidden for net in made.nets] == [(64,), (96, 64)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        assert (page.parent / target).exists(), target


def test_docs_wrap_at_100_columns():
    """Tables, pictures, code and marks of generated tables may be longer."""
    longer = [
        f"{page.name}: {line}"
        for page in [*PAGES, TOP / "CHANGELOG.md"]
        for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines()
        if len(line) > 100 and not line.startswith(("|", "![", "    ", "<!--"))
    ]
    assert longer == []


def test_every_method_has_a_page():
    assert all((TOP / "docs" / "methods" / f"{name}.md").exists() for name in METHODS)


def test_the_page_of_the_run_folder_names_every_file_and_key(tmp_path):
    from protofed.experiment.run import run

    run({"run": {"rounds": 1, "trace_every": 1}, "data": {"clients": 2}}, tmp_path / "run")
    text = (TOP / "docs" / "run-folder.md").read_text(encoding="utf-8")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    row = json.loads((tmp_path / "run" / "rounds.jsonl").read_text())
    keys = [f"{key}.{inner}" for key in ("global", "cost", "seconds", "personal") for inner in result[key]]
    keys += [key for key in result if key not in ("accuracy", "global", "cost", "seconds", "personal", "miou")]
    keys += [key for key in row if not key.startswith("accuracy_")]
    keys += [path.name + "/" * path.is_dir() for path in (tmp_path / "run").iterdir()]
    assert [key for key in keys if f"`{key}`" not in text] == []


def test_the_page_of_measures_has_every_measure_and_every_figure():
    from protofed.experiment.run import run
    from protofed.measures.on_demand import MEASURES, measure

    text = (TOP / "docs" / "measures.md").read_text(encoding="utf-8")
    found = measure(run({"run": {"rounds": 1}, "data": {"clients": 2}}), ["classification", "fairness", "scatter"])
    figures = {column for one in found.values() for row in one.rows.values() for column in row}
    said = figures - {"examples", "accuracy", "clients"}
    assert [name for name in [*MEASURES, *sorted(said)] if f"`{name}`" not in text] == []


def test_own_data_takes_15_lines():
    _, text = blocks(TOP / "docs" / "own-data.md", "python")[0]
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 15
