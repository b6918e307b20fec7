"""Draw docs/demo.svg from the runs of `make demo`: accuracy over rounds, a line per run and way of predicting."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LINES = [  # run, key, label, colour (safe for the colour-blind)
    ("fedproto", "accuracy_head", "fedproto, by head", "#0072b2"),
    ("fedproto", "accuracy_prototype", "fedproto, by prototype", "#d55e00"),
    ("local", "accuracy_head", "local", "#009e73"),
    ("fedavg", "accuracy_head", "fedavg", "#6f6f6f"),
]
LEFT, TOP, WIDTH, HEIGHT = 52, 40, 430, 240


def main() -> None:
    if not (HERE / "runs" / "demo" / "local" / "result.json").exists():
        raise SystemExit("There are no runs to draw. Call `make demo` first.")
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 330" font-family="sans-serif" font-size="13">',
        '<rect width="720" height="330" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="15">Mean accuracy of 20 clients, each on its own test set (digits, 3 ± 2 classes)</text>',
    ]
    for tick in range(0, 101, 20):
        y = TOP + HEIGHT * (1 - tick / 100)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/><text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>'
        )
    ends = []
    for run, key, label, colour in LINES:
        rows = [json.loads(line) for line in (HERE / "runs" / "demo" / run / "rounds.jsonl").read_text().splitlines()]
        points = [(LEFT + WIDTH * row["round"] / rows[-1]["round"], TOP + HEIGHT * (1 - row[key])) for row in rows]
        dashes = ' stroke-dasharray="7 4"' if run == "local" else ""
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        ends.append((points[-1][1], f"{label}: {100 * rows[-1][key]:.1f} %", colour))
    for position, (y, label, colour) in enumerate(sorted(ends)):
        label_y = max(y, TOP + 10 + 24 * position)
        parts.append(f'<text x="{LEFT + WIDTH + 10}" y="{label_y + 4:.1f}" fill="{colour}">{label}</text>')
    for tick in range(0, 51, 10):
        parts.append(f'<text x="{LEFT + WIDTH * tick / 50}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{tick}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">rounds</text></svg>')
    (HERE / "docs" / "demo.svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


main()
