"""Reading inputs from files, and writing predictions as files and as text."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from protofed.data.table.files import SUFFIXES, is_table, read_table
from protofed.errors import UserError
from protofed.experiment import folder

if TYPE_CHECKING:
    from pathlib import Path

    from protofed.experiment.config import Config
    from protofed.experiment.model import Model
    from protofed.experiment.results import State


def with_missing_texts(model: Model, config: Config) -> Model:
    """The model, whose recipe has the texts that mean a missing value in the tables of its experiment."""
    if model.recipe is None:
        return model
    return replace(model, recipe=replace(model.recipe, missing=config.data.missing))


def read_inputs(path: Path, model: Model) -> Any:
    """The inputs of a model: an array from a .npy file, or a DataFrame from a table."""
    if is_table(path):
        if model.recipe is None:
            shape = ", ".join(map(str, ("n", *model.data.shape)))
            raise UserError(f"{path} is a table, but the model takes arrays [{shape}]. Give an .npy file.")
        return read_table(path, model.recipe.missing, model.recipe.categories)
    try:
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                if model.recipe:
                    raise UserError(f"{path} is not a table. This model takes rows of one: {', '.join(SUFFIXES)}.")
                raise UserError(f"{path} is not a .npy file. Write one with numpy.save.")
            file.seek(0)
            return np.asarray(np.load(file, allow_pickle=False))
    except FileNotFoundError:
        raise UserError(
            f"There is no file {path}. --input must be an .npy file, or a table ({', '.join(SUFFIXES)})."
        ) from None
    except (OSError, ValueError, EOFError) as problem:
        raise UserError(f"{path} is not an intact .npy file: {problem}") from problem


def must_be_writable(path: Path) -> None:
    """It is an error if the file exists already, or if its name ends neither in .npy nor in .csv."""
    folder.must_be_new(path)
    if path.suffix not in (".npy", ".csv"):
        raise UserError(f"--out: got {path.name}; its name must end in .npy or .csv.")


def write_predictions(predicted: np.ndarray, path: Path) -> None:
    """Write the records that `Model.predict` returns to a .npy file."""
    content = io.BytesIO()
    np.save(content, predicted, allow_pickle=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder.write_atomically(path, content.getvalue())


def images_and_classes(state: State, inputs: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Images [n, channels, height, width], the numbers of their predicted classes, and the number of classes."""
    net = state.members.nets[0]
    if not net.grid:
        raise UserError(f"--draw needs a net that labels every pixel, but {net.name} gives one label per input.")
    return inputs.reshape(-1, *net.shape), predicted["scores"].argmax(-1), net.classes


def _pixel_line(number: int, labels: np.ndarray) -> str:
    """The number of an image and the shares of its pixels by label."""
    names, counts = np.unique(labels, return_counts=True)
    shares = [f"{name} {100 * count / labels.size:.1f} %" for name, count in zip(names, counts, strict=True)]
    return f"{number}\t{', '.join(shares)}"


def prediction_lines(predicted: np.ndarray) -> str:
    """A header and one line per record, with tabs between the columns and without the scores.

    Of images with a label per pixel: the number of the image, and the share of its pixels that each class has.
    """
    if predicted["label"].ndim > 1:
        return "\n".join(["image\tpixels", *map(_pixel_line, range(len(predicted)), predicted["label"])])
    names = [name for name in predicted.dtype.names or () if name != "scores"]
    formats = {"f": "{:.4f}", "b": "{:d}"}
    columns = [formats.get(predicted.dtype[name].kind, "{}") for name in names]
    rows = ["\t".join(form.format(value) for form, value in zip(columns, row, strict=True)) for row in predicted[names]]
    return "\n".join(["\t".join(names), *rows])


def prediction_text(predicted: np.ndarray) -> str:
    """The number of inputs per predicted label, most frequent first, and the number of unknown ones.

    >>> prediction_text(np.array([(7, True), (7, False), (3, False)], [("label", int), ("unknown", bool)]))
    '3 inputs: 2 x 7, 1 x 3; 1 unknown.'
    """
    labels, counts = np.unique(predicted["label"], return_counts=True)  # of pixels, if these have labels
    order = np.argsort(-counts, kind="stable")
    per_label = ", ".join(f"{counts[position]:,} x {labels[position]}" for position in order[:20])
    more = ", ..." if len(order) > 20 else ""
    unknown = f"; {predicted['unknown'].sum():,} unknown" if "unknown" in (predicted.dtype.names or ()) else ""
    unit = " (pixels)" if predicted["label"].ndim > 1 else ""
    return f"{len(predicted):,} inputs{unit}: {per_label}{more}{unknown}."
