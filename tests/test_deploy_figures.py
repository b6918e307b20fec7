"""docs/performance.md shows what benchmarks/deploy.py measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median

TOP = Path(__file__).parents[1]
KEPT = json.loads((TOP / "docs" / "results" / "data" / "deploy.json").read_text(encoding="utf-8"))
PAGE = (TOP / "docs" / "performance.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Deployment\n")[2].partition("\n## ")[0]


def rows() -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in SECTION.splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


def test_the_table_has_the_kept_figures():
    table = rows()
    for column, method in enumerate(("fedproto", "fedavg")):
        kept = KEPT["methods"][method]
        expected = {
            "seconds per round, local engine": f"{median(kept['local_seconds'][1:]):.2f}",
            "seconds per round, deployed": f"{median(kept['seconds'][1:]):.0f}",
            "CPU seconds per round, deployed": f"{median(kept['cpu_seconds']):.0f}",
            "bytes per round in uploads (`cost.up_bytes`)": f"{kept['up_bytes']:,.0f}",
            "bytes per round from clients, on the wire": f"{median(kept['wire_up']):,.0f}",
            "bytes per round in downloads (`cost.down_bytes`)": f"{kept['down_bytes']:,.0f}",
            "bytes per round to clients, on the wire": f"{median(kept['wire_down']):,.0f}",
            "memory of all processes, MB": f"{kept['total_memory'] / 1e6:,.0f}",
        }
        for name, value in expected.items():
            assert table[name][column] == value, name
    for program, name in (
        ("flower-superlink", "SuperLink"),
        ("flwr-serverapp", "server app"),
        ("flower-supernode", "SuperNode"),
        ("flwr-clientapp", "client app"),
        ("flower-superexec", "SuperExec"),
    ):
        sizes = [KEPT["methods"][method]["memory"][program] / 1e6 for method in ("fedproto", "fedavg")]
        assert table[f"memory of {name}, MB"] == [f"{size:.0f}" for size in sizes]


def test_the_wire_carries_the_uploads_and_a_fixed_part():
    """FedProto's uploads are so small that its bytes are Flower's fixed part; FedAvg's are within a tenth without it."""
    small, large = (KEPT["methods"][method] for method in ("fedproto", "fedavg"))
    fixed = median(small["wire_up"]) - small["up_bytes"]
    ratio = (median(large["wire_up"]) - fixed) / large["up_bytes"]
    assert 1.0 <= ratio <= 1.1
    assert f"{fixed / 1000:.0f} kB" in SECTION
    assert f"{ratio:.2f} times" in SECTION


def test_the_page_says_how_busy_the_machine_was():
    load = max(KEPT["load"]["before"][0], KEPT["load"]["after"][0])
    assert re.search(rf"load\s+average of up to {load:.0f}\b", SECTION)


def test_the_cost_of_secure_sums_is_that_of_the_kept_figures():
    kept = json.loads((TOP / "docs" / "results" / "data" / "deploy_secure.json").read_text(encoding="utf-8"))
    page = (TOP / "docs" / "privacy.md").read_text(encoding="utf-8")
    plain, secure = (kept["methods"][method] for method in ("fedproto", "fedproto-secure"))
    for name, key, form in (
        ("CPU seconds per round, all processes", "cpu_seconds", ".0f"),
        ("bytes per round from clients, on the wire", "wire_up", ",.0f"),
        ("bytes per round to clients, on the wire", "wire_down", ",.0f"),
    ):
        cells = " | ".join(format(median(result[key]), form) for result in (plain, secure))
        assert f"| {name} | {cells} |" in page
    seconds = " | ".join(f"{median(result['seconds'][1:]):.0f}" for result in (plain, secure))
    assert f"| seconds per round | {seconds} |" in page
    assert f"| bytes per round in uploads | {plain['up_bytes']:,.0f} | {secure['up_bytes']:,.0f} |" in page
    load = max(kept["load"]["before"][0], kept["load"]["after"][0])
    assert f"load average of up to {load:.0f})" in " ".join(page.split())
