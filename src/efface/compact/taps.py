"""Taps: every linear and convolution layer of a tail, its input and its output's gradient, per sample.

With h(x) the pooled features and u fixed, one forward and one backward of Σ_i uᵀh(x_i) give for all
layers l at once the inputs a_l(s) and the output gradients g_l(s) at every position s: samples do not mix,
so the gradient of the sum holds each sample's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efface.backbone import forward_ad_kernels
from efface.tail import Tail


@dataclass(frozen=True)
class Tap:
    """One layer: its name, and how its inputs become rows of ``width`` numbers, one a position."""

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

    def rows(self, x: Tensor) -> Tensor:
        """Inputs as (n, positions, width): the patches a convolution sees, or the tokens."""
        if isinstance(self.module, nn.Conv2d):
            m = self.module
            return F.unfold(x, m.kernel_size, m.dilation, m.padding, m.stride).transpose(1, 2)  # type: ignore[arg-type]
        return x.reshape(x.shape[0], -1, x.shape[-1])

    def project(self, x: Tensor, basis: Tensor) -> Tensor:
        """``rows(x) @ basis`` without forming the patches: (n, positions, r)."""
        if isinstance(self.module, nn.Conv2d):
            m = self.module
            kernel = basis.T.reshape(-1, *m.weight.shape[1:])
            y = F.conv2d(x, kernel, None, m.stride, m.padding, m.dilation)
            return y.flatten(2).transpose(1, 2)
        return self.rows(x) @ basis

    def gradient_rows(self, g: Tensor) -> Tensor:
        """Output gradients as (n, positions, outputs)."""
        if isinstance(self.module, nn.Conv2d):
            return g.flatten(2).transpose(1, 2)
        return g.reshape(g.shape[0], -1, g.shape[-1])


@dataclass(frozen=True)
class Tapped:
    """One batch seen through the taps: pooled features, and per tap (input, output gradient)."""

    features: Tensor  # (n, p)
    pairs: tuple[tuple[Tensor, Tensor], ...]


def taps_of(tail: Tail) -> list[Tap]:
    """All layers below the head with a dense weight; grouped convolutions are left out."""
    found = []
    for name, module in tail.named_modules():
        plain_conv = isinstance(module, nn.Conv2d) and module.groups == 1
        if (plain_conv or type(module) is nn.Linear) and module is not tail.head:
            found.append(Tap(name, module))
    return found


def tap(tail: Tail, taps: list[Tap], x: Tensor) -> Tapped:
    """Run the tail on boundary activations ``x`` forward and, from u = 1, backward."""
    with torch.enable_grad(), forward_ad_kernels(), _recording(taps) as seen:
        x = x.detach().float().clone().requires_grad_(True)
        features = tail.features(x)
        outputs = [seen[t.name][1] for t in taps if t.name in seen]
        gradients = torch.autograd.grad(features.sum(), outputs) if outputs else ()
    pairs = [
        (seen[t.name][0].detach(), g.detach())
        for t, g in zip([t for t in taps if t.name in seen], gradients, strict=True)
    ]
    return Tapped(features.detach(), tuple(pairs))


@contextmanager
def _recording(taps: list[Tap]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if name in seen:
                raise RuntimeError(f"layer {name} is used twice in one pass: tie its weights apart")
            seen[name] = (inputs[0], output)

        return record

    handles = [t.module.register_forward_hook(hook(t.name)) for t in taps]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
