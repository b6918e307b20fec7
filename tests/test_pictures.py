"""Every picture is drawn from a small run; what it shows is checked by hand."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from protofed import cli, draws
from protofed.data.images import PETS
from protofed.errors import UserError
from protofed.experiment.bounds.monitor import read_bounds
from protofed.experiment.config import Config
from protofed.experiment.federation import Federation
from protofed.experiment.folder import Folder
from protofed.experiment.groups import group_by_setting, titles
from protofed.experiment.run import run
from protofed.experiment.stored import StoredRun
from protofed.measures.intervals import SettingRow, read_sweep, settings_as_json
from protofed.measures.question import state_with_data
from protofed.methods import METHODS
from protofed.methods.fednh import FedNH
from protofed.pictures import bands, blocks, catalogue, clients, curves, drawing, embedded, scatter, similarity, spiral
from protofed.pictures.bound_curves import bound_picture
from protofed.pictures.method_style import METHOD_ORDER, line_styles, method_style
from protofed.pictures.style import COLOURS, class_style, write_picture

SMALL = ["run.rounds=3", "data.clients=4", "engine.workers=1"]
SPIRAL = ["data.name=spiral", "net.name=mlp_spiral", "data.limit=300", "partition.name=iid", "run.eval_every=3"]
MADE = {
    "fedproto": ["run.trace_every=1", "run.monitor=1"],
    "fedproto-1": ["run.seed=1"],
    "fedavg": ["method.name=fedavg"],
    "local": ["method.name=local"],
    "protomargin": ["method.name=protomargin", "run.sample=0.5"],
    "fednh": ["method.name=fednh", "run.monitor=2"],
    "mpfedcl": ["method.name=mpfedcl", "run.monitor=1"],
    "fedbabu": ["method.name=fedbabu"],
    "spiral": [*SPIRAL, "method.name=fedavg"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("pictures")
    for name, words in MADE.items():
        run(Config.load(None, [*SMALL, *words]), where / name)
    (where / "sweep").mkdir()
    rows = [SettingRow(f"method.pull={pull}", {"by head": {0: 0.5, 1: 0.6}}) for pull in (0, 1)]
    (where / "sweep" / "sweep.json").write_text(json.dumps(settings_as_json(rows)))
    return where


@pytest.fixture
def draw(monkeypatch, capsys, folder):
    """The command in the folder of the runs: (exit code, output, errors)."""
    monkeypatch.chdir(folder)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["protofed", "draw", *words])
        with pytest.raises(SystemExit) as ended:
            cli.entry()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def of(rounds: list[dict], *words: str, rows: list[dict] | None = None) -> StoredRun:
    """A run that only says that it has been."""
    config = Config.load(None, list(words))
    return StoredRun(Path("x"), config.table(), {"dataset": config.data.name, "clients": 4}, rounds, rows or [])


SHOWN = {
    "curves": ["fedproto", "fedproto-1", "fedavg", "local", "--window", "2"],
    "losses": ["fedproto", "fedavg"],
    "cost": ["fedproto", "fedavg", "local"],
    "clients": ["fedproto", "fedproto-1", "fedavg"],
    "partition": ["fedproto"],
    "tsne": ["fedproto"],
    "pca": ["fedproto", "fedavg", "fednh", "mpfedcl", "protomargin"],
    "similarity": ["fedproto", "fednh", "fedavg"],
    "blocks": ["fednh", "fedavg"],
    "embeddings": ["fedproto", "--client", "0", "--client", "2", "--class", "3", "--class", "5"],
    "attention": ["protomargin"],
    "margins": ["fedproto"],
    "bounds": ["fedproto"],
    "sweep": ["sweep"],
    "inputs": ["spiral"],
    "spiral": ["spiral", "--client", "1", "--client", "3"],
}


def test_every_picture_is_tried():
    assert set(SHOWN) == set(catalogue.PICTURES) - {"maps"}  # of pixels: tests/test_pixel_runs.py


@pytest.mark.parametrize("what", SHOWN)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_every_picture_is_drawn(draw, tmp_path, what, ending, monkeypatch):
    if what == "blocks":  # digits have no superclasses
        monkeypatch.setattr(similarity, "_superclasses", lambda run: tuple(digit // 3 for digit in range(10)))
    out = tmp_path / "new" / f"{what}.{ending}"
    code, told, err = draw(*SHOWN[what], "--what", what, "--out", str(out))
    assert (code, err) == (0, "")
    assert told.startswith(f"{what}: ")
    assert out.read_bytes().startswith(b"\x89PNG" if ending == "png" else b"<?xml")


def test_the_help_names_every_picture(draw):
    told = " ".join(draw("--help")[1].replace("│", " ").split())
    assert all(f"{name}" in told for name in catalogue.PICTURES)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["local", "--what", "similarity"],
            "local has neither prototypes nor a shared head at the server. Draw the head of a client with --client",
        ),
        (["local", "--what", "similarity", "--client", "4"], "There is no client 4"),
        (["fednh", "--what", "blocks"], "This picture needs classes of at least two superclasses"),
        (["fedavg", "--what", "inputs"], "this picture needs inputs of two columns"),
        (["fedavg", "--what", "embeddings", "--class", "ten"], 'there is no class "ten". Known: 0, 1, 2,'),
        (["fedavg", "--what", "attention"], "fedavg has no attention over clients"),
        (["fedproto", "--what", "spiral"], "its embeddings have 50 dimensions; this picture needs 2"),
        (["fedproto", "--what", "embeddings", "--client", "9"], "There is no client 9"),
        (["fedavg", "--what", "curves", "--by", "prototype"], "--by: none of these runs has prototype. Known: head,"),
        (["fedproto", "fedavg", "--what", "partition"], "--what partition draws one run; got 2 folders."),
        (["fedproto", "fednh", "--what", "bounds"], "--what bounds draws one run; got 2 folders."),
        (["fedproto-1", "--what", "bounds"], "fedproto-1 has no bounds.jsonl. Run it with --set run.monitor=5"),
        (["fedproto", "--what", "curve"], 'there is no picture "curve". Did you mean "curves"?'),
        (["nowhere", "--what", "curves"], "There is no folder nowhere."),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, tmp_path, words, said):
    code, _, err = draw(*words, "--out", str(tmp_path / "x.png"))
    assert code == 2
    assert said in err
    assert not (tmp_path / "x.png").exists()


def test_a_file_is_not_written_over_and_must_be_a_picture(draw, tmp_path):
    (tmp_path / "x.png").write_text("")
    assert "already exists" in draw("local", "--what", "curves", "--out", str(tmp_path / "x.png"))[2]
    assert "must end in .png" in draw("local", "--what", "curves", "--out", str(tmp_path / "x.gif"))[2]


def test_publishers_accept_the_fonts(draw, tmp_path):
    """TrueType (42) instead of Type 3 in PDF, text as text in SVG."""
    for ending in ("pdf", "svg"):
        assert draw("fedproto", "fedavg", "--what", "curves", "--out", str(tmp_path / f"x.{ending}"))[0] == 0
    pdf = (tmp_path / "x.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert ">fedproto</text>" in (tmp_path / "x.svg").read_text()


def test_size_title_names_and_limits_are_the_users(draw, tmp_path):
    words = ["fedproto", "fedavg", "--what", "curves", "--by", "head,global", "--out", str(tmp_path / "x.svg")]
    code, _, err = draw(
        *words, "--width", "5", "--height", "2.5", "--title", "", "--label", "fedproto=Ours", "--ylim=0,80"
    )
    assert (code, err) == (0, "")
    text = (tmp_path / "x.svg").read_text()
    sizes = [float(size) / 72 for size in re.search(r'width="([\d.]+)pt" height="([\d.]+)pt"', text).groups()]
    assert sizes == pytest.approx([5, 2.5], abs=0.1)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    assert {"Ours", "fedavg", "fedavg, the server's model", "80"} <= set(texts)
    assert not {"fedproto", "digits", "100"} & set(texts)
    assert "already exists" in draw(*words)[2]
    assert draw(*words, "--force")[0] == 0
    assert (
        '--label: there is no "fedavgg" in the picture. Did you mean "fedavg"'
        in draw(*words, "--force", "--label", "fedavgg=X")[2]
    )
    assert "--label x: must look like NAME=TEXT" in draw(*words, "--force", "--label", "x")[2]
    assert "--ylim: got 5; must be two numbers" in draw(*words, "--force", "--ylim=5")[2]
    assert "--ylim: got 5,1; the first must be smaller" in draw(*words, "--force", "--ylim=5,1")[2]
    assert "--width: got 0.1; must be from 1 to 40 inches." in draw(*words, "--force", "--width", "0.1")[2]


def test_a_picture_that_fails_leaves_no_file(draw, tmp_path, monkeypatch):
    real = Path.open

    def full(self, mode="r", *args, **options):
        if "w" in mode and self.name.startswith(".x.png"):
            real(self, mode, *args, **options).close()
            raise OSError(28, "No space left on device", str(self))
        return real(self, mode, *args, **options)

    monkeypatch.setattr(Path, "open", full)
    code, _, err = draw("local", "--what", "curves", "--out", str(tmp_path / "x.png"))
    assert code == 1
    assert "No space left on device" in err
    assert list(tmp_path.iterdir()) == []


def test_a_method_has_its_colour_and_mark_in_every_picture():
    assert set(METHOD_ORDER) == set(METHODS)
    pairs = {method_style(name)[:2] for name in METHODS}
    assert len(pairs) == len(METHODS)
    assert method_style("./mine.py:Mine") == method_style("./mine.py:Mine")
    assert method_style("./mine.py:Mine")[:2] not in pairs
    alone = line_styles(["local"], {"local": "local"})
    among = line_styles(["fedavg", "local", "x"], {"fedavg": "fedavg", "local": "local"})
    assert alone["local"] == among["local"] == method_style("local")
    many = line_styles(list("abcdef"), dict.fromkeys("abcdef", "fedavg"))
    assert len({style[0] for style in many.values()}) == 6  # shades of one colour
    assert {style[1] for style in many.values()} == {method_style("fedavg").mark}


def test_long_names_of_curves_are_shortened():
    runs = [
        of([], f"train.lr={lr}", f"train.batch={batch}", f"train.epochs={lr * 10:.0f}")
        for lr, batch in ((0.1, 4), (0.2, 8))
    ]
    assert list(group_by_setting(runs)) == ["fedproto, epochs=1, ...", "fedproto, epochs=2, ..."]
    runs = [of([]), of([], "partition.name=dirichlet", "partition.alpha=0.3")]
    assert list(group_by_setting(runs)) == ["fedproto, nway", "fedproto, dirichlet"]


def test_a_run_that_goes_on_is_drawn_and_marked(folder, tmp_path, draw):
    shutil.copytree(folder / "fedavg", tmp_path / "going")
    for name in ("result.json", "clients.csv"):
        (tmp_path / "going" / name).unlink()
    lines = (tmp_path / "going" / "rounds.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "going" / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:20])  # the third is being written
    with Folder(tmp_path / "going").locked():
        running = StoredRun.load(tmp_path / "going")
        assert draw(str(tmp_path / "going"), "--what", "curves", "--out", str(tmp_path / "x.svg"))[0] == 0
    assert running.unfinished == "running, round 2 of 3"
    assert running.data == StoredRun.load(folder / "fedavg").data
    assert running.summary["accuracy"]["head"]["mean"] == json.loads(lines[1])["accuracy_head"]
    assert StoredRun.load(tmp_path / "going").state == "stopped"
    assert ">fedavg (running, round 2 of 3)</text>" in (tmp_path / "x.svg").read_text()
    assert "has not finished" in draw(str(tmp_path / "going"), "--what", "pca", "--out", str(tmp_path / "y.png"))[2]


@pytest.mark.parametrize(("name", "what"), [("fedproto", "pca"), ("fedproto", "partition"), ("fedbabu", "pca")])
def test_a_run_of_other_data_is_noticed(draw, folder, tmp_path, name, what):
    shutil.copytree(folder / name, tmp_path / "run")  # fedbabu tunes its models, so that it loads data by itself
    file = tmp_path / "run" / "partition.json"
    file.write_text(file.read_text().replace('"sha256": "', '"sha256": "0'))
    code, _, err = draw(str(tmp_path / "run"), "--what", what, "--out", str(tmp_path / "x.png"))
    assert code == 2
    assert "was run on other data than those found now" in err


@pytest.mark.parametrize("what", ["tsne", "embeddings"])
def test_the_same_folder_gives_the_same_picture(folder, tmp_path, what):
    for name in ("a.svg", "b.svg"):
        shown = catalogue.PICTURES[what].draw([StoredRun.load(folder / "fedproto")], catalogue.DrawOptions())
        write_picture(shown, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_runs_that_differ_in_seed_engine_or_place_are_one_curve():
    runs = [
        of([], "run.seed=0"),
        of([], "method.name=fedavg"),
        of([], "run.seed=1", "engine.name=loop", "data.root=/x", "run.eval_every=2"),
    ]
    assert group_by_setting(runs) == {"fedproto": [runs[0], runs[2]], "fedavg": [runs[1]]}
    assert titles(runs) == ["fedproto, seed 0 on digits", "fedavg on digits", "fedproto, seed 1 on digits"]


def test_curves_of_one_method_are_told_apart_by_their_settings():
    runs = [of([], *words) for words in ([], ["method.pull=2", "train.lr=0.1"], ["method.name=fedavg", "train.lr=3"])]
    assert list(group_by_setting(runs)) == ["fedproto, pull=1.0, lr=0.05", "fedproto, pull=2.0, lr=0.1", "fedavg"]
    assert list(group_by_setting([of([]), of([], "run.rounds=7")])) == ["fedproto, rounds=50", "fedproto, rounds=7"]
    other = [of([]), of([], "data.name=mnist", "method.name=fedavg")]
    assert list(group_by_setting(other)) == titles(other) == ["fedproto, digits", "fedavg, mnist"]


def test_moving_average_is_of_what_is_there():
    values = np.array([[0.0, 3.0, 6.0, 3.0], [1.0, 1.0, 1.0, 9.0]])
    assert bands.moving_average(values, 1).tolist() == values.tolist()
    assert bands.moving_average(values, 3).tolist() == [[1.5, 3.0, 4.0, 4.5], [1.0, 1.0, 11 / 3, 5.0]]
    assert bands.moving_average(values, 99)[0].tolist() == [3.0] * 4


def test_a_band_has_the_rounds_that_all_its_runs_were_tested_in():
    rows = [
        [{"round": at, "accuracy_head": value} for at, value in enumerate(run, 1)]
        for run in ([0.1, 0.2, 0.4], [0.3, None, 0.8])
    ]
    rounds, values = curves.common_values([of(run) for run in rows], "accuracy_head")
    assert rounds == [1, 3]
    assert values.tolist() == [[0.1, 0.4], [0.3, 0.8]]
    assert curves.common_values([of(rows[0])], "accuracy_prototype") is None


def test_the_curve_is_the_mean_and_its_band_the_spread_over_seeds():
    rows = [
        [{"round": at, "accuracy_head": value} for at, value in enumerate(run, 1)] for run in ([0.1, 0.2], [0.3, 0.8])
    ]
    (axis,) = curves.curves([of(rows[0]), of(rows[1], "run.seed=1")]).axes
    (line,), (band,) = axis.lines, axis.collections
    assert line.get_ydata() == pytest.approx([20, 50])
    edges = band.get_paths()[0].vertices[:, 1]
    assert sorted(set(edges.round(6))) == [10, 20, 30, 80]


def test_megabytes_are_summed_up_both_ways_from_the_first_round():
    rows = [{"round": at, "up_bytes": 1e6, "down_bytes": 5e5 * at, "accuracy_head": 0.5} for at in (1, 2, 3)]
    assert curves.megabytes_sent(of(rows)) == {1: 1.5, 2: 3.5, 3: 6.0}
    (axis,) = curves.cost([of(rows)]).axes
    assert axis.get_xscale() == "log"
    assert axis.lines[0].get_xdata() == pytest.approx([1.5, 3.5, 6.0])


def test_who_sends_nothing_is_a_line_from_side_to_side():
    rows = [{"round": at, "up_bytes": 0, "down_bytes": 0, "accuracy_head": at / 10} for at in (1, 2)]
    (axis,) = curves.cost([of(rows, "method.name=local")]).axes
    assert axis.lines[0].get_ydata() == pytest.approx([20, 20])


def test_each_term_of_the_loss_has_its_panel():
    both = of(
        [{"round": 1, "loss": {"supervised": 2.0, "pull": 0.0}}, {"round": 2, "loss": {"supervised": 1.0, "pull": 1.0}}]
    )
    one = of([{"round": 1, "loss": {"supervised": 3.0}}], "method.name=fedavg")
    first, second = curves.losses([both, one]).axes
    assert (first.get_yscale(), second.get_yscale()) == ("log", "linear")  # 0 is nowhere on a logarithmic axis
    assert [line.get_ydata().tolist() for line in first.lines] == [[2, 1], [3]]
    assert [line.get_ydata().tolist() for line in second.lines] == [[0, 1]]
    assert first.lines[0].get_color() == second.lines[0].get_color() == COLOURS[0]


def test_strips_have_every_client_that_was_tested():
    rows = [{"accuracy_head": 0.5, "accuracy_prototype": None}, {"accuracy_head": 1.0}, {"accuracy_head": None}]
    found = clients.client_accuracies([of([], rows=rows), of([], "run.seed=1", rows=rows[:1])])
    assert {title: values.tolist() for title, (_, values) in found.items()} == {"fedproto": [50, 100, 50]}


def test_attention_is_in_equal_shares_and_stands_with_its_client():
    rows = [
        {"clients": [2, 0], "rejected": {}, "attention": [0.75, 0.25]},
        {"clients": [1, 2, 3], "rejected": {"2": "nan"}, "attention": [0.5, 0.5]},
    ]
    none = np.nan
    expected = [[0.5, none], [none, 1.0], [1.5, none], [none, 1.0]]
    assert np.array_equal(clients.relative_attention(of(rows)), expected, equal_nan=True)


def test_a_round_without_attention_is_left_empty_among_others():
    rows = [
        {"clients": [0, 1], "rejected": {}, "attention": [0.75, 0.25]},
        {"clients": [0, 1], "rejected": {"1": "nan"}, "void": True},
    ]
    run, none = of(rows, "method.name=protomargin"), np.nan
    expected = [[1.5, none], [0.5, none], [none, none], [none, none]]
    assert np.array_equal(clients.relative_attention(run), expected, equal_nan=True)
    assert clients.attention([run]).axes
    with pytest.raises(UserError, match="This run of protomargin has no attention over clients to draw"):
        clients.relative_attention(of(rows[1:], "method.name=protomargin"))


def test_superclasses_are_put_beside_each_other_and_boxed():
    cosines = np.arange(9.0).reshape(3, 3)
    shown = similarity.group_by_superclass(similarity.SimilarityPanel("x", ["cat", "car", "dog"], cosines, [1, 2, 1]))
    assert (shown.labels, shown.superclass) == (["cat", "dog", "car"], [1, 1, 2])
    assert shown.cosines.tolist() == [[0, 2, 1], [6, 8, 7], [3, 5, 4]]
    assert similarity.superclass_blocks(shown.superclass) == [(0, 2), (2, 1)]
    axis = similarity.draw_similarity([shown]).axes[0]
    assert [(box.get_xy(), box.get_width()) for box in axis.patches] == [((-0.5, -0.5), 2), ((1.5, 1.5), 1)]


def test_the_data_that_have_superclasses_name_them():
    x, y = np.zeros((20, 64, 64, 3), np.uint8), np.arange(20)
    parts = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    assert PETS.from_arrays({**parts, "species": y % 2}, "file").superclass == (0, 1) * 10
    assert PETS.from_arrays(parts, "file").superclass == ()


def test_prototypes_of_fednh_are_the_rows_of_its_head(folder):
    result = StoredRun.load(folder / "fednh").result()
    rows = embedded.server_prototypes(result)
    assert torch.equal(rows.mean[:, 0], result.state.server.params["head.out.weight"])
    assert torch.allclose(rows.mean.norm(dim=-1), torch.ones(10, 1))


def test_without_prototypes_the_similarity_is_that_of_the_rows_of_the_shared_head(folder):
    played = StoredRun.load(folder / "fedavg")
    (panel,) = similarity.similarity_panels([played], ())
    rows = played.result().state.server.params["head.out.weight"].double()
    expected = [[float(a @ b / a.norm() / b.norm()) for b in rows] for a in rows]
    np.testing.assert_allclose(panel.cosines, expected, atol=1e-6)
    assert panel.title == "fedavg on digits: rows of the shared head"
    (own,) = similarity.similarity_panels([StoredRun.load(folder / "fednh")], ())
    assert own.title == "fednh on digits"


def test_the_similarity_of_a_client_is_that_of_its_own_head(folder):
    played = StoredRun.load(folder / "local")
    first, third = similarity.similarity_panels([played], (0, 2))
    for panel, client in ((first, 0), (third, 2)):
        unit = torch.nn.functional.normalize(played.result().state.kept[client].params["head.out.weight"])
        np.testing.assert_allclose(panel.cosines, (unit @ unit.T).numpy(), atol=1e-6)
        assert panel.title == f"local on digits: rows of the head of client {client}"
    assert not np.allclose(first.cosines, third.cosines)


def test_blocks_are_of_the_most_and_the_least_similar_superclasses_or_of_named_classes():
    cosines = np.array([[9, 9, 1, 2, 5], [9, 9, 3, 4, 6], [1, 3, 9, 9, 0], [2, 4, 9, 9, 1], [5, 6, 0, 1, 9]]) / 10
    panel = similarity.SimilarityPanel("x", list("abcde"), cosines, [0, 0, 1, 1, 7])
    most, least = blocks.choose_blocks(panel)  # the means are .25 (0 and 1), .55 (0 and 7) and .05 (1 and 7)
    assert (most.rows, most.columns, most.cosines.tolist()) == (["a", "b"], ["e"], [[0.5], [0.6]])
    assert (least.rows, least.columns, least.cosines.tolist()) == (["c", "d"], ["e"], [[0.0], [0.1]])
    assert (most.title, least.title) == ("x, most similar", "x, least similar")
    named = blocks.choose_blocks(panel, ["d", "a", "e", "b"])
    assert [block.rows for block in named] == [["c", "d"], ["e"]]
    assert named[0].cosines.tolist() == [[0.1, 0.3], [0.2, 0.4]]
    with pytest.raises(UserError, match=r"--class: got 3 classes; give two for each block."):
        blocks.choose_blocks(panel, ["a", "b", "c"])


def test_embeddings_of_named_classes_are_shown_for_every_client(folder):
    """FedNH's Fig. 6: also for a client that does not hold them, which then has no mean of its own."""
    played = StoredRun.load(folder / "fedproto")
    panels = embedded.embed_clients(played, "x", (0, 1, 2, 3), ["3", "5"])
    members = state_with_data(played.result()).members
    count = int(torch.isin(members.balanced[0].labels, torch.tensor([3, 5])).sum())
    lacking = 0
    for number, panel in enumerate(panels):
        assert set(panel.samples.y) == {3, 5}
        assert len(panel.samples.y) == count
        holds = set(members.train[number].labels.tolist()) & {3, 5}
        assert set(panel.local.y) == holds
        assert set(panel.shared.y) <= {3, 5}
        lacking += holds != {3, 5}
    assert lacking  # otherwise this test would not show anything


