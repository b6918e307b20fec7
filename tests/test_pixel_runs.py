"""A run in which every pixel has a label, from the experiment file to masks, pictures, files and newcomers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import protofed
from protofed.cli import app
from protofed.data.dataset import data_folder
from protofed.data.masks import main_classes
from protofed.data.sources import SOURCES
from protofed.errors import UserError
from protofed.examples import IGNORED
from protofed.experiment.stored import load_runs
from protofed.measures.entropy import entropy, feature_entropy
from protofed.measures.on_demand import measure
from protofed.models.join import join
from protofed.nets import NETS, make_net
from protofed.nets.weights import with_our_names
from protofed.pictures.maps import class_colours, overlaid
from protofed.report.content import gather
from protofed.studies.reproduce.figures import figures_of_run
from protofed.studies.reproduce.segmentation import draw_overlap_by_alpha
from protofed.studies.reproduce.studies import STUDIES

SIDE = 16


def squares(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, 3, 16, 16] with a bright square, red (class 1) or green (class 2), with an ignored border."""
    draw = np.random.RandomState(seed)
    x = draw.randint(0, 60, (number, 3, SIDE, SIDE)).astype(np.uint8)
    mask = np.zeros((number, SIDE, SIDE), np.uint8)
    for image in range(number):
        top, left, label = draw.randint(0, 8), draw.randint(0, 8), 1 + image % 2
        mask[image, top : top + 8, left : left + 8] = IGNORED
        mask[image, top + 1 : top + 7, left + 1 : left + 7] = label
        x[image, label - 1, top : top + 8, left : left + 8] = 220
    return x, mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Runs of three methods on squares."""
    root = tmp_path_factory.mktemp("squares")
    (x, mask), (x_test, mask_test) = squares(60, 0), squares(20, 1)
    names = np.array(["ground", "red", "green"])
    np.savez(root / "squares.npz", x=x, mask=mask, x_test=x_test, mask_test=mask_test, classes=names)
    np.save(root / "images.npy", x_test[:3])
    for method in ("fedavg", "fedproto", "protomargin"):
        protofed.run(experiment(root, method), root / method)
    return root


def experiment(root, method):
    return {
        "run": {"rounds": 6},
        "data": {"name": "npz", "root": str(root / "squares.npz"), "clients": 3},
        "partition": {"name": "iid"},
        "net": {"name": "unet", "channels": [4, 8]},
        "method": {"name": method, **({"pull": 0.1} if method == "fedproto" else {})},
        "train": {"epochs": 3, "batch": 5, "optimiser": "adam", "lr": 0.01, "augment": ["flip"]},
    }


def called(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_it_learns_and_says_so(folder):
    result = protofed.Result.load(folder / "fedavg")
    overlap = result.summary["miou"]
    assert overlap["mean"] > overlap["background"] + 0.2
    assert list(overlap["per_class"]) == ["ground", "red", "green"]
    assert overlap["mean"] == pytest.approx(np.mean(list(overlap["per_class"].values())))
    assert overlap["objects"] == pytest.approx(np.mean([overlap["per_class"]["red"], overlap["per_class"]["green"]]))
    assert result.clients[0]["miou_head"] > 0.3
    assert result.clients[0]["test"] in (6, 7)  # images, not pixels
    shown = called("compare", folder / "fedavg", folder / "fedproto")
    assert "mIoU" in shown
    assert f"{overlap['mean']:.3f}" in shown
    assert "Background everywhere" in shown.replace("\n", " ")


def test_the_screen_shows_the_overlap(folder, tmp_path):
    table = experiment(folder, "protomargin")
    sets = [
        f"--set={section}.{key}={json.dumps(value)}"
        for section, keys in {**table, "run": {"rounds": 1}}.items()
        for key, value in keys.items()
    ]
    shown = called("run", *sets, "--out", tmp_path / "out")
    assert "  mIoU 0." in shown
    assert "Accuracies are shares of pixels." in shown


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_predictions_are_masks(folder, tmp_path, method):
    images, out = folder / "images.npy", tmp_path / "p.npy"
    shown = called("predict", folder / method, "--input", images, "--out", out, "--draw", tmp_path / "drawn")
    assert "3 masks and overlays" in shown
    found = np.load(out)
    assert found["label"].shape == (3, SIDE, SIDE)
    assert found["scores"].shape == (3, SIDE, SIDE, 3)
    from PIL import Image

    files = sorted(path.name for path in (tmp_path / "drawn").iterdir())
    assert files[:2] == ["0000-mask.png", "0000-overlay.png"]
    mask = np.asarray(Image.open(tmp_path / "drawn" / "0000-mask.png"))
    assert np.array_equal(np.array(["ground", "red", "green"])[mask], found["label"][0])
    assert "image\tpixels\n0\t" in called("predict", folder / method, "--input", images)
    if method == "fedproto":
        called("predict", folder / method, "--input", images, "--by", "prototype", "--out", tmp_path / "q.npy")
        found = np.load(tmp_path / "q.npy")
        assert found["distance"].shape == (3, SIDE, SIDE)
        assert "unknown" not in found.dtype.names  # no rule was measured for pixels


def test_drawing_predictions_needs_pixels(tmp_path):
    protofed.run({"run": {"rounds": 1}, "data": {"clients": 4}}, tmp_path / "digits")
    np.save(tmp_path / "x.npy", np.zeros((1, 1, 8, 8), np.uint8))
    shown = CliRunner().invoke(
        app, ["predict", str(tmp_path / "digits"), "--input", str(tmp_path / "x.npy"), "--draw", str(tmp_path / "d")]
    )
    assert shown.exit_code != 0
    assert "--draw needs a net that labels every pixel" in str(shown.exception) + shown.output


def test_a_model_is_given_away(folder, tmp_path):
    result = protofed.Result.load(folder / "fedavg")
    x = np.load(folder / "images.npy")
    module, data = result.model(0), result.state.model(0).data
    with torch.no_grad():
        maps = module(data.normalised(torch.from_numpy(x)))
    names = np.array(result.labels)[maps.argmax(1).numpy()]
    assert np.array_equal(names, result.predict(x, 0)["label"])
    called("export", folder / "fedavg", "--client", 0, "--out", tmp_path / "m.safetensors")
    ort = pytest.importorskip("onnxruntime")
    called("export", folder / "fedavg", "--client", 0, "--out", tmp_path / "m.onnx")
    z, logits = ort.InferenceSession(tmp_path / "m.onnx").run(None, {"input": x.astype(np.float32)})
    assert z.shape == (3, 8, 8, 8)
    np.testing.assert_allclose(logits, maps.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_newcomer_joins_with_masks(folder, method):
    result = protofed.Result.load(folder / method)
    joined = join(result, squares(20, 5), epochs=2)
    assert joined.classes == ["ground", "red", "green"]
    assert 0.3 < joined.accuracy["head"] <= 1
    with pytest.raises(UserError, match="The nets of the run need a mask for every image"):
        join(result, (squares(20, 5)[0], np.arange(20) % 2), epochs=1)


def test_measures_count_pixels(folder):
    result = protofed.Result.load(folder / "fedavg")
    found = measure(result, ["classification", "confusion", "fairness", "scatter", "entropy", "gradients"])
    server = found["classification"].rows["server"]
    assert server["accuracy"] == pytest.approx(result.summary["global"]["accuracy"])
    test = SOURCES["npz"](str(folder / "squares.npz")).test
    assert server["examples"] == test.num_labels
    counts = found["confusion"].rows
    assert sum(sum(row.values()) for row in counts.values()) == test.num_labels
    means = found["entropy"].rows["mean"]
    assert 0 < means["softmax"] < np.log(3)
    assert 0 < means["features"] < np.log(8)


@pytest.mark.parametrize("what", ["maps", "curves", "tsne", "partition"])
def test_pictures(folder, tmp_path, what):
    runs = [folder / "fedavg", folder / "protomargin"] if what in ("maps", "curves") else [folder / "fedavg"]
    by = ["--by", "miou"] if what == "curves" else []
    called("draw", *runs, "--what", what, "--out", tmp_path / "p.png", *by)
    assert (tmp_path / "p.png").stat().st_size > 5_000


def test_a_resumed_run_is_the_same(folder, tmp_path):
    table = experiment(folder, "fedavg")
    protofed.run({**table, "run": {"rounds": 2}}, tmp_path / "part")
    again = protofed.run(table, tmp_path / "part", resume=True)
    before = protofed.Result.load(folder / "fedavg")
    assert again.summary["miou"] == before.summary["miou"]


def test_modules_from_python_label_pixels():
    x, mask = squares(40, 3)

    def make():
        body = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 1, 1), nn.ReLU())
        return body, nn.Conv2d(6, 3, 1)

    own = protofed.Federation(
        [(x[:20], mask[:20]), (x[20:], mask[20:])], classes=["ground", "red", "green"], nets=[make]
    )
    result = own.run(
        {
            "run": {"rounds": 3},
            "method": {"name": "fedavg"},
            "train": {"epochs": 6, "batch": 4, "optimiser": "adam", "lr": 0.02},
        }
    )
    assert result.summary["miou"]["mean"] > result.summary["miou"]["background"]
    assert result.predict(x[:2])["label"].shape == (2, SIDE, SIDE)
    with pytest.raises(UserError, match=r"must be \[n, ...\] and \[n\], or masks \[20, 16, 16\]"):
        protofed.Federation([(x[:20], mask[:20, :8])])
    with pytest.raises(UserError, match="other clients have masks"):
        protofed.Federation([(x[:20], mask[:20]), (x[20:], np.arange(20) % 3)])


# Entropies and colours


def test_entropies_by_hand():
    assert entropy(torch.tensor([0.25] * 4)).item() == pytest.approx(np.log(4))
    z = torch.tensor([[3.0, 3.0, -5.0], [2.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    assert feature_entropy(z).tolist() == pytest.approx([np.log(2), 0, 0])


def test_overlays_keep_the_background():
    x = np.full((1, 3, 2, 2), 100, np.uint8)
    labels = np.array([[[0, 1], [0, 0]]])
    drawn = overlaid(x, labels, 3)
    assert drawn[0, 0, 0].tolist() == [100, 100, 100]
    assert drawn[0, 0, 1].tolist() == [round(0.45 * 100 + 0.55 * value) for value in (128, 0, 0)]
    assert len(np.unique(class_colours(21), axis=0)) == 21


# Data


@pytest.mark.skipif(not (data_folder("") / "pets.npz").exists(), reason="no pets.npz in $PROTOFED_DATA")
def test_masks_of_pets():
    data, macro = (SOURCES[name]("") for name in ("pets_masks", "pets_masks_macro"))
    assert data.classes == 21
    assert data.labels[0] == "background"
    assert data.labels[1:] == data.image_labels
    assert set(np.unique(data.train.mask.numpy())) == {*range(21), IGNORED}
    assert macro.labels == ("background", "cat", "dog")
    assert set(np.unique(macro.test.mask.numpy())) == {0, 1, 2, IGNORED}
    assert torch.equal(data.train.labels, macro.train.labels)
    labels = data.partition_labels()
    assert (labels.classes, labels.train.max()) == (20, 19)
    own = main_classes(data.test.mask.numpy())
    assert np.mean(own == data.test.labels.numpy() + 1) > 0.99  # one breed per image
    species = {label: int(main_classes(macro.test.mask.numpy()[data.test.labels == label])[0]) for label in range(20)}
    assert [species[data.image_labels.index(name)] for name in ("bengal", "beagle")] == [1, 2]


def write_voc(root):
    """A folder in the form of VOC 2012: a cat, a bus, an image of two classes, and a person for the test set."""
    from PIL import Image

    for folder in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / "VOC2012" / folder).mkdir(parents=True)
    draw = np.random.RandomState(0)
    for name, labels in (("cat", [8]), ("bus", [6]), ("both", [8, 15]), ("person", [15])):
        mask = np.zeros((90, 120), np.uint8)
        mask[30:60, 40:80] = IGNORED
        for number, label in enumerate(labels):
            mask[35:55, 45 + 15 * number : 58 + 15 * number] = label
        picture = Image.fromarray(mask, mode="P")
        picture.putpalette(class_colours(256).ravel().tolist())
        picture.save(root / "VOC2012" / "SegmentationClass" / f"{name}.png")
        photograph = Image.fromarray(draw.randint(0, 255, (90, 120, 3)).astype(np.uint8))
        photograph.save(root / "VOC2012" / "JPEGImages" / f"{name}.jpg")
    lists = root / "VOC2012" / "ImageSets" / "Segmentation"
    (lists / "train.txt").write_text("cat\nbus\nboth\n")
    (lists / "val.txt").write_text("person\n")


def test_pascal_voc_is_read_from_its_folder(tmp_path):
    write_voc(tmp_path)
    data, macro = (SOURCES[name](str(tmp_path)) for name in ("voc", "voc_macro"))
    assert [data.image_labels[label] for label in data.train.labels] == ["cat", "bus"]  # not the one of two classes
    assert [data.image_labels[label] for label in data.test.labels] == ["person"]
    assert data.train.shape == (3, 128, 128)
    assert [np.unique(mask).tolist() for mask in data.train.mask.numpy()] == [[0, 8, IGNORED], [0, 6, IGNORED]]
    assert data.labels[8] == "cat"
    assert macro.labels == ("background", "person", "vehicles", "household", "animals")
    assert [np.unique(mask).tolist() for mask in macro.train.mask.numpy()] == [[0, 4, IGNORED], [0, 2, IGNORED]]
    assert np.unique(macro.test.mask.numpy()).tolist() == [0, 1, IGNORED]
    share = (data.train.mask[0] == 8).double().mean().item()
    assert share == pytest.approx(20 * 13 / (90 * 120), rel=0.15)  # nearest: by whole pixels of 128x128
    (tmp_path / "VOC2012" / "JPEGImages" / "cat.jpg").unlink()
    with pytest.raises(UserError, match=r"the image cat of train.txt cannot be read"):
        SOURCES["voc"](str(tmp_path))
    with pytest.raises(UserError, match="there is no folder VOC2012"):
        SOURCES["voc"](str(tmp_path / "elsewhere"))


def test_broken_masks_say_so(tmp_path):
    x, mask = squares(10, 0)
    for arrays, words in (
        ({"mask": mask[:, :8]}, r"masks of shape \[10, 8, 16\] do not fit images"),
        ({"mask": mask.astype(float)}, "got masks of type float64; a pixel must be a whole number"),
        ({"mask": mask.astype(int) - 1}, "got masks with the value -1; a pixel must be a class"),
        ({"mask": mask.astype(str)}, "got masks of type <U"),
        ({"mask": mask, "x": x[:, 0]}, r"an axis for channels. Use x\[:, None\]"),
        ({"mask": np.full_like(mask, IGNORED)}, "no pixel of its masks has a label: all values are 255"),
        ({"mask": mask, "x": x.transpose(0, 2, 3, 1)}, r"channels first. Use x.transpose\(0, 3, 1, 2\)"),
        ({"mask": mask, "classes": np.array(["a", "b"])}, "there is no class 2. Known: a, b"),
        ({"mask": mask, "x_test": x}, "has no array y_test|has no array mask_test"),
    ):
        np.savez(tmp_path / "bad.npz", **({"x": x} | arrays))
        with pytest.raises(UserError, match=words):
            SOURCES["npz"](str(tmp_path / "bad.npz"))


def test_an_encoder_is_refused(folder):
    table = experiment(folder, "fedavg")
    table["data"]["encoder"] = "efficientnet_lite0"
    with pytest.raises(UserError, match="has a label for every pixel, and an encoder gives one vector per image"):
        protofed.run(table)


# Nets


def test_deeplab_has_the_published_encoder():
    net = make_net("deeplab", NETS["deeplab"](last=True, norm="batch"), (3, 64, 64), 21)
    trained = {name: torch.Size(shape).numel() for name, shape in net.shapes.items() if name in net.trainable}
    assert sum(size for name, size in trained.items() if name.startswith("body.encoder.")) == 2_223_872
    assert (net.grid, net.dim, net.trains_alone) == ((4, 4), 256, True)


@pytest.mark.parametrize("stride", [8, 16])
def test_deeplab_labels_pixels_and_can_be_stacked(stride):
    design = NETS["deeplab"](width=0.25, stride=stride, rates=(1, 2))
    net = make_net("deeplab", design, (3, 32, 32), 3)
    z, logits = net(net.init(torch.Generator().manual_seed(0)), torch.zeros(2, 3, 32, 32))
    assert net.grid == (32 // stride, 32 // stride)
    assert z.shape == (2 * net.grid[0] ** 2, net.dim)
    assert logits.shape == (2 * 32 * 32, 3)
    assert not net.trains_alone


def torchvision_names() -> list[str]:
    """The names of the tensors of torchvision's mobilenet_v2, without its classifier."""
    tensors = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = []
    for number in range(19):
        if number in (0, 18):
            names += [f"features.{number}.0.weight", *(f"features.{number}.1.{tensor}" for tensor in tensors)]
            continue
        units = 1 if number == 1 else 2
        for unit in range(units):
            start = f"features.{number}.conv.{unit}"
            names += [f"{start}.0.weight", *(f"{start}.1.{tensor}" for tensor in tensors)]
        names.append(f"features.{number}.conv.{units}.weight")
        names += [f"features.{number}.conv.{units + 1}.{tensor}" for tensor in tensors]
    return names


