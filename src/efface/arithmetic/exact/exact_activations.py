"""Smooth activations by tables, piecewise linear ones by single operations, and their derivatives."""

from __future__ import annotations

from torch import Tensor

from efface.arithmetic.exact.tables import table

GATES = {"none": ("normal", "gelu slope"), "tanh": ("tanh gate", "tanh gelu slope")}


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x Φ(x), or x times the tanh form of Φ."""
    return table(GATES[approximate][0])(x).mul_(x)


def gelu_backward(g: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    return table(GATES[approximate][1])(x).mul_(g)


def erf(x: Tensor) -> Tensor:
    return table("erf")(x)


def tanh(x: Tensor) -> Tensor:
    return table("tanh")(x)


def tanh_backward(g: Tensor, y: Tensor) -> Tensor:
    """g (1 − y²)."""
    return (1 - y * y).mul_(g)


def sigmoid(x: Tensor) -> Tensor:
    return table("sigmoid")(x)


def sigmoid_backward(g: Tensor, y: Tensor) -> Tensor:
    """g y (1 − y)."""
    return (1 - y).mul_(y).mul_(g)


def silu(x: Tensor) -> Tensor:
    """x σ(x)."""
    return sigmoid(x).mul_(x)


def silu_backward(g: Tensor, x: Tensor) -> Tensor:
    """g σ (1 + x (1 − σ))."""
    gate = sigmoid(x)
    return (1 - gate).mul_(x).add_(1).mul_(gate).mul_(g)


def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6."""
    return (x + 3).clamp_(0, 6).div_(6)


def hardsigmoid_backward(g: Tensor, x: Tensor) -> Tensor:
    return (g / 6).masked_fill_((x <= -3) | (x >= 3), 0.0)


def hardswish(x: Tensor) -> Tensor:
    return hardsigmoid(x).mul_(x)


def hardswish_backward(g: Tensor, x: Tensor) -> Tensor:
    """g · (0 below −3, 1 from 3, x / 3 + 1/2 between)."""
    slope = (x / 3).add_(0.5).masked_fill_(x < -3, 0.0).masked_fill_(x >= 3, 1.0)
    return slope.mul_(g)
