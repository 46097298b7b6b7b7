"""A network of convolutions, activations and sums, read as a list of operations.

``read`` traces a module with torch.fx. BatchNorms with frozen statistics go into the convolution before
them, in float64. What has no place in the list (attention, LayerNorm, smooth activations) raises
NoIntegerForm, which names it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from efface.errors import BackboneError
from efface.network import blocks


class NoIntegerForm(BackboneError):
    """A network, or a part of it, that these operations cannot express."""


@dataclass(frozen=True)
class Geometry:
    """Of a convolution."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Geometry:
        if conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            raise NoIntegerForm("a convolution is padded with something other than zeros.")
        return cls(conv.stride, conv.padding, conv.dilation, conv.groups)  # type: ignore[arg-type]

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


@dataclass(frozen=True, eq=False)
class Op:
    """One operation. ``inputs`` are the numbers of the operations before it; 0 is the network's input."""

    name: str
    inputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Affine(Op):
    """y = W x + b: a convolution, or (without geometry) a linear layer over the last dimension.

    ``statistics`` are the mean and deviation of each output that a folded BatchNorm had recorded.
    """

    weight: Tensor  # (c, …) float64
    bias: Tensor  # (c,) float64
    geometry: Geometry | None
    statistics: tuple[Tensor, Tensor] | None = None

    def apply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.geometry is None:
            return F.linear(x, weight, bias)
        return self.geometry.convolve(x, weight, bias)


@dataclass(frozen=True, eq=False)
class Activation(Op):
    """y = x for x > 0, slope · x below, never above ``cap``."""

    slope: float = 0.0
    cap: float | None = None


@dataclass(frozen=True, eq=False)
class Add(Op):
    """y = x₀ + x₁."""


@dataclass(frozen=True, eq=False)
class MaxPool(Op):
    """The largest of each window."""

    options: dict[str, Any]

    def apply(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, **self.options)


@dataclass(frozen=True, eq=False)
class Mean(Op):
    """The mean over a feature map, (n, c, h, w) -> (n, c) or (n, c, 1, 1)."""

    keep: bool = False


@dataclass(frozen=True, eq=False)
class Flatten(Op):
    """(n, …) -> (n, all the rest)."""


@dataclass(frozen=True, eq=False)
class ChannelAffine(Op):
    """y = factor · x + shift for each channel: a BatchNorm that no convolution precedes."""

    factor: Tensor  # (c,) float64
    shift: Tensor  # (c,) float64


def read(module: nn.Module, *, fold: bool = True) -> list[Op]:
    """The operations of ``module`` after its input, in order; the last one is its output.

    ``fold`` puts BatchNorms into the convolutions before them. Where gradients at the convolutions' own
    outputs are wanted, they stay operations of their own.
    """
    try:
        graph = _Tracer().trace(module)
    except NoIntegerForm:
        raise
    except Exception as error:
        raise NoIntegerForm(f"torch.fx cannot trace it: {str(error).splitlines()[0]}") from error
    return _NetworkReader(module, fold).read(graph)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, qualified_name: str) -> bool:
        ours = isinstance(m, blocks.LeakyReLU6 | blocks.GlobalMean)
        return ours or super().is_leaf_module(m, qualified_name)


