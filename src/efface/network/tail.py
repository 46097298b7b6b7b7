"""The tail: the final layers that are linearised, ending in the head, as one module from boundary
activations to logits; and the layout that turns its parameters into one flat vector."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from efface.network.families import Step


class Tail(nn.Sequential):
    """Named steps, then the head: boundary activations -> features -> logits."""

    def __init__(self, steps: Iterable[Step], head: nn.Linear) -> None:
        named: OrderedDict[str, nn.Module] = OrderedDict()
        for step in steps:
            name = step.name.replace(".", "_")
            while name in named or name == "classifier":
                name += "_"
            named[name] = step.module
        named["classifier"] = head
        super().__init__(named)

    @property
    def head(self) -> nn.Linear:
        return self[-1]  # type: ignore[return-value]

    def features(self, x: Tensor) -> Tensor:
        """The pooled features h(x): everything but the head."""
        for module in list(self)[:-1]:
            x = module(x)
        return x


@dataclass(frozen=True)
class Layout:
    """How a module's parameters lie in one flat vector of length ``d``."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module, names: Collection[str] | None = None) -> Layout:
        """Of all parameters, or of those in ``names``."""
        every = module.named_parameters()
        items = [(name, tuple(p.shape)) for name, p in every if names is None or name in names]
        return cls(tuple(n for n, _ in items), tuple(s for _, s in items))

    @property
    def d(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Name -> view of ``flat`` in that parameter's shape; writing to it writes to ``flat``."""
        if flat.shape != (self.d,):
            raise ValueError(
                f"expected a vector of {self.d} weights, got shape {tuple(flat.shape)}"
            )
        views, start = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            stop = start + math.prod(shape)
            views[name] = flat[start:stop].view(shape)
            start = stop
        return views

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[name].reshape(-1) for name in self.names])