def test_torchvisions_weights_have_a_place():
    net = make_net("deeplab", NETS["deeplab"](last=True, norm="batch"), (3, 64, 64), 21)
    renamed = with_our_names({**dict.fromkeys(torchvision_names()), "classifier.1.bias": None})
    assert set(renamed) == {name for name in net.shapes if name.startswith("body.encoder.")}


@pytest.mark.parametrize("name", ["unet", "deeplab"])
def test_images_of_odd_sizes_say_what_to_do(name):
    with pytest.raises(UserError, match="multiples of"):
        make_net(name, NETS[name](), (3, 30, 31), 3)


# Studies


def test_figure5_compares_methods_by_alpha_and_slow(tmp_path):
    study = STUDIES["protomargin-figure5"]
    jobs = study.jobs(tmp_path, 1, False)
    # without slow clients both rows of fedavg are one run, and local has runs; equal weights have two columns; central
    assert len(jobs) == 4 * 9 + 2 + 1
    assert {job.config.partition.alpha for job in jobs if job.config.partition_name != "pooled"} == {0.01, 0.1, 1.0}
    all_jobs = study.jobs(tmp_path, study.seeds, False)
    again = [job for job in all_jobs if job.seed]
    assert len(all_jobs) == 39 + 2 * 10
    assert {(job.config.partition.alpha, job.config.system.slow) for job in again} == {(0.1, 0.0), (0.1, 0.8)}
    assert {job.seed for job in again} == {1, 2}
    quick = study.jobs(tmp_path, 1, True)
    assert [job.config.run.rounds for job in quick] == [2] * 10


