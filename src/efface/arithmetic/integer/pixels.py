"""Pixels as the integers that an integer form begins with: pixel − round(255 · mean), padded with 0."""

from __future__ import annotations

import torch
from torch import Tensor

from efface.arithmetic.integer.graph import Source
from efface.arithmetic.integer.ops import NoIntegerForm
from efface.data.preprocess import Preprocess
from efface.network.core import Core


def pixel_source(preprocess: Preprocess) -> Source:
    """(pixel/255 − mean)/std from q = pixel − round(255 mean)."""
    mean, std = (torch.tensor(v, dtype=torch.float64) for v in (preprocess.mean, preprocess.std))
    middle = torch.round(255 * mean)
    reach = int(torch.maximum(middle, 255 - middle).max())
    return Source(0, reach, 1 / (255 * std), (middle - 255 * mean) / (255 * std))


def preprocess_of(core: Core) -> Preprocess:
    """Of a core that reads pixels; NoIntegerForm if it does not."""
    if not isinstance(core.backbone.preprocess, Preprocess):
        raise NoIntegerForm(f"{core.backbone.preprocess.described} are no pixels.")
    return core.backbone.preprocess


def centred(pixels: Tensor, preprocess: Preprocess) -> Tensor:
    """pixel − round(255 · mean), float32."""
    return pixels.float().sub_(centre(preprocess).to(pixels.device).view(1, -1, 1, 1))


def centre(preprocess: Preprocess) -> Tensor:
    """round(255 · mean), a number a channel."""
    return torch.round(255 * torch.tensor(preprocess.mean, dtype=torch.float64)).float()


def views_of(q: Tensor, mirror: bool) -> Tensor:
    """With mirroring every image twice in a row, (2n, …)."""
    both = torch.stack([q, q.flip(-1)], dim=1).flatten(0, 1) if mirror else q
    return both.contiguous(memory_format=torch.channels_last)
