"""Recorded steps as CUDA graphs: the GPU runs all operations of a step in one call.

This has not been run on a GPU yet; the tests check the copying with a stand-in for `torch.cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UP_STEPS = 3
"""Steps before the capture, in which libraries allocate what they need, as torch's documentation asks."""


def captured(run: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[..., Any]:
    """A recorded step as a CUDA graph, where all inputs are on one GPU and torch can capture it; if not, the step."""
    devices = {tensor.device for tensor in inputs}
    if len(devices) != 1 or next(iter(devices)).type != "cuda":
        return run
    try:
        return CapturedStep(run, inputs)
    except RuntimeError:  # an operation that cannot be captured, or inputs that share memory; replaying works as well
        torch.cuda.synchronize()
        return run


class CapturedStep:
    """A CUDA graph of a step. It reads its inputs from fixed memory, and writes its outputs to fixed memory."""

    def __init__(self, run: Callable[..., Any], inputs: Sequence[Tensor]) -> None:
        self.inputs = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in inputs]
        self._fill(inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_STEPS):
                run(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = run(*self.inputs)

    def _fill(self, inputs: Sequence[Tensor]) -> None:
        """Copy inputs to the memory that the graph reads."""
        for fixed, given in zip(self.inputs, inputs, strict=True):
            fixed.copy_(given)

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        self._fill(inputs)
        self.graph.replay()
        return [output.clone() for output in self.outputs]  # the next replay writes to the same memory
