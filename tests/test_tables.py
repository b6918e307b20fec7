"""One table in all formats, by hand."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess

import pytest

from protofed.errors import UserError
from protofed.experiment.table import FORMATS, ResultTable, TableCell
from protofed.measures.intervals import SettingRow, best_row
from protofed.measures.question import Measurement
from protofed.studies.comparison import settings_table

TABLE = ResultTable(
    ["setting", "by head", "cost"],
    [
        ["fedproto | pull=0.5", TableCell("94.4 ± 1.2", 0.944, 0.012, bold=True), TableCell("3,600", 3600)],
        ["my_net & 5 %", TableCell("-"), TableCell("-0.3", -0.3)],
    ],
    ["A note with 5 %."],
)


def test_text_has_one_line_per_row_and_wraps_nothing():
    assert TABLE.text().splitlines() == [
        "setting                 by head   cost",
        "-------------------  ----------  -----",
        "fedproto | pull=0.5  94.4 ± 1.2  3,600",
        "my_net & 5 %                  -   -0.3",
    ]


def test_markdown():
    assert TABLE.markdown().splitlines() == [
        "| setting | by head | cost |",
        "| --- | --- | --- |",
        r"| fedproto \| pull=0.5 | **94.4 ± 1.2** | 3,600 |",
        "| my_net & 5 % | - | -0.3 |",
    ]


def test_latex():
    assert TABLE.latex().splitlines() == [
        "% A note with 5 %.",
        r"% Needs \usepackage{booktabs}.",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"setting & by head & cost \\",
        r"\midrule",
        r"fedproto \textbar{} pull=0.5 & $\mathbf{94.4 \pm 1.2}$ & $3{,}600$ \\",
        r"my\_net \& 5 \% & - & $-0.3$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_csv_has_numbers_and_half_widths():
    rows = list(csv.DictReader(io.StringIO(TABLE.csv())))
    assert rows[0] == {"setting": "fedproto | pull=0.5", "by head": "0.944", "by head ±": "0.012", "cost": "3600"}
    assert rows[1] == {"setting": "my_net & 5 %", "by head": "", "by head ±": "", "cost": "-0.3"}


def test_html_is_escaped():
    shown = TABLE.html()
    assert "<td><b>94.4 ± 1.2</b></td>" in shown
    assert "<td>my_net &amp; 5 %</td>" in shown


def test_pandas_has_numbers():
    pandas = pytest.importorskip("pandas")
    frame = TABLE.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["by head"][0] == 0.944


def test_without_pandas_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UserError, match=r"to_pandas\(\) needs pandas, which is not installed. Install it: pip install"):
        TABLE.to_pandas()


def test_an_unknown_format_is_said():
    with pytest.raises(UserError, match=r'There is no format "latx". Did you mean "latex"\?'):
        TABLE.render("latx")
    assert set(FORMATS) == {"text", "latex", "markdown", "csv", "json"}


def test_the_best_must_be_better_than_every_other_row_seed_by_seed():
    rows = [
        SettingRow("a", {"x": {0: 0.90, 1: 0.80, 2: 0.85}}),
        SettingRow("b", {"x": {0: 0.88, 1: 0.78, 2: 0.83}}),  # 0.02 below in every seed
        SettingRow("c", {"x": {0: 0.10, 1: 0.90, 2: 0.50}}),
    ]
    assert best_row(rows[:2], "x") is rows[0]  # although the intervals of a and b overlap
    assert best_row(rows, "x") is None  # c varies too much
    assert best_row(rows[:1], "x") is None
    assert best_row([SettingRow("a", {"x": {0: 1.0}}), SettingRow("b", {"x": {0: 0.0}})], "x") is None  # one seed
    shown = settings_table(rows[:2])
    assert [row[0].text for row in shown.cells if any(cell.bold for cell in row)] == []  # x is no column of the table


def test_a_measurement_prints_shortly():
    measured = Measurement("About it.", {"client 0": {"auc": 0.5, "examples": 12345}, "mean": {"auc": None}})
    assert repr(measured) == (
        "About it.\n            auc  examples\n--------  -----  --------\nclient 0  0.500    12,345\nmean          -         -"
    )
    assert measured.table.csv() == ",auc,examples\nclient 0,0.5,12345\nmean,,"


@pytest.mark.slow
def test_latex_compiles(tmp_path):
    if not shutil.which("pdflatex"):
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-base, texlive-latex-recommended)")
    greek = ResultTable(["λ² → ∞", "√x × ±"], [["a~b^c\\d <e> {f} #g $h", TableCell("1.5 ± 0.1 *", 1.5)]])
    body = f"{TABLE.latex()}\n\n{greek.latex()}"
    text = rf"\documentclass{{article}}\usepackage{{booktabs}}\begin{{document}}{body}\end{{document}}"
    (tmp_path / "t.tex").write_text(text.replace(r"\begin{document}%", "\\begin{document}\n%"), encoding="utf-8")
    made = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stdout[-2000:]
    assert (tmp_path / "t.pdf").exists()
