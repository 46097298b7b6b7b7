"""Linearised layers: the primal side is computed once and saved, products then cost only products.

Around the core weights θ, a layer y = φ_θ(x) has the tangent ẏ = ∂φ/∂x ẋ + ∂φ/∂θ v. What both terms
need of the primal (the layer's input, its activation mask) does not change while θ is frozen, so
``forward`` returns it as ``saved`` and ``jvp``/``vjp`` never run the network again. Convolutions become
matrix products over (n·h·w) rows, which run at the machine's GEMM peak.

Feature maps are (n, h, w, c) inside; every saved tensor has n in front, so a saved tree can be sliced
by sample. A tangent of None is zero: the first layer has no incoming tangent and needs no outgoing
cotangent, and both are skipped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from efface.linear.gemm import rows_product, times

Saved = Any  # a nested tuple of tensors, each with the sample dimension in front


class Layer(ABC):
    """One linearised layer. ``names`` are its parameters' names in the tail."""

    names: tuple[str, ...] = ()

    @abstractmethod
    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        """Primal output, and what the products need of it."""

    @abstractmethod
    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        """ẏ = ∂φ/∂x ẋ + ∂φ/∂θ v."""

    @abstractmethod
    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        """Adds (∂φ/∂θ)ᵀ dy into ``out``; returns (∂φ/∂x)ᵀ dy if ``need_dx``."""

    def product(
        self, saved: Saved, v: Mapping[str, Tensor], out: MutableMapping[str, Tensor]
    ) -> None:
        """Adds (∂φ/∂θ)ᵀ (∂φ/∂θ) v into ``out``."""
        dy = self.jvp(saved, None, v)
        if dy is not None:
            self.vjp(saved, dy, out, False)


class ViewsLayer(Layer):
    """y = mean over views of φ(x_view), x of shape (n, views, …): the first layer of a mirrored tail."""

    def __init__(self, inner: Layer, views: int) -> None:
        self.inner, self.views, self.names = inner, views, inner.names

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        # (n, views, tokens, width) was taken for a feature map and permuted like one.
        flat = (x.permute(0, 3, 1, 2) if x.dim() == 4 else x).flatten(0, 1)
        flat = flat.permute(0, 2, 3, 1).contiguous() if flat.dim() == 4 else flat
        y, saved = self.inner.forward(flat)
        split = lambda t: t.unflatten(0, (-1, self.views))  # noqa: E731 - samples in front again
        return split(y).mean(1), tree_map(split, saved)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        dy = self.inner.jvp(_flat(saved), None if dx is None else dx.flatten(0, 1), v)
        return None if dy is None else dy.unflatten(0, (-1, self.views)).mean(1)

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        each = (dy / self.views).unsqueeze(1).expand(-1, self.views, *dy.shape[1:]).flatten(0, 1)
        dx = self.inner.vjp(_flat(saved), each, out, need_dx)
        return None if dx is None else dx.unflatten(0, (-1, self.views))


def _flat(saved: Saved) -> Saved:
    return tree_map(lambda t: t.flatten(0, 1), saved)


class Chain(Layer):
    def __init__(self, layers: list[Layer]) -> None:
        self.layers = layers
        self.names = tuple(name for layer in layers for name in layer.names)

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        saved = []
        for layer in self.layers:
            x, s = layer.forward(x)
            saved.append(s)
        return x, tuple(saved)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        for layer, s in zip(self.layers, saved, strict=True):
            dx = layer.jvp(s, dx, v)
        return dx

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        # A cotangent is needed below layer i only if something below it has parameters.
        below = False
        needs = []
        for layer in self.layers:
            needs.append(need_dx or below)
            below = below or bool(layer.names)
        cotangent: Tensor | None = dy
        for layer, s, need in reversed(list(zip(self.layers, saved, needs, strict=True))):
            if cotangent is None:
                break
            cotangent = layer.vjp(s, cotangent, out, need)
        return cotangent if need_dx else None


class ResidualLayer(Layer):
    """a(body(x) + shortcut(x))."""

    def __init__(self, body: Layer, shortcut: Layer, activation: Layer) -> None:
        self.body, self.shortcut, self.activation = body, shortcut, activation
        self.names = body.names + shortcut.names + activation.names

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        a, saved_body = self.body.forward(x)
        b, saved_shortcut = self.shortcut.forward(x)
        y, saved_activation = self.activation.forward(a + b)
        return y, (saved_body, saved_shortcut, saved_activation)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        total = _add(self.body.jvp(saved[0], dx, v), self.shortcut.jvp(saved[1], dx, v))
        return self.activation.jvp(saved[2], total, v)

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        dz = self.activation.vjp(saved[2], dy, out, True)
        assert dz is not None
        a = self.body.vjp(saved[0], dz, out, need_dx)
        b = (
            self.shortcut.vjp(saved[1], dz, out, need_dx)
            if need_dx or self.shortcut.names
            else None
        )
        return _add(a, b) if need_dx else None


