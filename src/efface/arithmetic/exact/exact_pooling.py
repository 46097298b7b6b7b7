"""Pooling: windows summed exactly, then divided once; and gradients that return to overlapping windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from efface.arithmetic.exact.exact_sums import exact_mean, rounded, sum_bits

_aten = torch.ops.aten


def max_pool_backward(g: Tensor, x: Tensor, kernel: Sequence[int], *rest: object) -> Tensor:
    """Each gradient goes to the place of its maximum; where windows overlap they are summed."""
    windows = kernel[0] * kernel[-1]
    return _aten.max_pool2d_with_indices_backward(_on_grid(g, windows), x, kernel, *rest)


def avg_pool(
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    window = (kernel, stride, padding, ceil_mode, True, 1)
    sums = _aten.avg_pool2d(_on_grid(x, kernel[0] * kernel[-1]), *window)
    return sums / _counts(x, window, count_include_pad, divisor_override)


def avg_pool_backward(
    g: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    window = (kernel, stride, padding, ceil_mode, True, 1)
    shares = g / _counts(x, window, count_include_pad, divisor_override)
    return _aten.avg_pool2d_backward(_on_grid(shares, kernel[0] * kernel[-1]), x, *window)


def _on_grid(x: Tensor, terms: int) -> Tensor:
    return rounded(x, sum_bits(terms), (-2, -1))


def _counts(x: Tensor, window: tuple, include_pad: bool, override: int | None) -> Tensor | int:
    """What each window's sum is divided by."""
    kernel, ceil_mode = window[0], window[3]
    if override is not None:
        return override
    if not include_pad:
        return _aten.avg_pool2d(torch.ones_like(x[:1, :1]), *window)
    if ceil_mode:
        raise NotImplementedError("avg_pool2d with ceil_mode and counted padding")
    return kernel[0] * kernel[-1]


def adaptive_avg_pool(x: Tensor, size: Sequence[int]) -> Tensor:
    """Means over equal blocks, (…, h, w) -> (…, *size)."""
    return exact_mean(_blocks(x, size), (-3, -1))


def adaptive_avg_pool_backward(g: Tensor, x: Tensor) -> Tensor:
    rows, columns = x.shape[-2] // g.shape[-2], x.shape[-1] // g.shape[-1]
    shares = (g / (rows * columns))[..., :, None, :, None]
    return shares.expand(_blocks(x, g.shape[-2:]).shape).reshape(x.shape)


def _blocks(x: Tensor, size: Sequence[int]) -> Tensor:
    if x.shape[-2] % size[-2] or x.shape[-1] % size[-1]:
        raise NotImplementedError("adaptive pooling to windows of unequal size")
    shape = (size[-2], x.shape[-2] // size[-2], size[-1], x.shape[-1] // size[-1])
    return x.reshape(*x.shape[:-2], *shape)
