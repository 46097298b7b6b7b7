"""Slopes of the outputs by what each layer puts out, kept: no product walks through the layers above it.

With z_l what layer l puts out and θ_l its own parameters, and G_l = ∂f/∂z_l, (c, numbers of z_l),

    J v  =  Σ_l G_l (∂z_l/∂θ_l) v_l,        Jᵀu  =  Σ_l (∂z_l/∂θ_l)ᵀ (G_lᵀ u):

a product is one convolution a layer instead of two (the tangent of the layers below goes through each as
well), and one look at its slopes. The last convolution before the pooling has its places summed up
(``PooledLayer``). Making G takes c walks down from the outputs, and it has c numbers for each of z: for few
classes, and problems that are gone through often.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

import torch
from torch import Tensor

from efface.alone import shared_out
from efface.linear.layers import (
    AffineLayer,
    Chain,
    ConvLayer,
    GlobalMeanLayer,
    Layer,
    LinearLayer,
    ResidualLayer,
    Saved,
)
from efface.linear.normed import NormedConvLayer
from efface.linear.pooled import PooledLayer, SlopesOfSome, fused
from efface.linear.winograd import WinogradLayer

# Layers with weights that know the cotangent below them without the weights' gradients.
Tapped = ConvLayer | WinogradLayer | NormedConvLayer | LinearLayer | AffineLayer


class _Tap(Layer):
    """A layer that remembers what it saved and the last cotangent that came to it."""

    def __init__(self, inner: Tapped) -> None:
        self.inner, self.names = inner, inner.names
        self.saved: Saved = ()
        self.cotangent: Tensor | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        y, self.saved = self.inner.forward(x)
        return y, self.saved

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor | None:
        return self.inner.jvp(saved, dx, v)

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        self.cotangent = dy
        return self.inner.below(saved, dy) if need_dx else None


class SlopesLayer(Layer):
    """A tail that ends in a block, pooling and the head; see the module. Nothing comes from below it."""

    def __init__(
        self, below: list[Layer], block: ResidualLayer, pooled: PooledLayer, above: list[Layer]
    ) -> None:
        self.below, self.pooled, self.above = Chain(below), pooled, Chain(above)
        taps: list[_Tap] = []
        self._tapped = _tapped(Chain([*below, block, GlobalMeanLayer(), *above]), taps)
        apart = {*pooled.names, *self.above.names}  # these have forms of their own
        self._taps = [tap for tap in taps if not apart & set(tap.names)]
        self.names = (*(n for t in self._taps for n in t.names), *pooled.names, *self.above.names)

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        outputs, saved = self._tapped.forward(x)
        slopes: list[Tensor] = []
        for k in range(outputs.shape[1]):
            one = torch.zeros_like(outputs)
            one[:, k] = 1.0
            self._tapped.vjp(saved, one, {}, False)
            for i, tap in enumerate(self._taps):
                assert tap.cotangent is not None
                if k == 0:
                    n, *shape = tap.cotangent.shape
                    slopes.append(one.new_empty(n, outputs.shape[1], *shape))
                slopes[i][:, k] = tap.cotangent
        inputs = [tap.saved for tap in self._taps]
        for tap in self._taps:
            tap.saved, tap.cotangent = (), None
        features, pooled = self.pooled.forward(self.below.forward(x)[0])
        return outputs, (tuple(inputs), tuple(slopes), pooled, self.above.forward(features)[1])

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor:
        assert dx is None
        inputs, slopes, pooled, above = saved
        total = self.above.jvp(above, self.pooled.jvp(pooled, None, v), v)
        assert total is not None
        for tap, own, slope in zip(self._taps, inputs, slopes, strict=True):
            moved = tap.inner.jvp(own, None, v)
            assert moved is not None
            total += _times(slope, moved)
        return total

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> None:
        assert not need_dx
        inputs, slopes, pooled, above = saved
        features = self.above.vjp(above, dy, out, True)
        assert features is not None
        self.pooled.vjp(pooled, features, out, False)
        for tap, own, slope in zip(self._taps, inputs, slopes, strict=True):
            tap.inner.vjp(own, _transposed_times(slope, dy), out, False)

    def product(
        self, saved: Saved, v: Mapping[str, Tensor], out: MutableMapping[str, Tensor]
    ) -> None:
        """One sample after the other: its slopes are still in the processor's cache for Jᵀ when J is done."""
        inputs, slopes, pooled, above = saved
        total = self.above.jvp(above, self.pooled.jvp(pooled, None, v), v)
        assert total is not None
        moved: list[Tensor] = []
        for tap, own in zip(self._taps, inputs, strict=True):
            one = tap.inner.jvp(own, None, v)
            assert one is not None
            moved.append(one.contiguous())

        def there_and_back(share: range) -> None:
            for i in share:
                row = total[i]
                flat = [slope[i].flatten(1).to(row.dtype) for slope in slopes]
                places = [one[i].view(-1) for one in moved]
                for slope, place in zip(flat, places, strict=True):
                    row.addmv_(slope, place)
                for slope, place in zip(flat, places, strict=True):
                    torch.mv(slope.T, row, out=place)  # from here on it holds Gᵀu

        shared_out(there_and_back, len(total))
        features = self.above.vjp(above, total, out, True)
        assert features is not None
        self.pooled.vjp(pooled, features, out, False)
        for tap, own, pulled in zip(self._taps, inputs, moved, strict=True):
            tap.inner.vjp(own, pulled, out, False)


