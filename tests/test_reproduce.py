"""Tables of the papers: what runs give by hand, orderings, what is shown and kept, and two kept figures computed anew."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from io import StringIO
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console

from protofed.cli.listing import recipes
from protofed.data.dataset import Dataset
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.experiment.config import Config
from protofed.experiment.recipes import recipe_file
from protofed.experiment.results import Result
from protofed.measures.on_demand import measure
from protofed.studies import sweep
from protofed.studies.reproduce import fedproto, page
from protofed.studies.reproduce.figures import (
    BY_HEAD_OWN,
    BY_PROTOTYPE,
    Figures,
    by_head_after,
    converged,
    figures_of_run,
    server_in_last_rounds,
)
from protofed.studies.reproduce.papers import CHECKED, ENTRIES
from protofed.studies.reproduce.partition_table import PARTITION_TABLE
from protofed.studies.reproduce.studies import STUDIES
from protofed.studies.reproduce.study import Cell, CellResult, Study, orderings, read_kept, study_as_json
from protofed.studies.reproduce.tables_and_figures import CANNOT, IN_PART, NOT_YET, PAPER_SCALE, PARTLY, SMALLER
from test_cli import protofed as command  # noqa: F401

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "data"
CELLS = (
    Cell("local", "n = 3", "digits-n3", ("method.name=local",), "90.00 ± 1.00"),
    Cell("fedproto", "n = 3", "digits-n3", (), "95.00 ± 0.50", BY_PROTOTYPE),
    Cell("fedproto, by head", "n = 3", "digits-n3", ()),
    Cell("local", "n = 4", "digits-n3", ("method.name=local", "partition.ways=4"), "89.00 ± 1.00"),
    Cell("fedproto", "n = 4", "digits-n3", ("partition.ways=4",), "94.00 ± 0.50", BY_PROTOTYPE),
    Cell("fedproto, by head", "n = 4", "digits-n3", ("partition.ways=4",)),
)
SENT = {"local": "0, 0", "fedproto": "4, 100"}
TINY = Study("tiny", "A table of digits", CELLS, ("run.rounds=2", "data.clients=3"), ("n = 3",), ("Digits.",), SENT)


def made(row: str, paper: str, *shares: float, column: str = "n = 3") -> CellResult:
    runs = {seed: Figures(share, 0.0, 0.0, 1, 0.0) for seed, share in enumerate(shares)}
    return CellResult(Cell(row, column, "r", (row.partition(",")[0],), paper), runs)


def test_a_run_has_converged_when_it_is_as_good_as_its_end():
    assert converged(dict(enumerate([0.5, 0.7, 0.9, *10 * [0.9]], 1))) == 3
    assert converged(dict(enumerate([0.5, 0.896, 0.7, *10 * [0.9]], 1))) == 2  # 0.9 - 0.005
    assert converged({1: 0.9}) == 1
    assert converged({10: 0.2, 20: 0.5, 30: 0.7, 40: 0.7}) == 30  # tested every ten rounds: the last ten are one test


def test_orderings_hold_are_reversed_or_cannot_be_told():
    found = [
        made("a", "90.0 ± 1", 0.90, 0.91, 0.92),
        made("b", "80.0 ± 1", 0.80, 0.81, 0.82),  # 10 points below a, always: as the paper has it
        made("c", "70.0 ± 1", 0.95, 0.96, 0.97),  # above both, always: the other way round
        made("d", "60.0 ± 1", 0.10, 0.99, 0.50),  # anywhere
        made("e", "", 1.0, 1.0, 1.0),  # the paper does not have it
        made("f", "99.0 ± 1", 0.0, 0.0, 0.0, column="n = 4"),  # nobody to compare it with
    ]
    same, opposite, open_, told = orderings(found)
    assert (same, opposite, open_) == (1, 2, 3)
    assert told == [("c", "a", "n = 3"), ("c", "b", "n = 3")]
    text = page.study_verdict(found)
    assert text[0].startswith("Of the paper's 6 orderings of two methods, 1 holds")
    assert text[1] == "Reversed: c above a, b at n = 3."
    assert orderings([made("a", "90", 0.5), made("b", "80", 0.1)]).open == 1  # one seed tells nothing
    twice = [one._replace(cell=replace(one.cell, words=("same",))) for one in found[:2]]
    assert orderings(twice)[:3] == (0, 0, 0)  # a run is not compared with itself
    assert page.study_verdict([made("a", "", 0.5)]) == []


def test_a_cell_is_what_its_runs_say(tmp_path):
    cell = Cell("fedproto", "n = 3", "r", (), "97.0 ± 0.3", BY_PROTOTYPE)
    for seed, (first, second) in enumerate([(1, 3), (2, 4)]):
        folder = tmp_path / str(seed)
        folder.mkdir()
        shares = [first / 4, second / 4]
        spread = {"mean": sum(shares) / 2, "std": 0.25}
        result = {
            "accuracy": {"head": None, "prototype": spread, "prototype_all": {"mean": 0.125, "std": 0.0}},
            "cost": {"up_params": 100 + seed, "down_params": 300},
            "versions": {"commit": "abc", "torch": "2"},
        }
        result |= dict.fromkeys(("method", "dataset", "seed", "rounds", "global", "seconds"))
        (folder / "result.json").write_text(json.dumps(result))
        lines = [f"{number},4,{share}" for number, share in enumerate(shares)]
        (folder / "clients.csv").write_text("\n".join(["client,test,accuracy_prototype", *lines, "2,0,"]) + "\n")
        rounds = [{"round": 1, "accuracy_prototype": None}, *({"round": n, "accuracy_prototype": 0.1} for n in (2, 3))]
        (folder / "rounds.jsonl").write_text("\n".join(map(json.dumps, rounds)) + "\n")
    found = CellResult(cell, {seed: figures_of_run(BY_PROTOTYPE, tmp_path / str(seed)) for seed in (0, 1)})
    assert found.accuracy == {0: 0.5, 1: 0.75}
    # running averages 1/4, 4/8 and 2/4, 6/8: half their difference is 0.125
    assert found.mean == Figures(0.625, 0.25, pytest.approx(0.125), 2, 100.5, 300)
    assert found.other("prototype_all") == {0: 0.125, 1: 0.125}
    assert found.other("prototype distance") == {}
    (tmp_path / "0" / "prototype_distance.json").write_text('{"distance": 1.5}')
    again = figures_of_run(BY_PROTOTYPE, tmp_path / "0")
    assert again.others == {"prototype_all": 0.125, "prototype distance": 1.5}
    assert again.versions == {"commit": "abc", "torch": "2"}
    with pytest.raises(UserError, match=r"has no figure accuracy\.head_own\.mean\. Delete the folder to run it again"):
        figures_of_run(BY_HEAD_OWN, tmp_path / "0")  # a run of an earlier version


def test_a_cell_can_show_the_server_and_personal_models(tmp_path):
    result = {
        "accuracy": {"head": None},
        "cost": {"up_params": 7},
        "personal": {"v": 0.5, "l": 0.75, "l_std": 0.25, "prototype": {"l": 0.125, "l_std": 0.5}},
        "domains": {"usps": {"prototype": 0.25}},
    }
    result |= dict.fromkeys(("method", "dataset", "seed", "rounds", "global", "seconds"))
    (tmp_path / "result.json").write_text(json.dumps(result))
    rounds = [{"round": number + 1, "accuracy_global": share} for number, share in enumerate([None, 0.2, 0.3, 0.4])]
    rounds[1] |= {"accuracy_head": 0.875, "accuracy_head_std": 0.125}
    (tmp_path / "rounds.jsonl").write_text("\n".join(map(json.dumps, rounds)) + "\n")

    def figures(figure: str) -> Figures:
        return figures_of_run(figure, tmp_path)

    assert figures(server_in_last_rounds(3)) == Figures(pytest.approx(0.3), None, None, None, 7)
    with pytest.raises(UserError, match=r"has accuracy_global in 3 of its last 4 rounds\. Set run\.eval_last"):
        figures(server_in_last_rounds(4))
    assert figures(by_head_after(2)) == Figures(0.875, 0.125, None, None, 7)
    with pytest.raises(UserError, match=r"has no accuracy_head of round 3\. Set run\.eval_every"):
        figures(by_head_after(3))
    assert figures("personal.l") == Figures(0.75, 0.25, None, None, 7)
    assert figures("personal.prototype.l_std") == Figures(0.5, None, None, None, 7)
    assert figures("domains.usps.prototype") == Figures(0.25, None, None, None, 7)
    with pytest.raises(UserError, match=r"has no figure personal\.all"):
        figures("personal.all")


def test_a_head_among_own_classes_is_read_like_any_other(tmp_path):
    result = {
        "accuracy": {"head": {"mean": 0.25, "std": 0.25}, "head_own": {"mean": 0.5, "std": 0.25}},
        "cost": {"up_params": 7, "down_params": 9},
    }
    result |= dict.fromkeys(("method", "dataset", "seed", "rounds", "global", "seconds"))
    (tmp_path / "result.json").write_text(json.dumps(result))
    (tmp_path / "clients.csv").write_text("client,test,accuracy_head,accuracy_head_own\n0,4,0.0,0.25\n1,4,0.5,0.75\n")
    rounds = [{"round": number, "accuracy_head_own": share} for number, share in enumerate([0.2, 0.496, 0.3, 0.5], 1)]
    (tmp_path / "rounds.jsonl").write_text(
        "\n".join(map(json.dumps, [*rounds, *({**rounds[-1], "round": number} for number in range(5, 15))])) + "\n"
    )
    # running averages 1/4 and 4/8: half their difference is 0.125
    assert figures_of_run(BY_HEAD_OWN, tmp_path) == Figures(0.5, 0.25, pytest.approx(0.125), 2, 7, 9)


def with_figure(result: CellResult, figure: str, others: dict[str, float] | None = None) -> CellResult:
    runs = {seed: run._replace(others=others or {}) for seed, run in result.runs.items()}
    return CellResult(replace(result.cell, figure=figure), runs)


def test_orderings_are_counted_again_with_an_equal_read_out():
    shares = {"a": (0.90, 0.91, 0.92), "a, own classes": (0.97, 0.98, 0.99), "p": (0.95, 0.96, 0.97)}
    found = [
        made("a", "80.0", *shares["a"]),
        with_figure(made("a, own classes", "", *shares["a, own classes"]), BY_HEAD_OWN),
        with_figure(made("p", "90.0", *shares["p"]), BY_PROTOTYPE),
        made("p, by head", "", 0.5, 0.5, 0.5),
        with_figure(made("p, own classes", "", 0.6, 0.6, 0.6), BY_HEAD_OWN),  # the paper has p by prototype
    ]
    assert [(one.cell.row, one.cell.paper) for one in page.equal_read_out(found)] == [
        ("a, own classes", "80.0"),
        ("p", "90.0"),
    ]
    text = page.study_verdict(found)
    assert text[0].startswith("Of the paper's 1 orderings of two methods, 1 hold")  # p above a, as in the paper
    assert text[1].startswith("With every head choosing among the client's own classes: of the paper's 1 orderings")
    assert text[2] == "Reversed: a, own classes above p at n = 3."
    assert page.equal_read_out([found[0], found[2]]) == []  # nobody has read out own classes
    assert page.equal_read_out([found[0], found[1]._replace(runs={}), found[2]]) == []


def test_further_figures_and_details_are_shown_per_column():
    study = Study("s", "S", (), (), (), (), {"a": "4, 100"}, also=("scatter.mean.ratio",))
    others = {"scatter.mean.ratio": 1.25}
    found = [
        with_figure(made("a", "90.0 ± 0.3", 0.5, 0.5), BY_PROTOTYPE, others),
        made("a, by head", "", 0.5, 0.5),  # the same run
        with_figure(made("a, own classes", "", 0.5, 0.5), BY_HEAD_OWN),  # the same run
        made("a", "80.0 ± 0.2", 0.5, 0.5, column="n = 4"),
        made("a", "70.0 ± 0.1", column="n = 5"),
    ]
    found[3].runs[0] = found[3].runs[0]._replace(received=123_456.0, spread=None)
    found[3].runs[1] = found[3].runs[1]._replace(received=123_456.0, sent=2000.0)
    heads, lines = page.also_table(study, found)
    assert (heads, lines) == (["", "n = 3", "n = 4", "n = 5"], [["scatter.mean.ratio, a", "1.25 ± 0", "-", "-"]])
    details = page.details_tables(study, found)
    assert [heads[0] for heads, _ in details] == ["n = 3", "n = 4"]  # nothing has been run for n = 5
    assert details[0][1] == [
        ["a", "0.0", "0.00", "0.3", "1", "100", "0.0", "4", "-"],
        ["a, by head", "0.0", "0.00", "", "1", "", "0.0", "", "-"],
    ]
    assert details[1][1] == [["a", "-", "0.00", "0.2", "1", "100", "1.0", "4", "123"]]


@pytest.mark.parametrize("name", [name for name in STUDIES if name.startswith("fedproto-")])
def test_tables_of_fedproto_fit_80_characters(name):
    study = STUDIES[name]
    run = Figures(0.9123, 0.0123, 0.0123, 100, 13_210_000.0, 13_210_000.0, dict.fromkeys(study.also, 12.34))
    found = [CellResult(cell, {0: run, 1: run._replace(accuracy=0.9), 2: run}) for cell in study.cells]
    groups = page.three_columns_each(found)
    tables = [
        *(page.accuracy_table(group) for group in groups),
        *(page.differences_table(study, group) for group in groups if study.pairs),
        *(page.also_table(study, group) for group in groups if study.also),
        *(page.details_tables(study, found) if study.sent else ()),
    ]
    for heads, lines in tables:
        out = StringIO()
        Console(file=out, width=80).print(page.screen_table(heads, lines).rich(break_heads=False))
        for text in (text for line in lines for text in line[1:]):
            assert text in out.getvalue(), (heads, text)  # nothing is cut off


def test_kept_figures_have_what_made_their_runs(tmp_path):
    versions = [{"commit": "abc", "torch": "2"}, {"commit": "abd", "torch": "2"}]
    runs = {
        seed: Figures(0.5, 0.1, 0.1, 3, 7.0, 9.0, {"prototype_all": 0.25}, made_by)
        for seed, made_by in enumerate([versions[0], versions[1], None, versions[0]])
    }
    stored = study_as_json(TINY, [CellResult(cell, runs) for cell in TINY.chosen(True)], True)
    assert stored["versions"] == versions
    assert [run["versions"] for run in stored["cells"][0]["runs"].values()] == [0, 1, None, 0]
    (tmp_path / "kept.json").write_text(json.dumps(stored))
    kept = read_kept(tmp_path / "kept.json", TINY, True)
    assert {seed: run for (cell, seed), run in kept.items() if cell == CELLS[0]} == runs
    del stored["versions"]
    for cell in stored["cells"]:  # as files were written before
        for run in cell["runs"].values():
            for key in ("received", "others", "versions"):
                del run[key]
    (tmp_path / "kept.json").write_text(json.dumps(stored))
    assert read_kept(tmp_path / "kept.json", TINY, True)[CELLS[0], 0] == Figures(0.5, 0.1, 0.1, 3, 7.0)


def test_a_measure_of_a_run_is_a_further_figure(tmp_path):
    job = CELLS[1].job(tmp_path, 0, TINY.quick)
    sweep.finish_run(job.out, job.config)
    found = figures_of_run(BY_PROTOTYPE, job.out, ("scatter.pooled.ratio", "prototype distance"))
    rows = measure(Result.load(job.out), ["scatter"])["scatter"].rows
    assert found.others["scatter.pooled.ratio"] == rows["pooled"]["ratio"]
    assert found.others["prototype distance"] > 0
    assert found.received > 0
    assert found.versions["torch"]


def test_an_unfinished_table_says_so():
    found = [made("a", "90.0", 0.5, 0.6, 0.7), made("b", "80.0", 0.4), made("c", "70.0")]
    assert page.accuracy_table(found)[1] == [
        ["a", "60.0 ± 24.8", "90.00"],
        ["b", "40.0 (1)", "80.00"],
        ["c", "not run", "70.00"],
    ]
    assert page.unfinished_note(found, 3)[0].startswith("This table is not finished: 5 of 9 figures")
    assert page.unfinished_note(found[:1], 3) == []
    once = [one._replace(cell=replace(one.cell, most_seeds=1)) for one in found]  # as many as there are, or too few
    assert [one.cell.num_seeds(3) for one in (*found, *once)] == [3, 3, 3, 1, 1, 1]
    assert page.unfinished_note(once, 3)[0].startswith("This table is not finished: 1 of 3 figures")
    study = Study("s", "S", (), (), (), (), pairs=(("a", "b"), ("a", "c")))
    heads, lines = page.differences_table(study, found)
    assert heads == ["", "n = 3", "paper"]
    assert lines == [["a - b", "+10.0 (1)", "+10.00"], ["a - c", "not run", "+20.00"]]


@pytest.mark.slow
def test_no_run_is_made_twice_and_the_command_of_a_cell_gives_the_same(tmp_path):
    made: dict[str, Path] = {}
    for study in STUDIES.values():
        for quick in (False, True):
            for job in study.jobs(tmp_path, 1, quick):
                assert (
                    made.setdefault(f"{job.config.digest()} {job.config.run.rounds}", job.out) == job.out
                )  # none is made twice
        for cell in study.cells:
            words = shlex.split(cell.command(0))
            assert words[:2] == ["protofed", "run"]
            config = Config.load(ROOT / words[2], [word for word in words[3:] if word != "--set"])
            assert config.digest() == cell.job(tmp_path, 0).config.digest()


@pytest.mark.slow
def test_every_cell_has_a_split(tmp_path, mnist_root):
    data: dict[str, Dataset] = {}
    splits = {
        repr((job.config.data, job.config.partition, seed)): job.config
        for study in STUDIES.values()
        for quick, seed in product((False, True), range(3))
        for job in (cell.job(tmp_path, seed, study.changes(quick)) for cell in study.chosen(quick))
        if job.config.data.name in ("mnist", "femnist", "cifar10", "cifar100")
    }
    for config in splits.values():
        name = config.data.name
        if name not in data:
            data[name] = SOURCES[name](mnist_root)
        used = data[name].limited(config.data.limit, config.run.seed) if config.data.limit else data[name]
        clients = config.data.clients or 20
        assert len(config.partition.split(used.partition_labels(), clients, config.run.seed)) == clients


def test_tables_have_the_papers_rows_and_columns():
    study = STUDIES["fedproto-table1"]
    assert {cell.column for cell in study.cells} == {"n = 3", "n = 4", "n = 5"}
    with_paper = {cell.row for cell in study.cells if cell.paper}
    assert with_paper == set(study.sent) == {*fedproto.BASELINES, "fedproto", "fedproto mixed"}
    (ours,) = (cell for cell in study.cells if (cell.row, cell.column) == ("fedproto", "n = 4"))
    assert (ours.paper, ours.words, ours.figure) == (
        "96.80 ± 0.41",
        ("run.eval_every=5", "partition.ways=4"),
        BY_PROTOTYPE,
    )


def test_a_study_from_the_command_line(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    code, out, err = command("reproduce", "tiny", "--quick", "--seeds", "2", "--out", "r")
    assert code == 0, err
    assert "A table of digits, quick version:\n4 runs, 4 to do" in out
    assert "4/4  " in out
    assert "Known difference: Digits." in out
    assert "n = 4" not in out
    kept = json.loads((tmp_path / "r" / "tiny-quick.json").read_text())
    assert [(one["row"], one["column"]) for one in kept["cells"]] == [(cell.row, cell.column) for cell in CELLS[:3]]
    first = json.loads(
        (tmp_path / "r/digits-n3/method.name=local+run.rounds=2+data.clients=3/seed-1/result.json").read_text()
    )
    assert kept["cells"][0]["runs"]["1"]["accuracy"] == first["accuracy"]["head"]["mean"]
    text = (tmp_path / "r" / "tiny-quick.md").read_text()
    assert "# A table of digits\n\nSeeds 0 to 1, with run.rounds=2, data.clients=3.\n" in text
    assert "| fedproto |" in text
    assert text.count("protofed run recipes/digits-n3.toml") == 2  # by head and by prototype are one run
    code, out, _ = command("reproduce", "tiny", "--quick", "--seeds", "2", "--out", "r", "--json")
    assert json.loads(out) == kept
    assert "0 to do" in command("reproduce", "tiny", "--quick", "--seeds", "2", "--out", "r")[1]
    out = command("reproduce", "tiny", "--quick", "--seeds", "3", "--out", "r", "--finished")[1]
    assert "This table is not finished: 3 of 9 figures" in out
    assert "to do" not in out
    err = command("reproduce", "tiny", "--seeds", "3", "--out", "r", "--finished")[2]
    assert "No run of tiny is finished in r." in err


def test_what_was_kept_is_not_run_again(command, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(STUDIES, "tiny", TINY)
    words = ("reproduce", "tiny", "--quick")
    first = json.loads(command(*words, "--seeds", "1", "--out", "a", "--json")[1])
    (tmp_path / "first.json").write_text(json.dumps(first))
    code, out, err = command(*words, "--seeds", "2", "--out", "b", "--kept", "first.json")
    assert code == 0, err
    assert "3 figures are taken from first.json." in out
    assert "2 runs, 2 to do" in out
    both = json.loads(command(*words, "--seeds", "2", "--out", "a", "--json")[1])
    assert json.loads((tmp_path / "b" / "tiny-quick.json").read_text()) == both
    assert "0 to do" in command(*words, "--seeds", "2", "--out", "c", "--kept", "b/tiny-quick.json")[1]
    assert (
        "--kept first.json has figures of tiny --quick, not of tiny."
        in command("reproduce", "tiny", "--kept", "first.json")[2]
    )
    assert "none.json cannot be read: No such file" in command(*words, "--kept", "none.json")[2]
    first["cells"][0]["digest"] = "0"  # a cell that was another experiment then
    (tmp_path / "first.json").write_text(json.dumps(first))
    assert "3 runs, 3 to do" in command(*words, "--seeds", "2", "--out", "d", "--kept", "first.json")[1]
    fewer = json.loads(command(*words, "--seeds", "1", "--out", "e", "--kept", "b/tiny-quick.json", "--json")[1])
    assert fewer == both  # nothing that was kept is lost


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda told: told["cells"][0].update(runs=[]), "does not have the form"),
        (lambda told: told["cells"][0]["runs"]["0"].update(accuracy=None), "does not have the form"),
        (lambda told: told["cells"][0].pop("runs"), "does not have the form"),
        (lambda told: told.pop("cells"), "does not have the form"),
        (
            lambda told: [one.update(digest="0") for one in told["cells"]],
            "none of its cells is the same experiment now",
        ),
        (lambda told: told.update(quick=False), "has figures of tiny, not of tiny --quick"),
    ],
)
def test_what_cannot_have_been_kept_is_refused(change, message, tmp_path):
    told = study_as_json(
        TINY, [CellResult(cell, {0: Figures(0.5, 0.1, 0.1, 3, 7.0)}) for cell in TINY.chosen(True)], True
    )
    (tmp_path / "kept.json").write_text(json.dumps(told))
    assert len(read_kept(tmp_path / "kept.json", TINY, True)) == 3
    change(told)
    (tmp_path / "kept.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=message):
        read_kept(tmp_path / "kept.json", TINY, True)


@pytest.mark.parametrize("file", sorted(KEPT.glob("fedproto-table*.json")), ids=lambda file: file.stem)
def test_what_the_docs_keep_is_shown_at_once(file):
    """Every cell of it that was run is the same experiment now."""
    told = json.loads(file.read_text())
    study = STUDIES[told["name"]]
    found = read_kept(file, study, told["quick"])
    assert len({cell for cell, _ in found}) == sum(bool(cell["runs"]) for cell in told["cells"]) > 0


def test_a_figure_is_drawn(command, tmp_path, monkeypatch):  # noqa: F811
    cells = tuple(Cell("fedproto", f"method.pull={pull}", "digits-n3", (f"method.pull={pull}",)) for pull in (0, 1))
    drawn = Study(
        "drawn", "λ", cells, TINY.quick, ("method.pull=0", "method.pull=1"), (), {}, fedproto.draw_varied, 1, 1
    )
    monkeypatch.setitem(STUDIES, "drawn", drawn)
    code, out, err = command("reproduce", "drawn", "--quick", "--out", "r")
    assert code == 0, err
    assert "drawn-quick.png" in out
    assert (tmp_path / "r" / "drawn-quick.png").stat().st_size > 5000
    code, out, err = command("reproduce", "drawn", "--quick", "--out", "k", "--kept", "r/drawn-quick.json")
    assert code == 0, err
    assert "The picture is not drawn: it needs all runs" in out
    assert (tmp_path / "k" / "drawn-quick.json").read_text() == (tmp_path / "r" / "drawn-quick.json").read_text()
    assert not (tmp_path / "k" / "drawn-quick.png").exists()


def test_what_is_not_made_by_the_command_is_told(command):  # noqa: F811
    assert command("reproduce", "fedproto-tabel1")[2].startswith(
        'protofed: There is no study "fedproto-tabel1". Did you mean "fedproto-table1"?'
    )
    assert command("reproduce", "protomargin-femnist")[2].startswith(
        "protofed: `protofed reproduce` has no runs for protomargin-femnist. --list says: cannot be run here: FEMNIST's"
    )


def test_the_list_has_every_study_and_says_what_became_of_it(command):  # noqa: F811
    code, out, _ = command("reproduce", "--list")
    assert code == 0
    assert out == command("reproduce")[1]
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert set(STUDIES) <= set(names)
    assert all(name in out for name in names)
    assert {entry.state for entry in ENTRIES} <= {PAPER_SCALE, IN_PART, SMALLER, PARTLY, NOT_YET, CANNOT, CHECKED}
    for entry in ENTRIES:
        assert not entry.how.endswith("."), entry  # the command ends the sentence
        assert entry.state != NOT_YET or " makes " not in entry.how, entry  # it "can make" what was not run yet
        assert entry.name in (*STUDIES, PARTITION_TABLE) or "`protofed reproduce`" not in entry.how, entry
        for word in entry.how.replace(";", " ").split():
            if word.startswith(("scripts/", "recipes/", "docs/", "tests/")):
                assert (ROOT / word.rstrip(".,`")).exists(), entry
    assert len(json.loads(command("reproduce", "--list", "--json")[1])) == len(names)


def test_the_list_says_of_every_study_what_its_kept_figures_say():
    studies = [entry for entry in ENTRIES if entry.name in STUDIES]
    assert len(studies) == len(STUDIES)
    for entry in studies:
        study, file = STUDIES[entry.name], KEPT / f"{entry.name}.json"
        kept = read_kept(file, study, False) if file.exists() else {}
        all_figures = [(cell, seed) for cell in study.cells for seed in range(cell.num_seeds(study.seeds))]
        missing = [place for place in all_figures if place not in kept]
        states = (NOT_YET,) if not kept else (IN_PART, PARTLY) if missing else (PAPER_SCALE, SMALLER)
        assert entry.state in states, (entry.name, entry.state, len(missing))


def test_recipes_are_found_and_one_that_is_not_there_is_told():
    assert recipe_file("digits-n3").is_file()
    assert any(one["name"].endswith("fedproto-femnist.toml") for one in recipes())
    with pytest.raises(UserError, match=r"There is no recipes/nothing\.toml"):
        recipe_file("nothing")


@pytest.mark.slow
@pytest.mark.parametrize(("row", "seed"), [("fedproto", 0), ("fedavg", 1)])
def test_kept_figures_can_be_computed_anew(row, seed, tmp_path, mnist_root):
    kept = json.loads((KEPT / "fedproto-table1-quick.json").read_text())
    (told,) = (one for one in kept["cells"] if (one["row"], one["column"]) == (row, "n = 3"))
    study = STUDIES["fedproto-table1"]
    (cell,) = (one for one in study.cells if (one.row, one.column) == (row, "n = 3"))
    job = cell.job(tmp_path, seed, study.quick)
    found = sweep.finish_run(job.out, job.config)["accuracy"][
        row.replace("fedavg", "head").replace("fedproto", "prototype")
    ]["mean"]
    assert found == pytest.approx(told["runs"][str(seed)]["accuracy"], abs=0.005)  # other processors round differently