def test_inputs_are_all_training_examples_and_the_test_set(folder):
    played = StoredRun.load(folder / "spiral")
    members = state_with_data(played.result()).members
    panel = spiral.input_panel("x", members.train)
    assert panel.z.shape == (300, 2)
    assert np.bincount(panel.y).tolist() == sum(part.labels.bincount(minlength=6) for part in members.train).tolist()
    assert 1 <= np.linalg.norm(panel.z, axis=1).min() < np.linalg.norm(panel.z, axis=1).max() <= 10.001
    training, test = spiral.input_picture([played]).axes
    assert [axis.get_title().replace("\n", " ") for axis in (training, test)] == [
        "fedavg on spiral (generated), training set",
        "fedavg on spiral (generated), test set",
    ]


def test_where_only_directions_count_each_class_has_a_circle(folder):
    """fednh compares unit vectors: class k of 6 is at radius 1 - k / 10. Other embeddings are drawn as they are."""
    state = state_with_data(StoredRun.load(folder / "spiral").result())
    net, params, test = state.members.nets[0], state.model(0).params, state.members.balanced[0]
    z, y = net.features(params, test)
    plain = spiral.embedding_panel("x", state.config.method, net, params, test)
    assert np.array_equal(plain.z, z.numpy())
    circles = spiral.embedding_panel("x", FedNH(), net, params, test)
    np.testing.assert_allclose(np.linalg.norm(circles.z, axis=1), 1 - y.numpy() / 10, rtol=1e-5)
    np.testing.assert_allclose(circles.z[:, 0] * z[:, 1].numpy(), circles.z[:, 1] * z[:, 0].numpy(), atol=1e-4)
    assert np.array_equal(circles.prototypes, params["head.out.weight"].numpy())


