"""Layers below the first one that has user weights: they run once, and no product enters them.

The paper linearises "only the final layers". Whatever lies below them, inside of the tail or not, belongs to
the core alone: no tangent comes out of it, and no cotangent is wanted below it, so its products cost nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping

from torch import Tensor, nn

from efface.linear.layers import (
    Chain,
    IdentityLayer,
    Layer,
    ResidualLayer,
    Saved,
    ViewsLayer,
)
from efface.linear.opaque import OpaqueLayer


class FrozenLayer(Layer):
    """y = φ(x) of the core; nothing is saved, its tangent is zero."""

    def __init__(self, inner: Layer) -> None:
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Saved]:
        return self.inner.forward(x)[0], ()

    def jvp(self, saved: Saved, dx: Tensor | None, v: Mapping[str, Tensor]) -> None:
        assert dx is None, "a tangent came from below a frozen layer"

    def vjp(
        self, saved: Saved, dy: Tensor, out: MutableMapping[str, Tensor], need_dx: bool
    ) -> None:
        assert not need_dx, "a cotangent is wanted below a frozen layer"


def freeze_below(layer: Layer, names: Collection[str]) -> Layer:
    """``layer`` with user weights in ``names`` alone; they must be its last ones.

    A module without a fast form is not cut: it is differentiated by those of its weights alone
    (``OpaqueLayer.restrict``).
    """
    if not any(name in names for name in layer.names):
        return layer if isinstance(layer, IdentityLayer) else FrozenLayer(layer)
    if isinstance(layer, OpaqueLayer):
        return layer.restrict(names)
    if isinstance(layer, ResidualLayer):
        body, shortcut = (freeze_below(part, names) for part in (layer.body, layer.shortcut))
        return ResidualLayer(body, shortcut, layer.activation)
    if isinstance(layer, ViewsLayer):
        return ViewsLayer(freeze_below(layer.inner, names), layer.views)
    if not isinstance(layer, Chain):
        return layer
    first = next(i for i, one in enumerate(layer.layers) if any(n in names for n in one.names))
    below = [FrozenLayer(Chain(layer.layers[:first]))] if first else []
    return Chain([*below, freeze_below(layer.layers[first], names), *layer.layers[first + 1 :]])


def final_names(tail: nn.Module) -> tuple[str, ...]:
    """The parameters of the last convolution or linear layer before the head, of what follows it (its
    BatchNorm), and of the head.

    The order is that of the modules in the tail, in which ``nn.Sequential`` runs them.
    """
    weights = [
        name for name, module in tail.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    names = [name for name, _ in tail.named_parameters()]
    if len(weights) < 2:
        return tuple(names)  # the head alone
    first = next(i for i, name in enumerate(names) if name.startswith(f"{weights[-2]}."))
    return tuple(names[first:])
