"""The form of a network: in which arithmetic boundary activations, ψ and the core's logits are computed.

``integer``  every sum is one of integers and exact: the same bits on every machine
``float32``  one record at a time: the same bits on one machine, whatever surrounds the record

A form belongs to a core. What it needs beyond the core's weights (steps of the integers) comes from core
or public images, never from user data, and travels with the model.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from efface.arithmetic.chain import FloatChain
from efface.arithmetic.kinds import ARITHMETIC, FLOAT
from efface.data.loading import Prepare, stacked
from efface.data.pictures import Shown
from efface.linear.projection import Projection
from efface.network.activations import (
    ActivationCache,
    Activations,
    Stream,
    boundaries,
    gather,
)
from efface.network.core import Core
from efface.progress import Progress


class Form(ABC):
    """How one core computes; abstract."""

    arithmetic: ClassVar[str]  # "integer" or "float32": what a certificate may claim
    kind: ClassVar[str]  # which of them it is, in files
    dtype: str = "float32"  # of activations in a cache

    def __init__(self, core: Core) -> None:
        self.core = core

    @property
    def image(self) -> tuple[int, int, int]:
        """The shape of an image's pixels."""
        return self.core.image_shape

    @property
    @abstractmethod
    def boundary_shape(self) -> tuple[int, ...]:
        """Of one record's activation."""

    @property
    def prepare(self) -> Prepare:
        """From the pixels of an image to what :meth:`boundary_of` takes."""
        return self.core.backbone.preprocess

    @abstractmethod
    def boundary_of(self, images: Tensor) -> Tensor:
        """Activations at the boundary, (n, *boundary_shape), of prepared images."""

    def boundary(self, records: Shown) -> Tensor:
        """The same of some records, all at once."""
        arrays = [self.core.loader.one(record, self.prepare) for record in records]
        return self.boundary_of(torch.from_numpy(stacked(records.ids, arrays)))

    def stream(self, records: Shown, batch_size: int = 32) -> Stream:
        """The same of some records after the others; the next images are read meanwhile."""
        return boundaries(
            self.core.loader.batches(records, self.prepare, batch_size), self.boundary_of
        )

    @abstractmethod
    def plain(self, activations: Tensor) -> Tensor:
        """The numbers that activations stand for, float32."""

    @abstractmethod
    def rows(
        self, projection: Projection, activations: Activations
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """ψ (b, k) and the core's logits (b, c) of some samples after the others."""

    @abstractmethod
    def logits(self, activations: Activations) -> Tensor:
        """The core's logits, (n, c) float32."""

    @abstractmethod
    def chain(self, projection: Projection) -> nn.Module:
        """Pixels (n, c, h, w) uint8 -> ψ (n, k) and the core's logits (n, c), float32, as one plain module
        that can be written down for other programs (``torch.export``)."""

    @abstractmethod
    def fit_projection(self, projection: Projection, activations: Tensor) -> None:
        """Take note of the bases, and of what calibration samples reach in them."""

    @abstractmethod
    def settle(self, projection: Projection) -> None:
        """Make what many images need, and test the core's device where the form promises anything of it."""

    @property
    def settings(self) -> dict[str, Any]:
        """What it needs beyond the core, for JSON."""
        return {"kind": self.kind}

    @property
    def digest(self) -> str:
        """SHA-256 of the settings."""
        return hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    @property
    def prefix_digest(self) -> str:
        """Of all that activations depend on."""
        return self.core.prefix_digest

    def activations(
        self,
        records: Shown,
        cache: ActivationCache | None = None,
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Activations:
        """Boundary activations: from the cache where they are, else computed. ``cache`` may be that of any
        form of this core: activations of this one lie beside it."""
        cache = None if cache is None else self.cache(cache)
        return gather(
            records,
            cache,
            lambda some: self.stream(some, batch_size),
            lambda: self.boundary_shape,
            progress=progress,
        )

    def cache(self, beside: ActivationCache) -> ActivationCache:
        if beside.prefix_digest == self.prefix_digest:
            return beside
        return ActivationCache(
            beside.path.parent, self.prefix_digest, self.boundary_shape, self.dtype
        )


class FloatForm(Form):
    """Ordinary float32, one record at a time."""

    kind = FLOAT
    arithmetic = ARITHMETIC[kind]

    @property
    def boundary_shape(self) -> tuple[int, ...]:
        return self.core.boundary_shape

    def boundary_of(self, images: Tensor) -> Tensor:
        return self.core.each_boundary(images)

    def plain(self, activations: Tensor) -> Tensor:
        return activations.float()

    def rows(
        self, projection: Projection, activations: Activations
    ) -> Iterator[tuple[Tensor, Tensor]]:
        tail: Any = self.core.place.of(self.core.tail)
        for psi, pooled in projection.each(tail, activations):
            with torch.no_grad():
                yield psi, self.core.tail.head(pooled)

    def logits(self, activations: Activations) -> Tensor:
        return self.core.logits_of(activations)

    def chain(self, projection: Projection) -> nn.Module:
        return FloatChain(self.core, projection)

    def fit_projection(self, projection: Projection, activations: Tensor) -> None:
        pass  # floats need no steps

    def settle(self, projection: Projection) -> None:
        pass  # nor are they the same on two devices

    def cache(self, beside: ActivationCache) -> ActivationCache:
        return beside  # a cache of another core is refused where it is read
