"""Nets that label every pixel: CPU milliseconds and memory per image, next to a plain loop in torch.

    python benchmarks/pixels.py [FILE.json]

Images of 64x64x3 with masks of three classes, batches of 16 with Adam. Time: the smallest of several epochs of 128
images, ours and the plain loop's in turns, in one process with one thread. Memory: how much the memory of a process
grows at most during one step with 64 images, less the same with 16 images, divided by 48. So gradients and the state of
the optimiser do not count. Linux only. FILE.json gets the numbers.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from protofed.core import Client, Phase
from protofed.examples import Examples
from protofed.experiment.provenance import versions_and_processor
from protofed.methods.local import Local
from protofed.net import Net
from protofed.nets import NETS, make_net
from protofed.training import TrainSection, train_client

SIDE, CLASSES, BATCH, IMAGES, TURNS = 64, 3, 16, 128, 5
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "unet, channels = [8, 16, 32, 64]": ("unet", {"channels": (8, 16, 32, 64)}),
    "deeplab, width = 0.5, stride = 8, rates = [1, 2]": ("deeplab", {"width": 0.5, "stride": 8, "rates": (1, 2)}),
    "deeplab, stride = 16, rates = [1, 2]": ("deeplab", {"rates": (1, 2)}),
}
MEMORY_BATCHES = (16, 64)


def the_net(title: str) -> Net:
    name, options = CASES[title]
    return make_net(name, NETS[name](**options), (3, SIDE, SIDE), CLASSES)


def pictures(number: int) -> Examples:
    draw = np.random.RandomState(0)
    x = draw.randint(0, 256, (number, 3, SIDE, SIDE)).astype(np.uint8)
    mask = draw.randint(0, CLASSES, (number, SIDE, SIDE)).astype(np.uint8)
    return Examples.of(x, mask[:, 0, 0], 255.0, 0.5, 0.25, mask=mask)


def trainer(net: Net, data: Examples, batch: int) -> Callable[[], None]:
    """An epoch of ours."""
    client = Client(net, 0, 0, 0, 1, data)
    params, training = client.fresh_params(), TrainSection(batch=batch, optimiser="adam", lr=0.001)
    return lambda: void(train_client(Local(), client, data, params, (), (), (Phase(1),), training))


def plain_trainer(net: Net, data: Examples, batch: int) -> Callable[[], None]:
    """An epoch of the same module in torch: gather, normalise, forward, backward, step."""
    module = net.parts(net.init(torch.Generator().manual_seed(0))).to(memory_format=torch.channels_last).train()

    def epoch() -> None:
        optimiser = torch.optim.Adam(module.parameters(), 0.001)  # new in every epoch, as in a round
        for rows in torch.randperm(len(data)).split(batch):
            x = ((data.x[rows].float() / data.scale - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)
            logits = enlarged(module["head"](module["body"](x)))
            loss = F.cross_entropy(logits, data.mask[rows].long(), ignore_index=255)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

    return epoch


def enlarged(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.shape[-1] == SIDE else F.interpolate(logits, (SIDE, SIDE), mode="bilinear")


def predictor(net: Net, data: Examples, batch: int) -> Callable[[], None]:
    """The predictions for all images, in batches."""
    params = net.init(torch.Generator().manual_seed(0))

    def predict() -> None:
        with torch.no_grad():
            for rows in torch.arange(len(data)).split(batch):
                net(params, data.take(rows)[0])[1].argmax(1)

    return predict


def void(result: Any) -> None:
    """Drops a result, so that it does not stay in memory."""
    del result


WORK = {"training": trainer, "plain": plain_trainer, "inference": predictor}


def milliseconds(title: str) -> dict[str, float]:
    """The smallest CPU time per image of each kind of work, taken in turns."""
    net, data = the_net(title), pictures(IMAGES)
    work = {name: make(net, data, BATCH) for name, make in WORK.items()}
    best = dict.fromkeys(work, float("inf"))
    for _ in range(TURNS):
        for name, run in work.items():
            start = time.process_time()
            run()
            best[name] = min(best[name], 1000 * (time.process_time() - start) / IMAGES)
    return best


def peak_megabytes(title: str, work: str, batch: int) -> float:
    """How much the memory of a new process grows at most in one step with a batch of this size."""
    words = [sys.executable, __file__, "--peak", title, work, str(batch)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def memory_now(key: str) -> float:
    """The memory of this process (VmRSS) or its peak (VmHWM) in megabytes of 2^20 bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def megabytes(title: str) -> dict[str, float]:
    """Memory per image of each kind of work."""
    small, large = MEMORY_BATCHES
    return {
        work: (peak_megabytes(title, work, large) - peak_megabytes(title, work, small)) / (large - small)
        for work in WORK
    }


def table_row(row: dict[str, Any]) -> str:
    """A row of the table of docs/performance.md."""
    times, memory = row["milliseconds"], row["megabytes"]
    ratio = f"{times['training'] / times['plain']:.2f}"
    numbers = [f"{times['training']:.1f}", f"{times['plain']:.1f}", ratio, f"{times['inference']:.1f}"]
    numbers += [f"{memory[work]:.1f}" for work in ("training", "plain", "inference")]
    name, _, options = row["net"].partition(", ")
    return f"| `{name}`, `{options}` ({row['parameters']:,}) | {' | '.join(numbers)} |"


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--peak"]:
        _, _, title, work, batch = sys.argv
        run = WORK[work](the_net(title), pictures(int(batch)), int(batch))
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # so that no freed memory of the start is used again
        before = memory_now("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        run()
        print(memory_now("VmHWM") - before)
        return
    rows = []
    for title in CASES:
        net = the_net(title)
        parameters = sum(torch.Size(net.shapes[name]).numel() for name in net.trainable)
        times, memory = milliseconds(title), megabytes(title)
        rows.append({"net": title, "parameters": parameters, "milliseconds": times, "megabytes": memory})
        print(table_row(rows[-1]), flush=True)
    if len(sys.argv) > 1:
        content = json.dumps({"versions": versions_and_processor(), "rows": rows}, indent=1)
        Path(sys.argv[1]).write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
