"""The report: its verdict, its content, and its page."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import time
from pathlib import Path

import pytest
from filelock import FileLock
from PIL import Image
from typer.testing import CliRunner

import protofed
from protofed.cli import app
from protofed.errors import UserError
from protofed.experiment.accuracy import wilson_interval
from protofed.experiment.stored import StoredRun, load_runs
from protofed.pictures.animation import animate
from protofed.report.content import gather
from protofed.report.page import html_page
from protofed.report.words import cautions, verdict_sentences

CONFIG = {
    "run": {"rounds": 3, "trace_every": 1},
    "data": {"clients": 4},
    "partition": {"name": "nway", "ways": 3, "shots": 4, "test": 5},
    "net": {"name": "mlp", "hidden": [8], "dim": 6},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of fedproto and fedavg with two seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("fedproto", "fedavg"):
        for seed in (0, 1):
            run = {**CONFIG["run"], "seed": seed}
            protofed.run({**CONFIG, "run": run, "method": {"name": method}}, root / f"{method}-{seed}")
    return root


def all_runs(root: Path) -> list[StoredRun]:
    return load_runs(sorted(root.iterdir()))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A run of fedproto that may be changed."""
    return Path(shutil.copytree(folder / "fedproto-0", tmp_path / "run"))


def rounds(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]


def test_curves_are_the_means_of_rounds_jsonl_over_seeds(folder: Path) -> None:
    content = gather(all_runs(folder))
    rows = [rounds(folder / f"fedproto-{seed}") for seed in (0, 1)]
    (curve,) = (line for line in content["curves"]["head"] if line["group"] == "fedproto")
    assert curve["x"] == [1, 2, 3]
    for at in range(3):
        values = [run[at]["accuracy_head"] for run in rows]
        assert curve["mean"][at] == pytest.approx(sum(values) / 2, abs=1e-5)
        assert [curve["low"][at], curve["high"][at]] == pytest.approx([min(values), max(values)], abs=1e-5)
    assert {group["name"] for group in content["groups"]} == {"fedproto", "fedavg"}


def test_clients_have_the_interval_of_wilson(folder: Path) -> None:
    content = gather(load_runs([folder / "fedproto-0"]))
    row = content["runs"][0]["clients"][0]
    correct = round(row["accuracy_head"] * row["test"])
    assert (row["low"], row["high"]) == pytest.approx(wilson_interval(correct, row["test"]))


def test_clients_have_no_interval_where_their_file_has_none(copy: Path) -> None:
    """As the files of runs that label pixels, and of earlier versions."""
    file = copy / "clients.csv"
    with file.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    kept = [key for key in rows[0] if "wilson" not in key]
    with file.open("w", newline="") as stream:
        table = csv.DictWriter(stream, kept, extrasaction="ignore")
        table.writeheader()
        table.writerows(rows)
    for row in gather(load_runs([copy]))["runs"][0]["clients"]:
        assert row["accuracy_head"] is not None
        assert (row["low"], row["high"]) == (None, None)


def test_the_map_has_the_traced_prototypes_on_shared_axes(folder: Path) -> None:
    run = gather(load_runs([folder / "fedproto-0"]))["runs"][0]
    assert [frame["round"] for frame in run["map"]["frames"]] == [0, 1, 2, 3][-len(run["map"]["frames"]) :]
    last = run["map"]["frames"][-1]["prototypes"]
    assert all(support > 0 for *_, support in last)
    assert len({(x, y) for x, y, *_ in last}) == len(last)
    assert {client for *_, client in run["map"]["samples"]} == {0, 1, 2, 3}


def test_the_verdict_says_whether_a_difference_is_established(folder: Path) -> None:
    runs = {run.folder.name: run for run in all_runs(folder)}
    one_seed = verdict_sentences({"fedavg": [runs["fedavg-0"]], "fedproto": [runs["fedproto-0"]]})
    assert one_seed[-1].endswith("with one seed, nothing says whether that is more than chance.")
    two = verdict_sentences(
        {"fedavg": [runs["fedavg-0"], runs["fedavg-1"]], "fedproto": [runs["fedproto-0"], runs["fedproto-1"]]}
    )
    assert "over 2 seeds: the 95 % interval" in two[-1]
    assert any("one seed per setting" in note for note in cautions({"fedavg": [runs["fedavg-0"]]}))