def test_figure5_weighs_shares_of_slow_clients_equally(tmp_path):
    """Planted curves: a run has 0.3, and 0.1 more per tenth of slow clients and per seed. Without slow clients the rows
    of fedavg are one run; seeds are averaged first."""
    study = STUDIES["protomargin-figure5"]
    jobs = study.drawn_jobs(tmp_path, study.seeds, False)
    for job in jobs:
        job.out.mkdir(parents=True, exist_ok=True)
        value = 0.3 + job.config.system.slow / 10 + job.seed / 10
        lines = [{"round": at, "miou": None if "local" in job.setting else value, "miou_head": 0.6} for at in (5, 10)]
        (job.out / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    picture = draw_overlap_by_alpha(jobs)
    for axis, mean in zip(picture.axes, (100 * (0.3 + 0.13 / 3), 100 * (0.3 + 0.13 / 3 + 0.2 / 3), 100 * (0.3 + 0.13 / 3)),
                          strict=True):  # fmt: skip
        curves = [line.get_ydata() for line in axis.lines]
        assert [list(curve) for curve in curves[:-1]] == [pytest.approx([mean, mean])] * 4
        assert list(curves[-1]) == pytest.approx([60, 60])  # central
    assert len({axis.get_ylim() for axis in picture.axes}) == 1


def test_further_figures_are_stored_or_measured(folder):
    run = folder / "fedavg"
    names = ("miou.per_class.red", "entropy.mean.softmax", "miou.per_class.blue")
    figures = figures_of_run("miou.mean", run, names)
    stored = protofed.Result.load(run).summary["miou"]
    assert figures.accuracy == stored["mean"]
    assert figures.others == {
        "miou.per_class.red": stored["per_class"]["red"],
        "entropy.mean.softmax": measure(run, ["entropy"])["entropy"].rows["mean"]["softmax"],
    }  # there is no class blue


def test_a_report_has_no_intervals_of_pixels_which_depend_on_each_other(folder):
    for row in gather(load_runs([folder / "fedavg"]))["runs"][0]["clients"]:
        assert row["accuracy_head"] > 0
        assert (row["low"], row["high"]) == (None, None)


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_a_client_without_test_images_is_an_ordinary_case(tmp_path, method):
    x, mask = squares(8, 0)
    np.savez(tmp_path / "squares.npz", x=x, mask=mask)
    table = experiment(tmp_path, method) | {"run": {"rounds": 1}}
    result = protofed.run(table, tmp_path / "out")
    assert 0 in [row["test"] for row in result.clients]
    assert all((row["miou_head"] is None) == (row["test"] == 0) for row in result.clients)
    assert not any(key.startswith("wilson") for key in result.clients[0])
