"""Does this machine's torch do what the exact sums rest on? Asked once a process, before they are used.

Products and convolutions of integers whose sums reach 2^53, against int64; the rounding of single
operations against values that a flushed denormal, a reciprocal in place of a quotient, or a shorter
mantissa would get wrong.
"""

from __future__ import annotations

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from efface.arithmetic.exact.exact_convolution import (
    ConvolutionGeometry,
    convolve,
    transpose_convolve,
)
from efface.arithmetic.exact.roots import square_root
from efface.errors import EffaceError


class InexactBackend(EffaceError):
    """This build of torch does not compute integer sums exactly in float64."""


@cache
def self_test() -> None:
    """Raise :class:`InexactBackend` unless every check holds."""
    for name, check in CHECKS.items():
        if not check():
            raise InexactBackend(
                f"float64 on this machine is not exact: {name}.",
                "use --arithmetic float, or another build of torch.",
            )


def _integers(*shape: int, bits: int, seed: int) -> Tensor:
    """Odd numbers of ``bits`` bits, so that the last bit of every sum counts."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = torch.randint(2 ** (bits - 1), 2**bits, shape, generator=generator) | 1
    return magnitude * (1 - 2 * torch.randint(0, 2, shape, generator=generator))


def _matrix_products() -> bool:
    for m, k, n in ((33, 64, 17), (1, 2048, 5), (70, 130, 1)):
        bits = (53 - (k - 1).bit_length()) // 2
        a, b = _integers(m, k, bits=bits, seed=k), _integers(k, n, bits=bits, seed=n)
        for x, y in (
            (a, b),
            (a.abs(), b.abs()),
        ):  # without cancellation the sums are at their largest
            if not torch.equal(x.double() @ y.double(), (x @ y).double()):
                return False
    return True


def _convolutions() -> bool:
    return all(_convolution(groups, channels) for groups, channels in ((1, 8), (2, 8), (8, 8)))


def _convolution(groups: int, channels: int, side: int = 9) -> bool:
    """3 × 3 and its transpose against patches in int64."""
    geometry = ConvolutionGeometry((1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    x = _integers(2, channels, side, side, bits=23, seed=groups).abs()
    w = _integers(channels, channels // groups, 3, 3, bits=23, seed=groups + 1).abs()
    forward = convolve(x.double(), w.double(), geometry)
    back = transpose_convolve(x.double(), x.double(), w.double(), geometry)
    flipped = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(-1, -2)
    return bool(
        torch.equal(forward, _patches(x, w, groups))
        and torch.equal(back, _patches(x, flipped, groups))
    )


def _patches(x: Tensor, w: Tensor, groups: int) -> Tensor:
    n, c, h, _ = x.shape
    padded = F.pad(x, (1, 1, 1, 1))
    windows = padded.unfold(2, 3, 1).unfold(3, 3, 1)  # (n, c, h, w, 3, 3)
    windows = windows.permute(0, 2, 3, 1, 4, 5).reshape(n, h * h, groups, -1)
    kernels = w.reshape(groups, c // groups, -1)
    out = (windows.unsqueeze(3) * kernels).sum(-1)  # (n, positions, groups, c / groups)
    return out.flatten(2).transpose(1, 2).reshape(n, c, h, h).double()


def _single_operations() -> bool:
    """Many at once, so that the vectorised form is the one that is asked."""
    x = torch.arange(1, 258, dtype=torch.float64)
    quotients = [float(i) / 49.0 for i in range(1, 258)]  # Python's are IEEE's
    roots = [math.sqrt(i) for i in range(1, 258)]
    tiny = torch.full((257,), 2.0**-1060, dtype=torch.float64)
    return bool(
        (x / 49.0).tolist() == quotients
        and square_root(x).tolist() == roots
        and x.reciprocal().tolist() == [1 / i for i in range(1, 258)]
        and bool((tiny * 0.5 > 0).all())
        and ((x + 2.0**53) - 2.0**53).tolist()
        == [float(i) + 2.0**53 - 2.0**53 for i in range(1, 258)]
    )


CHECKS = {
    "matrix products": _matrix_products,
    "convolutions": _convolutions,
    "single operations": _single_operations,
}