def _add(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


class ConvLayer(Layer):
    """Convolution as a product of rows: Y = X_col W_col + b, X_col of shape (n·h'·w', kh·kw·c)."""

    def __init__(self, conv: nn.Conv2d, prefix: str) -> None:
        self.weight, self.bias = conv.weight.detach(), conv.bias
        self.w_name, self.b_name = f"{prefix}weight", f"{prefix}bias"
        self.names = (self.w_name,) + ((self.b_name,) if conv.bias is not None else ())
        self.stride, self.kernel = conv.stride, conv.kernel_size
        assert isinstance(conv.padding, tuple)
        self.padding = conv.padding
        self._cols: dict[tuple[torch.dtype, bool], Tensor] = {}

    def _columns(self, x: Tensor) -> Tensor:
        """(n, h, w, c) -> (n, h', w', kh·kw·c); a strided view where the kernel is 1 × 1."""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.padding
        if ph or pw:
            x = F.pad(x, (0, 0, pw, pw, ph, ph))
        if kh == kw == 1:
            return x[:, ::sh, ::sw]
        n, h, w, c = x.shape
        ho, wo = (h - kh) // sh + 1, (w - kw) // sw + 1
        s = x.stride()
        patches = x.as_strided(
            (n, ho, wo, kh, kw, c), (s[0], s[1] * sh, s[2] * sw, s[1], s[2], s[3])
        )
        return patches.reshape(n, ho, wo, kh * kw * c)

    def _scatter(self, cols: Tensor, shape: torch.Size) -> Tensor:
        """The transpose of ``_columns``: sum every patch back to where it came from."""
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.padding
        n, h, w, c = shape
        ho, wo = cols.shape[1:3]
        x = cols.new_zeros(n, h + 2 * ph, w + 2 * pw, c)
        parts = cols.view(n, ho, wo, kh, kw, c)
        for i in range(kh):
            for j in range(kw):
                x[:, i : i + sh * ho : sh, j : j + sw * wo : sw] += parts[:, :, :, i, j]
        return x[:, ph : ph + h, pw : pw + w]

    def matrix(self, weight: Tensor) -> Tensor:
        return weight.permute(0, 2, 3, 1).flatten(1)  # (o, kh·kw·c)

    def _core(self, dtype: torch.dtype, back: bool = False) -> Tensor:
        """The core weights as a matrix (o, kh·kw·c), or transposed for the way back: kept, since they never
        change."""
        if (dtype, back) not in self._cols:
            matrix = self.matrix(self.weight).to(dtype)
            self._cols[dtype, back] = (matrix.T if back else matrix).contiguous()
        return self._cols[dtype, back]

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        cols = self._columns(x)
        y = times(cols, self._core(x.dtype))
        if self.bias is not None:
            y = y + self.bias.detach().to(x.dtype)
        marker = x[..., :0]  # remembers the input's h and w for the transpose
        return y, (cols, marker)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor:
        cols, _ = saved
        y = times(cols, self.matrix(v[self.w_name]))
        if self.bias is not None:
            y += v[self.b_name]
        if dx is not None:
            y += times(self._columns(dx), self._core(dx.dtype))
        return y

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        o, (kh, kw), c = dy.shape[-1], self.kernel, self.weight.shape[1]
        gradient = rows_product(dy, saved[0])  # (o, kh·kw·c)
        out[self.w_name] += gradient.view(o, kh, kw, c).permute(0, 3, 1, 2)
        if self.bias is not None:
            out[self.b_name] += dy.sum((0, 1, 2))
        return self.below(saved, dy) if need_dx else None

    def below(self, saved: Saved, dy: Tensor) -> Tensor:
        """(∂φ/∂x)ᵀ dy alone."""
        dcols = times(dy, self._core(dy.dtype, back=True))
        if self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0):
            return dcols
        return self._scatter(dcols, torch.Size((*saved[1].shape[:3], self.weight.shape[1])))


