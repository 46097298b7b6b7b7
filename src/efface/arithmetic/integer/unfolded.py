"""Convolutions as matrix products: for devices whose own convolutions may transform their inputs.

Winograd's and Fourier's algorithms, which graphics cards choose by themselves, add and multiply other numbers
than those of the sum. A product of matrices in float32 multiplies and adds just these, in some order.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from efface.arithmetic.integer.ops import Geometry


def convolve(geometry: Geometry, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.conv2d`` of (n, c, h, w): every place's patch as a column, then one product."""
    kernel, o = weight.shape[2:], geometry
    columns = F.unfold(x, kernel, o.dilation, o.padding, o.stride)  # (n, c kh kw, places)
    n, _, places = columns.shape
    grouped = columns.reshape(n, o.groups, -1, places)
    filters = weight.reshape(o.groups, len(weight) // o.groups, -1)
    y = (filters @ grouped).reshape(n, len(weight), *_output(x, kernel, o))
    return y if bias is None else y + bias.view(1, -1, 1, 1)


def pull_back(geometry: Geometry, g: Tensor, weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient at the input, of this ``shape``, of one at the output; no groups.

    Every product goes to its place, and what meets there is added up: the sum that ``sums`` has bounded.
    """
    o = geometry
    columns = weight.flatten(1).T @ g.flatten(2)  # (n, c kh kw, places)
    return F.fold(columns, shape[2:], weight.shape[2:], o.dilation, o.padding, o.stride)


def _output(x: Tensor, kernel: tuple[int, ...], o: Geometry) -> list[int]:
    sides = zip(x.shape[2:], kernel, o.stride, o.padding, o.dilation, strict=True)
    return [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sides]
