"""Pascal VOC 2012 as one npz file, with the masks of `data.name=voc`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.formats.published import Arrays, ConvertOptions
from protofed.data.voc import voc


def voc_arrays(folder: Path, options: ConvertOptions) -> Arrays:
    """Images with a single class and their masks; the list val is the test set."""
    data = voc(folder)
    arrays: dict[str, np.ndarray] = {"name": np.array("voc"), "classes": np.array(data.labels)}
    for part, end in ((data.train, ""), (data.test, "_test")):
        assert part.mask is not None
        arrays |= {f"x{end}": part.x.numpy(), f"y{end}": part.y.numpy(), f"mask{end}": part.mask.numpy()}
    return arrays
