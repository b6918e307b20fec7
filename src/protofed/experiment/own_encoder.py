"""Frozen encoders of the user's own: a torch module, or a function of a batch of inputs, found by a name."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protofed.draws import DrawFrom, generator, no_global_draws
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.experiment.encoder_constants import given_or_raw
from protofed.experiment.sections import DataSection
from protofed.plugins import label, origin_of

_BATCH_TOLERANCE = 1e-3
"""How much a feature may depend on the size of its batch, relative to the largest feature: the rounding of sums."""


@dataclass(frozen=True)
class OwnEncoderMaker:
    """A class or function from outside that makes an encoder, when it is called without arguments."""

    made_from: Callable[[], Any]
    name: str

    def __call__(self, section: DataSection, shape: tuple[int, ...]) -> OwnEncoder:
        return OwnEncoder(self, section)


def encoder_maker(found: Any, name: str) -> OwnEncoderMaker:
    """The maker of an encoder that was found by a name outside the package."""
    if not callable(found):
        raise UserError(
            f'"{name}" is a {type(found).__name__}; an encoder is a torch module class or a function, both without '
            "arguments. The function returns a module, or a function of a batch of inputs."
        )
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError) as problem:  # of a function that is compiled
        raise UserError(f'"{name}": {problem}. Write a function without arguments that returns it.') from problem
    if any(one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        raise UserError(
            f'"{name}" takes ({", ".join(one.name for one in parameters)}); must be callable without arguments. Give '
            "its parameters defaults."
        )
    return OwnEncoderMaker(found, name)


class OwnEncoder:
    """A module or function of the user's own. It computes features of inputs that are normalised as [data] says."""

    side, remark = 0, ""

    def __init__(self, maker: OwnEncoderMaker, section: DataSection) -> None:
        self.section, self.title = section, f"data.encoder: {label(maker.name)}"
        with no_global_draws(self.title), DrawFrom(generator("encoder")):
            made = maker.made_from()
        if not callable(made):
            raise UserError(
                f"{self.title} gives a {type(made).__name__}; must be a torch module or a function of a batch."
            )
        self.encode = made
        self.channels = 0
        self.digest = hashlib.sha256()
        if origin := origin_of(maker):
            self.digest.update(origin.sha256.encode())
        if isinstance(made, nn.Module):
            made.eval().requires_grad_(False)
            self.channels = next((part.in_channels for part in made.modules() if isinstance(part, nn.Conv2d)), 0)
            for value in made.state_dict().values():
                self.digest.update(value.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)

    def normalised(self, examples: Examples) -> Examples:
        return given_or_raw(examples, self.section)

    def embedder(self, shape: tuple[int, ...], classes: int) -> tuple[Callable[[Tensor], Tensor], bytes]:
        """The function that computes features, and a hash that has the features of two inputs that are no images.

        So features are computed again if anything that the encoder imports or reads has changed.
        """
        probe = torch.linspace(0, 255, 2 * math.prod(shape)).reshape(2, *shape)
        both = self.features(probe)
        alone = torch.cat([self.features(probe[:1]), self.features(probe[1:])])
        scale = float(both.nan_to_num(0).abs().max())
        if not torch.allclose(both, alone, rtol=0, atol=_BATCH_TOLERANCE * scale, equal_nan=True):
            raise UserError(
                f"{self.title}: the features of an input depend on the other inputs of its batch. Put modules with "
                "batch norm into evaluation mode: module.eval()."
            )
        digest = self.digest.copy()
        digest.update(both.contiguous().numpy().data)
        return self.features, digest.digest()

    def features(self, x: Tensor) -> Tensor:
        """The features [n, dim] of normalised inputs [n, ...]."""
        try:
            with torch.no_grad(), no_global_draws(self.title):
                out = self.encode(x)
        except UserError:
            raise
        except Exception as problem:  # a user's code may raise anything
            raise UserError(
                f"{self.title} does not take inputs of shape {list(x.shape)}: {type(problem).__name__}: {problem}"
            ) from problem
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x) or not out.shape[1]:
            got = f"features of shape {list(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
            raise UserError(
                f"{self.title} gives {got} for {len(x)} inputs; must be [{len(x)}, dim], with at least one number per "
                "input."
            )
        return out.detach().float()
