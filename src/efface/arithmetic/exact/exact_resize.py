"""Resizing maps (DINOv2's position embeddings at another image size) as two exact products.

Each direction is a matrix whose few entries a row come from single operations on Python's floats: with
scale s = in / out, output i sits at s (i + ½) − ½ of the input, and weighs its neighbours by a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from efface.arithmetic.exact.exact_sums import exact_matmul

CUBIC = -0.75  # torch's coefficient of the cubic kernel


def cubic_weights(t: float) -> list[float]:
    """Of the neighbours −1, 0, 1, 2 for a place t ∈ [0, 1) behind neighbour 0."""
    return [_far(t + 1), _near(t), _near(1 - t), _far(2 - t)]


def _near(x: float) -> float:
    return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1


def _far(x: float) -> float:
    return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC


def cubic_matrix(size: int, target: int, scale: float | None = None) -> Tensor:
    """(target, size); neighbours beyond the edge count as the edge."""
    step = size / target if scale is None else 1 / scale
    matrix = [[0.0] * size for _ in range(target)]
    for i, row in enumerate(matrix):
        place = step * (i + 0.5) - 0.5
        base = math.floor(place)
        for offset, weight in enumerate(cubic_weights(place - base)):
            row[min(max(base + offset - 1, 0), size - 1)] += weight
    return torch.tensor(matrix, dtype=torch.float64)


def resize_cubic(
    x: Tensor,
    size: Sequence[int],
    align_corners: bool,
    scale_h: float | None = None,
    scale_w: float | None = None,
) -> Tensor:
    """(…, h, w) -> (…, *size), in float64 and back to the type of ``x``."""
    if align_corners:
        raise NotImplementedError("resizing with aligned corners")
    rows = cubic_matrix(x.shape[-2], size[0], scale_h)
    columns = cubic_matrix(x.shape[-1], size[1], scale_w)
    flat = x.double().flatten(0, -3)  # (maps, h, w)
    halfway = exact_matmul(flat, columns.T.expand(len(flat), -1, -1))
    resized = exact_matmul(rows.expand(len(flat), -1, -1), halfway)
    return resized.view(*x.shape[:-2], *size).to(x.dtype)
