"""3 × 3 convolutions by Winograd's F(4 × 4, 3 × 3): a third of the multiplications, for all four products.

A 4 × 4 patch of outputs needs a 6 × 6 patch of inputs d and the kernel g:

    Y = Aᵀ [(G g Gᵀ) ∘ (Bᵀ d B)] A,

36 multiplications instead of 144, and over channels 36 matrix products. Everything is linear in g for
fixed d, so the tangent, its transpose and the weight's gradient have the same form. It is the same map: in
float64 it agrees with the direct product to about 1e-13, in float32 it is a digit less accurate.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efface.linear.gemm import Room, rows_product, times
from efface.linear.layers import Layer, Saved

_BT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_G = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_AT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
AT_ONCE = 9  # user kernels that are transformed at a time: they stay in the processor's cache


def _square(matrix: tuple[tuple[float, ...], ...], dtype: torch.dtype) -> Tensor:
    """M ⊗ M: the transform of both directions at once."""
    m = torch.tensor(matrix, dtype=torch.float64)
    return torch.kron(m, m).to(dtype)


def suits_winograd(conv: nn.Conv2d, min_channels: int = 64) -> bool:
    """3 × 3, stride 1, padding 1, and enough channels for the transforms to cost little."""
    shape = (conv.kernel_size, conv.stride, conv.padding) == ((3, 3), (1, 1), (1, 1))
    return shape and min(conv.in_channels, conv.out_channels) >= min_channels


class WinogradLayer(Layer):
    """Inputs are kept transformed, (n, 36, tiles, c): smaller than their patches by a third to a half."""

    def __init__(self, conv: nn.Conv2d, prefix: str) -> None:
        self.weight = conv.weight.detach()
        self.bias = None if conv.bias is None else conv.bias.detach()
        self.w_name, self.b_name = f"{prefix}weight", f"{prefix}bias"
        self.names = (self.w_name,) + ((self.b_name,) if self.bias is not None else ())
        self._kernels: dict[tuple[torch.dtype, bool], Tensor] = {}
        self._room = Room()

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        n, h, w, _ = x.shape
        inputs = _input_transform(x)
        y = _output_transform(self._products(inputs, self._core(x.dtype)), n, h, w)
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        saved = inputs.unflatten(1, (n, -1)).transpose(0, 1).contiguous()  # (n, 36, tiles, c)
        return y, (saved, x[..., :0])

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor:
        n, h, w, _ = saved[1].shape
        inner = self._times_kernels(saved[0].transpose(0, 1), v[self.w_name])
        if dx is not None:
            inner += self._products(_input_transform(dx), self._core(dx.dtype), "more")
        y = _output_transform(inner, n, h, w)
        return y if self.bias is None else y + v[self.b_name]

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        outer = self._outer(dy)
        out[self.w_name] += self._kernel_sum(saved[0].transpose(0, 1), outer)
        if self.bias is not None:
            out[self.b_name] += dy.sum((0, 1, 2))
        return self._from_outer(outer, saved[1].shape) if need_dx else None

    def below(self, saved: Saved, dy: Tensor) -> Tensor:
        """(∂φ/∂x)ᵀ dy alone, without the weight's gradient."""
        return self._from_outer(self._outer(dy), saved[1].shape)

    def pull_back(self, dy: Tensor) -> Tensor:
        """(∂φ/∂x)ᵀ dy alone, whatever the inputs were."""
        return self._from_outer(self._outer(dy), dy.shape)

    def _core(self, dtype: torch.dtype, back: bool = False) -> Tensor:
        """The core's kernels, (36, o, c), or (36, c, o) for the way back: kept, since they never change."""
        if (dtype, back) not in self._kernels:
            kernels = _kernel_transform(self.weight.to(dtype))
            self._kernels[dtype, back] = kernels.transpose(1, 2).contiguous() if back else kernels
        return self._kernels[dtype, back]

    def _products(self, x: Tensor, kernels: Tensor, room: str = "products") -> Tensor:
        """X_i W_iᵀ of all 36, (36, …, c) and (36, o, c) -> (36, n·tiles, o)."""
        out = self._room(room, x, 36, x[0].numel() // x.shape[-1], kernels.shape[1])
        return _products(x, kernels, out)

    def _outer(self, dy: Tensor) -> Tensor:
        """The transpose of ``_output_transform``: (n, h, w, o) -> (36, n·tiles, o)."""
        n, h, w, o = dy.shape
        th, tw = _tiles(h), _tiles(w)
        dy = F.pad(dy, (0, 0, 0, 4 * tw - w, 0, 4 * th - h))
        tiles = dy.view(n, th, 4, tw, 4, o).permute(2, 4, 0, 1, 3, 5).reshape(16, -1)
        out = self._room("outer", dy, 36, tiles.shape[1])
        return torch.mm(_square(_AT, dy.dtype).T, tiles, out=out).view(36, n * th * tw, o)

    def _from_outer(self, outer: Tensor, shape: torch.Size) -> Tensor:
        n, h, w, _ = shape
        return _input_transpose(self._products(outer, self._core(outer.dtype, back=True)), n, h, w)

    def _times_kernels(self, inputs: Tensor, weight: Tensor) -> Tensor:
        """Inputs (36, n, tiles, c) times the transformed weight (o, c, 3, 3), (36, n·tiles, o)."""
        o, c = weight.shape[:2]
        flat, some = weight.reshape(o * c, 9).T, self._room("kernels", weight, AT_ONCE, o * c)
        out = self._room("products", inputs, 36, inputs[0].numel() // c, o)
        for i in range(0, 36, AT_ONCE):
            here = slice(i, i + AT_ONCE)
            torch.mm(_square(_G, flat.dtype)[here], flat, out=some)
            _products(inputs[here], some.view(-1, o, c), out[here])
        return out

    def _kernel_sum(self, inputs: Tensor, outer: Tensor) -> Tensor:
        """The transpose of ``_times_kernels`` in the weight: (o, c, 3, 3), a view of (9, o c)."""
        c, o = inputs.shape[-1], outer.shape[-1]
        total, some = inputs.new_zeros(9, o * c), self._room("kernels", inputs, AT_ONCE, o * c)
        for i in range(0, 36, AT_ONCE):
            here = slice(i, i + AT_ONCE)
            for one, dy, x in zip(some, outer[here], inputs[here], strict=True):
                one.view(o, c).copy_(rows_product(dy, x))
            total.addmm_(_square(_G, inputs.dtype)[here].T, some)
        return total.T.reshape(o, c, 3, 3)


def _tiles(size: int) -> int:
    return -(-size // 4)


def _products(x: Tensor, kernels: Tensor, out: Tensor) -> Tensor:
    """X_i W_iᵀ of each into ``out``, (36, …, c) and (36, o, c) -> (36, n·tiles, o)."""
    for one, kernel, found in zip(x, kernels, out, strict=True):
        found.copy_(times(one, kernel).view_as(found))
    return out


def _kernel_transform(weight: Tensor) -> Tensor:
    """(o, c, 3, 3) -> G g Gᵀ as (36, o, c)."""
    o, c = weight.shape[:2]
    return (_square(_G, weight.dtype) @ weight.reshape(o * c, 9).T).view(36, o, c)


def _input_transform(x: Tensor) -> Tensor:
    """(n, h, w, c) -> Bᵀ d B of every 6 × 6 tile at stride 4, (36, n·tiles, c)."""
    n, h, w, c = x.shape
    th, tw = _tiles(h), _tiles(w)
    x = F.pad(x, (0, 0, 1, 4 * tw + 1 - w, 1, 4 * th + 1 - h))
    s = x.stride()
    view = x.as_strided((6, 6, n, th, tw, c), (s[1], s[2], s[0], 4 * s[1], 4 * s[2], s[3]))
    flat = view.reshape(36, n * th * tw * c)
    return (_square(_BT, x.dtype) @ flat).view(36, n * th * tw, c)


def _input_transpose(inner: Tensor, n: int, h: int, w: int) -> Tensor:
    """The transpose of ``_input_transform``: overlapping tiles are summed back to where they came from."""
    th, tw, c = _tiles(h), _tiles(w), inner.shape[-1]
    tiles = (_square(_BT, inner.dtype).T @ inner.view(36, -1)).view(6, 6, n, th, tw, c)
    x = inner.new_zeros(n, 4 * th + 2, 4 * tw + 2, c)
    for i in range(6):
        for j in range(6):
            x[:, i : i + 4 * th : 4, j : j + 4 * tw : 4] += tiles[i, j]
    return x[:, 1 : h + 1, 1 : w + 1]


def _output_transform(inner: Tensor, n: int, h: int, w: int) -> Tensor:
    """(36, n·tiles, o) -> Aᵀ m A of every tile, laid out as (n, h, w, o)."""
    th, tw, o = _tiles(h), _tiles(w), inner.shape[-1]
    y = (_square(_AT, inner.dtype) @ inner.view(36, -1)).view(4, 4, n, th, tw, o)
    y = y.permute(2, 3, 0, 4, 1, 5).reshape(n, 4 * th, 4 * tw, o)
    return y[:, :h, :w].contiguous()
