"""What the readers of published formats have in common: what is known of a dataset, options, files and images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protofed.data.bit_depth import require_bytes
from protofed.data.npz_files import Stream, write_npz
from protofed.errors import UserError

Arrays = Mapping[str, np.ndarray | Stream]
"""The arrays of the npz file that is written."""
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
_IMAGES_AT_ONCE = 256
_IMAGES_PER_LINE = 10_000
"""A line of progress is printed after this many images."""


def _silent(text: str) -> None:
    """Print nothing."""


class ConvertOptions(NamedTuple):
    """The options of `protofed data convert`."""

    side: int = 0  # images are resized to this number of pixels squared; 0: the size that the format suggests
    target: str = "Smiling"  # the attribute of CelebA that is to be predicted
    say: Callable[[str], None] = _silent  # shows progress


@dataclass(frozen=True)
class Published:
    """A published dataset: where it comes from, and how its files become arrays."""

    about: str
    published: str  # where
    licence: str
    size: str
    layout: str  # what FROM is
    read: Callable[[Path, ConvertOptions], Arrays]
    named: bool = False
    """Whether `data.name` has the name of the dataset; otherwise the npz file is read with data.name=npz."""
    any_size: bool = False
    """Whether the images can have any size; otherwise the format says it."""

    def as_json(self) -> dict[str, str]:
        """What `protofed data info --json` shows."""
        keys = ("about", "published", "licence", "size", "layout")
        return {key: str(getattr(self, key)) for key in keys}

    def text(self, name: str) -> str:
        """What `protofed data info` shows."""
        return "\n".join(
            [
                f"{name}: {self.about}",
                f"published: {self.published}",
                f"size: {self.size}",
                f"licence: {self.licence}",
                f"convert it once: protofed data convert {name} FROM --out {name}.npz (FROM: {self.layout})",
                f"then: {use_of(name, self, Path(f'{name}.npz'))}",
            ]
        )


def use_of(name: str, published: Published, out: Path) -> str:
    """The command that uses a converted file."""
    if published.named:
        return f"protofed run --set data.name={name} --set data.root={out.parent}"
    return f"protofed run --set data.name=npz --set data.root={out}"


def write_converted(name: str, published: Published, source: Path, out: Path, options: ConvertOptions) -> str:
    """Read a published dataset and write its npz file. Returns a sentence about it. An error leaves no file behind."""
    if out.exists():
        raise UserError(f"{out} already exists. Give another name.")
    if out.suffix != ".npz":
        raise UserError(f"--out: got {out.name}; its name must end in .npz.")
    if published.named and out.name != f"{name}.npz":
        raise UserError(f"--out: got {out.name}, but data.name={name} reads a file with the name {name}.npz. Use that.")
    if options.side and not published.any_size:
        raise UserError(f"--size: got {options.side}, but {name} has inputs of one size only. Leave it out.")
    if not source.exists():
        raise UserError(f"There is no {source}. FROM must be a {published.layout}.")
    arrays = published.read(source, options)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.new")
    try:
        write_npz(temporary, arrays)
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
    sizes = [len_of(arrays[key]) for key in ("x_train", "x", "x_test") if key in arrays]
    labels, clients = len_of(arrays["classes"]), arrays.get("client", arrays.get("domains"))
    owners = "" if not isinstance(clients, np.ndarray) else f" of {len(np.unique(clients)):,} clients"
    kinds = "training / test examples" if len(sizes) > 1 else "examples"
    return f"{name}: {' / '.join(f'{size:,}' for size in sizes)} {kinds} of {labels:,} classes{owners}."


def len_of(array: np.ndarray | Stream) -> int:
    """The number of rows."""
    return int(array.shape[0])


def need_file(folder: Path, *names: str) -> Path:
    """The first of these files that the folder has; an error if it has none."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UserError(f"There is no file {' or '.join(names)} in {folder}. Give the folder that has it.")


def read_content(path: Path) -> bytes:
    """The bytes of a file; an error that names it."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise UserError(f"{path} cannot be opened: {problem.strerror or problem}. Check the file.") from problem


def checked_class_numbers(y: Any, classes: int, owner: str) -> np.ndarray:
    """Labels [n] as int64; an error unless they are whole numbers from 0 to classes - 1."""
    labels = np.asarray(y)
    if (
        labels.ndim != 1
        or labels.dtype.kind not in "iu"
        or (len(labels) and not 0 <= labels.min() <= labels.max() < classes)
    ):
        raise UserError(f"{owner}: its labels must be whole numbers from 0 to {classes - 1}. Get the file again.")
    return labels.astype(np.int64)


def image_stream(paths: Sequence[Path], side: int, say: Callable[[str], None], last: bool = False) -> Stream:
    """Images as bytes [n, 3, side, side], resized (bilinear) where they have another size; `last`: channels last."""
    shape = (len(paths), side, side, 3) if last else (len(paths), 3, side, side)
    return Stream(shape, np.uint8, _read_images(paths, side, say, last))


def _read_images(paths: Sequence[Path], side: int, say: Callable[[str], None], last: bool) -> Iterator[np.ndarray]:
    from PIL import Image

    for start in range(0, len(paths), _IMAGES_AT_ONCE):
        pictures = []
        for path in paths[start : start + _IMAGES_AT_ONCE]:
            try:
                with Image.open(path) as picture:
                    require_bytes(picture, str(path))
                    colours = picture.convert("RGB")
                    same = colours.size == (side, side)
                    pictures.append(
                        np.asarray(colours if same else colours.resize((side, side), Image.Resampling.BILINEAR))
                    )
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
                raise UserError(f"{path} cannot be read as an image: {problem}. Get the file again.") from problem
        done = start + len(pictures)
        if done // _IMAGES_PER_LINE > start // _IMAGES_PER_LINE:
            say(f"{done:,} of {len(paths):,} images")
        images = np.stack(pictures)
        yield images if last else np.moveaxis(images, 3, 1)
