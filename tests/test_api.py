"""The public names of the package, and what an import does not do."""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import protofed
from protofed.data.sources import SOURCES
from protofed.experiment import run as run_module

TOP = Path(__file__).parents[1]


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", protofed.__all__)
def test_every_public_name_can_be_imported_and_is_described(name):
    value = getattr(protofed, name)
    assert value is getattr(sys.modules[protofed._MODULES[name]], name)
    assert f"- `{name}`: " in protofed.__doc__


def test_the_public_names_are_listed_once():
    assert set(protofed.__all__) == set(protofed._MODULES)
    assert set(dir(protofed)) == {*protofed.__all__, "__version__"}
    with pytest.raises(AttributeError, match="module 'protofed' has no attribute 'runn'"):
        _ = protofed.runn


def test_the_page_of_the_api_is_that_of_the_docstrings(monkeypatch):
    monkeypatch.syspath_prepend(TOP / "scripts")
    page = importlib.import_module("api_page")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run: python scripts/api_page.py"


TINY = {"run": {"rounds": 2}, "data": {"clients": 3}, "engine": {"workers": 1}}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return protofed.run(TINY, tmp_path_factory.mktemp("api") / "run")


def test_results_print_shortly(result):
    text = repr(result)
    assert len(text) < 300
    assert text.startswith("Result(fedproto on digits, 2 rounds, 3 clients: ")
    assert text.endswith(f"folder={str(result.folder)!r})")
    assert "<td>head</td>" in result._repr_html_()
    assert repr(protofed.load(result.folder)) == text


def test_runs_are_compared_from_folders_and_from_memory(result):
    other = protofed.run({**TINY, "method": {"name": "fedavg"}})
    both = protofed.compare(result.folder, other)
    assert [row[1].text for row in both.table.cells] == ["fedproto", "fedavg"]
    assert both.table.cells[0][2].value == result.summary["accuracy"]["head"]["mean"]
    assert repr(both).endswith("(2 runs)")
    assert "<td>fedavg</td>" in both._repr_html_()
    with pytest.raises(protofed.UserError, match=r"compare\(\) needs runs"):
        protofed.compare()


def test_pictures_are_drawn_from_memory(result, tmp_path):
    drawing = protofed.draw("curves", result, labels={"fedproto": "Ours"}, width=5, out=tmp_path / "c.svg")
    assert repr(drawing).startswith("Drawing(curves: accuracy or mIoU over rounds, ")
    assert ">Ours</text>" in (tmp_path / "c.svg").read_text()
    assert drawing._repr_html_().startswith('<img src="data:image/png;base64,iVBOR')
    memory = protofed.draw("similarity", protofed.run(TINY))
    assert memory.name == "similarity"


def test_measures_of_a_folder(result):
    measured = protofed.measure(str(result.folder), "fairness")
    assert list(measured) == ["fairness"]
    assert repr(measured).startswith("fairness: Accuracy over clients")
    assert measured._repr_html_().startswith("<h4>fairness</h4><table>")
    frame = pytest.importorskip("pandas").DataFrame
    assert isinstance(measured.to_pandas(), frame)
    assert isinstance(measured["fairness"].to_pandas(), frame)
    assert len(result.to_pandas()) == 2


def test_a_new_client_joins_a_folder(result):
    data = SOURCES["digits"]("").test
    joined = protofed.join(result.folder, (data.x[:60].numpy(), data.labels[:60].numpy()), epochs=1)
    assert repr(joined).startswith("The newcomer has ")
    assert joined._repr_html_().startswith("<p>The newcomer has ")


@pytest.mark.slow
def test_a_sweep_in_python(tmp_path):
    compared = [{"method": {"name": "fedproto", "pull": 0.5}}, {"label": "Avg", "method": {"name": "fedavg"}}]
    made = protofed.sweep(TINY, tmp_path / "s", compare=compared, grid={"train.lr": [0.1]}, seeds=[0, 4], jobs=1)
    assert [row.setting for row in made.rows] == ["fedproto pull=0.5 train.lr=0.1", "Avg train.lr=0.1"]
    assert [sorted(row.figures["by head"]) for row in made.rows] == [[0, 4], [0, 4]]
    assert repr(made).endswith(f"(4 runs in {tmp_path / 's'})")
    assert len(protofed.compare(made).runs) == 4
    assert protofed.draw("sweep", made).name == "sweep"
    assert protofed.draw("curves", made).name == "curves"
    assert "<td>Avg train.lr=0.1</td>" in made._repr_html_()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_on_a_terminal_and_nothing_in_a_file(monkeypatch, capsys):
    protofed.run(TINY)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    protofed.run(TINY)
    last = sys.stderr.getvalue().rsplit("\r", 1)[-1]
    assert re.fullmatch(r"\x1b\[K\[#{24}\] fedproto: round 2/2, [\d.]+ % ± [\d.]+ by head\n", last)
    monkeypatch.setattr(sys, "stderr", Terminal())
    protofed.run(TINY, progress=False)
    assert sys.stderr.getvalue() == ""


def test_a_bar_in_a_notebook(monkeypatch):
    shown = []

    class Handle:
        def update(self, bar):
            shown.append(bar)

    def display(bar, display_id):
        shown.append(bar)
        return Handle()

    shell = types.SimpleNamespace(kernel=1)
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    protofed.run(TINY)
    assert shown[-1].startswith('<progress value="1.0000" max="1"></progress> fedproto: round 2/2')


def test_progress_is_seen_within_a_round():
    class Seen(protofed.Watcher):
        counts: list = []

        def progress(self, round, done, of):
            self.counts.append((round, done, of))

    protofed.run({**TINY, "engine": {"name": "loop", "workers": 1}}, watchers=[Seen()])
    assert Seen.counts == [(1, 1, 3), (1, 2, 3), (1, 3, 3), (2, 1, 3), (2, 2, 3), (2, 3, 3)]


def test_an_import_loads_no_torch():
    code = "import sys, protofed; print([name for name in ('torch', 'numpy', 'pydantic') if name in sys.modules])"
    assert in_a_new_process(code) == "[]\n"


CALLS = """
import protofed.engines.memory
calls = []
protofed.engines.memory.keep_freed_memory = lambda: calls.append(1)
{then}
print(len(calls))
"""


@pytest.mark.parametrize("then", ["import protofed", "from protofed import *", "import protofed.cli"])
def test_an_import_leaves_the_memory_allocator_alone(then):
    assert in_a_new_process(CALLS.format(then=then)) == "0\n"


def test_a_run_asks_the_memory_allocator_once(monkeypatch):
    calls = []
    monkeypatch.setattr(run_module, "keep_freed_memory", lambda: calls.append(1))
    protofed.run({"run": {"rounds": 1}, "data": {"clients": 2}, "engine": {"workers": 1}})
    assert calls == [1]
