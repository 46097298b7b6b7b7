"""Mirrored views: an image is read twice, as it is and mirrored, and the pooled features are averaged.

    h(x) = ½ (h₀(x) + h₀(mirror x))

One record then has boundary activations (2, …), and everything behind the boundary (taps, tangents, the head)
sees the network that averages.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from efface.network.tail import Tail

VIEWS = 2


class MirroredPrefix(nn.Sequential):
    """The same layers on both views: (n, c, h, w) -> (n, 2, …)."""

    def forward(self, x: Tensor) -> Tensor:
        both = torch.stack([x, x.flip(-1)], dim=1).flatten(0, 1)
        both = both.contiguous(memory_format=torch.channels_last)
        return cast("Tensor", super().forward(both)).unflatten(0, (len(x), VIEWS))


class MirroredTail(Tail):
    """Features are the mean of both views': (n, 2, …) -> (n, p) -> logits."""

    def features(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        if flat.dim() == 4:
            flat = flat.contiguous(memory_format=torch.channels_last)
        return super().features(flat).unflatten(0, (len(x), VIEWS)).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.head(self.features(x)))