def keep_slopes(layer: Layer) -> SlopesLayer | None:
    """``layer`` (a lowered tail) in this form; None: it has none."""
    if not isinstance(layer, Chain):
        return None
    for i, (one, following) in enumerate(zip(layer.layers, layer.layers[1:], strict=False)):
        top = fused(one) if isinstance(following, GlobalMeanLayer) else None
        if top is not None and isinstance(one, ResidualLayer) and _all_tapped(layer):
            return SlopesLayer(layer.layers[:i], one, top, layer.layers[i + 2 :])
    return None


def _all_tapped(layer: Layer) -> bool:
    """Whether every weight belongs to a layer of ours that can be tapped."""
    taps: list[_Tap] = []
    _tapped(layer, taps)
    return sum(len(tap.names) for tap in taps) == len(layer.names)


def _tapped(layer: Layer, taps: list[_Tap]) -> Layer:
    """``layer`` with a tap around each of its layers that have weights."""
    if isinstance(layer, Chain):
        return Chain([_tapped(one, taps) for one in layer.layers])
    if isinstance(layer, ResidualLayer):
        body, shortcut = (_tapped(part, taps) for part in (layer.body, layer.shortcut))
        return ResidualLayer(body, shortcut, layer.activation)
    if not isinstance(layer, Tapped):
        return layer
    taps.append(_Tap(layer))
    return taps[-1]


def _times(slopes: Tensor | SlopesOfSome, moved: Tensor) -> Tensor:
    """G_n ż_n, (n, c), one sample at a time: its slopes are read once, at the memory's speed."""
    rows = moved.flatten(1)
    out = rows.new_empty(slopes.shape[:2])

    def some(share: range) -> None:
        for i in share:
            torch.mv(slopes[i].flatten(1).to(rows.dtype), rows[i], out=out[i])

    shared_out(some, len(out))
    return out


def _transposed_times(slopes: Tensor | SlopesOfSome, dy: Tensor) -> Tensor:
    """G_nᵀ u_n, in the shape of z."""
    out = dy.new_empty(len(dy), *slopes.shape[2:])

    def some(share: range) -> None:
        for i in share:
            torch.mv(slopes[i].flatten(1).to(dy.dtype).T, dy[i], out=out[i].view(-1))

    shared_out(some, len(out))
    return out
