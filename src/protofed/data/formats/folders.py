"""Folders of images: class/image.png, or domain/class/image.png as Office-Caltech and DomainNet are published."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.dataset import listed_file
from protofed.data.formats.published import IMAGE_ENDINGS, Arrays, ConvertOptions, image_stream, read_content
from protofed.errors import UserError

_FOLDER_SIDE = 64
Row = tuple[str, str, Path]
"""The domain ("" if there are none), the class and the file of an image."""


def image_folder(folder: Path, options: ConvertOptions) -> Arrays:
    """Any folder of images. Domains become clients."""
    rows = _rows(folder)
    return _arrays(folder.resolve().name, rows, [], options)


def office_folders(folder: Path, options: ConvertOptions) -> Arrays:
    """The four domains of Office-Caltech10, with the ten classes that they share."""
    rows = _rows(folder)
    by_domain: dict[str, set[str]] = {}
    for domain, label, _ in rows:
        by_domain.setdefault(domain, set()).add(label)
    shared = sorted(set.intersection(*by_domain.values()))
    if len(by_domain) < 2 or len(shared) != 10:
        raise UserError(
            f"{folder} has {len(by_domain)} domains with {len(shared)} classes in common; Office-Caltech10 has "
            "amazon, caltech10, dslr and webcam with ten. Use `convert images` for other folders."
        )
    rows = [row for row in rows if row[1] in shared]
    domains = sorted(by_domain)
    return {
        "x": image_stream([path for _, _, path in rows], 64, options.say, last=True),
        "y": np.array([shared.index(label) for _, label, _ in rows], np.int64),
        "domain": np.array([domains.index(domain) for domain, _, _ in rows], np.int64),
        "domains": np.array(domains),
        "classes": np.array(shared),
    }


def domainnet(folder: Path, options: ConvertOptions) -> Arrays:
    """DomainNet's folders with its published lists DOMAIN_train.txt and DOMAIN_test.txt, which give the split."""
    parts: dict[str, list[Row]] = {"train": [], "test": []}
    for part, rows in parts.items():
        for path in sorted(folder.glob(f"*_{part}.txt")):
            for number, line in enumerate(read_content(path).decode("utf-8", errors="replace").splitlines(), 1):
                words = line.rsplit(maxsplit=1)
                pieces = Path(words[0]).parts if len(words) == 2 else ()
                if line.strip() and len(pieces) != 3:
                    raise UserError(f"{path}, line {number}: it must be DOMAIN/CLASS/IMAGE and a label.")
                if pieces:
                    rows.append((pieces[0], pieces[1], listed_file(folder, words[0], f"{path}, line {number}")))
    if not parts["train"] or not parts["test"]:
        raise UserError(
            f"{folder} has no lists DOMAIN_train.txt and DOMAIN_test.txt, such as clipart_train.txt. Get them from "
            "where DomainNet is published, or use `convert images` without a split."
        )
    return _arrays("domainnet", parts["train"], parts["test"], options)


def _arrays(name: str, train: list[Row], test: list[Row], options: ConvertOptions) -> Arrays:
    """The arrays of an own npz file. Without test rows a run sets a fifth of each class of each domain aside."""
    classes = sorted({label for _, label, _ in (*train, *test)})
    arrays: dict[str, object] = {"name": np.array(name), "classes": np.array(classes)}
    numbers = {label: number for number, label in enumerate(classes)}
    for end, rows in (("", train), ("_test", test)):
        if rows:
            side = options.side or _FOLDER_SIDE
            arrays[f"y{end}"] = np.array([numbers[label] for _, label, _ in rows], np.int64)
            arrays[f"x{end}"] = image_stream([path for _, _, path in rows], side, options.say)
            if any(domain for domain, _, _ in rows):
                arrays[f"client{end}"] = np.array([domain for domain, _, _ in rows])
    return arrays  # type: ignore[return-value]


def _rows(folder: Path) -> list[Row]:
    """All images of a folder, by domain and class. Both levels of folders must not be mixed."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder. Give a folder with class/image.png or domain/class/image.png.")
    outer = [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    rows: list[Row] = [("", path.name, image) for path in outer for image in _images_in(path)]
    for domain in outer:
        base = domain / "images" if (domain / "images").is_dir() else domain
        for path in sorted(base.iterdir()):
            if path.is_dir() and not path.name.startswith("."):
                rows += [(domain.name, path.name, image) for image in _images_in(path)]
    if not rows:
        raise UserError(f"{folder} has no images in folders. It must have class/image.png or domain/class/image.png.")
    if len({bool(domain) for domain, _, _ in rows}) > 1:
        flat = next(path for domain, _, path in rows if not domain)
        deep = next(path for domain, _, path in rows if domain)
        raise UserError(f"{folder} mixes class/image ({flat}) and domain/class/image ({deep}). Use one of the two.")
    return rows


def _images_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.suffix.lower() in IMAGE_ENDINGS and path.is_file()]
