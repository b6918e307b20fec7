"""Prototype-guided FL's studies: figures measured on runs, tables over slow clients, weights, partitions, pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from protofed import Config, Result, measure, run
from protofed.errors import UserError
from protofed.experiment.members import Members
from protofed.studies.reproduce import margin_pictures, over_slow, page
from protofed.studies.reproduce.figures import Figures, figures_of_run, is_finished
from protofed.studies.reproduce.measured import client_weights, measure_checkpoints, measured_figure, measured_rounds
from protofed.studies.reproduce.partition_table import partition_table
from protofed.studies.reproduce.protomargin import PROTOMARGIN_STUDIES
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import Cell, CellResult, Study
from protofed.studies.sweep import SweepRun
from test_cli import protofed as command  # noqa: F401

TABLE = {
    "run": {"rounds": 5, "checkpoint_every": 2, "keep_checkpoints": 0, "sample": 3, "sampling": "by_size"},
    "data": {"clients": 6},
    "method": {"name": "protomargin"},
    "train": {"epochs": 1},
    "eval": {"training_loss": True},
}
CENTRAL = {
    **TABLE,
    "run": {**TABLE["run"], "sample": 1.0},
    "data": {"clients": 1},
    "partition": {"name": "pooled"},
    "method": {"name": "fedavg"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of six clients and its central run, measured."""
    root = tmp_path_factory.mktemp("runs")
    run(TABLE, root / "a")
    run(CENTRAL, root / "central")
    measure_checkpoints(root / "a", root / "central")
    return root


def test_the_model_is_measured_at_every_checkpoint(runs):
    rows = measured_rounds(runs / "a")
    assert [row["round"] for row in rows] == [2, 4, 5]
    measured = measure(Result.load(runs / "a"), ["model_margins", "gradients"])
    assert rows[-1]["margin"] == pytest.approx(measured["model_margins"].rows["all clients"]["between"])
    in_round = measured["model_margins"].rows["clients of the last round"]["between"]
    assert rows[-1]["margin_round"] == pytest.approx(in_round)
    assert rows[-1]["margin"] != rows[-1]["margin_round"]
    assert rows[-1]["gradients"] == pytest.approx(measured["gradients"].rows["shared model"]["dissimilarity"])
    assert rows[0]["margin"] != rows[1]["margin"]
    assert all(0 < row["mmd"] < 2**0.5 for row in rows)  # the largest distance of two means of a Gaussian kernel


def test_features_of_the_central_model_have_no_distance_from_themselves(runs):
    measure_checkpoints(runs / "central", runs / "central")
    rows = measured_rounds(runs / "central")
    assert rows[-1]["mmd"] < 0.1 < rows[0]["mmd"] + measured_rounds(runs / "a")[0]["mmd"]
    assert rows[-1]["gradients"] == pytest.approx(0, abs=1e-9)  # one client has all data


def test_measured_figures_are_named_by_round(runs):
    rows = measured_rounds(runs / "a")
    assert figures_of_run("measured.margin", runs / "a").accuracy == rows[2]["margin"]
    assert figures_of_run("measured 4.mmd", runs / "a").accuracy == rows[1]["mmd"]
    assert not is_finished("measured 3.mmd", runs / "a")
    assert is_finished("weights.std", runs / "a")
    with pytest.raises(UserError, match=r"no figure measured 3\.mmd: the run was not measured"):
        figures_of_run("measured 3.mmd", runs / "a")


