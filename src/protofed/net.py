"""A net: a body that computes embeddings and a head that computes logits, called with parameters from outside."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.batch import Batch, Grid, nearest_rows, rows_of_maps
from protofed.devices import CPU, Precision, called, moved
from protofed.draws import DrawFrom, no_global_draws
from protofed.errors import UserError
from protofed.examples import channels_last
from protofed.params import ADDED, Params, added, selected, without_added

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from protofed.examples import Examples

__all__ = ["ADDED", "EVALUATION_BATCH", "Net", "Params", "added", "body_then_head", "selected", "without_added"]

EVALUATION_BATCH = 512
"""Examples per batch when nothing is trained."""


def body_then_head(body: nn.Module, head: nn.Module) -> nn.Module:
    """One module that calls the body and then the head."""
    return nn.Sequential(OrderedDict(body=body, head=head))


class Net:
    """`net(params, x) -> (embedding, logits)`. The module inside provides the structure only, not the parameters.

    A net that labels every pixel has a body and a head that return maps [n, channels, height, width]. They become rows,
    one per pixel: embeddings at the size of the body's map, `grid`, and logits at the size of the images. Its body may
    return a tuple of maps: the first one is the embedding, and the head gets all of them.

    `build` makes a new (body, head) pair. All draws of its layers come from the generator that `init` gets.
    `combine` makes one module of the two. `fixed_init`: True if `build` copies existing weights, so that `init` returns
    them whatever the generator. `source` describes how the net is built.
    """

    def __init__(
        self,
        name: str,
        build: Callable[[], tuple[nn.Module, nn.Module]],
        shape: tuple[int, ...],
        classes: int,
        combine: Callable[[nn.Module, nn.Module], nn.Module] = body_then_head,
        fixed_init: bool = False,
        source: str = "",
    ) -> None:
        self.name = name
        self.build = build
        self.combine = combine
        self.fixed_init = fixed_init
        self.source = source
        self.initial_params: Params = {}  # those that `init` returns instead of newly drawn ones
        self.shape = shape
        self.classes = classes
        self.outputs: tuple[int, ...] = ()
        """The class of each output of the head, if it has outputs for some classes only; (): one output per class."""
        self.module = self.new_module(torch.Generator())
        self.module.eval()
        params = dict(self.module.state_dict())
        self.trainable = frozenset(name for name, value in self.module.named_parameters() if value.requires_grad)
        self.has_batch_norm = any(isinstance(layer, _BatchNorm) for layer in self.module.modules())
        """True if the net has batch norm, which cannot train on a batch of one example."""
        self.trains_alone = any(
            isinstance(layer, _BatchNorm) or getattr(layer, "track_running_stats", False)
            for layer in self.module.modules()
        )
        """True if the net cannot train in a stack: an output depends on the rest of the batch, a buffer changes, or
        `vmap` cannot map the net."""
        self.shapes = {name: tuple(value.shape) for name, value in params.items()}
        if names := [name for name in self.shapes if "/" in name]:
            raise UserError(f"net {self.name} has a layer with a / in its name, {names[0]}. Rename the layer.")
        self.channels_first = False
        """True if the body needs images with their channels first in memory, for example because it calls `view`."""
        self.precision: Precision = "float32"  # in which the layers compute now; `training.in_training` sets it
        self.cost = 0.0
        """Multiplications per example in convolutions and dense layers."""
        self.grid: Grid | None = None
        """The size of the map of embeddings, if the net labels every pixel."""
        with torch.no_grad():
            if len(shape) == 3:
                try:
                    self(params, channels_last(torch.zeros(2, *shape)))
                except RuntimeError:
                    self.channels_first = True
            with self._counting_cost():
                z, logits = self.outputs_of_parts(params, torch.zeros(1, *shape))
        self.dim = z.shape[1]
        if z.dim() == 4 and logits.dim() == 4:
            self.grid = (z.shape[2], z.shape[3])

    @contextmanager
    def _counting_cost(self) -> Iterator[None]:
        """Add to `cost` the multiplications of convolutions and dense layers in this block."""

        def count(layer: nn.Module, _: Any, out: Tensor) -> None:
            weight = layer.weight
            assert isinstance(weight, Tensor)
            self.cost += out.numel() * weight[0].numel()  # each output takes one row of the weight

        kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
        hooks = [layer.register_forward_hook(count) for layer in self.module.modules() if isinstance(layer, kinds)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def new_module(self, generator: torch.Generator) -> nn.ModuleDict:
        """A new body and head, with weights drawn from the generator."""
        with no_global_draws(f"net {self.name}"), DrawFrom(generator):
            body, head = self.build()
        return nn.ModuleDict({"body": body, "head": head})

    def init(self, generator: torch.Generator) -> Params:
        """New parameters. The same generator state gives the same parameters."""
        params = dict(self.new_module(generator).state_dict())
        return params | {name: value.clone() for name, value in self.initial_params.items()}

    def starting_from(self, layers: Params) -> Net:
        """The same net, but `init` starts from those of the layers that match by name and shape.

        The prefix "body." or "head." of a name may be left out, and "encoder." after it: so the weights of a
        classifier's body fit the encoder of a net that labels pixels.
        """
        matching = {}
        params = self.init(torch.Generator())
        for name, shape in self.shapes.items():
            inner = name.replace("body.encoder.", "body.", 1)
            for key in (name, name.partition(".")[2], inner, inner.partition(".")[2]):
                if key in layers and tuple(layers[key].shape) == shape:
                    matching[name] = layers[key].to(params[name].dtype)
                    break
        if not matching:
            got, expected = (
                f"{', '.join(list(names)[:6])}{', ...' * (len(names) > 6)}" for names in (layers, self.shapes)
            )
            raise UserError(
                f"None of the layers given ({got}) fits net {self.name}, which has {expected}. "
                "Names and shapes must match."
            )
        net = copy(self)
        net.initial_params = matching
        return net

    def parts(self, params: Params) -> nn.ModuleDict:
        """A new body and head with these parameters, in evaluation mode."""
        self.check(params)
        module = self.new_module(torch.Generator())
        module.load_state_dict({name: params[name] for name in self.shapes})
        module.eval()
        return module

    def loaded(self, params: Params) -> nn.Module:
        """One module with these parameters, of the form that `combine` returns, in evaluation mode."""
        parts = self.parts(params)
        return self.combine(parts["body"], parts["head"]).eval()

    def trains(self, name: str, value: Tensor) -> bool:
        """Whether this tensor trains. Buffers and frozen layers do not, neither in the net nor in an added model."""
        name = name.removeprefix(ADDED)
        return name in self.trainable if name in self.shapes else value.is_floating_point()

    def train(self, mode: bool) -> None:
        """Switch dropout and batch norm to training mode, or back."""
        self.module.train(mode)

    @cached_property
    def linear_head(self) -> str:
        """The name of the weight [classes, dim] of the head; an error if the head is not one linear layer."""
        if self.outputs:
            raise UserError(
                f"This needs a head with an output for each of the {self.classes} classes, but that of {self.name} has "
                f"{len(self.outputs)}. Use another net."
            )
        layers = [
            (name, layer)
            for name, layer in self.module["head"].named_modules(prefix="head")
            if not list(layer.children()) and not isinstance(layer, nn.Dropout | nn.Identity)
        ]
        if len(layers) != 1 or not isinstance(layers[0][1], nn.Linear):
            kinds = ", ".join(type(layer).__name__ for _, layer in layers) or "no layer"
            raise UserError(
                f"This needs a head of one linear layer, but the head of {self.name} has: {kinds}. Use another net."
            )
        return f"{layers[0][0]}.weight"

    def embed(self, params: Params, x: Tensor) -> Tensor:
        """The body alone: [n, ...] -> [n, dim], or one row per pixel of `grid`."""
        out: Any = self.call("body", params, x)
        return self._embedding_rows(out[0] if isinstance(out, tuple) else out)

    def head(self, params: Params, z: Tensor) -> Tensor:
        """The head alone: [n, dim] -> [n, classes]."""
        if self.grid:
            raise UserError(
                f"{self.name} labels pixels from maps, but this method calls the head on single embeddings. "
                "Use a method that does not, such as fedavg or fedproto."
            )
        return self.by_class(self.call("head", params, z))

    def by_class(self, logits: Tensor) -> Tensor:
        """The outputs of the head [n, outputs] as logits [n, classes]: -inf for a class without an output."""
        if not self.outputs:
            return logits
        missing = len(self.outputs)  # the column that is added
        columns = [self.outputs.index(label) if label in self.outputs else missing for label in range(self.classes)]
        index = torch.tensor(columns, device=logits.device)
        return nn.functional.pad(logits, (0, 1), value=-torch.inf).index_select(-1, index)

    def call(self, part: str, params: Params, x: Tensor) -> Any:
        """The output of one part of the net, "body" or "head"."""
        if self.channels_first and part == "body":
            x = x.flatten(1).unflatten(1, self.shape)
        part_params = {name[len(part) + 1 :]: params[name] for name in self.shapes if name.startswith(f"{part}.")}
        return called(self.module[part], part_params, x, self.precision)

    def outputs_of_parts(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding and the outputs of the head as the modules return them: vectors, or maps."""
        out: Any = self.call("body", params, x)
        return out[0] if isinstance(out, tuple) else out, self.call("head", params, out)

    def __call__(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        z, logits = self.outputs_of_parts(params, x)
        return self._embedding_rows(z), self.by_class(self.logit_rows(logits))

    def _embedding_rows(self, z: Tensor) -> Tensor:
        """Embeddings [n, dim], or of maps [n, dim, height, width] one row per pixel."""
        return rows_of_maps(z) if self.grid else z

    def logit_rows(self, logits: Tensor) -> Tensor:
        """Outputs of the head [n, outputs], or of maps one row per pixel of the image; smaller maps are enlarged."""
        if not self.grid:
            return logits
        size = self.shape[1:]
        enlarged = logits if logits.shape[2:] == size else nn.functional.interpolate(logits, size, mode="bilinear")
        return rows_of_maps(enlarged)

    def at_image_size(self, scores: dict[str, Tensor], n: int) -> dict[str, Tensor]:
        """The scores of n inputs by way of predicting; if the net labels pixels, with one row per pixel of the images.

        Scores that have one row per embedding, such as distances to prototypes, take those of the nearest embedding.
        """
        if not self.grid:
            return scores
        size, per_embedding = (self.shape[1], self.shape[2]), n * self.grid[0] * self.grid[1]
        return {
            way: nearest_rows(rows, self.grid, size) if len(rows) == per_embedding else rows
            for way, rows in scores.items()
        }

    @torch.no_grad()
    def features(self, params: Params, data: Examples) -> tuple[Tensor, Tensor]:
        """Embeddings [n, dim] and labels [n] of all examples, in order, without dropout.

        If the net labels pixels, they are those of all pixels of `grid` that have a label. They are on the CPU.
        """
        data, params = data.for_steps, moved(params, data.for_steps.device)
        embeddings, labels = [torch.zeros(0, self.dim)], [torch.zeros(0, dtype=torch.long)]
        for x, y in data.batches(EVALUATION_BATCH):
            z = self.embed(params, x)
            matched = self.match(Batch.of(x, y), z)
            counts = matched.weight > 0 if self.grid else slice(None)
            embeddings.append(z[counts].to(CPU))
            labels.append(matched.y[counts].to(CPU))
        return torch.cat(embeddings), torch.cat(labels)

    def match(self, batch: Batch, z: Tensor) -> Batch:
        """Labels and weights at the resolution of z: the batch itself, except for nets that label every pixel.

        There, each row of z gets the label and the weight of the nearest pixel of the mask.
        """
        if not self.grid or len(z) == len(batch.y):
            return batch
        size = (self.shape[1], self.shape[2])
        y, weight = (nearest_rows(rows, size, self.grid) for rows in (batch.y, batch.weight))
        return batch._replace(y=y, weight=weight)

    def check(self, params: Params) -> None:
        """Raise an error for the parameters of another net, which `functional_call` alone would accept."""
        got = {key: tuple(value.shape) for key, value in params.items() if not key.startswith(ADDED)}
        if got != self.shapes:
            wrong = sorted(key for key in got.keys() | self.shapes.keys() if got.get(key) != self.shapes.get(key))
            raise UserError(
                f"These parameters are not {self.name}'s: {wrong[0]} has shape {got.get(wrong[0], 'none')}, "
                f"the net needs {self.shapes.get(wrong[0], 'none')}. Use parameters that start from this net's init."
            )
