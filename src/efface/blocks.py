"""The few plain modules that every backbone is brought to, so that one fast path serves them all."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """y = activation(body(x) + shortcut(x)): the ResNet block, basic or bottleneck."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.activation = body, shortcut, activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class FirstToken(nn.Module):
    """Pool a transformer's tokens by taking the class token: (n, t, c) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class ClassAndMeanToken(nn.Module):
    """DINOv2's pooling: the class token beside the mean of the patch tokens, (n, t, c) -> (n, 2c)."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=1)


class MeanToken(nn.Module):
    """Pool tokens by their mean: (n, t, c) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class GlobalMean(nn.Module):
    """Pool a feature map by its spatial mean: (n, c, h, w) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class FirstOutput(nn.Module):
    """Call a block with fixed extra arguments and keep its first output."""

    def __init__(self, block: nn.Module, *extra: object) -> None:
        super().__init__()
        self.block, self.extra = block, extra

    def forward(self, x: Tensor) -> Tensor:
        out = self.block(x, *self.extra)
        return out[0] if isinstance(out, tuple) else out


def digits_cnn(channels: int = 1) -> nn.Sequential:
    """A small network for 8 × 8 digits, in blocks of convolution and activation; 32 features."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()),
        GlobalMean(),
    )


def fold_batchnorm(module: nn.Module) -> nn.Module:
    """Fold every BatchNorm that follows a convolution in a Sequential into that convolution.

    With frozen statistics, BN(Wx + b) = W'x + b' where W' = W·γ/s, b' = (b − m)·γ/s + β,
    s = √(v + eps). Computed in float64 so that folding costs no accuracy. In place; returns module.
    """
    for child in module.children():
        fold_batchnorm(child)
    if isinstance(module, nn.Sequential):
        _fold_sequence(module)
    return module


def _fold_sequence(sequence: nn.Sequential) -> None:
    names = list(sequence._modules)
    for first, second in itertools.pairwise(names):
        conv, norm = sequence._modules[first], sequence._modules[second]
        # Exact types: subclasses add work of their own (timm's BatchNormAct2d, an activation).
        if type(conv) is not nn.Conv2d or type(norm) is not nn.BatchNorm2d:
            continue
        if norm.running_mean is not None:
            sequence._modules[first] = _folded(conv, norm)
            sequence._modules[second] = nn.Identity()


def _folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    if norm.affine:
        scale = scale * norm.weight.detach().double()
    bias = 0.0 if conv.bias is None else conv.bias.detach().double()
    bias = (bias - norm.running_mean.double()) * scale
    if norm.affine:
        bias = bias + norm.bias.detach().double()
    weight = conv.weight.detach().double() * scale.reshape(-1, 1, 1, 1)
    folded = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        conv.groups,
        bias=True,
        padding_mode=conv.padding_mode,
    )
    folded.weight = nn.Parameter(weight.to(conv.weight.dtype))
    folded.bias = nn.Parameter(bias.to(conv.weight.dtype))
    return folded


def leaky_activations(module: nn.Module, slope: float) -> int:
    """Swap every ReLU below ``module`` for LeakyReLU(slope), in place; returns how many."""
    count = 0
    for name, child in module._modules.items():  # named_children() skips a module's second use
        if child is None:
            continue
        if type(child).__name__ in ("ReLU", "ReLU6"):
            setattr(module, name, nn.LeakyReLU(slope))
            count += 1
        else:
            count += leaky_activations(child, slope)
    return count