def test_embeddings_are_of_each_clients_own_test_set_and_model(folder):
    played = StoredRun.load(folder / "fedproto")
    shown, state = embedded.embed_all_clients(played, "x"), state_with_data(played.result())
    members = state.members
    for number in range(4):
        z, y = members.nets[number].features(state.kept[number].params, members.test[number])
        mine = shown.samples.subset(shown.samples.client == number)
        assert np.array_equal(mine.z, z.numpy())
        assert np.array_equal(mine.y, y.numpy())
        means = shown.local.subset(shown.local.client == number)
        assert means.y.tolist() == members.train[number].labels.unique().tolist()
    assert len(embedded.embed_all_clients(played, "x", limit=9).samples.y) == 9
    assert np.array_equal(np.unique(shown.shared.y), np.unique(shown.local.y))


def test_clients_that_share_a_model_are_shown_after_a_round_of_their_own(folder):
    played = StoredRun.load(folder / "fedavg")
    state = state_with_data(played.result())
    mine, yours = (embedded.client_params(state, number) for number in (0, 1))
    assert not torch.equal(mine["head.out.weight"], yours["head.out.weight"])
    assert torch.equal(state.model(0).params["head.out.weight"], state.model(1).params["head.out.weight"])


@pytest.mark.slow
def test_the_tsne_of_fedproto_shows_local_prototypes_around_the_global_ones(tmp_path):
    run(Config.load(None, ["run.rounds=20", "method.pull=5", "data.clients=8", "train.lr=0.1"]), tmp_path / "run")
    shown = embedded.embed_all_clients(StoredRun.load(tmp_path / "run"), "x")
    (flat,) = scatter.project_panels([shown], scatter.project_by_tsne)
    apart = np.linalg.norm(flat.local.z[:, None] - flat.shared.z, axis=-1)
    assert (flat.shared.y[apart.argmin(1)] == flat.local.y).mean() > 0.9


