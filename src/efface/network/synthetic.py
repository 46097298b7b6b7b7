"""Calibration without data: seeded synthetic images, seen as the network saw its own training data; where it
reads rows of numbers, random ones.

The compact user part needs to know how large its features get. Where there are neither core records nor
public ones, images of random shapes go through the frozen prefix, and on the way every layer with BatchNorm
statistics is brought to the mean and variance that the network recorded on its training data. Networks
without them (LayerNorm, or none) take the images as they come. Nobody's data is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from efface.data.numbers import Numbers
from efface.data.preparation import Preparation
from efface.data.preprocess import of_images
from efface.network.blocks import matched_statistics
from efface.network.core import Core
from efface.progress import Progress

COUNT, BATCH = 256, 32
MOST_SHAPES = 300


def images(count: int, side: int, channels: int, seed: int = 0) -> list[np.ndarray]:
    """Dead leaves: opaque discs and triangles of random place, size and colour, uint8 (side, side[, 3]).

    Few shapes to many, so that images differ as a whole and not only from pixel to pixel.
    """
    rng = np.random.default_rng(seed)
    return [_leaves(rng, side, channels) for _ in range(count)]


def _leaves(rng: np.random.Generator, side: int, channels: int) -> np.ndarray:
    colour = lambda: tuple(rng.integers(0, 256, channels).tolist())  # noqa: E731
    image = Image.new("L" if channels == 1 else "RGB", (side, side), colour())
    draw = ImageDraw.Draw(image)
    for _ in range(int(math.exp(rng.uniform(math.log(3), math.log(MOST_SHAPES))))):
        radius = side / 2 * rng.uniform(0.02, 1) ** 2
        x, y = rng.uniform(0, side, 2)
        if rng.random() < 0.5:
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour())
        else:
            angles = rng.uniform(0, 2 * math.pi, 3)
            corners = [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]
            draw.polygon(corners, fill=colour())
    return np.asarray(image)


def contents(read: Preparation, count: int, seed: int = 0) -> list[np.ndarray]:
    """Contents of nobody's records, of the kind that is read: images, or rows of numbers."""
    if isinstance(read, Numbers):
        rng = np.random.default_rng(seed)
        return [read.drawn(rng) for _ in range(count)]
    shown = of_images(read)
    return images(count, shown.side, shown.channels, seed)


def pixels(core: Core, count: int = COUNT, seed: int = 0) -> list[np.ndarray]:
    """Synthetic images as the core's preprocessing leaves them, uint8 (channels, h, w), in full batches."""
    preprocess, count = core.backbone.preprocess, -(-count // BATCH) * BATCH
    return [preprocess.pixels(content) for content in contents(preprocess, count, seed)]


@torch.no_grad()
def activations(
    core: Core, count: int = COUNT, seed: int = 0, *, progress: Progress | None = None
) -> tuple[Tensor, int]:
    """Boundary activations of synthetic images, and how many layers of the prefix were matched to the
    network's own statistics. ``count`` is rounded up to full batches: the statistics are a batch's."""
    preprocess = core.backbone.preprocess
    count = -(-count // BATCH) * BATCH
    arrays = [preprocess(content) for content in contents(preprocess, count, seed)]
    parts: list[Tensor] = []
    with matched_statistics(core.prefix) as matched:
        for x in told(torch.from_numpy(np.stack(arrays)).split(BATCH), progress):
            parts.append(core.boundary(x))
    return torch.cat(parts), matched


def told(batches: Sequence[Tensor], progress: Progress | None) -> Iterator[Tensor]:
    """The batches one after the other; after each is said how far it is."""
    done, count = 0, sum(map(len, batches))
    for batch in batches:
        yield batch
        done += len(batch)
        if progress is not None:
            progress(done / count, f"synthetic images {done}/{count}")
