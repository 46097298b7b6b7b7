"""Taps: what the layers and steps of a tail read, and the gradients of what they give, per sample.

With h(x) the pooled features and u fixed, one forward and one backward of Σ_i uᵀh(x_i) give for all
layers l at once the inputs a_l(s) and the output gradients g_l(s) at every position s: samples do not mix,
so the gradient of the sum holds each sample's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efface.errors import BackboneError, FormatError
from efface.linear.winograd import WinogradLayer, suits_winograd
from efface.network.backbone import forward_ad_kernels
from efface.network.tail import Tail


class Tap(ABC):
    """A place where a tail is looked into: a module whose inputs become rows of numbers, one a position."""

    name: str
    module: nn.Module

    @abstractmethod
    def rows(self, x: Tensor, n: int) -> Tensor:
        """Inputs as (n, positions, width)."""

    @abstractmethod
    def project(self, x: Tensor, basis: Tensor, n: int) -> Tensor:
        """``rows(x, n) @ basis``: (n, positions, r)."""

    def energies(self, x: Tensor, n: int) -> Tensor:
        """Σ_s x(s)² of each channel of what it reads: (n, channels). Views of a sample are places, too."""
        places = self._by_sample(x.flatten(2).transpose(1, 2) if x.dim() == 4 else x, n)
        return (places * places).sum(1)

    def _by_sample(self, x: Tensor, n: int) -> Tensor:
        """(n, positions, last). Windowed attention has a batch of n · windows, sample by sample."""
        if x.shape[0] % n:
            raise BackboneError(
                f"{self.name} sees a batch of {x.shape[0]} for {n} samples.",
                "keep samples in the first dimension, or use features up to the pooled size.",
            )
        return x.reshape(n, -1, x.shape[-1])


@dataclass(frozen=True)
class MapTap(Tap):
    """What a step of the tail reads: a map (n, c, h, w), or tokens (n, t, c)."""

    name: str
    module: nn.Module

    def num_places(self, x: Tensor) -> int:
        """Of one sample, or of one view of it; 1 for vectors (n, c)."""
        return x.shape[2:].numel() if x.dim() == 4 else x.shape[1] if x.dim() == 3 else 1

    def rows(self, x: Tensor, n: int) -> Tensor:
        return self._by_sample(x.flatten(2).transpose(1, 2) if x.dim() == 4 else x, n)

    def project(self, x: Tensor, basis: Tensor, n: int) -> Tensor:
        return self.rows(x, n) @ basis


@dataclass(frozen=True)
class LayerTap(Tap):
    """One layer with a dense weight: rows are the patches a convolution sees, or the tokens."""

    name: str
    module: nn.Module

    @property
    def width(self) -> int:
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight[0].numel()

    @property
    def outputs(self) -> int:
        weight: Tensor = self.module.weight  # type: ignore[assignment]
        return weight.shape[0]

    @property
    def one_place(self) -> bool:
        """Whether it looks at one place at a time: a linear layer, or a 1 × 1 convolution."""
        return not isinstance(self.module, nn.Conv2d) or self.module.kernel_size == (1, 1)

    def rows(self, x: Tensor, n: int) -> Tensor:
        if isinstance(self.module, nn.Conv2d):
            m = self.module
            x = F.unfold(x, m.kernel_size, m.dilation, m.padding, m.stride).transpose(1, 2)  # type: ignore[arg-type]
        return self._by_sample(x, n)

    def project(self, x: Tensor, basis: Tensor, n: int) -> Tensor:
        """Without forming the patches."""
        if isinstance(self.module, nn.Conv2d):
            m = self.module
            kernel = basis.T.reshape(-1, *m.weight.shape[1:])
            y = F.conv2d(x, kernel, None, m.stride, m.padding, m.dilation)
            return self.gradient_rows(y, n)
        return self._by_sample(x, n) @ basis

    def gradient_rows(self, g: Tensor, n: int) -> Tensor:
        """Output gradients as (n, positions, outputs)."""
        if isinstance(self.module, nn.Conv2d):
            g = g.flatten(2).transpose(1, 2)
        return self._by_sample(g, n)


@dataclass(frozen=True)
class Tapped:
    """One batch seen through the taps: pooled features, and per tap (input, output gradient).

    ``names`` are the taps that the features depend on; others (an unused pooler) have no pair.
    """

    features: Tensor  # (n, p)
    names: tuple[str, ...]
    pairs: tuple[tuple[Tensor, Tensor], ...]


BEFORE = "before "  # in the name of a map; no module has a space in its own


def maps_of(tail: Tail) -> list[MapTap]:
    """What each step below the head reads."""
    steps = [item for item in tail.named_children() if item[1] is not tail.head]
    return [MapTap(f"{BEFORE}{name}", module) for name, module in steps]


def taps_of(tail: Tail) -> list[LayerTap]:
    """All layers below the head with a dense weight."""
    return [t for t in dense_layers(tail) if t.module is not tail.head]


def named_taps(tail: Tail, names: Sequence[str]) -> list[Tap]:
    """The taps of these names; FormatError where a tail has none of such."""
    known: dict[str, Tap] = {t.name: t for t in (*taps_of(tail), *maps_of(tail))}
    if any(name not in known for name in names):
        raise FormatError("the projection belongs to another tail.", "rebuild it on this core.")
    return [known[name] for name in names]


def dense_layers(module: nn.Module) -> list[LayerTap]:
    """All linear and convolution layers; convolutions that are grouped, or padded with anything but a
    given number of zeros, are left out."""
    found = []
    for name, child in module.named_modules():
        plain_conv = (
            isinstance(child, nn.Conv2d)
            and child.groups == 1
            and child.padding_mode == "zeros"
            and not isinstance(child.padding, str)
        )
        if plain_conv or type(child) is nn.Linear:
            found.append(LayerTap(name, child))
    return found


class Tapper:
    """Runs the tail on batch after batch. 3 × 3 convolutions go by Winograd's products, their kernels
    transformed once: a tapper lives no longer than the tail's weights stay as they are. Not ``fast``: as
    torch has them. Not ``backward``: inputs alone, each paired with an empty gradient."""

    def __init__(
        self,
        tail: Tail,
        taps: Sequence[Tap],
        dtype: torch.dtype = torch.float32,
        *,
        fast: bool = True,
        backward: bool = True,
    ) -> None:
        self.tail, self.taps, self.dtype, self.backward = tail, list(taps), dtype, backward
        # Types are compared exactly: a subclass may compute something else.
        self._fast = [
            (t.module, WinogradLayer(t.module, ""))
            for t in taps
            if fast and type(t.module) is nn.Conv2d and suits_winograd(t.module)
        ]

    def __call__(self, x: Tensor) -> Tapped:
        """Forward on boundary activations ``x`` and, from u = 1, backward."""
        with torch.set_grad_enabled(self.backward), forward_ad_kernels(), self._swapped():
            run = _tap if self.backward else _inputs
            return run(self.tail, self.taps, x.to(self.dtype))

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        """While it lasts, the fast forms stand in for ``forward``; hooks see no difference."""
        for module, layer in self._fast:
            module.forward = partial(_Winograd.apply, layer)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for module, _ in self._fast:
                del module.forward


class _Winograd(torch.autograd.Function):
    """A layer's map and its transpose, (n, c, h, w); no gradient for its weights, which are frozen."""

    @staticmethod
    def forward(ctx: Any, layer: WinogradLayer, x: Tensor) -> Tensor:
        ctx.layer = layer
        return layer.forward(x.permute(0, 2, 3, 1))[0].permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, ctx.layer.pull_back(gradients[0].permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def tap(tail: Tail, taps: Sequence[Tap], x: Tensor) -> Tapped:
    """One batch through the taps; for more than one, keep a :class:`Tapper`."""
    return Tapper(tail, taps)(x)


def _inputs(tail: Tail, taps: Sequence[Tap], x: Tensor) -> Tapped:
    """Forward only: what each layer saw."""
    with recording(taps) as seen:
        features = tail.features(_copied(x))
    names = tuple(t.name for t in taps if t.name in seen)
    nothing = features.new_zeros(0)
    return Tapped(features, names, tuple((seen[name][0], nothing) for name in names))


def _copied(x: Tensor) -> Tensor:
    """A clone, because the tail may begin in place; channels last, because all products are."""
    layout = torch.channels_last if x.dim() == 4 else torch.contiguous_format
    return x.clone(memory_format=layout)


def _tap(tail: Tail, taps: Sequence[Tap], x: Tensor) -> Tapped:
    with recording(taps) as seen:
        x = x.detach().requires_grad_(True)
        features = tail.features(_copied(x))
        names = [t.name for t in taps if t.name in seen]
        outputs = [seen[name][1] for name in names]
        gradients = (
            torch.autograd.grad(features.sum(), outputs, allow_unused=True) if outputs else ()
        )
    pairs = {
        name: (seen[name][0], g) for name, g in zip(names, gradients, strict=True) if g is not None
    }
    return Tapped(features.detach(), tuple(pairs), tuple(pairs.values()))


@contextmanager
def recording(taps: Sequence[Tap]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """While it lasts, every pass writes each tap's (input, output) under its name."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, x: Tensor, output: Tensor) -> None:
        if name in seen:
            raise BackboneError(
                f"layer {name} is used twice in one pass.",
                "give each use a layer of its own, or use features up to the pooled size.",
            )
        # Copies, because later modules may work in place: an activation on this output, a
        # residual sum on this input. Both would be read after they changed.
        seen[name] = (x.detach().clone(), output)

    def after(name: str) -> Callable[..., Tensor]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            keep(name, inputs[0], output)
            return output.clone()

        return record

    def before(name: str) -> Callable[..., None]:
        # A step may work in place on what it reads.
        return lambda _, inputs: keep(name, inputs[0], inputs[0])

    handles = [
        t.module.register_forward_pre_hook(before(t.name))
        if isinstance(t, MapTap)
        else t.module.register_forward_hook(after(t.name))
        for t in taps
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
