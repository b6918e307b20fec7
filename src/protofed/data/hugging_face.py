"""Datasets of Hugging Face: folders that `save_to_disk` wrote, read without the package `datasets`, and its objects.

A folder has Arrow files, `state.json` with their names, and `dataset_info.json` with the types of the columns. A folder
of several splits has `dataset_dict.json` and one folder per split.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from protofed.data.bit_depth import require_bytes
from protofed.data.table.files import require_pandas
from protofed.errors import UserError, did_you_mean


def is_hugging_face(data: Any) -> bool:
    """Whether the data are a dataset of Hugging Face: an object with columns and features, or a folder of one."""
    if isinstance(data, str | Path):
        return any((Path(data) / name).is_file() for name in ("state.json", "dataset_dict.json"))
    return hasattr(data, "features") and hasattr(data, "column_names")


def hugging_face_splits(data: Any) -> dict[str, Any]:
    """The DataFrame of each split, with class names instead of numbers; {"train": ...} if there are no splits."""
    require_pandas()
    if not isinstance(data, str | Path):
        features = {name: _as_json(feature) for name, feature in dict(data.features).items()}
        return {"train": _with_class_names(data.with_format(None).to_pandas(), features)}
    folder = Path(data)
    if (folder / "dataset_dict.json").is_file():
        splits = _read_json(folder / "dataset_dict.json")["splits"]
        return {name: _read_folder(folder / name) for name in splits}
    return {"train": _read_folder(folder)}


def _as_json(feature: Any) -> dict[str, Any]:
    """A feature of the package `datasets` as dataset_info.json has it, as far as it is used here."""
    names = getattr(feature, "names", None)
    return {"_type": type(feature).__name__, **({"names": list(names)} if names else {})}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        raise UserError(f"{path} cannot be read: {problem}. Write the dataset again with save_to_disk.") from problem


def _read_folder(folder: Path) -> Any:
    """The DataFrame of one split."""
    import pyarrow
    from pyarrow import ipc

    files = [folder / entry["filename"] for entry in _read_json(folder / "state.json")["_data_files"]]
    features = _read_json(folder / "dataset_info.json").get("features") or {}
    try:
        tables = [ipc.open_stream(pyarrow.memory_map(str(file))).read_all() for file in files]
    except (pyarrow.ArrowException, OSError) as problem:
        reason = str(problem).splitlines()[0]
        raise UserError(
            f"{folder}: an Arrow file cannot be read: {reason}. Write it again with save_to_disk."
        ) from problem
    return _with_class_names(pyarrow.concat_tables(tables).to_pandas(), features)


def _with_class_names(frame: Any, features: dict[str, dict[str, Any]]) -> Any:
    """The DataFrame with the names of classes where a column has their numbers, and decoded images."""
    for name, feature in features.items():
        if feature.get("_type") == "ClassLabel" and feature.get("names"):
            names = np.array(feature["names"], dtype=object)
            frame[name] = [names[number] if 0 <= number < len(names) else None for number in frame[name]]
        elif feature.get("_type") == "Image":
            frame[name] = [_decoded(image) for image in frame[name]]
    return frame


def _decoded(image: Any) -> np.ndarray:
    """An image [channels, height, width] from the bytes that a column has."""
    from PIL import Image

    return channels_first(Image.open(io.BytesIO(image["bytes"])))


def channels_first(image: Any) -> np.ndarray:
    """An image of Pillow as an array [channels, height, width] of bytes."""
    require_bytes(image, "An image")
    pixels = np.asarray(image if image.mode in ("L", "RGB") else image.convert("RGB"))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def column_pair(frame: Any, inputs: str, target: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    """The inputs [n, ...] of a column with one array, list or image per row, and the labels [n] of the target."""
    for name in (inputs, target):
        if name not in frame.columns:
            raise UserError(f'{where} has no column "{name}". {did_you_mean(name, map(str, frame.columns))}')
    rows = [np.array(_nested(value)) for value in frame[inputs]]
    if len({row.shape for row in rows}) > 1:
        shapes = sorted({row.shape for row in rows})[:2]
        raise UserError(
            f'{where}: the inputs in "{inputs}" have different shapes, such as {shapes[0]} and {shapes[1]}.'
        )
    labels = frame[target].to_numpy()
    return np.stack(rows), labels.astype(str) if labels.dtype == object else labels


def _nested(value: Any) -> Any:
    """Nested arrays of objects, as Arrow gives lists of lists, as nested lists."""
    return [_nested(inner) for inner in value] if isinstance(value, np.ndarray) and value.dtype == object else value