class _NetworkReader:
    def __init__(self, module: nn.Module, fold: bool) -> None:
        self.module, self.fold = module, fold
        self.ops: list[Op] = []
        self.at: dict[fx.Node, int] = {}  # node -> number of the operation whose output it is

    def read(self, graph: fx.Graph) -> list[Op]:
        output = 0
        for node in graph.nodes:
            if node.op == "placeholder":
                self.at[node] = 0
            elif node.op == "output":
                output = self._number(node.args[0])
            elif node.op == "call_module":
                layer = self.module.get_submodule(str(node.target))
                self._module(node, str(node.target), layer)
            elif node.op in ("call_function", "call_method"):
                self._function(node)
            else:
                raise NoIntegerForm(f"{node.target!r} is a tensor of its own in the network.")
        if output != len(self.ops):
            raise NoIntegerForm("its output is not what it computes last.")
        return self.ops

    def _number(self, value: object) -> int:
        if isinstance(value, fx.Node) and value in self.at:
            return self.at[value]
        raise NoIntegerForm(f"{value!r} is no result of an earlier operation.")

    def _put(self, node: fx.Node, make: Callable[..., Op], *inputs: object, **options: Any) -> None:
        name = str(node.target) if node.op == "call_module" else node.name
        self.ops.append(make(name, tuple(self._number(i) for i in inputs), **options))
        self.at[node] = len(self.ops)

    def _module(self, node: fx.Node, name: str, m: nn.Module) -> None:
        x = node.args[0]
        kind = type(m)
        if kind in (nn.Identity, nn.Dropout, nn.Dropout2d):
            self.at[node] = self._number(x)
        elif kind is nn.Conv2d:
            self._put(node, Affine, x, **_affine(m), geometry=Geometry.of(m))  # type: ignore[arg-type]
        elif kind is nn.Linear:
            self._put(node, Affine, x, **_affine(m), geometry=None)
        elif kind is nn.BatchNorm2d:
            self._norm(node, x, m)  # type: ignore[arg-type]
        elif kind in (nn.ReLU, nn.ReLU6, nn.LeakyReLU, blocks.LeakyReLU6):
            slope = float(getattr(m, "negative_slope", 0.0))
            cap = 6.0 if kind in (nn.ReLU6, blocks.LeakyReLU6) else None
            self._put(node, Activation, x, slope=slope, cap=cap)
        elif kind is nn.MaxPool2d:
            names = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
            self._put(node, MaxPool, x, options={n: getattr(m, n) for n in names})
        elif kind is blocks.GlobalMean:
            self._put(node, Mean, x)
        elif kind is nn.AdaptiveAvgPool2d and m.output_size in (1, (1, 1)):
            self._put(node, Mean, x, keep=True)
        elif kind is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1):
            self._put(node, Flatten, x)
        else:
            raise NoIntegerForm(f"{name} is a {kind.__name__}.")

    def _function(self, node: fx.Node) -> None:
        name = getattr(node.target, "__name__", str(node.target)).rstrip("_")
        args, options = node.args, dict(node.kwargs)
        plain = not {k for k in options if k != "inplace"}
        if (
            name in ("add", "iadd") and len(args) == 2 and not options
        ) or node.target is operator.iadd:
            self._put(node, Add, *args)
        elif name == "relu" and plain:
            self._put(node, Activation, args[0])
        elif name == "contiguous":
            self.at[node] = self._number(args[0])
        elif name == "flatten" and _dimensions(args, options, "start_dim") == (1,):
            self._put(node, Flatten, args[0])
        elif name == "mean" and _dimensions(args, options, "dim") in ((2, 3), (-2, -1)):
            self._put(node, Mean, args[0], keep=bool(options.get("keepdim", False)))
        else:
            raise NoIntegerForm(f"{node.name} calls {name}.")

    def _norm(self, node: fx.Node, x: object, norm: nn.BatchNorm2d) -> None:
        if norm.running_mean is None or norm.running_var is None:
            raise NoIntegerForm(f"{node.target} is a BatchNorm without statistics of its own.")
        # numpy's root is correctly rounded; torch's is off by a unit here and there, by machine.
        deviation = np.sqrt((norm.running_var.double() + norm.eps).numpy())
        factor = 1 / torch.from_numpy(deviation)
        if norm.affine:
            factor = factor * norm.weight.detach().double()
        shift = -norm.running_mean.double() * factor
        if norm.affine:
            shift = shift + norm.bias.detach().double()
        number = self._number(x)
        before = self.ops[number - 1] if number else None
        assert isinstance(x, fx.Node)
        foldable = isinstance(before, Affine) and before.geometry is not None and len(x.users) == 1
        if self.fold and foldable:
            assert isinstance(before, Affine)
            spread = (norm.running_var.double().sqrt() * factor.abs()).float()
            mean = norm.bias.detach() if norm.affine else torch.zeros_like(norm.running_mean)
            self.ops[number - 1] = replace(
                before,
                weight=before.weight * factor.reshape(-1, 1, 1, 1),
                bias=before.bias * factor + shift,
                statistics=(mean.float(), spread),
            )
            self.at[node] = number
        else:
            self._put(node, ChannelAffine, x, factor=factor, shift=shift)


def _affine(m: nn.Module) -> dict[str, Any]:
    weight: Tensor = m.weight.detach().double()  # type: ignore[operator]
    bias = m.bias
    kept = tuple(m._buffers.get(name) for name in blocks.KEPT)
    return {
        "weight": weight,
        "bias": torch.zeros(len(weight)).double() if bias is None else bias.detach().double(),  # type: ignore[operator]
        "statistics": None if any(value is None for value in kept) else kept,
    }


def _dimensions(args: Sequence[Any], options: dict[str, Any], name: str) -> tuple[int, ...] | None:
    value = args[1] if len(args) > 1 else options.get(name)
    if isinstance(value, int):
        return (value,)
    return tuple(value) if isinstance(value, list | tuple) else None
