"""Clients given as torch datasets and as datasets of Hugging Face, with names."""

from __future__ import annotations

import io
import json
import types

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import protofed
from protofed.errors import UserError
from protofed.experiment.config import Config


def saved(folder, features: dict, *parts: dict):
    """A folder as `datasets.Dataset.save_to_disk` writes it: Arrow streams, state.json and dataset_info.json."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(parts):05d}.arrow" for number in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        table = pa.table(part)
        with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


VALUE = {"dtype": "float64", "_type": "Value"}
LABELS = {"names": ["cat", "dog"], "_type": "ClassLabel"}


def png(level: int) -> dict:
    content = io.BytesIO()
    Image.fromarray(np.full((4, 5, 3), level, np.uint8)).save(content, "png")
    return {"bytes": content.getvalue(), "path": None}


class Items(Dataset):
    def __init__(self, items: list) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int):
        return self.items[position]


def test_torch_datasets_are_the_arrays_that_they_hold():
    x, y = torch.arange(40.0).reshape(10, 4), torch.arange(10) % 2
    clients = [
        TensorDataset(x, y),
        Items(list(zip(x, y.tolist(), strict=True))),
        Items([{"image": row, "label": label} for row, label in zip(x, y, strict=True)]),
    ]
    made = protofed.Federation(clients, names=["a", "b", "c"], inputs="image", target="label")
    given = protofed.Federation([(x, y)] * 3)
    for client in range(3):
        for part, expected in ((made.train, given.train), (made.test, given.test)):
            assert torch.equal(part[client].x, expected[client].x)
            assert torch.equal(part[client].y, expected[client].y)
    result = made.run({"run": {"rounds": 1}})
    assert [row["name"] for row in result.clients] == ["a", "b", "c"]
    np.testing.assert_array_equal(result.predict(x, "b"), result.predict(x, 1))


def test_pictures_of_a_torch_dataset_have_their_channels_first():
    items = [(Image.fromarray(np.full((4, 5, 3), level, np.uint8)), level % 2) for level in range(10)]
    federation = protofed.Federation([Items(items)])
    assert federation.train[0].shape == (3, 4, 5)


def test_a_folder_of_hugging_face_is_a_table_or_arrays(tmp_path):
    draw = np.random.RandomState(0)
    parts = [{"age": draw.normal(size=8), "kind": ["x", None] * 4, "label": [0, 1] * 4} for _ in range(2)]
    folder = saved(tmp_path / "table", {"age": VALUE, "kind": {"_type": "Value"}, "label": LABELS}, *parts)
    federation = protofed.Federation({"zoo": folder}, target="label")
    assert federation.labels == ("cat", "dog")
    members = federation.members(Config.load())
    assert (members.names, len(members.train[0]) + len(members.test[0])) == (("zoo",), 16)
    assert [step.name for step in members.recipes[0].steps] == ["age", "kind"]
    lists = [{"pixels": draw.normal(size=(8, 3)).tolist(), "label": [0, 1] * 4}]
    folder = saved(tmp_path / "lists", {"pixels": {"_type": "Sequence"}, "label": LABELS}, *lists)
    federation = protofed.Federation([folder], inputs="pixels", target="label", test=[None])
    np.testing.assert_allclose(federation.train[0].x, np.array(lists[0]["pixels"]), rtol=1e-6)
    assert federation.train[0].labels.tolist() == [0, 1] * 4


def test_splits_and_images_of_hugging_face(tmp_path):
    for split, levels in (("train", range(8)), ("test", range(3))):
        part = {"image": [png(level) for level in levels], "label": [level % 2 for level in levels]}
        saved(tmp_path / "images" / split, {"image": {"_type": "Image"}, "label": LABELS}, part)
    (tmp_path / "images" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    federation = protofed.Federation([str(tmp_path / "images")], inputs="image", target="label")
    assert federation.train[0].x.shape == (8, 3, 4, 5)
    assert federation.test[0].x[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_an_object_with_features_and_columns_is_read_through_pandas():
    frame = pd.DataFrame({"a": np.arange(10.0), "label": [0, 1] * 5})
    label = type("ClassLabel", (), {"names": ["cat", "dog"]})()
    data = types.SimpleNamespace(
        features={"a": object(), "label": label},
        column_names=["a", "label"],
        with_format=lambda kind: types.SimpleNamespace(to_pandas=frame.copy),
    )
    federation = protofed.Federation([data], target="label")
    assert federation.labels == ("cat", "dog")


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(2), 0


@pytest.mark.parametrize(
    ("client", "more", "message"),
    [
        (Stream(), {}, "data[0]: a dataset without a length cannot be divided into batches. Give one that has it."),
        (Items([1, 2]), {}, "data[0]: the items of a torch dataset must be pairs (x, y), or dicts with columns."),
        (Items([{"x": 1, "label": 2}]), {"target": "label", "inputs": "X"}, "data[0]: inputs must be the name of a column of the dataset; got 'X'. Known: label, x."),
        (Items([(np.zeros(2), 0), (np.zeros(3), 0)]), {}, "data[0]: its inputs have different shapes, such as (2,). Resize them."),
    ],
)  # fmt: skip
def test_what_is_no_client_is_said(client, more, message):
    with pytest.raises(UserError) as caught:
        protofed.Federation([client], **more)
    assert str(caught.value) == message


def test_a_folder_of_hugging_face_that_is_damaged_or_asked_for_too_little_is_said(tmp_path):
    folder = saved(tmp_path / "a", {"age": VALUE, "label": LABELS}, {"age": [1.0, 2.0], "label": [0, 1]})
    with pytest.raises(UserError, match=r"data\[0\]: a dataset with columns needs target, the name of the column with"):
        protofed.Federation([folder])
    with pytest.raises(UserError, match=r'data\[0\] has no column "agee". Did you mean "age"\?'):
        protofed.Federation([folder], target="label", inputs="agee")
    (folder / "data-00000-of-00001.arrow").write_bytes(b"junk")
    with pytest.raises(UserError, match="an Arrow file cannot be read: "):
        protofed.Federation([folder], target="label")
