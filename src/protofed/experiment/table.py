"""One table in all formats: for a terminal, plain text, Markdown, LaTeX, CSV, HTML and pandas."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.table import Table as RichTable

FORMATS = ("text", "latex", "markdown", "csv", "json")
BOLD_RULE = (
    "Bold: the highest mean of a column, if the 95 % interval of its difference from every other row, seed by seed, "
    "excludes 0."
)
_LATEX = {
    "\\": r"\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "²": "$^2$",
    "√": r"$\surd$",
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    **{
        letter: f"$\\{name}$"
        for letter, name in zip(
            "αβγδεηλμρστφ",
            ["alpha", "beta", "gamma", "delta", "epsilon", "eta", "lambda", "mu", "rho", "sigma", "tau", "phi"],
            strict=True,
        )
    },
}
"""How pdflatex writes characters that it does not take as they are."""


class TableCell(NamedTuple):
    """A cell: its text for people, its number for programs, the half-width of the number's interval, and emphasis."""

    text: str
    value: Any = None
    half: float | None = None
    bold: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Rows of cells with one head per column. The first `labels` columns are text, the others numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[TableCell | str]]
    notes: Sequence[str] = ()
    labels: int = 1
    dim: Sequence[str] = ()  # heads of columns that are shown less prominently on a terminal

    @property
    def cells(self) -> list[list[TableCell]]:
        """All cells. A text is its own value."""
        return [[cell if isinstance(cell, TableCell) else TableCell(cell, cell) for cell in row] for row in self.rows]

    def render(self, format: str) -> str:
        """The table in one of `FORMATS`, except json: its content belongs to each command."""
        renderers = {"text": self.text, "latex": self.latex, "markdown": self.markdown, "csv": self.csv}
        if format not in renderers:
            raise UserError(f'There is no format "{format}". {did_you_mean(format, renderers)}')
        return renderers[format]()

    def text(self) -> str:
        """Aligned columns. No line is wrapped."""
        lines = [list(self.heads), *([cell.text for cell in row] for row in self.cells)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def line(texts: Sequence[str]) -> str:
            padded = (
                text.ljust(width) if position < self.labels else text.rjust(width)
                for position, (text, width) in enumerate(zip(texts, widths, strict=True))
            )
            return "  ".join(padded).rstrip()

        return "\n".join([line(lines[0]), "  ".join("-" * width for width in widths), *map(line, lines[1:])])

    def rich(self, break_heads: bool = True) -> RichTable:
        """The table for a terminal, which folds long texts. `break_heads`: heads of numbers take two lines."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)  # so that many columns fit 80 characters
        for position, head in enumerate(self.heads):
            is_label = position < self.labels
            short = max((len(row[position].text) for row in self.cells), default=0) < 30
            table.add_column(
                head if is_label or not break_heads else head.replace(" ", "\n", 1),
                justify="left" if is_label else "right",
                overflow="fold",
                no_wrap=is_label != break_heads and (short or not is_label),
                style="dim" if head in self.dim else None,
            )
        for row in self.cells:
            table.add_row(*(cell.text for cell in row))
        return table

    def markdown(self) -> str:
        """A table in Markdown."""
        rule = ["---"] * len(self.heads)
        rows = [[f"**{cell.text}**" if cell.bold else cell.text for cell in row] for row in self.cells]
        lines = [[text.replace("|", "\\|") for text in line] for line in (self.heads, *rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))

    def latex(self) -> str:
        """A tabular for LaTeX with booktabs. The notes are comments above it."""
        columns = "l" * self.labels + "r" * (len(self.heads) - self.labels)
        lines = [f"% {note}" for note in (*self.notes, r"Needs \usepackage{booktabs}.")]
        lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
        lines += [" & ".join(map(latex_text, self.heads)) + r" \\", r"\midrule"]
        lines += [" & ".join(map(_latex_cell, row)) + r" \\" for row in self.cells]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def records(self) -> list[dict[str, Any]]:
        """The rows as numbers by column. A column with intervals has another one, "NAME ±", with the half-widths."""
        has_half = [any(row[at].half is not None for row in self.cells) for at in range(len(self.heads))]
        rows = []
        for cells in self.cells:
            row: dict[str, Any] = {}
            for head, cell, with_half in zip(self.heads, cells, has_half, strict=True):
                row[head] = cell.value
                if with_half:
                    row[f"{head} ±"] = cell.half
            rows.append(row)
        return rows

    def csv(self) -> str:
        """Comma-separated values with all digits of the numbers."""
        text = io.StringIO(newline="")
        rows = self.records()
        writer = csv.DictWriter(text, list(rows[0]) if rows else list(self.heads), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().rstrip("\n")

    def html(self) -> str:
        """A table for a notebook, with the notes below it."""

        def row(tag: str, texts: Sequence[str]) -> str:
            return "<tr>" + "".join(f"<{tag}>{text}</{tag}>" for text in texts) + "</tr>"

        def cell_text(cell: TableCell) -> str:
            text = html.escape(cell.text)
            return f"<b>{text}</b>" if cell.bold else text

        body = "".join(row("td", [cell_text(cell) for cell in cells]) for cells in self.cells)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        head = row("th", list(map(html.escape, self.heads)))
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{notes}"

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, with numbers instead of texts."""
        return data_frame(self.records())


def data_frame(rows: Sequence[Any]) -> Any:
    """Rows as a pandas DataFrame; an error that says what to install if pandas is not there."""
    try:
        import pandas
    except ImportError:
        raise UserError("to_pandas() needs pandas, which is not installed. Install it: pip install pandas.") from None
    return pandas.DataFrame(list(rows))


def latex_text(text: str) -> str:
    r"""A text for LaTeX.

    >>> print(latex_text("by_head, 5 % ± λ"))
    by\_head, 5 \% $\pm$ $\lambda$
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _latex_cell(cell: TableCell) -> str:
    r"""A cell for LaTeX: numbers in math mode, so that minus signs are minus signs.

    >>> print(_latex_cell(TableCell("94.4 ± 1.2", bold=True)), _latex_cell(TableCell("+0.3 ± 0.1 *")))
    $\mathbf{94.4 \pm 1.2}$ $+0.3 \pm 0.1$*
    """
    text, star = (cell.text[:-2], "*") if cell.text.endswith(" *") else (cell.text, "")
    if all(is_number(part.strip()) for part in text.split("±")):
        numbers = text.replace("±", r"\pm").replace(",", "{,}")
        return f"$\\mathbf{{{numbers}}}${star}" if cell.bold else f"${numbers}${star}"
    return rf"\textbf{{{latex_text(cell.text)}}}" if cell.bold else latex_text(cell.text)


def is_number(text: str) -> bool:
    """Whether a text is a number, perhaps with commas between thousands."""
    try:
        float(text.replace(",", ""))
    except ValueError:
        return False
    return text.lower() not in ("nan", "inf", "-inf")
