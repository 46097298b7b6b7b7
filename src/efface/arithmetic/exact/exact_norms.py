"""Normalisations and softmax from exact sums and single operations, with their derivatives.

With x̂ = (x − μ) r, r = 1 / √(v + ε), and the means over what is normalised,

    y = x̂ w + b,      ∂x = r (ĝ − mean ĝ − x̂ · mean(ĝ x̂)),   ĝ = g w.
"""

from __future__ import annotations

import math

from torch import Tensor

from efface.arithmetic.exact.exact_sums import exact_mean, exact_sum
from efface.arithmetic.exact.roots import inverse_root, square_root
from efface.arithmetic.exact.tables import table


def normalised(x: Tensor, eps: float, dims: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """(x̂, μ, r), the last two with ``dims`` kept."""
    mean = exact_mean(x, dims, keepdim=True)
    centred = x - mean
    variance = exact_mean(centred * centred, dims, keepdim=True)
    rstd = inverse_root(variance + eps)
    return centred.mul_(rstd), mean, rstd


def normalised_backward(g: Tensor, xhat: Tensor, rstd: Tensor, dims: tuple[int, ...]) -> Tensor:
    """∂x from ĝ; the new tensors are overwritten, the arguments are not."""
    along = exact_mean(g * xhat, dims, keepdim=True)
    return (g - exact_mean(g, dims, keepdim=True)).sub_(xhat * along).mul_(rstd)


def layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = normalised(x, eps, _last(len(shape)))
    return _affine(y, weight, bias), mean, rstd


def layer_norm_backward(
    g: Tensor,
    x: Tensor,
    shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    xhat = (x - mean).mul_(rstd)
    scaled = g if weight is None else g * weight
    outer = tuple(range(x.dim() - len(shape)))
    dx = normalised_backward(scaled, xhat, rstd, _last(len(shape))) if mask[0] else None
    dw = exact_sum(g * xhat, outer) if mask[1] else None
    return dx, dw, exact_sum(g, outer) if mask[2] else None


def _last(count: int) -> tuple[int, ...]:
    return tuple(range(-count, 0))


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y.mul_(weight)
    return y if bias is None else y.add_(bias)


def group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: int,
    c: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd = normalised(x.reshape(n, groups, -1), eps, (-1,))
    y = y.view(x.shape)
    y = y if weight is None else y.mul_(_per_channel(weight, x))
    y = y if bias is None else y.add_(_per_channel(bias, x))
    return y, mean.flatten(1), rstd.flatten(1)


def group_norm_backward(
    g: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    positions: int,
    groups: int,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    rstd = rstd.view(n, groups, 1)
    xhat = (x.reshape(n, groups, -1) - mean.view(n, groups, 1)).mul_(rstd)
    per_channel, dx, dw, db = (0, *range(2, x.dim())), None, None, None
    if mask[0]:
        scaled = g if weight is None else g * _per_channel(weight, x)
        dx = normalised_backward(scaled.reshape(n, groups, -1), xhat, rstd, (-1,)).view(x.shape)
    if mask[1]:
        dw = exact_sum(g * xhat.view(x.shape), per_channel)
    if mask[2]:
        db = exact_sum(g, per_channel)
    return dx, dw, db


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))


def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
) -> Tensor:
    """With running statistics: elementwise."""
    scale = inverse_root(variance + eps)
    scale = scale if weight is None else scale.mul_(weight)
    y = (x - _per_channel(mean, x)).mul_(_per_channel(scale, x))
    return y if bias is None else y.add_(_per_channel(bias, x))


def batch_norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    rstd, dims = inverse_root(variance + eps), (0, *range(2, x.dim()))
    scale = rstd if weight is None else rstd * weight
    dx = g * _per_channel(scale, x) if mask[0] else None
    dw = None
    if mask[1]:
        xhat = (x - _per_channel(mean, x)).mul_(_per_channel(rstd, x))
        dw = exact_sum(g * xhat, dims)
    return dx, dw, exact_sum(g, dims) if mask[2] else None


def softmax(x: Tensor, dim: int) -> Tensor:
    """e^(x − max) / Σ e^(x − max), the exponential from its table."""
    powers = table("exp")(x - x.amax(dim, keepdim=True))
    return powers.div_(exact_sum(powers, dim, keepdim=True))


def safe_softmax(x: Tensor, dim: int) -> Tensor:
    """0 where a whole slice is −∞."""
    empty = x.amax(dim, keepdim=True) == -math.inf
    if not bool(empty.any()):
        return softmax(x, dim)
    return softmax(x.masked_fill(empty, 0.0), dim).masked_fill_(empty, 0.0)


def softmax_backward(g: Tensor, y: Tensor, dim: int) -> Tensor:
    """y (g − Σ g y)."""
    product = g * y
    return product.sub_(exact_sum(product, dim, keepdim=True) * y)


def vector_norm(x: Tensor, dims: tuple[int, ...], keepdim: bool) -> Tensor:
    """√ Σ x²."""
    return square_root(exact_sum(x * x, dims, keepdim))
