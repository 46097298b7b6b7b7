"""Matrix products and convolutions of the mode: exact sums, with the weights' grids computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial

from torch import Tensor, nn

from efface.arithmetic.exact import exact_convolution as conv
from efface.arithmetic.exact.exact_sums import positive_zeros, product_bits, rounded


class WeightCache:
    """Rounded forms of tensors that do not change: the modules' parameters and buffers.

    A tensor is known by its place in memory, which is safe because the cache itself keeps that memory
    alive; its version counter shows changes in place.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept = [
            t.detach() for m in modules for t in (*m.parameters(), *m.buffers()) if t.numel()
        ]
        self._known = {t.untyped_storage().data_ptr() for t in self._kept}
        self._forms: dict[Hashable, Tensor] = {}

    def get(self, x: Tensor, name: Hashable, form: Callable[[Tensor], Tensor]) -> Tensor:
        """``form(x)``, from the cache if x is a weight or a view of one."""
        if x.untyped_storage().data_ptr() not in self._known:
            return form(x)
        key = (x.data_ptr(), x.shape, x.stride(), x._version, name)
        if key not in self._forms:
            self._forms[key] = form(x)
        return self._forms[key]


class Products:
    """aten's products, each in terms of exact sums."""

    def __init__(self, weights: WeightCache) -> None:
        self.weights = weights
        self.rules: dict[str, Callable] = {
            "mm": self.matmul,
            "bmm": self.matmul,
            "addmm": self.add_matmul,
            "baddbmm": self.add_matmul,
            "convolution": self.convolution,
            "convolution_backward": self.convolution_backward,
        }

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        if b.dim() == 3 and b.stride(0) == 0:  # one weight for the whole batch: one large product
            return self.matmul(a.flatten(0, 1), b[0]).unflatten(0, a.shape[:2])
        bits = product_bits(a.shape[-1])
        return positive_zeros(self._rounded(a, bits[0], -1) @ self._rounded(b, bits[1], -2))

    def _rounded(self, x: Tensor, bits: int, dim: int) -> Tensor:
        return self.weights.get(x, (bits, dim), partial(rounded, bits=bits, dims=dim))

    def add_matmul(
        self, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        """β · bias + α · ab, every step by itself."""
        product = self.matmul(a, b)
        if alpha != 1:
            product.mul_(alpha)
        return product.add_(bias if beta == 1 else bias * beta)

    def convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *values: object
    ) -> Tensor:
        geometry = _geometry(weight, values)
        bits = conv.forward_bits(weight)
        form = partial(conv.weight_for_outputs, bits=bits[1])
        kernel = self.weights.get(weight, ("outputs", bits[1]), form)
        y = conv.convolve(conv.by_group(x, bits[0], geometry.groups), kernel, geometry)
        return y if bias is None else y.add_(bias.view(-1, *[1] * (y.dim() - 2)))

    def convolution_backward(
        self, g: Tensor, x: Tensor, weight: Tensor, bias_sizes: object, *values: object
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        *shape, mask = values
        geometry = _geometry(weight, tuple(shape))
        wanted: list[bool] = mask  # type: ignore[assignment]
        return (
            self._input_gradient(g, x, weight, geometry) if wanted[0] else None,
            conv.weight_gradient(g, x, weight, geometry) if wanted[1] else None,
            conv.bias_gradient(g) if wanted[2] else None,
        )

    def _input_gradient(
        self, g: Tensor, x: Tensor, weight: Tensor, geometry: conv.ConvolutionGeometry
    ) -> Tensor:
        bits = conv.transpose_bits(weight, geometry.groups)
        form = partial(conv.weight_for_inputs, bits=bits[1], groups=geometry.groups)
        kernel = self.weights.get(weight, ("inputs", bits[1], geometry.groups), form)
        rounded_g = conv.by_group(g, bits[0], geometry.groups)
        return conv.transpose_convolve(rounded_g, x, kernel, geometry)


def _geometry(weight: Tensor, values: tuple) -> conv.ConvolutionGeometry:
    geometry = conv.ConvolutionGeometry.of(values, weight.dim() - 2)
    if geometry.transposed:
        raise NotImplementedError("a transposed convolution")
    return geometry
