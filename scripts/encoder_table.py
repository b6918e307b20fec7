"""What frozen encoders give: the table of docs/nets.md, from docs/results/data/encoder.json.

    python scripts/encoder_table.py [FILE]              show the table of the JSON file
    python scripts/encoder_table.py --measure [FILE]    measure everything again and write the file

Measuring needs the extra `protofed[encoders]` and the data. A probe is a linear classifier of the features of all
training images, trained by protofed itself: one client holds everything. The CPU time per image is that of one thread.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from protofed import Config
from protofed.data.sources import SOURCES
from protofed.engines.threads import one_thread
from protofed.experiment.encoder import EncoderInputs
from protofed.experiment.encoder_files import open_encoder
from protofed.experiment.run import run
from protofed.experiment.sections import DataSection

KEPT = Path("docs/results/data/encoder.json")
PROBE = (
    "net.name=linear partition.name=pooled method.name=local run.rounds=30 run.eval_every=30 train.epochs=1 "
    "train.batch=32 train.lr=0.01 train.momentum=0.9 engine.workers=1"
)
DATASETS = ("tiny_imagenet", "office_caltech10", "digit5")
ENCODER, SIZES = "efficientnet_lite0", (64, 128)
IMAGES, REPEATS = 128, 7


def probe(data: str, size: int, normalise: str) -> dict[str, Any]:
    """The correct predictions of a linear classifier on the test set."""
    words = [f"data.name={data}", f"data.encoder={ENCODER}", f"data.encoder_size={size}", f"data.normalise={normalise}"]
    result = run(Config.load(None, [*PROBE.split(), *words]))
    test = len(result.state.members.test[0])
    return {
        "data": data,
        "encoder": ENCODER,
        "size": size,
        "normalise": normalise,
        "train": len(result.state.members.train[0]),
        "test": test,
        "correct": round(result.summary["accuracy"]["head"]["mean"] * test),
    }


def milliseconds(size: int) -> list[float]:
    """CPU milliseconds per image of one thread, several times: resizing, normalising and the net."""
    section = DataSection(encoder=ENCODER, encoder_size=size)
    data = SOURCES["digit5"]("").test
    images = data.subset(range(0, len(data), len(data) // IMAGES)[:IMAGES])
    opened = open_encoder(section, images.shape)
    inputs = EncoderInputs(opened.normalised(images), 0, size)
    embed, _ = opened.embedder(inputs.shape, 10)
    measured = []
    with one_thread(), torch.no_grad():
        for _ in range(REPEATS + 1):  # the first is not counted
            begin = time.process_time()
            for batch in inputs.batches():
                embed(batch)
            measured.append(round(1000 * (time.process_time() - begin) / len(images), 3))
    return measured[1:]


def measure() -> dict[str, Any]:
    """All measurements."""
    rows: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    rows["milliseconds"] = [{"encoder": ENCODER, "size": size, "per_image": milliseconds(size)} for size in SIZES]
    rows["probes"] = []
    for data, size, normalise in product(DATASETS, SIZES, ("dataset", "pooled")):
        rows["probes"].append(probe(data, size, normalise))
        print(rows["probes"][-1], flush=True)
    return rows


def table(kept: dict[str, Any]) -> str:
    """The rows of docs/nets.md."""
    lines = [
        "| encoder | pixels | CPU per image | tiny_imagenet | office_caltech10 | digit5 |",
        "|---|---|---|---|---|---|",
    ]
    for timed in kept["milliseconds"]:
        cells = [timed["encoder"], str(timed["size"]), f"{statistics.median(timed['per_image']):.1f} ms"]
        for data in DATASETS:
            shares = {
                row["normalise"]: f"{100 * row['correct'] / row['test']:.1f}"
                for row in kept["probes"]
                if (row["encoder"], row["size"], row["data"]) == (timed["encoder"], timed["size"], data)
            }
            cells.append(f"{shares['dataset']} / {shares['pooled']}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=KEPT, help="the JSON file")
    parser.add_argument("--measure", action="store_true", help="measure everything again and write the file")
    options = parser.parse_args()
    if options.measure:
        options.file.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(options.file.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
