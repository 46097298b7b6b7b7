"""Convolutions as exact sums, and their transposes.

The inputs get one grid for each sample and group, the weights one for each output channel (forward) or each
input channel (transpose), so that all terms of an entry have one common step. Torch's float64 convolution
is a matrix product on patches (no Winograd, no FFT; ``self_test`` looks), exact on such numbers.
Depthwise convolutions are a sum of shifted products, which is faster than patches of one channel each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from efface.arithmetic.exact.exact_sums import exact_sum, positive_zeros, product_bits, rounded

_convolve = torch.ops.aten.convolution.default
_convolve_backward = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class ConvolutionGeometry:
    """Everything about a convolution but its numbers, in aten's order."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, values: tuple, dims: int) -> ConvolutionGeometry:
        """From aten's arguments; a single number stands for all ``dims`` directions."""
        stride, padding, dilation, transposed, output_padding, groups = values
        full = [_each(v, dims) for v in (stride, padding, dilation, output_padding)]
        return cls(full[0], full[1], full[2], transposed, full[3], groups)

    @property
    def arguments(self) -> tuple:
        return (
            self.stride,
            self.padding,
            self.dilation,
            self.transposed,
            self.output_padding,
            self.groups,
        )

    def is_depthwise(self, weight: Tensor) -> bool:
        """One input and one output channel a group, in two dimensions."""
        return (
            weight.dim() == 4
            and weight.shape[1] == 1
            and weight.shape[0] == self.groups > 1
            and not self.transposed
        )


def _each(values: list[int], dims: int) -> tuple[int, ...]:
    return tuple(values) * dims if len(values) == 1 else tuple(values)


def by_group(x: Tensor, bits: int, groups: int) -> Tensor:
    """x (n, c, …) on one grid for each sample and group of channels."""
    parts = x.reshape(len(x), groups, -1)
    return rounded(parts, bits, -1).view(x.shape)


def weight_for_outputs(weight: Tensor, bits: int) -> Tensor:
    """One grid for each output channel: (c_out, c_in / groups, …)."""
    return rounded(weight, bits, tuple(range(1, weight.dim())))


def weight_for_inputs(weight: Tensor, bits: int, groups: int) -> Tensor:
    """One grid for each input channel, over the outputs of its group and the kernel."""
    parts = weight.unflatten(0, (groups, -1))
    dims = (1, *range(3, parts.dim()))
    return rounded(parts, bits, dims).flatten(0, 1)


def forward_bits(weight: Tensor) -> tuple[int, int]:
    """Bits of inputs and weights: c_in / groups · kernel terms."""
    return product_bits(weight[0].numel())


def transpose_bits(weight: Tensor, groups: int) -> tuple[int, int]:
    """Bits of gradients and weights: at most c_out / groups · kernel terms."""
    return product_bits(weight[:, 0].numel() // groups)


def convolve(x: Tensor, weight: Tensor, geometry: ConvolutionGeometry) -> Tensor:
    """Σ of inputs and weights already on their grids."""
    if geometry.is_depthwise(weight):
        return _depthwise(x, weight, geometry)
    return positive_zeros(_convolve(x, weight, None, *geometry.arguments))


def transpose_convolve(
    g: Tensor, x: Tensor, weight: Tensor, geometry: ConvolutionGeometry
) -> Tensor:
    """The input's gradient from the output's, both g and weight already on their grids."""
    if geometry.is_depthwise(weight):
        return _depthwise_transpose(g, x, weight, geometry)
    mask = [True, False, False]
    return positive_zeros(_convolve_backward(g, x, weight, None, *geometry.arguments, mask)[0])


def weight_gradient(g: Tensor, x: Tensor, weight: Tensor, geometry: ConvolutionGeometry) -> Tensor:
    """The weight's gradient: a sum over samples and places, one grid for each channel of g and x."""
    bits = product_bits(len(g) * math.prod(g.shape[2:]))
    dims = (0, *range(2, g.dim()))
    mask = [False, True, False]
    g, x = rounded(g, bits[0], dims), rounded(x, bits[1], dims)
    return positive_zeros(_convolve_backward(g, x, weight, None, *geometry.arguments, mask)[1])


def bias_gradient(g: Tensor) -> Tensor:
    return exact_sum(g, (0, *range(2, g.dim())))


def _windows(geometry: ConvolutionGeometry, size: tuple[int, ...], kernel: tuple[int, ...]):  # type: ignore[no-untyped-def]
    """For each place in the kernel, the slices of the padded input that it meets."""
    (sh, sw), (dh, dw), (oh, ow) = geometry.stride, geometry.dilation, size
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dh, i * dh + (oh - 1) * sh + 1, sh)
            yield i, j, (..., rows, slice(j * dw, j * dw + (ow - 1) * sw + 1, sw))


def _depthwise(x: Tensor, weight: Tensor, geometry: ConvolutionGeometry) -> Tensor:
    (ph, pw), kernel = geometry.padding, weight.shape[2:]
    padded = F.pad(x.contiguous(), (pw, pw, ph, ph))
    size = tuple(
        (padded.shape[2 + a] - geometry.dilation[a] * (kernel[a] - 1) - 1) // geometry.stride[a] + 1
        for a in range(2)
    )
    out = padded.new_zeros(len(x), x.shape[1], *size)
    for i, j, window in _windows(geometry, size, kernel):
        out.addcmul_(padded[window], weight[:, 0, i, j].view(-1, 1, 1))  # exact, fused or not
    return out


def _depthwise_transpose(
    g: Tensor, x: Tensor, weight: Tensor, geometry: ConvolutionGeometry
) -> Tensor:
    (ph, pw), (h, w) = geometry.padding, x.shape[2:]
    padded = g.new_zeros(*x.shape[:2], h + 2 * ph, w + 2 * pw)
    for i, j, window in _windows(geometry, tuple(g.shape[2:]), weight.shape[2:]):
        padded[window].addcmul_(g, weight[:, 0, i, j].view(-1, 1, 1))
    return padded[..., ph : ph + h, pw : pw + w].contiguous()
