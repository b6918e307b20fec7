"""Write the tables of the pages in docs/results again, from the figures kept in docs/results/data.

    python scripts/results_tables.py [FOLDER]

FOLDER: an --out of `protofed reproduce`; its finished tables (FOLDER/NAME.json) are copied to docs/results/data first.
The tables of a study are between the lines `<!-- NAME -->` and `<!-- end -->` of a page; those of its quick version
have the name `NAME-quick`. `<!-- NAME: PART -->` has a part of them, one of `PARTS`. `<!-- main-claims -->` has the
papers' main claims next to our differences.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from protofed.errors import UserError
from protofed.measures.intervals import Interval, paired
from protofed.studies.reproduce import page
from protofed.studies.reproduce.partition_table import PARTITION_TABLE, partition_table
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import CellResult, Study, paper_mean, read_kept

DOCS = Path(__file__).parents[1] / "docs" / "results"
EARLIER_VERSION = (
    "The kept figures are those of an earlier version of this study, which has not been run in its present form."
)
MARKED = re.compile(r"<!-- ([\w.-]+)(?:: (\w+))? -->\n.*?<!-- end -->\n", re.DOTALL)


class Claim(NamedTuple):
    """A row that is above another in a paper, and where our study has both."""

    words: str
    study: str
    column: str
    better: str
    worse: str
    there: str = ""  # what the table says of the paper's difference; "": it is computed from the study's figures
    same_method: str = ""  # the row with the paper's figure for the worse row's method, if the worse row has none
    figure: str = ""  # the name in `Figures.others` of the better row's figure; "": the cell's own


_MARGINS = "protomargin-table3", "slow 0.8"
_SMALL = "protomargin-table3-small", "slow 0.8"
CLAIMS = {
    "[FedProto](fedproto.md)": (
        Claim("FedProto above training alone (MNIST, n = 3)", "fedproto-table1", "n = 3", "fedproto", "local"),
        Claim(
            "FedProto above FedAvg, both choosing among ten classes (n = 3)",
            *("fedproto-table1", "n = 3", "fedproto", "fedavg"),
            figure="prototype_all",
        ),
        Claim(
            "FedProto above FedAvg, both choosing among ten classes (n = 5)",
            *("fedproto-table1", "n = 5", "fedproto", "fedavg"),
            figure="prototype_all",
        ),
        Claim(
            "FedProto above FedAvg, both choosing among the client's own classes (n = 3)",
            *("fedproto-table1", "n = 3", "fedproto", "fedavg, own classes"),
            same_method="fedavg",
        ),
    ),
    "[Prototype-guided FL](protomargin.md)": (
        Claim("the complete method above FedAvg (MNIST, 80 % slow clients)", *_MARGINS, "protomargin", "fedavg"),
        Claim(
            "equal weights and partial work, without margins, above FedAvg (the same data)",
            *_MARGINS,
            *("fairness + toleration", "fedavg"),
        ),
        Claim("margins above equal weights (the same data)", *_MARGINS, "protomargin", "fairness + toleration"),
        Claim(
            "margins with the opposite sign above equal weights",
            *_MARGINS,
            *("protomargin, deviation", "fairness + toleration"),
            there="not in its tables",
        ),
        Claim(
            "partial work above none, with equal weights (small MNIST, 80 % slow clients)",
            *_SMALL,
            *("fairness + toleration", "fairness"),
        ),
        Claim(
            "partial work above none, with weights by size (small MNIST, 80 % slow clients)",
            *(*_SMALL, "fedavg + toleration", "fedavg"),
        ),
    ),
    "[Its segmentation](segmentation.md)": tuple(
        Claim(
            f"margins above FedAvg ({words})",
            *("protomargin-figure5", f"alpha 0.1, slow {slow}", "protomargin", "fedavg"),
            there="higher",
        )
        for words, slow in (("alpha 0.1, no slow clients", "0"), ("80 % slow clients", "0.8"))
    ),
    "[MP-FedCL](mpfedcl.md)": (
        *(
            Claim(f"MP above {name} (Digit-5 by domain, {images})", study, "mean", "mp", row)
            for images, study in (("10 images per class", "mpfedcl-table5-few"), ("all images", "mpfedcl-table5"))
            for name, row in (("FedAvg", "fedavg"), ("training alone", "local"), ("FedProto", "fedproto"))
        ),
        Claim("MP above FedAvg (Digit-5, Dir(0.5))", "mpfedcl-table7", "Digit-5, Dir(0.5)", "mp", "fedavg"),
        Claim("MP above FedProto (Digit-5, Dir(0.5))", "mpfedcl-table7", "Digit-5, Dir(0.5)", "mp", "fedproto"),
        Claim("several prototypes above one (Digit-5, Dir(0.5))", "mpfedcl-table7", "Digit-5, Dir(0.5)", "mp", "sp"),
        Claim("MP above FedAvg (Digit-5 with label skew)", "mpfedcl-table6-digit5", "all domains", "mp", "fedavg"),
        Claim(
            "several prototypes above one (Digit-5 with label skew)",
            *("mpfedcl-table6-digit5", "all domains", "mp", "sp"),
        ),
        Claim("MP above FedAvg (Office-10 by domain)", "mpfedcl-table7", "Office, domains", "mp", "fedavg"),
        Claim("MP above FedProto (Office-10 by domain)", "mpfedcl-table7", "Office, domains", "mp", "fedproto"),
        Claim("MP above FedAvg (MNIST with label skew)", "mpfedcl-table6", "balanced", "mp", "fedavg"),
        Claim("several prototypes above one (MNIST with label skew)", "mpfedcl-table6", "balanced", "mp", "sp"),
        Claim(
            "several prototypes above one (Office-10 with label skew)",
            *("mpfedcl-table6-office", "all domains", "mp", "sp"),
        ),
        Claim("several prototypes above one (Office-10 by domain)", "mpfedcl-table7", "Office, domains", "mp", "sp"),
        *(
            Claim(
                f"MP above {name} after 20 seconds of training (Digit-5, {words})", "mpfedcl-table8", column, "mp", row
            )
            for words, column in (("Dir(0.5)", "Digit-5, Dir(0.5)"), ("by domain", "Digit-5, domains"))
            for name, row in (("FedAvg", "fedavg"), ("FedProto", "fedproto"))
        ),
    ),
    "[FedNH](fednh.md)": (
        Claim("FedNH's GM above FedAvg's (a fifth of CIFAR-10)", "fednh-table1", "GM", "fednh", "fedavg"),
        Claim("FedNH's PM(V) above FedAvg's", "fednh-table1", "PM(V)", "fednh", "fedavg"),
        Claim("FedNH's PM(L) above FedAvg's", "fednh-table1", "PM(L)", "fednh", "fedavg"),
        Claim("FedNH's PM(L) above FedROD's", "fednh-table1", "PM(L)", "fednh", "fedrod"),
    ),
}
"""Claims of the papers, by the page that has their tables."""


def claimed_difference(claim: Claim) -> tuple[str, Interval | None]:
    """The paper's difference in points, and ours on the same seeds."""
    found = study_results(claim.study)
    assert found, claim.study
    by_row = {one.cell.row: one for one in found[1] if one.cell.column == claim.column}
    better, worse = by_row[claim.better], by_row[claim.worse]
    printed = by_row[claim.same_method or claim.worse].cell.paper
    there = claim.there or f"{paper_mean(better.cell.paper) - paper_mean(printed):+.2f}"
    return there, paired(better.other(claim.figure) if claim.figure else better.accuracy, worse.accuracy)