def test_runs_on_different_data_are_not_compared(folder: Path, tmp_path: Path) -> None:
    experiment = {
        "run": {"rounds": 1},
        "data": {"name": "spiral", "clients": 2, "limit": 60},
        "method": {"name": "local"},
    }
    protofed.run({**experiment, "partition": {"name": "iid"}, "net": {"name": "mlp_spiral"}}, tmp_path / "spiral")
    groups = {"digits": load_runs([folder / "fedavg-0"]), "spiral": load_runs([tmp_path / "spiral"])}
    assert verdict_sentences(groups)[-1] == "spiral has other data than digits, so they are not compared."


def test_an_unfinished_run_is_reported_as_running_or_stopped(copy: Path) -> None:
    for name in ("result.json", "clients.csv"):
        (copy / name).unlink()
    assert [run.state for run in load_runs([copy])] == ["stopped"]
    with FileLock(copy / ".lock"):
        assert [run.state for run in load_runs([copy])] == ["running"]
        content = gather(load_runs([copy]))
    assert content["verdict"] == ["fedproto (running, round 3 of 3) on digits is not finished."]
    assert len(content["runs"][0]["map"]["frames"]) >= 3


def test_the_page_loads_nothing_and_text_cannot_become_markup(copy: Path) -> None:
    config = (copy / "config.toml").read_text()
    (copy / "config.toml").write_text(config + "\n# </script><script>alert(1)</script>\n")
    page = html_page(gather(load_runs([copy])))
    assert "<script>alert" not in page
    assert "default-src 'none'" in page
    for word in ("src=", 'href="http', "@import", "url("):
        assert word not in page
    data = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["runs"][0]["folder"] == str(copy)


def test_a_report_of_ten_thousand_clients_is_small_and_quick(copy: Path) -> None:
    header, row, *_ = (copy / "clients.csv").read_text().splitlines()
    cells = row.partition(",")[2]
    (copy / "clients.csv").write_text("\n".join([header, *(f"{client},{cells}" for client in range(10_000))]) + "\n")
    began = time.perf_counter()
    page = html_page(gather(load_runs([copy])))
    assert len(page) < 5e6
    assert time.perf_counter() - began < 30
    assert "more than 500 clients" in page


def test_an_animation_has_a_frame_per_traced_round(folder: Path, tmp_path: Path) -> None:
    number = animate(StoredRun.load(folder / "fedproto-0"), tmp_path / "moving.gif")
    with Image.open(tmp_path / "moving.gif") as picture:
        assert picture.n_frames == number == 3
    with pytest.raises(UserError, match=r"has no trace of its prototypes over rounds"):
        animate(StoredRun.load(folder / "fedavg-0"), tmp_path / "none.gif")
    with pytest.raises(UserError, match=r"must end in .gif or .mp4"):
        animate(StoredRun.load(folder / "fedproto-0"), tmp_path / "moving.png")
    assert [path.name for path in tmp_path.iterdir()] == ["moving.gif"]


def test_command_writes_the_page_and_says_the_verdict(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages" / "report.html"
    words = ["report", str(folder / "fedproto-0"), "--out", str(out)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("fedproto on digits, 4 clients, 3 rounds: ")
    assert f"Report of 1 run written to {out}" in result.output
    with pytest.raises(UserError, match="already exists"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert CliRunner().invoke(app, [*words, "--force"]).exit_code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "There is no folder nowhere. Give folders that `protofed run --out` or a sweep wrote."),
        (["."], ". is not a run folder: it has no config.toml."),
        ([".", "--out", "report.png"], "--out: got report.png; its name must end in .html."),
    ],
)
def test_wrong_inputs_are_explained(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace(".", r"\.")):
        CliRunner().invoke(app, ["report", *words], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_seeds_are_counted_where_their_figures_are(folder: Path, tmp_path: Path) -> None:
    stopped = Path(shutil.copytree(folder / "fedproto-1", tmp_path / "stopped"))
    (stopped / "result.json").unlink()
    (row,) = gather(load_runs([folder / "fedproto-0", stopped]))["figures"]
    assert row["seeds"] == 1


def test_commands_name_folders_as_a_shell_reads_them(folder: Path, tmp_path: Path) -> None:
    strange = tmp_path / "it's (mine);$(touch x)"
    shutil.copytree(folder / "fedavg-0", strange)
    (run,) = gather(load_runs([strange]))["runs"]
    assert shlex.split(run["quoted"]) == [str(strange)]


def test_a_rising_accuracy_is_said_with_the_rounds_that_were_compared(copy: Path) -> None:
    rows = rounds(copy)
    for row, accuracy in zip(rows, (0.1, None, 0.5), strict=True):
        row["accuracy_head"] = accuracy
    (copy / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    notes = cautions({"fedproto": load_runs([copy])})
    assert "run: accuracy still rose by 40.0 points from round 1 to round 3." in notes
