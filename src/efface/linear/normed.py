"""A convolution and the frozen BatchNorm after it, as one linearised layer with both layers' own parameters.

Folding a BatchNorm into the convolution before it is fast, but its weights are then other parameters, with
another ridge and other gradients: not the paper's model. Here the *products* run on the folded weights and
the *parameters* stay what they are. With z = W x + b, x̂ = (z − m)/s and y = γ x̂ + β, s and m frozen,

    ẏ = W' ẋ + (γ/s) Ẇ x + (γ/s) ḃ + β̇ + γ̇ x̂,      W' = (γ/s) W,

which is the folded convolution's tangent for the weight tangent (γ/s) Ẇ and the bias tangent (γ/s) ḃ + β̇, and
one product more, entry by entry.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping

import torch
from torch import Tensor, nn

from efface.linear.layers import AffineLayer, ConvLayer, Layer, Saved
from efface.linear.winograd import WinogradLayer, suits_winograd
from efface.network import blocks

WEIGHT, BIAS = "weight", "bias"  # of the folded convolution, for its own products


class NormedConvLayer(Layer):
    """y = BatchNorm(conv(x)): see the module. ``first`` and ``second`` are the prefixes of the two."""

    def __init__(
        self,
        conv: nn.Conv2d,
        norm: nn.BatchNorm2d,
        first: str,
        second: str,
        *,
        winograd: bool = True,
    ) -> None:
        kind = WinogradLayer if winograd and suits_winograd(conv) else ConvLayer
        self.plain = kind(conv, first)
        self.norm = AffineLayer(norm, second)
        exact = copy.deepcopy(conv).double()  # the problem is the float64 evaluation of the tail
        self.folded = kind(blocks.folded(exact, norm), "")
        self.names = (*self.plain.names, *self.norm.names)

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        z, inputs = self.plain.forward(x)
        y, (normal,) = self.norm.forward(z)
        return y, (inputs, normal)

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> Tensor:
        inputs, normal = saved
        scale = self.norm.scale(normal.dtype)
        weight = v[self.plain.w_name] * scale[:, None, None, None]
        bias = torch.zeros_like(scale)
        if self.plain.bias is not None:
            bias = bias + scale * v[self.plain.b_name]
        if self.norm.affine:
            bias = bias + v[self.norm.b_name]
        y = self.folded.jvp(inputs, dx, {WEIGHT: weight, BIAS: bias})
        return y.addcmul_(normal, v[self.norm.w_name]) if self.norm.affine else y

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> Tensor | None:
        inputs, normal = saved
        scale = self.norm.scale(dy.dtype)
        own = {
            WEIGHT: torch.zeros_like(self.folded.weight, dtype=dy.dtype),
            BIAS: torch.zeros_like(scale),
        }
        dx = self.folded.vjp(inputs, dy, own, need_dx)
        out[self.plain.w_name] += own[WEIGHT] * scale[:, None, None, None]
        if self.plain.bias is not None:
            out[self.plain.b_name] += own[BIAS] * scale
        if self.norm.affine:
            out[self.norm.w_name] += (dy * normal).sum((0, 1, 2))
            out[self.norm.b_name] += own[BIAS]
        return dx

    def below(self, saved: Saved, dy: Tensor) -> Tensor:
        """(∂φ/∂x)ᵀ dy alone."""
        return self.folded.below(saved[0], dy)