def test_a_measured_run_is_not_measured_again(runs):
    file = runs / "a" / "measured.json"
    before = file.stat().st_mtime_ns
    measure_checkpoints(runs / "a", runs / "nothing")
    assert file.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ({1: [0.9, 0.1], 2: [0.6, 0.4]}, [{0: 0.6, 1: 0.4}]),  # no weights in round 4, in which nothing was combined
        ({}, [{0: 0.25, 1: 0.75}, {1: 0.75, 2: 0.25}]),
    ],
)
def test_weights_are_attention_or_shares_by_size(attention, expected, tmp_path):
    clients = {1: [0, 1], 2: [0, 3, 1], 3: [3], 4: [1, 2]}  # uploads of client 3 are rejected
    rounds = [
        {
            "round": number,
            "clients": listed,
            "rejected": {"3": "a reason"},
            **({"attention": attention[number]} if number in attention else {}),
        }
        for number, listed in clients.items()
    ]
    (tmp_path / "rounds.jsonl").write_text("\n".join(map(json.dumps, rounds)) + "\n")
    clients = [{"train": [0]}, {"train": [1, 2, 3]}, {"train": [4]}, {"train": [5, 6]}]
    (tmp_path / "partition.json").write_text(json.dumps({"sha256": "", "clients": clients}))
    assert client_weights(tmp_path) == expected
    of_client_1 = 0.4 if attention else 0.75  # the mean over the rounds in which it took part
    assert measured_figure(tmp_path, "weights.client 1") == pytest.approx(of_client_1)
    spread = 0.1 if attention else 0.25  # of 0.6 and 0.4, or of 0.25 and 0.75
    assert measured_figure(tmp_path, "weights.std") == pytest.approx(spread)


def result(row: str, column: str, *values: float) -> CellResult:
    figures = {seed: Figures(value, None, None, None, 0.0) for seed, value in enumerate(values)}
    return CellResult(Cell(row, column, "r", (row,)), figures)


def test_the_deviation_over_slow_is_that_of_a_sample():
    """Every ± of the paper's Table 3 is computed in this way: 92.7, 88.7 and 85.1 have 3.8 (a population: 3.1)."""
    cells = [
        result("fedavg", f"slow {slow}", value / 100)
        for slow, value in zip(over_slow.SLOW, (92.7, 88.7, 85.1), strict=True)
    ]
    (table,) = over_slow.columns_over_slow(cells, {"": {"fedavg": "88.8 ± 3.8"}})
    assert table.lines == [["fedavg", "88.8 ± 3.8", "88.8 ± 3.8"]]
    (table,) = over_slow.columns_over_slow([*cells[:2], result("fedavg", "slow 0.8")], {"": {}})
    assert table.lines == [["fedavg", "not run", ""]]
    assert over_slow.columns_over_slow(cells[:1], {"": {}}) == []


def test_table4_has_ffd_and_correlation():
    cells = []
    for number, slow in enumerate(over_slow.SLOW):
        for method, mmd, margin in (("fedavg", 0.4, 1.0), ("protomargin", 0.3, 2.0)):
            row = f"{method}, slow {slow}"
            cells += [result(row, "MMD", mmd), result(row, "margin", margin + number)]
            cells += [result(row, "accuracy", (margin + number) / 10), result(row, "margin (round)", 5.0 - number)]
            cells.append(result(row, "gradients", 3.0))
    cells += [result("central", "accuracy", 0.9), result("central", "margin", 8.0)]
    table, correlation = over_slow.margins_over_slow(cells, {"protomargin": ("2.49", "7.7")})
    assert table.lines == [
        ["fedavg", "20.0 ± 10.0", "2.00 ± 1.00", "4.00 ± 1.00", "", "0.400 ± 0.000", "", "", "3.00 ± 0.00"],
        ["protomargin", "30.0 ± 10.0", "3.00 ± 1.00", "4.00 ± 1.00", "2.49", "0.300 ± 0.000", "25.0", "7.7", "3.00 ± 0.00"],
        ["central", "90.0", "8.00", "not run", "", "", "", "", ""],
    ]  # fmt: skip
    assert correlation.lines[0][:2] == ["margin", "+1.00"]
    assert correlation.lines[0][3] == "6"
    shared = [one._replace(cell=replace(one.cell, row="fedavg + toleration, slow 0")) for one in cells
              if one.cell.row == "fedavg, slow 0"]  # fmt: skip
    assert over_slow.margins_over_slow([*cells, *shared], {})[1] == correlation  # the run of two rows counts once
    assert correlation.lines[1][:2] == ["margin (round)", "-0.85"]  # 2 / sqrt(4 * 5.5)


def test_table3_has_the_papers_rows_and_both_readings():
    for name in ("protomargin-table3", "protomargin-table3-small"):
        cells = {(cell.row, cell.column): cell for cell in STUDIES[name].cells}
        assert sum(bool(cell.paper) for cell in cells.values()) == 30  # ten rows at three shares of slow clients
        deviation = cells["protomargin, d+ only", "slow 0.8"]
        assert {"method.attention=deviation", "method.exponent=distance"} <= set(deviation.words)  # sigmoid(+d+)
        assert deviation.paper == "92.1"
        assert cells["fedavg", "slow 0"].words == cells["fedavg + toleration", "slow 0"].words  # nothing to drop
        assert cells["fedavg", "slow 0.8"].words != cells["fedavg + toleration", "slow 0.8"].words
        method = cells["deviation, keep", "slow 0.5"].job(Path(), 0).config.method
        assert (method.attention, method.absent) == ("deviation", "keep")


