"""Which aten operations give the same bits everywhere as they are, and what stands in for the others.

``SELECTIONS``   move, compare or create values and round nothing: any type, passed through
``EXTREMES``     choose the larger or smaller: the same, but which of −0 and +0 is larger is up to the kernel
``SINGLE``       one correctly rounded operation on each element: float64, passed through
``RULES``        everything else that is known, composed from exact sums, tables and single operations
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from efface.arithmetic.exact import exact_activations as activations
from efface.arithmetic.exact import exact_norms as norms
from efface.arithmetic.exact import exact_pooling as pooling
from efface.arithmetic.exact.exact_resize import resize_cubic
from efface.arithmetic.exact.exact_sums import exact_mean, exact_sum, terms_along
from efface.arithmetic.exact.roots import inverse_root, square_root


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS_AND_COPIES = _names("""
    view _unsafe_view reshape _reshape_alias t transpose permute expand slice select narrow unsqueeze squeeze
    slice_backward select_backward cat stack clone copy _to_copy roll flip index index_select gather repeat
    constant_pad_nd unbind split split_with_sizes im2col unfold as_strided detach alias lift_fresh tril triu
    pixel_shuffle pixel_unshuffle embedding
""")
NEW_TENSORS = _names("""
    ones_like zeros_like empty_like full_like new_zeros new_ones new_empty new_full new_empty_strided
    zeros ones full empty empty_strided scalar_tensor zero fill eye
""")
CHOICES = _names("""
    where masked_fill eq ne lt le gt ge logical_and logical_or logical_not logical_xor bitwise_and bitwise_or
    bitwise_not isnan isinf any all equal _local_scalar_dense hardtanh_backward threshold_backward abs neg
    sign sgn max_pool2d_with_indices
""")
SELECTIONS = VIEWS_AND_COPIES | NEW_TENSORS | CHOICES
EXTREMES = _names("amax amin maximum minimum clamp clamp_min clamp_max relu hardtanh")
SINGLE = _names("""
    add sub rsub mul div reciprocal leaky_relu leaky_relu_backward floor ceil trunc frac round
""")

ANY_TYPE = _names("upsample_bicubic2d")  # rules that compute in float64 whatever they are given


def _over(x: Tensor, dims: Sequence[int] | int | None) -> tuple[int, ...]:
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(x.dim()))
    return (dims,) if isinstance(dims, int) else tuple(dims)


def _sum(
    x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None
) -> Tensor:
    if not x.is_floating_point():
        return x.sum(_over(x, dims), keepdim)  # integers: exact as they are
    return exact_sum(x, _over(x, dims), keepdim)


def _mean(
    x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False, *, dtype: object = None
) -> Tensor:
    return exact_mean(x, _over(x, dims), keepdim)


def _variance_and_mean(
    x: Tensor,
    dims: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    over = _over(x, dims)
    mean = exact_mean(x, over, keepdim=True)
    centred = x - mean
    freedom = terms_along(x, over) - (1 if correction is None else correction)
    variance = exact_sum(centred * centred, over, keepdim).div_(freedom)
    return variance, mean if keepdim else mean.squeeze(over)


def _variance(x: Tensor, *args: object, **options: object) -> Tensor:
    return _variance_and_mean(x, *args, **options)[0]  # type: ignore[arg-type]


def _vector_norm(
    x: Tensor,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Tensor:
    if order != 2:
        raise NotImplementedError(f"a norm of order {order}")
    return norms.vector_norm(x, _over(x, dims), keepdim)


def _power(x: Tensor, exponent: float) -> Tensor:
    if exponent == 1:
        return x.clone()
    if exponent == 2:
        return x * x
    if exponent in (0.5, -0.5):
        return square_root(x) if exponent > 0 else inverse_root(x)
    raise NotImplementedError(f"a power of {exponent}")


def _times_then_plus(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    """x + value · (a b): aten's own may fuse, which rounds once instead of twice."""
    return x + (a * b if value == 1 else (a * b).mul_(value))


def _quotient_plus(x: Tensor, a: Tensor, b: Tensor, *, value: float = 1) -> Tensor:
    return x + (a / b if value == 1 else (a / b).mul_(value))


def _blend(x: Tensor, y: Tensor, weight: Tensor | float) -> Tensor:
    return x + (y - x) * weight


def _batch_norm_eval(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    empty = x.new_empty(0)
    return norms.batch_norm(x, weight, bias, mean, variance, eps), empty, empty.clone()


def _batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if training or mean is None or variance is None:
        raise NotImplementedError("BatchNorm in training")
    return _batch_norm_eval(x, weight, bias, mean, variance, momentum, eps)


def _batch_norm_backward(
    g: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    saved_mean: Tensor | None,
    saved_rstd: Tensor | None,
    training: bool,
    eps: float,
    mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if training or mean is None or variance is None:
        raise NotImplementedError("BatchNorm in training")
    return norms.batch_norm_backward(g, x, weight, mean, variance, eps, mask)


def _arange(*args: float, **options: object) -> Tensor:
    if not all(isinstance(value, int) for value in args):
        raise NotImplementedError("arange of fractions")
    return torch.arange(*args, **options)  # type: ignore[call-overload]


RULES: dict[str, Callable] = {
    "sum": _sum,
    "mean": _mean,
    "var": _variance,
    "var_mean": _variance_and_mean,
    "linalg_vector_norm": _vector_norm,
    "pow": _power,
    "square": lambda x: x * x,
    "sqrt": square_root,
    "rsqrt": inverse_root,
    "addcmul": _times_then_plus,
    "addcdiv": _quotient_plus,
    "lerp": _blend,
    "arange": _arange,
    "native_layer_norm": norms.layer_norm,
    "native_layer_norm_backward": norms.layer_norm_backward,
    "native_group_norm": norms.group_norm,
    "native_group_norm_backward": norms.group_norm_backward,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm_eval,
    "native_batch_norm_backward": _batch_norm_backward,
    "_softmax": lambda x, dim, half_to_float: norms.softmax(x, dim),
    "_safe_softmax": lambda x, dim, dtype=None: norms.safe_softmax(x, dim),
    "_softmax_backward_data": lambda g, y, dim, dtype: norms.softmax_backward(g, y, dim),
    "gelu": lambda x, *, approximate="none": activations.gelu(x, approximate),
    "gelu_backward": (
        lambda g, x, *, approximate="none": activations.gelu_backward(g, x, approximate)
    ),
    "erf": activations.erf,
    "tanh": activations.tanh,
    "tanh_backward": activations.tanh_backward,
    "sigmoid": activations.sigmoid,
    "sigmoid_backward": activations.sigmoid_backward,
    "silu": activations.silu,
    "silu_backward": activations.silu_backward,
    "hardsigmoid": activations.hardsigmoid,
    "hardsigmoid_backward": activations.hardsigmoid_backward,
    "hardswish": activations.hardswish,
    "hardswish_backward": activations.hardswish_backward,
    "upsample_bicubic2d": resize_cubic,
    "max_pool2d_with_indices_backward": pooling.max_pool_backward,
    "avg_pool2d": pooling.avg_pool,
    "avg_pool2d_backward": pooling.avg_pool_backward,
    "_adaptive_avg_pool2d": pooling.adaptive_avg_pool,
    "_adaptive_avg_pool2d_backward": pooling.adaptive_avg_pool_backward,
}
