"""From modules to linearised layers: which fast form each module has, if any."""

from __future__ import annotations

from torch import nn

from efface.linear.layers import (
    AffineLayer,
    Chain,
    ConvLayer,
    GlobalMeanLayer,
    IdentityLayer,
    Layer,
    LeakyLayer,
    LinearLayer,
    PointwiseLayer,
    ResidualLayer,
    ViewsLayer,
)
from efface.linear.normed import NormedConvLayer
from efface.linear.opaque import OpaqueLayer
from efface.linear.winograd import WinogradLayer, suits_winograd
from efface.network import blocks
from efface.network.mirror import VIEWS, MirroredTail

POINTWISE = (
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardswish,
    nn.ELU,
    nn.ReLU6,
    blocks.LeakyReLU6,
)


def lower(
    module: nn.Module, prefix: str = "", *, winograd: bool = True, merged: bool = True
) -> Layer:
    """The linearised form of ``module``; whatever has no fast form becomes an OpaqueLayer.

    ``winograd=False`` leaves convolutions plain sums of products, ``merged=False`` BatchNorms layers of their
    own.

    Types are compared exactly: a subclass may compute something else (timm's BatchNormAct2d).
    """
    if _has_tied_weights(module):
        return OpaqueLayer(module, prefix)
    if type(module) is MirroredTail:
        *steps, head = [
            lower(child, f"{prefix}{name}.", winograd=winograd, merged=merged)
            for name, child in module._modules.items()
        ]
        return Chain([ViewsLayer(Chain(steps), VIEWS), head])
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        # _modules, because named_children() skips the second use of a module (one ReLU for all).
        children = [
            (f"{prefix}{name}.", child)
            for name, child in module._modules.items()
            if child is not None
        ]
        return Chain(_lower_chain(children, winograd, merged))
    if type(module) is blocks.Residual:
        parts = (module.body, module.shortcut, module.activation)
        names = ("body", "shortcut", "activation")
        lowered = [
            lower(m, f"{prefix}{n}.", winograd=winograd, merged=merged)
            for m, n in zip(parts, names, strict=True)
        ]
        return ResidualLayer(*lowered)
    if type(module) is nn.Conv2d and _is_plain(module):
        fast = WinogradLayer if winograd and suits_winograd(module) else ConvLayer
        return fast(module, prefix)
    if type(module) is nn.Linear:
        return LinearLayer(module, prefix)
    if type(module) is nn.BatchNorm2d and module.running_mean is not None:
        return AffineLayer(module, prefix)
    return _lower_parameterless(module) or OpaqueLayer(module, prefix)


def _lower_chain(
    children: list[tuple[str, nn.Module]], winograd: bool, merged: bool
) -> list[Layer]:
    """One layer each, but a convolution and its frozen BatchNorm are one (``NormedConvLayer``)."""
    layers: list[Layer] = []
    rest = list(children)
    while rest:
        (name, child), *rest = rest
        following = rest[0] if rest else None
        if merged and following is not None and _are_one(child, following[1]):
            assert isinstance(child, nn.Conv2d)
            assert isinstance(following[1], nn.BatchNorm2d)
            names = (name, following[0])
            layers.append(NormedConvLayer(child, following[1], *names, winograd=winograd))
            rest = rest[1:]
        else:
            layers.append(lower(child, name, winograd=winograd, merged=merged))
    return layers


def _are_one(conv: nn.Module, norm: nn.Module) -> bool:
    plain = type(conv) is nn.Conv2d and _is_plain(conv)
    return plain and type(norm) is nn.BatchNorm2d and norm.running_mean is not None


def _has_tied_weights(module: nn.Module) -> bool:
    """A weight under two names has one place in the flat vector, which fast layers cannot share."""
    every = list(module.named_parameters(remove_duplicate=False))
    return len(every) != len(list(module.parameters()))


def _is_plain(conv: nn.Conv2d) -> bool:
    padded = conv.padding_mode == "zeros" and isinstance(conv.padding, tuple)
    return conv.groups == 1 and conv.dilation == (1, 1) and padded


def _lower_parameterless(module: nn.Module) -> Layer | None:
    if type(module) in (nn.Identity, nn.Dropout):
        return IdentityLayer()
    if type(module) is nn.LeakyReLU:
        return LeakyLayer(module.negative_slope)
    if type(module) is nn.ReLU:
        return LeakyLayer(0.0)
    if type(module) in POINTWISE:
        return PointwiseLayer(module)
    if type(module) is blocks.GlobalMean:
        return GlobalMeanLayer()
    return None