class LinearLayer(Layer):
    """y = x Wᵀ + b over the last dimension of the *module's* layout: of a (n, h, w, c) map inside a
    network that permutes (ConvNeXt's blocks), that is not our last one."""

    def __init__(self, linear: nn.Linear, prefix: str) -> None:
        self.weight = linear.weight.detach()
        self.bias = None if linear.bias is None else linear.bias.detach()
        self.w_name, self.b_name = f"{prefix}weight", f"{prefix}bias"
        self.names = (self.w_name,) + ((self.b_name,) if self.bias is not None else ())

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        x = to_module(x)
        y = times(x, self.weight.to(x.dtype))
        return from_module(y if self.bias is None else y + self.bias.to(x.dtype)), (x,)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor:
        y = times(saved[0], v[self.w_name])
        if self.bias is not None:
            y = y + v[self.b_name]
        if dx is not None:
            y = y + times(to_module(dx), self.weight.to(dx.dtype))
        return from_module(y)

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        dy = to_module(dy)
        out[self.w_name] += rows_product(dy, saved[0])
        if self.bias is not None:
            out[self.b_name] += dy.flatten(0, -2).sum(0)
        return from_module(times(dy, self.weight.to(dy.dtype).T)) if need_dx else None

    def below(self, saved: Saved, dy: Tensor) -> Tensor:
        """(∂φ/∂x)ᵀ dy alone."""
        return from_module(times(to_module(dy), self.weight.to(dy.dtype).T))


class AffineLayer(Layer):
    """BatchNorm with frozen statistics: y = γ x̂ + β, x̂ = (x − m)/s per channel."""

    def __init__(self, norm: nn.BatchNorm2d, prefix: str) -> None:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.mean, self.eps = norm.running_mean.double(), norm.eps
        self.std = torch.sqrt(norm.running_var.double() + norm.eps)
        self.affine = norm.affine
        self.gamma = norm.weight.detach().double() if norm.affine else torch.ones_like(self.std)
        self.beta = norm.bias.detach().double() if norm.affine else torch.zeros_like(self.std)
        self.w_name, self.b_name = f"{prefix}weight", f"{prefix}bias"
        self.names = (self.w_name, self.b_name) if norm.affine else ()

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        normal = (x - self.mean.to(x.dtype)).div_(self.std.to(x.dtype))
        return torch.addcmul(self.beta.to(x.dtype), normal, self.gamma.to(x.dtype)), (normal,)

    def scale(self, dtype: torch.dtype) -> Tensor:
        """γ/s, (c,)."""
        return (self.gamma / self.std).to(dtype)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        y = saved[0] * v[self.w_name] + v[self.b_name] if self.affine else None
        return _add(y, None if dx is None else dx * self.scale(dx.dtype))

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        if self.affine:
            over = tuple(range(dy.dim() - 1))
            out[self.w_name] += (dy * saved[0]).sum(over)
            out[self.b_name] += dy.sum(over)
        return self.below(saved, dy) if need_dx else None

    def below(self, saved: Saved, dy: Tensor) -> Tensor:
        """(∂φ/∂x)ᵀ dy alone."""
        return dy * self.scale(dy.dtype)


class PointwiseLayer(Layer):
    """y = φ(x) entry by entry; the slope φ'(x) is saved (as a mask where it takes two values)."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        # A clone, because the function may work in place: SiLU(inplace=True).
        y, slope = torch.func.jvp(self.function, (x.clone(),), (torch.ones_like(x),))  # type: ignore[misc]
        return y, (slope,)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        return None if dx is None else dx * saved[0]

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        return dy * saved[0] if need_dx else None


class LeakyLayer(Layer):
    """LeakyReLU (slope 0: ReLU): only the sign of x is saved, one byte an entry."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        return F.leaky_relu(x, self.slope), (x > 0,)

    def _scaled(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x, x * self.slope)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        return None if dx is None else self._scaled(dx, saved[0])

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        return self._scaled(dy, saved[0]) if need_dx else None


class IdentityLayer(Layer):
    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        return x, ()

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        return dx

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        return dy if need_dx else None


class GlobalMeanLayer(Layer):
    """(n, h, w, c) -> (n, c)."""

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        return x.mean(dim=(1, 2)), (x[..., :0],)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        return None if dx is None else dx.mean(dim=(1, 2))

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        n, h, w = saved[0].shape[:3]
        return (dy / (h * w))[:, None, None].expand(n, h, w, dy.shape[-1]) if need_dx else None


def to_module(x: Tensor) -> Tensor:
    """Our (n, h, w, c) as the (n, c, h, w) that modules take; other shapes as they are."""
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def from_module(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1) if x.dim() == 4 else x
