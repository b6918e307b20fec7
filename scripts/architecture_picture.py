"""Draw docs/pictures/architecture.svg: the rooms of the package, and the way of one round through them."""

from __future__ import annotations

from html import escape
from pathlib import Path

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "architecture.svg"
ROOMS = (
    ("cli/", "the commands, and what is printed"),
    ("studies/   deploy/", "many runs: sweep, reproduce · a federation on real machines"),
    ("pictures/", "plots of runs"),
    ("measures/   models/   testing/", "numbers from finished runs · predict, export, join · checks"),
    ("experiment/", "experiment file, clients, rounds, run folder, result"),
    ("engines/   trust/", "loop, stacked, pool, flower · checks of uploads"),
    ("data/   nets/   methods/", "what an experiment chooses from"),
    ("theory/", "the papers' bounds as functions"),
    ("root: the vocabulary", "training  core  messages  net  examples  prototypes  draws  errors"),
)
"""From the highest room to the lowest; each may import only lower ones."""
ROUND = (
    ("experiment/roster.py", "sample: draw the clients of the round"),
    ("methods/…  broadcast", "server: a message for each client"),
    ("engines/…  train", "hand out the clients' work"),
    ("training.py", "client: batches, optimiser, steps"),
    ("methods/…  loss, keep, upload", "client: the loss, what it keeps, the message back"),
    ("trust/guard.py", "reject uploads that cannot be used"),
    ("methods/…  aggregate", "server: the next state"),
    ("engines/scoring.py", "test every client"),
    ("experiment/results.py", "the row of rounds.jsonl"),
    ("experiment/folder.py, checkpoint.py", "write the row and the state; watchers see the row"),
)
"""One round, in the order of `Runner.one_round`; docs/architecture.md numbers the steps in the same way."""
WIDTH, LEFT, RIGHT, TOP = 980, 20, 520, 60


def text(x: float, y: float, words: str, size: int = 13, weight: str = "normal", colour: str = "#222") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'xml:space="preserve">{escape(words)}</text>'
    )


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="#888"/>'


def main() -> None:
    height = TOP + 10 * 58 + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(LEFT, 34, "The rooms: imports go down", 17, "bold"),
        text(RIGHT, 34, "One round, in order", 17, "bold"),
    ]
    step = (10 * 58) / len(ROOMS)
    for number, (name, about) in enumerate(ROOMS):
        y = TOP + number * step
        parts.append(box(LEFT, y, 440, step - 14, "#dbe9f6" if number < len(ROOMS) - 1 else "#fdebc8"))
        parts += [text(LEFT + 14, y + 25, name, 15, "bold"), text(LEFT + 14, y + 45, about, 12, colour="#444")]
    for number, (where, what) in enumerate(ROUND):
        y = TOP + number * 58
        parts.append(box(RIGHT, y, 440, 44, "#e6f2e0"))
        parts.append(text(RIGHT + 14, y + 28, f"{number + 1}", 15, "bold", "#3a7d2c"))
        parts += [text(RIGHT + 44, y + 19, where, 13, "bold"), text(RIGHT + 44, y + 36, what, 12, colour="#444")]
        if number < len(ROUND) - 1:
            x = RIGHT + 220
            parts.append(f'<path d="M{x} {y + 44} v9 l-4 -4 m4 4 l4 -4" stroke="#3a7d2c" fill="none"/>')
    OUT.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")
    print(f"Written to {OUT.relative_to(OUT.parents[2])}.")


if __name__ == "__main__":
    main()