def test_scaled_prototypes_are_not_put_among_embeddings(folder):
    assert len(embedded.embed_all_clients(StoredRun.load(folder / "protomargin"), "x").shared.y) == 0


def test_pca_keeps_distances_in_the_plane_and_always_the_same_signs():
    flat = np.random.RandomState(draws.derive("plane") % 2**32).normal(size=(20, 2)) * [3, 1]
    z = np.pad(flat, ((0, 0), (0, 3)))
    found = scatter.project_by_pca(z)
    apart = np.linalg.norm(flat[:, None] - flat, axis=-1)
    assert np.allclose(np.linalg.norm(found[:, None] - found, axis=-1), apart)
    assert found[:, 0].std() > found[:, 1].std()
    assert np.allclose(scatter.project_by_pca(z[::-1].copy())[::-1], found)
    assert scatter.project_by_pca(z[:, :1]).shape == (20, 2)


def test_a_principal_component_points_where_the_entries_of_its_direction_have_a_positive_sum():
    along = np.arange(5.0) - 2
    for direction in ([3, -2, -2], [-3, 2, 2], [2, 2, 3], [-2, -2, -3]):  # also where the largest entry is negative
        unit = np.array(direction) / np.linalg.norm(direction)
        expected = along * np.sign(unit.sum())
        assert np.allclose(scatter.project_by_pca(along[:, None] * unit)[:, 0], expected)


