"""Write the tables of docs/results/fednh.md and mpfedcl.md again, from the figures kept in docs/results/data.

    python scripts/results_tables.py [FOLDER]

FOLDER: an --out of `protofed reproduce`; its finished tables (FOLDER/NAME.json) are copied to docs/results/data first.
A table of a study stands between the lines `<!-- NAME -->` and `<!-- end -->` of a page.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from protofed.studies.reproduce import page
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import CellResult, read_kept

DOCS = Path("docs/results")
MARKED = re.compile(r"<!-- ((?:fednh|mpfedcl)-[\w.-]+) -->\n.*?<!-- end -->\n", re.DOTALL)


def tables(name: str) -> str:
    """The tables of a study, with a sentence if it is not finished."""
    file, study = DOCS / "data" / f"{name}.json", STUDIES[name]
    if not file.exists():
        return "This table has not been run yet."
    figures = read_kept(file, study, quick=False)
    results = [
        CellResult(cell, {seed: run for (other, seed), run in figures.items() if other == cell}) for cell in study.cells
    ]
    parts = [
        *page.unfinished_note(results, study.seeds),
        page.markdown_table(*page.accuracy_table(results)),
        page.DIFFERENCES_NOTE,
        page.markdown_table(*page.differences_table(study, results)),
    ]
    return "\n\n".join(_wrapped(part) for part in parts)


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
            if file.stem in STUDIES and file.stem.startswith(("fednh", "mpfedcl")):
                shutil.copy(file, DOCS / "data" / file.name)
    for name in ("fednh.md", "mpfedcl.md"):
        text = (DOCS / name).read_text(encoding="utf-8")
        new = MARKED.sub(lambda found: f"<!-- {found[1]} -->\n\n{tables(found[1])}\n\n<!-- end -->\n", text)
        (DOCS / name).write_text(new, encoding="utf-8")
        print(f"{DOCS / name}: {len(MARKED.findall(text))} tables")


if __name__ == "__main__":
    main()
