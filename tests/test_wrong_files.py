"""Files that cannot be trained on: which file, which array, how many, what to do. Exit code 2, and nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import protofed as library
from protofed.data.npz_files import read_npz, write_npz
from protofed.errors import UserError
from test_cli import protofed  # noqa: F401

NORMALISE = (
    "Set data.normalise=client, which replaces them by the client's median of the column and scales all columns, or "
    "fill them in."
)
X = np.random.RandomState(0).normal(size=(60, 4))
Y = np.arange(60) % 3
CLIENT = np.repeat(["a", "b", "c"], 20)
RUN = ("run", "--set", "run.rounds=2", "--set", "data.name=npz", "--set", "partition.name=natural", "--out", "r")


def spoilt(*cells: tuple[int, int], value: float = np.nan) -> np.ndarray:
    x = X.copy()
    for cell in cells:
        x[cell] = value
    return x


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"x": spoilt((0, 1), (1, 1), (25, 3))},
            "m.npz, x: 3 of 240 values are missing (NaN), in x[:, 1] (2), x[:, 3] (1), of a (2), b (1). " + NORMALISE,
        ),
        (
            {"x": spoilt((7, 0), (7, 1), (7, 2), (7, 3))},
            "m.npz, x: 4 of 240 values are missing (NaN), in x[:, 0] (1), x[:, 1] (1), x[:, 2] (1) and 1 more, of a (4). "
            + NORMALISE,
        ),
        (
            {"x": spoilt((59, 2), value=-np.inf)},
            "m.npz, x: 1 of 240 values are infinite or larger than 3.4e38, in x[:, 2] (1), of c (1). Correct them, or delete these rows.",
        ),
        (
            {"x": spoilt((59, 2), value=1e300)},
            "m.npz, x: 1 of 240 values are infinite or larger than 3.4e38, in x[:, 2] (1), of c (1). Correct them, or delete these rows.",
        ),
        (
            {"x": X.reshape(60, 1, 2, 2) * np.where(np.arange(60) == 9, np.nan, 1)[:, None, None, None]},
            "m.npz, x: 4 of 240 values are missing (NaN), in x[9], of a (4). " + NORMALISE,
        ),
        (
            {"x_test": spoilt((3, 0)), "y_test": Y, "client_test": CLIENT},
            "m.npz, x_test: 1 of 240 values are missing (NaN), in x[:, 0] (1), of a (1). " + NORMALISE,
        ),
        (
            {"y": np.where(Y == 2, np.nan, Y)},
            "m.npz, y: 20 of 60 labels are missing (NaN). Delete these rows, or fill them in.",
        ),
        ({"y": Y + 0.5}, "m.npz, y: got the label 0.5; labels must be whole numbers or names."),
        (
            {"x_test": X.astype(np.uint8), "y_test": Y, "client_test": CLIENT},
            "m.npz: x is of type float64 and x_test of type uint8, but bytes are divided by 255 and other numbers are not. Give both the same type.",
        ),
        (
            {"x_test": X.astype(str), "y_test": Y, "client_test": CLIENT},
            "m.npz: x_test has shape [60, 4] and type <U32; must be numbers of shape [n, ...].",
        ),
        ({"y": Y[:50], "client": CLIENT[:50]}, "m.npz has 60 inputs and 50 labels. Give one label per input."),
        (
            {"client": CLIENT[:50]},
            "m.npz: `client` has 50 entries for 60 examples. Give one entry per example.",
        ),
        (
            {"x_test": X, "y_test": Y, "client_test": CLIENT[:7]},
            "m.npz: `client_test` has 7 entries for 60 examples. Give one entry per example.",
        ),
        (
            {"x_test": X, "y_test": Y[:7], "client_test": CLIENT[:7]},
            "m.npz, x_test and y_test has 60 inputs and 7 labels. Give one label per input.",
        ),
        (
            {"y": Y.astype(object)},
            "m.npz: the array y holds Python objects, which are not read because that could run code. Save numbers or text "
            "instead, for example y.astype(str) or y.astype(float).",
        ),
        ({"y": None}, "m.npz has no array y; it has client, x. Add it."),
    ],
)
def test_what_is_wrong_with_an_own_file_is_said_before_anything_is_written(arrays, message, protofed, tmp_path):  # noqa: F811
    given = {"x": X, "y": Y, "client": CLIENT, **arrays}
    np.savez(tmp_path / "m.npz", **{key: array for key, array in given.items() if array is not None})
    assert protofed(*RUN, "--set", "data.root=m.npz") == (2, "", f"protofed: {message}\n")
    assert not Path("r").exists()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"age,sex,disease\n63,1,0\n", "a text file, such as CSV"),
        (b"\x93NUMPY\x01\x00v\x00", "a .npy file, which has a single array"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"\x80\x04\x95junk", "a pickle file, which is never read because it can run code"),
        (b"", "empty"),
        (b"\x00\x01\x02\x03", "of an unknown format"),
    ],
)
def test_a_file_of_another_format_is_not_called_damaged(content, kind, protofed, tmp_path):  # noqa: F811
    (tmp_path / "m.npz").write_bytes(content)
    message = (
        f"protofed: m.npz is not an .npz file: it is {kind}. Write one with numpy.savez(file, x=..., y=...). docs/data.md "
        "lists the formats that are read.\n"
    )
    assert protofed(*RUN, "--set", "data.root=m.npz") == (2, "", message)
    assert not Path("r").exists()


def test_only_a_damaged_file_is_to_be_got_again(tmp_path):
    np.savez(tmp_path / "m.npz", x=X, y=Y)
    content = (tmp_path / "m.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[:-100])
    with pytest.raises(
        UserError, match=r"cut.npz is damaged: its end is missing. Get the file again, or write it again."
    ):
        read_npz(tmp_path / "cut.npz")
    (tmp_path / "bits.npz").write_bytes(content[:600] + bytes(8) + content[608:])
    with pytest.raises(UserError, match=r"bits.npz is damaged: Bad CRC-32 for file 'x.npy'. Get the file again, or"):
        read_npz(tmp_path / "bits.npz")


def test_a_file_without_permission_is_said(tmp_path, monkeypatch):
    def refuse(*_args, **_keys):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(
        UserError, match=r"m.npz cannot be opened: permission denied. Change its permissions, or copy it."
    ):
        read_npz(tmp_path / "m.npz")


def test_missing_values_are_filled_where_that_was_asked_for(protofed, tmp_path):  # noqa: F811
    np.savez(tmp_path / "m.npz", x=spoilt((0, 1), (25, 3)), y=Y, client=CLIENT)
    code, _, err = protofed(*RUN, "--set", "data.root=m.npz", "--set", "data.normalise=client")
    assert (code, err) == (0, "")
    code, out, _ = protofed("data", "info", "npz", "--root", "m.npz")
    assert code == 0
    assert "missing values (NaN): 2 of 240; data.normalise=client fills them in" in out.splitlines()
    np.savez(tmp_path / "i.npz", x=spoilt((0, 1), value=np.inf), y=Y, client=CLIENT)
    assert protofed(*RUN[:-1], "s", "--set", "data.root=i.npz", "--set", "data.normalise=client")[0] == 2


def test_leaf_says_which_user_has_missing_values(protofed, tmp_path):  # noqa: F811
    for part in ("train", "test"):
        (tmp_path / "leaf" / part).mkdir(parents=True)
        data = {user: {"x": [[0.0, 1.0]] * 4, "y": [0, 1, 0, 1]} for user in ("u", "v")}
        data["v"]["x"] = [[0.0, float("nan") if part == "train" else 1.0]] * 4
        content = {"users": ["u", "v"], "num_samples": [4, 4], "user_data": data}
        (tmp_path / "leaf" / part / "all.json").write_text(json.dumps(content))
    words = (
        "run",
        "--set",
        "data.name=leaf",
        "--set",
        "data.root=leaf",
        "--set",
        "partition.name=natural",
        "--out",
        "r",
    )
    message = f"leaf/train, x: 4 of 16 values are missing (NaN), in x[:, 1] (4), of v (4). {NORMALISE}"
    assert protofed(*words) == (2, "", f"protofed: {message}\n")


def test_a_federation_says_which_column():
    with pytest.raises(UserError) as refused:
        library.Federation([(X, Y), (spoilt((0, 2), (1, 2)), Y)])
    assert str(refused.value) == (
        "data[1], inputs: 2 of 240 values are missing (NaN), in x[:, 2] (2). Fill them in, or delete these rows."
    )
    with pytest.raises(UserError, match=r"data\[0\], labels: 60 of 60 labels are missing \(NaN\)"):
        library.Federation([(X, Y * np.nan)])


def test_what_was_written_with_checksums_is_verified(tmp_path):
    write_npz(tmp_path / "c.npz", {"x": X, "y": Y, "name": np.array("mine")})
    arrays = read_npz(tmp_path / "c.npz")
    assert arrays.keys() == {"x", "y", "name"}
    np.testing.assert_array_equal(arrays["x"], X)
    with np.load(tmp_path / "c.npz") as stored:
        changed = {key: stored[key] for key in stored.files}
    changed["y"] = changed["y"][::-1]
    np.savez(tmp_path / "d.npz", **changed)
    assert read_npz(tmp_path / "d.npz", "x")["x"].shape == X.shape
    with pytest.raises(UserError, match=r"d.npz is damaged: y does not have its checksum. Convert the data again."):
        read_npz(tmp_path / "d.npz")