def test_a_few_classes_never_share_a_colour():
    """Classes keep the colour of their number where they can: 42 and 52 would have the same one."""
    assert scatter.class_styles([3, 5]) == {3: class_style(3), 5: class_style(5)}
    assert scatter.class_styles([3, 42, 52]) == {3: class_style(0), 42: class_style(1), 52: class_style(2)}
    assert scatter.class_styles(range(12)) == {label: class_style(label) for label in range(12)}


def test_seventy_classes_look_different():
    assert len({class_style(label) for label in range(70)}) == 70


def test_margins_are_those_of_the_traced_prototypes(folder):
    own = StoredRun.load(folder / "fedproto")
    (line,) = curves.margin_curves([own]).axes[0].lines
    last = Folder(folder / "fedproto").trace()[-1][1]
    held = last.mean[last.support[:, 0] > 0, 0]
    apart = torch.cdist(held, held).sum(1) / (len(held) - 1)
    assert line.get_ydata()[-1] == pytest.approx(float(apart.mean()), rel=1e-4)


@pytest.mark.parametrize(("name", "panels"), [("fedproto", 4), ("fednh", 3), ("mpfedcl", 4)])
def test_bounds_are_those_of_the_file(folder, name, panels):
    rows = read_bounds(folder / name)
    picture = bound_picture([StoredRun.load(folder / name)])
    assert len(picture.axes) == panels
    measured = picture.axes[0].lines[0]
    last = [row["change"] for row in rows if row["round"] == rows[-1]["round"]]
    assert measured.get_label() == "measured"
    assert measured.get_xdata()[-1] == rows[-1]["round"]
    assert measured.get_ydata()[-1] == pytest.approx(sum(last) / len(last))
    if panels == 4:
        shares = [row["largest_lr"] / row["lr"] for row in rows if row["round"] == rows[-1]["round"]]
        assert picture.axes[3].lines[0].get_ydata()[-1] == pytest.approx(sum(shares) / len(shares))
    plt.close(picture)


