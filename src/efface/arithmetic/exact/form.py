"""The exact form of a core: any network, in float64, every sum rounded to a grid on which it is exact.

Nothing has to be calibrated, and about 20 bits of every number count, so the features are those of float32
but for its rounding. It takes two to three times as long as float32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from efface.arithmetic.chain import FloatChain
from efface.arithmetic.exact.exact_mode import ExactMode, exact, probe, wide
from efface.arithmetic.form import Form
from efface.arithmetic.kinds import ARITHMETIC, EXACT
from efface.linear.projection import Projection
from efface.linear.taps import Tapper, named_taps
from efface.network.activations import Activations
from efface.network.backbone import forward_ad_kernels
from efface.network.core import Core
from efface.network.tail import Tail


class ExactForm(Form):
    """See the module. One record at a time; the number of threads does not matter."""

    kind = EXACT
    arithmetic = ARITHMETIC[kind]

    @staticmethod
    def problem(core: Core) -> str | None:
        """Why this core has no exact form; None if it has one."""
        image = core.blank
        problem = probe(core.prefix, image, backward=False)
        if problem is not None:
            return problem
        with torch.no_grad():
            boundary = core.boundary(image)
        return probe(core.tail, boundary)

    @property
    def boundary_shape(self) -> tuple[int, ...]:
        return self.core.boundary_shape

    @property
    def prefix_digest(self) -> str:
        return hashlib.sha256(f"exact {self.core.prefix_digest}".encode()).hexdigest()

    @cached_property
    def _prefix(self) -> tuple[torch.nn.Module, ExactMode]:
        prefix = exact(self.core.prefix)
        return prefix, ExactMode(prefix)

    @cached_property
    def _tail(self) -> tuple[Tail, ExactMode]:
        tail = exact(self.core.tail)
        return tail, ExactMode(tail)

    @torch.no_grad()
    def boundary_of(self, images: Tensor) -> Tensor:
        prefix, mode = self._prefix
        found = []
        for i in range(len(images)):
            image = wide(images[i : i + 1])
            with forward_ad_kernels(), mode:
                found.append(prefix(image).contiguous())
        return torch.cat(found).float()

    def plain(self, activations: Tensor) -> Tensor:
        return activations.float()

    def chain(self, projection: Projection) -> torch.nn.Module:
        """In float32: the exact sums need operations that other programs do not have."""
        return FloatChain(self.core, projection)

    def fit_projection(self, projection: Projection, activations: Tensor) -> None:
        pass  # steps are those of each record

    def settle(self, projection: Projection) -> None:
        pass  # it is the CPU's

    def rows(
        self, projection: Projection, activations: Activations
    ) -> Iterator[tuple[Tensor, Tensor]]:
        tail, mode = self._tail
        wide = projection.double()
        taps = named_taps(tail, wide.names)
        tapper = Tapper(tail, taps, torch.float64, fast=False, backward=wide.has_gradients)
        for i in range(len(activations)):
            with mode:
                psi, h = wide.row(tapper, activations[slice(i, i + 1)])
                with torch.no_grad():
                    logits = tail.head(h)
            yield psi.float(), logits.float()

    @torch.no_grad()
    def logits(self, activations: Activations) -> Tensor:
        tail, mode = self._tail
        found = [torch.zeros(0, len(self.core.classes))]
        for i in range(len(activations)):
            x = activations[slice(i, i + 1)].double()
            with forward_ad_kernels(), mode:
                found.append(tail(x).float())
        return torch.cat(found)
