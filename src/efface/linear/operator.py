"""The tangent operator J: w ↦ J(x) w and its transpose, for batches of boundary activations x."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from efface.errors import EffaceError
from efface.linear.frozen import freeze_below
from efface.linear.layers import Layer, Saved
from efface.linear.lowering import lower
from efface.linear.opaque import OpaqueLayer
from efface.linear.pooled import pool
from efface.linear.slopes import SlopesLayer, keep_slopes
from efface.network.device import CPU, Placement
from efface.network.tail import Layout


@dataclass(frozen=True)
class Prepared:
    """The primal side of one set of samples: core outputs f_core(x), what products need, and whose form
    that has."""

    outputs: Tensor  # (n, c)
    saved: Saved
    layer: Layer

    def __len__(self) -> int:
        return self.outputs.shape[0]

    def select(self, index: Tensor | slice) -> Prepared:
        """The rows of some samples; a slice gives views, an index tensor gives copies."""
        saved = tree_map(lambda t: t[index], self.saved)
        return Prepared(self.outputs[index], saved, self.layer)

    @property
    def num_bytes(self) -> int:
        leaves = [self.outputs, *tree_leaves(self.saved)]
        return sum(t.numel() * t.element_size() for t in leaves)


class TangentOperator:
    """J(x) = ∂f(x; θ)/∂θ at the core weights θ of ``tail``.

    ``fast=False`` differentiates the tail as a whole with torch.func (any module, the slow twin);
    ``fast=True`` uses the linearised layers and torch.func only for modules without a fast form.

    ``scales`` (one number a parameter tensor, from core data only) makes it J S with S diagonal: the
    user weights are then w̃ = S⁻¹ w, and the ridge μ‖w̃‖² weighs the layers against each other. With
    None it is the paper's J.

    ``names``: the parameters that have user weights, the last ones of the tail (``final_names``); the others
    are the core's alone. None: all.

    On a ``place`` that is not the CPU the products are made there; vectors and outputs come from the CPU, and
    go back to it.
    """

    def __init__(
        self,
        tail: nn.Module,
        *,
        fast: bool = True,
        scales: Mapping[str, float] | None = None,
        place: Placement | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self.tail, self.layout = tail, Layout.of(tail, names)
        place = place or Placement()
        self.device = place.device
        if self.device.type == "mps":
            message = "the tangent part needs float64, which mps does not have."
            raise EffaceError(message, "use --device cpu, or --user compact.")
        there = place.of(tail)
        # Transforms of Winograd's kind have tables, which are the CPU's.
        self.layer: Layer
        self.layer = lower(there, winograd=self.device == CPU) if fast else OpaqueLayer(there, "")
        if names is not None:
            self.layer = freeze_below(self.layer, self.layout.names)
        self.lean: Layer | None = (
            None  # saves less, its products cost more: where there are two ways
        )
        at_once = self.device != CPU
        pooled = pool(self.layer, at_once=at_once) if names is not None else None
        if pooled is not None:
            self.layer, self.lean = pooled, self.layer
        # Takes many products to pay for itself: only for who asks for it.
        self.many = keep_slopes(self.layer) if names is None and self.device == CPU else None
        self.scales = dict.fromkeys(self.layout.names, 1.0) | dict(scales or {})

    @property
    def pooled_numbers(self) -> int:
        """That ``PooledLayer`` saves of a sample: one for each weight but the head's. 0: there is none."""
        if self.lean is None:
            return 0
        own = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return sum(math.prod(own[n]) for n in self.layer.names if not n.startswith("classifier."))

    def slope_sizes(self, one: Prepared) -> frozenset[int]:
        """Numbers a sample in each tensor of slopes that was prepared: what half precision may hold."""
        if isinstance(one.layer, SlopesLayer):
            _, slopes, pooled, _ = one.saved
            return frozenset(t[0].numel() for t in (*slopes, *pooled))
        return frozenset({self.pooled_numbers} - {0})

    def scaled(self, v: Tensor) -> dict[str, Tensor]:
        """S v, one tensor a parameter of the tail."""
        views = self.layout.views(v)
        return {k: t if self.scales[k] == 1.0 else t * self.scales[k] for k, t in views.items()}

    @property
    def d(self) -> int:
        return self.layout.d

    @torch.no_grad()
    def prepare(
        self,
        x: Tensor,
        dtype: torch.dtype = torch.float32,
        *,
        lean: bool = False,
        many: bool = False,
    ) -> Prepared:
        """Run the tail once on boundary activations ``x`` (n, c, h, w), (n, t, c) or (n, c).

        ``lean``: for few products, or where memory is short; ``many``: for hundreds of them, and few classes
        (``linear/slopes.py``). The same numbers but for their rounding.
        """
        x = x.to(self.device, dtype)
        x = x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x.contiguous()
        layer = self.lean if lean and self.lean is not None else self.layer
        layer = self.many if many and self.many is not None else layer
        outputs, saved = layer.forward(x)
        return Prepared(outputs.cpu(), saved, layer)

    @torch.no_grad()
    def jvp(self, batch: Prepared, v: Tensor) -> Tensor:
        """J v, (n, c)."""
        there = self.scaled(v.to(self.device, batch.outputs.dtype))
        tangent = batch.layer.jvp(batch.saved, None, there)
        return torch.zeros_like(batch.outputs) if tangent is None else tangent.cpu()

    @torch.no_grad()
    def vjp(self, batch: Prepared, u: Tensor, out: Tensor | None = None) -> Tensor:
        """Jᵀ u, (d,); added into ``out`` if given."""
        flat, views = self._nothing(batch)
        batch.layer.vjp(batch.saved, u.to(self.device, flat.dtype), views, False)
        return self._added(flat, views, out)

    @torch.no_grad()
    def product(self, batch: Prepared, v: Tensor, out: Tensor | None = None) -> Tensor:
        """Jᵀ J v, (d,): the Gauss–Newton product of the squared error, summed over the batch; added into
        ``out`` if given."""
        flat, views = self._nothing(batch)
        batch.layer.product(batch.saved, self.scaled(v.to(self.device, flat.dtype)), views)
        return self._added(flat, views, out)

    def _nothing(self, batch: Prepared) -> tuple[Tensor, dict[str, Tensor]]:
        """(d,) zeros, and one view of them a parameter."""
        flat = torch.zeros(self.d, dtype=batch.outputs.dtype, device=self.device)
        return flat, self.layout.views(flat)

    def _added(self, flat: Tensor, views: dict[str, Tensor], out: Tensor | None) -> Tensor:
        for name, view in views.items():
            if self.scales[name] != 1.0:
                view *= self.scales[name]
        return flat.cpu() if out is None else out.add_(flat.cpu())