def test_a_sweep_is_read_as_it_was_written(folder):
    (first, second) = read_sweep(folder / "sweep")
    assert (first.setting, second.figures) == ("method.pull=0", {"by head": {0: 0.5, 1: 0.6}})


def test_a_run_in_memory_is_drawn_with_its_own_partition():
    result = run({"run": {"rounds": 1}, "data": {"clients": 3}}, progress=False)
    assert "3 clients" in drawing.draw("partition", result).figure.get_suptitle()


def test_the_embeddings_of_a_run_with_one_client_are_drawn():
    result = run({"run": {"rounds": 1}, "data": {"clients": 1}}, progress=False)
    assert len([axis for axis in drawing.draw("embeddings", result).figure.axes if axis.get_visible()]) == 1


def test_accuracies_of_clients_of_a_run_that_is_not_finished_are_said_to_be_missing(folder, tmp_path):
    stopped = Path(shutil.copytree(folder / "local", tmp_path / "stopped"))
    (stopped / "result.json").unlink()
    with pytest.raises(UserError, match="None of these runs is finished"):
        drawing.draw("clients", stopped)


def test_dollar_signs_in_names_are_no_formulas_but_those_of_the_user_are(tmp_path):
    x, y = draws.random_state("dollars", 0).normal(size=(60, 4)), np.array(["$0-$50", r"$\frac$"] * 30)
    federation = Federation({r"$\frac$": (x, y), "$a_1$": (x, y)}, name=r"$\frac$ and $x$")
    result = federation.run({"run": {"rounds": 2}})
    for what in ("curves", "clients", "partition", "pca", "similarity"):
        drawing.draw(what, result, out=tmp_path / f"{what}.svg")
    assert "$0-$50" in (tmp_path / "similarity.svg").read_text()
    drawn = drawing.draw("curves", result, title=r"$\lambda$", labels={"fedproto": r"$\mu$"})
    shown = drawn.save(tmp_path / "own.svg").read_text()
    assert r">$\lambda$</text>" not in shown  # a comment has the formula
    assert r">$\mu$</text>" not in shown


def test_the_ticks_of_bounds_are_plain_numbers(folder, tmp_path):
    drawing.draw("bounds", folder / "fedproto", out=tmp_path / "bounds.svg")
    assert "mathdefault" not in (tmp_path / "bounds.svg").read_text()
