"""A network in float32 as one plain module, for other programs: pixels in, ψ and the core's logits out.

Gradients at the layers' outputs are those of what is added to them: with y_l + δ_l in the place of every
tapped layer's output y_l, ∂(1ᵀh)/∂δ_l at δ = 0 is g_l. ``torch.func`` differentiates that in a way that
torch.export can write down.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from efface.data.preprocess import Preprocess, of_images
from efface.linear.projection import Projection, moments, roots
from efface.linear.taps import LayerTap, Tap, Tapper, named_taps
from efface.network.backbone import forward_ad_kernels
from efface.network.core import Core


class Normalised(nn.Module):
    """Pixels (n, c, h, w) uint8 -> (pixels / 255 − mean) / std, float32."""

    mean: Tensor
    std: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        for name in ("mean", "std"):
            values = torch.tensor(getattr(preprocess, name), dtype=torch.float32)
            self.register_buffer(name, values.view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        return (pixels.float() / 255.0 - self.mean) / self.std


class FloatChain(nn.Module):
    """Pixels (n, c, h, w) uint8 -> ψ (n, k) and f_core (n, classes), float32."""

    def __init__(self, core: Core, projection: Projection) -> None:
        super().__init__()
        self.normalised = Normalised(of_images(core.backbone.preprocess))
        self.prefix, self.tail = copy.deepcopy(core.prefix), copy.deepcopy(core.tail)
        self.prefix.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.projection = projection
        self.taps = named_taps(self.tail, projection.tapped)
        for i, basis in enumerate(projection.inputs):
            self.register_buffer(f"inputs{i}", basis.clone())
        for i, basis in enumerate(projection.gradients):
            self.register_buffer(f"gradients{i}", basis.clone())
        self.register_buffer("part_scales", projection.part_scales.clone())
        self.shapes = _output_shapes(core, self.tail, self.taps)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        with forward_ad_kernels():
            h, inputs, gradients = self._tapped(self.prefix(self.normalised(pixels)))
            logits = self.tail.head(h)
        known = {tap.name: (tap, x) for tap, x in zip(self.taps, inputs, strict=True)}
        at = [known[e.name] for e in self.projection.energies]
        energies = [tap.energies(x, h.shape[0]) for tap, x in at]
        parts = [*(energies or [h]), *self._layers(h, inputs, gradients)]
        scales = self.get_buffer("part_scales")
        scaled = [p / scales[i] for i, p in enumerate(parts)]
        return torch.cat([scaled[0], torch.ones_like(h[:, :1]), *scaled[1:]], dim=1), logits

    def _tapped(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """h, and what every tapped layer read and the gradient of what it gave."""

        def features(*added: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
            with _adding(self.taps, added) as seen:
                h = self.tail.features(x)
            return h, tuple(seen[tap.name] for tap in self.taps)

        if not self.projection.has_gradients:
            h, inputs = features()
            return h, inputs, ()
        zeros = [x.new_zeros((x.shape[0] * shape[0], *shape[1:])) for shape in self.shapes]
        h, back, inputs = torch.func.vjp(features, *zeros, has_aux=True)  # type: ignore[misc]
        return h, inputs, back(torch.ones_like(h))

    def _layers(
        self, h: Tensor, inputs: tuple[Tensor, ...], gradients: tuple[Tensor, ...]
    ) -> Iterator[Tensor]:
        for i, tap in enumerate(self.taps[: len(self.projection.names)]):
            a = tap.project(inputs[i], self.get_buffer(f"inputs{i}"), h.shape[0])  # (n, s, r_a)
            if not gradients:
                yield roots(a) if self.projection.roots else moments(a)
                continue
            assert isinstance(tap, LayerTap)
            b = tap.gradient_rows(gradients[i], h.shape[0]) @ self.get_buffer(f"gradients{i}")
            yield (b.transpose(1, 2) @ a).flatten(1)


@contextmanager
def _adding(taps: list[Tap], added: tuple[Tensor, ...]) -> Iterator[dict[str, Tensor]]:
    """While it lasts, tapped layers write what they read under their name; δ_l is added to what they give."""
    seen: dict[str, Tensor] = {}

    def before(name: str):  # type: ignore[no-untyped-def]
        def record(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seen[name] = inputs[0].clone()

        return record

    def after(extra: Tensor):  # type: ignore[no-untyped-def]
        return lambda _, __, output: output + extra

    handles = [t.module.register_forward_pre_hook(before(t.name)) for t in taps]
    handles += [t.module.register_forward_hook(after(e)) for t, e in zip(taps, added, strict=False)]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _output_shapes(core: Core, tail: nn.Module, taps: list[Tap]) -> list[tuple[int, ...]]:
    """Of every tapped layer's output for one image."""
    sample = torch.zeros(1, *core.boundary_shape)
    seen = Tapper(core.tail, named_taps(core.tail, [t.name for t in taps]), fast=False)(sample)
    return [tuple(gradient.shape) for _, gradient in seen.pairs]