@pytest.mark.slow
def test_all_tables_of_a_scale_share_runs(tmp_path):
    for suffix in ("", "-mnist", "-small"):
        names = [f"protomargin-{name}{suffix}" for name in ("table2", "table4", "figure2", "figure3")]
        folders = [{job.out for job in STUDIES[name].jobs(tmp_path, 1, False)} for name in names]
        assert len(folders[1]) == 21  # 7 methods x 3 shares; fedavg with and without toleration share one; central
        assert folders[1] == folders[2] == folders[3] == folders[0] | {STUDIES[names[1]].central.out(tmp_path, 0)}
    assert all(
        len(job.out.parent.name) < 256 for study in PROTOMARGIN_STUDIES for job in study.jobs(tmp_path, 1, False)
    )


def test_the_table_by_client_shows_the_client_with_most_examples(tmp_path):
    table, by_client = STUDIES["protomargin-table2"], STUDIES["protomargin-table2-clients"]
    assert {job.out for job in by_client.jobs(tmp_path, 3, False)} == {
        job.out for job in table.jobs(tmp_path, 3, False)
    }
    cell = next(cell for cell in by_client.cells if cell.column == "largest client, slow 0")
    sizes = [len(part) for part in Members.of(cell.job(tmp_path, 0).config).train]
    assert cell.figure == f"domains.client {sizes.index(max(sizes))}.head"
    assert all(cell.percent and not cell.smaller_is_better for cell in by_client.cells)


def test_only_some_cells_can_be_run(tmp_path):
    study = STUDIES["protomargin-table3-small"]
    jobs = study.jobs(tmp_path, 2, False, None, ["protomargin, slow 0.8", "fairness*, slow 0"])
    settings = {"fairness, slow 0", "fairness, sampling i.i.d., slow 0", "protomargin, slow 0.8"}
    assert {job.setting for job in jobs} == settings  # fairness + toleration shares its runs with fairness
    assert len(jobs) == 6


def tiny_study() -> Study:
    words = ("data.clients=3", "run.rounds=2", "run.keep_checkpoints=0", "run.sample=2", "eval.training_loss=true")
    methods = {"fedavg": "method.name=fedavg", "protomargin": "method.name=protomargin"}
    central = Cell(
        "central",
        "accuracy",
        "digits-n3",
        (*words[1:3], "data.clients=1", "partition.name=pooled", "method.name=fedavg"),
    )
    cells = [
        Cell(f"{name}, slow 0", column, "digits-n3", (*words, word), "", figure, column == "accuracy")
        for name, word in methods.items()
        for column, figure in (("accuracy", "global.accuracy"), ("margin", "measured.margin"))
    ]
    return Study(
        "tiny", "Tiny", (*cells, central), (), ("accuracy", "margin"), (), seeds=1, quick_seeds=1, central=central,
        picture=margin_pictures.draw_margins_and_mmd,
    )  # fmt: skip


def test_kept_figures_do_not_replace_the_central_run_that_others_are_measured_with(tmp_path):
    study = tiny_study()
    settings = {cell: f"{cell.row}, {cell.column}" for cell in study.cells}
    kept = {(cell, 0): Figures(0.5, None, None, None, 0) for cell in study.cells}
    assert study.jobs(tmp_path, 1, False, kept) == []
    of_protomargin = [cell for cell in study.cells if cell.row.startswith("protomargin")]
    jobs = study.jobs(tmp_path, 1, False, {key: run for key, run in kept.items() if key[0] not in of_protomargin})
    assert [job.setting for job in jobs] == [settings[of_protomargin[0]], "central, accuracy"]