def main_claims() -> str:
    """A table of claims of the papers: their difference, ours, and whether ours confirms it."""
    lines = []
    for paper, claims in CLAIMS.items():
        for claim in claims:
            there, gap = claimed_difference(claim)
            here = f"{gap.percent('+')} ({gap.number})" if gap else "not run"
            lines.append([paper, claim.words, there, here, verdict(gap)])
    return page.markdown_table(["results", "claim", "paper", "here (seeds)", "order confirmed?"], lines)


def verdict(gap: Interval | None) -> str:
    """Whether a difference confirms that the first row is better."""
    if gap is None or not gap.excludes_zero:
        return "undecided"
    return "yes" if gap.mean > 0 else "no, the opposite"


def main_tables(study: Study, results: list[CellResult]) -> list[str]:
    """The accuracies and their differences."""
    pairs = [page.DIFFERENCES_NOTE, page.markdown_table(*page.differences_table(study, results))] if study.pairs else []
    return [page.markdown_table(*page.accuracy_table(results)), *pairs]


def extra_tables(study: Study, results: list[CellResult]) -> list[str]:
    """The tables that are computed from the cells, each after a sentence about it."""
    extra = study.extra(results) if study.extra else []
    return [text for table in extra for text in (table.note, page.markdown_table(table.heads, table.lines))]


