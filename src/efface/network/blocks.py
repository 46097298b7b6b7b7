"""The few plain modules that every backbone is brought to, so that one fast path serves them all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

KEPT = ("output_mean", "output_std")  # of a folded BatchNorm, on the convolution it went into


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
    """Pool tokens by their mean: (n, t, c) -> (n, c); the first ``skip`` are not of the picture."""

    def __init__(self, skip: int = 0) -> None:
        super().__init__()
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.skip :].mean(1)


class SelfAttention(nn.Module):
    """softmax(q kᵀ/√w) v in ``heads`` of width w: what nn.MultiheadAttention does, in plain products.

    Its own fused kernel has neither a forward-mode derivative nor exact sums.
    """

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        assert attention.in_proj_weight is not None
        width, self.heads = attention.embed_dim, attention.num_heads
        self.qkv = nn.Linear(width, 3 * width, bias=attention.in_proj_bias is not None)
        self.qkv.weight, self.out = attention.in_proj_weight, attention.out_proj
        if attention.in_proj_bias is not None:
            self.qkv.bias = attention.in_proj_bias

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return y


class PreNormBlock(nn.Module):
    """A transformer's block, norms first: x + s₁(A(n₁(x))), then the same with its two layers."""

    def __init__(self, first: tuple[nn.Module, ...], second: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.first, self.second = nn.Sequential(*first), nn.Sequential(*second)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first(x)
        return x + self.second(x)


class GlobalMean(nn.Module):
    """Pool a feature map by its spatial mean: (n, c, h, w) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


class LeakyReLU6(nn.Module):
    """y = min(LeakyReLU(x), 6): what ReLU6 becomes, its cap kept."""

    def __init__(self, negative_slope: float) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(x, self.negative_slope).clamp(max=6.0)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


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
    What the statistics said of the outputs, mean β and variance γ²v/s², is kept beside the weights for
    ``matched_statistics``; it is no part of the state dict (``folded_statistics`` has it).
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
            sequence._modules[first] = folded(conv, norm)
            sequence._modules[second] = nn.Identity()


def folded(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> nn.Conv2d:
    """One convolution that does what both do; see :func:`fold_batchnorm`."""
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
    both = nn.Conv2d(
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
    both.weight = nn.Parameter(weight.to(conv.weight.dtype))
    both.bias = nn.Parameter(bias.to(conv.weight.dtype))
    mean = norm.bias.detach().clone() if norm.affine else torch.zeros_like(norm.running_mean)
    spread = (norm.running_var.double().sqrt() * scale.abs()).to(mean.dtype)
    both.register_buffer("output_mean", mean, persistent=False)
    both.register_buffer("output_std", spread, persistent=False)
    return both


@contextmanager
def matched_statistics(module: nn.Module) -> Iterator[int]:
    """Within, strange inputs have the statistics of the data the network was pretrained on.

    The input of every BatchNorm, or the output of the convolution it was folded into, is brought to the
    running mean and variance, channel by channel over the batch: x ← (x − m_b)/s_b · s + m. Yields how
    many layers do so; 0 if the network has no such statistics.
    """
    handles = []
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            handles.append(layer.register_forward_pre_hook(_match_input))
        elif "output_mean" in layer._buffers:
            handles.append(layer.register_forward_hook(_match_output))
    try:
        yield len(handles)
    finally:
        for handle in handles:
            handle.remove()


def folded_statistics(module: nn.Module) -> dict[str, Tensor]:
    """What folding kept of the BatchNorms, by the names of its buffers below ``module``."""
    return {k: v for k, v in module.named_buffers() if k.rpartition(".")[2] in KEPT}


def replace_statistics(module: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Put ``statistics`` in the place of what folding kept: with other weights that is no longer true."""
    for layer in module.modules():
        for name in KEPT:
            layer._buffers.pop(name, None)
            layer._non_persistent_buffers_set.discard(name)
    for path, value in statistics.items():
        parent, _, name = path.rpartition(".")
        module.get_submodule(parent).register_buffer(name, value, persistent=False)


def _match_input(norm: _BatchNorm, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return (_matched(inputs[0], norm.running_mean, norm.running_var.sqrt()), *inputs[1:])


def _match_output(layer: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return _matched(output, layer.output_mean, layer.output_std)  # type: ignore[arg-type]


def _matched(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    # eps only keeps a channel that is constant over the batch from dividing by zero.
    return F.batch_norm(x, None, None, std, mean, training=True, eps=1e-12)


def leaky_activations(module: nn.Module, slope: float) -> int:
    """Swap every ReLU (ReLU6) below ``module`` for LeakyReLU(slope) (LeakyReLU6); returns how many."""
    count = 0
    for name, child in module._modules.items():  # named_children() skips a module's second use
        if child is None:
            continue
        leaky = {"ReLU": nn.LeakyReLU, "ReLU6": LeakyReLU6}.get(type(child).__name__)
        if leaky is not None:
            setattr(module, name, leaky(slope))
            count += 1
        else:
            count += leaky_activations(child, slope)
    return count
