"""Noisy prototypes: clipped class sums and counts, each with Gaussian noise; the mean is their quotient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.prototypes import Prototypes

if TYPE_CHECKING:
    from protofed.trust.privacy.noise import Noise
    from protofed.trust.privacy.section import PrivacySection


def clipped_class_sums(z: Tensor, y: Tensor, classes: int, clip: float) -> tuple[Tensor, Tensor]:
    """The sums [classes, dim] of the embeddings z [n, dim], scaled down to the norm `clip`, and the counts [classes].

    An embedding that is not finite counts as 0. So one example changes one sum by at most `clip` and one count by 1.

    >>> clipped_class_sums(torch.tensor([[0.0, 4.0], [0.5, 0.0]]), torch.tensor([1, 1]), 2, clip=1.0)[0].tolist()
    [[0.0, 0.0], [0.5, 1.0]]
    """
    z = z.double()
    largest = z.abs().amax(1, keepdim=True)
    norm = largest * (z / largest.clamp(min=1e-300)).norm(dim=1, keepdim=True)  # squares of large numbers overflow
    kept = torch.where(torch.isfinite(norm), z * (clip / norm.clamp(min=clip)), 0.0)
    sums = torch.zeros(classes, z.shape[1], dtype=torch.double).index_add_(0, y, kept)
    counts = torch.zeros(classes, dtype=torch.double).index_add_(0, y, torch.ones(len(y), dtype=torch.double))
    return sums, counts


def noise_deviations(privacy: PrivacySection) -> tuple[float, float]:
    """The standard deviations of the noise on each number of a class sum, and on each count."""
    share = privacy.count_share
    return privacy.noise * privacy.clip / math.sqrt(1 - share), privacy.noise / math.sqrt(share)


def noisy_class_sums(
    z: Tensor, y: Tensor, classes: int, privacy: PrivacySection, noise: Noise
) -> tuple[Tensor, Tensor]:
    """`clipped_class_sums` with noise, of all classes, also of those that the client lacks."""
    sums, counts = clipped_class_sums(z, y, classes, privacy.clip)
    of_sums, of_counts = noise_deviations(privacy)
    return sums + of_sums * noise.normal(*sums.shape), counts + of_counts * noise.normal(classes)


def noisy_prototypes(z: Tensor, y: Tensor, classes: int, privacy: PrivacySection, noise: Noise) -> Prototypes:
    """The noisy sum over the noisy count of each class; classes with a noisy count below the floor have no prototype.

    Everything after the noise is computed from public numbers only, so it costs no privacy.
    """
    sums, counts = noisy_class_sums(z, y, classes, privacy, noise)
    support = torch.where(counts >= privacy.floor, counts, 0.0)
    mean = torch.where(support.unsqueeze(1) > 0, sums / counts.clamp(min=privacy.floor).unsqueeze(1), 0.0)
    return Prototypes(mean.unsqueeze(1).to(z.dtype), support.unsqueeze(1).to(z.dtype))