PARTS: dict[str, Callable[[Study, list[CellResult]], list[str]]] = {
    "": main_tables,
    "details": lambda study, results: [page.markdown_table(*table) for table in page.details_tables(study, results)],
    "also": lambda study, results: [page.markdown_table(*page.also_table(study, results))],
    "extra": extra_tables,
    "verdict": lambda study, results: page.study_verdict(results),
}
"""The parts of a study's tables, as paragraphs."""


def study_results(name: str) -> tuple[Study, list[CellResult]] | None:
    """A study and its kept figures; None if there are none. A name that ends in -quick is that of the quick version."""
    file, study, quick = DOCS / "data" / f"{name}.json", STUDIES[name.removesuffix("-quick")], name.endswith("-quick")
    if not file.exists():
        return None
    figures = read_kept(file, study, quick)
    cells = study.chosen(quick)
    return study, [
        CellResult(cell, {seed: run for (other, seed), run in figures.items() if other == cell}) for cell in cells
    ]


def tables(name: str, part: str = "") -> str:
    """The tables of a study, with a sentence if it is not finished."""
    if name == "main-claims":
        return main_claims()
    if name == PARTITION_TABLE:
        rows = json.loads((DOCS / "data" / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        return page.markdown_table(*partition_table(rows))
    try:
        found = study_results(name)
    except UserError as problem:
        if "is the same experiment now" not in str(problem):
            raise
        return _wrapped(EARLIER_VERSION)
    if found is None:
        return "This table has not been run yet."
    study, results = found
    seeds = study.quick_seeds if name.endswith("-quick") else study.seeds
    parts = [*([] if part else page.unfinished_note(results, seeds)), *PARTS[part](study, results)]
    return "\n\n".join(_wrapped(text) for text in parts)


def with_tables(text: str) -> str:
    """A page with its tables as the kept figures give them."""

    def marked(found: re.Match[str]) -> str:
        name, part = found[1], found[2] or ""
        return f"<!-- {name}{part and f': {part}'} -->\n\n{tables(name, part)}\n\n<!-- end -->\n"

    return MARKED.sub(marked, text)


def _wrapped(text: str) -> str:
    """Sentences in lines of at most 100 characters; tables as they are."""
    if text.startswith("|"):
        return text
    lines = [""]
    for word in text.split():
        lines = [*lines, word] if len(lines[-1]) + len(word) > 99 else [*lines[:-1], f"{lines[-1]} {word}".strip()]
    return "\n".join(lines)


def main() -> None:
    if len(sys.argv) > 1:
        for file in Path(sys.argv[1]).glob("*.json"):
            if file.stem.removesuffix("-quick") in (*STUDIES, PARTITION_TABLE):
                shutil.copy(file, DOCS / "data" / file.name)
    for file in sorted(DOCS.glob("*.md")):
        text = file.read_text(encoding="utf-8")
        file.write_text(with_tables(text), encoding="utf-8")
        print(f"{file}: {len(MARKED.findall(text))} tables")


if __name__ == "__main__":
    main()