@pytest.mark.slow
def test_a_measured_study_from_the_command_line(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(STUDIES, "tiny", tiny_study())
    code, out, err = command("reproduce", "tiny", "--out", "r", "--only", "fedavg*")
    assert code == 0, err
    assert "2 runs, 2 to do" in out  # with the central one
    assert "not run" in out
    code, out, err = command("reproduce", "tiny", "--out", "r")
    assert code == 0, err
    assert "3 runs, 1 to do" in out
    assert "Measuring the runs" in out
    cells = {
        (cell["row"], cell["column"]): cell for cell in json.loads((tmp_path / "r" / "tiny.json").read_text())["cells"]
    }
    folder = next((tmp_path / "r").glob("digits-n3/*method.name=protomargin*/seed-0"))
    assert cells["protomargin, slow 0", "margin"]["runs"]["0"]["accuracy"] == measured_rounds(folder)[-1]["margin"]
    assert (tmp_path / "r" / "tiny.png").stat().st_size > 5000
    (folder / "measured.json").unlink()
    out = command("reproduce", "tiny", "--out", "r", "--finished")[1]
    assert "This table is not finished: 1 of 5 figures" in out
    assert "--only fedprox*: no cell matches." in command("reproduce", "tiny", "--out", "q", "--only", "fedprox*")[2]


@pytest.mark.parametrize("name", ["protomargin-figure2", "protomargin-figure3-small", "protomargin-figureS2-mnist"])
def test_every_method_of_a_picture_has_all_shares_of_slow_clients(name, tmp_path):
    """At slow 0, fedavg with and without toleration are one run."""
    study = STUDIES[name]
    by_method = margin_pictures._runs_by_method(study.drawn_jobs(tmp_path, 2, False))
    assert set(by_method) >= {"fedavg + toleration", "protomargin", "protomargin, deviation"}
    for jobs in by_method.values():
        assert sorted((job.seed, job.config.system.slow) for job in jobs) == [
            (seed, slow) for seed in range(2) for slow in (0, 0.5, 0.8)
        ]


def test_the_best_of_a_loss_is_the_lowest():
    cells = STUDIES["protomargin-table2"].cells
    assert {cell.column for cell in cells if cell.smaller_is_better} == {
        f"loss, slow {slow}" for slow in over_slow.SLOW
    }
    figures = STUDIES["protomargin-table4"].cells
    assert {cell.column for cell in figures if cell.smaller_is_better} == {"MMD", "gradients"}
    results = [
        CellResult(cell, {seed: Figures(2.0 if cell.row == "fedavg" else 1.0 + (cell.row != "protomargin") / 2, None, None,
                                        None, 0.0) for seed in range(3)})
        for cell in cells
    ]  # fmt: skip
    table = page.study_table(STUDIES["protomargin-table2"], results)
    bold = {
        (row[0].text, head) for row in table.cells for head, cell in zip(table.heads, row, strict=True) if cell.bold
    }
    assert bold == {("protomargin" if "loss" in column else "fedavg", column) for column in
                    (f"{kind}slow {slow}" for kind in ("", "loss, ") for slow in over_slow.SLOW)}  # fmt: skip
    assert "Of these columns it is the lowest: loss, slow 0, loss, slow 0.5, loss, slow 0.8." in table.notes[-1]


def test_pictures_leave_the_central_runs_out(runs):
    config = Config.of(TABLE)
    jobs = [
        SweepRun("protomargin, slow 0, accuracy", 0, runs / "a", config),
        SweepRun("central, accuracy", 0, runs / "central", config),
    ]
    assert [len(axis.lines) for axis in margin_pictures.draw_accuracy_loss_gradients(jobs).axes] == [1, 1, 1]
    (axis,) = margin_pictures.draw_client_weights(jobs).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["protomargin"]


def test_a_partition_next_to_the_papers():
    statistics = {"clients": 30, "examples": 9606, "mean": 320.2, "std": 1051.5}
    row = {"dataset": "synthetic", "seed": 0, "classes": 10, "all": statistics, "nine_tenths": statistics}
    lines = partition_table([{**row, "most_frequent": 0.5949}])[1]
    assert lines[:3] == [
        ["synthetic, seed 0, all examples", "10", "30", "9,606", "320.2", "1051.5", "59 %"],
        ["synthetic, seed 0, nine tenths", "10", "30", "9,606", "320.2", "1051.5", ""],
        ["synthetic, paper", "10", "30", "9,600", "320.0", "1051.6", ""],
    ]
