"""Outputs of many images, some after the others, so that somebody can be told how far it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from efface.data.pictures import Shown
from efface.progress import Progress

SIZE = 64  # images; a multiple of the batches that a network is given, which then stay the same


def in_turn(
    function: Callable[[Shown], Tensor], shown: Shown, progress: Progress | None = None
) -> Tensor:
    """``function(shown)``, an image's row depending on that image alone: so it may be had piece by piece."""
    if progress is None or not len(shown):
        return function(shown)
    found: list[Tensor] = []
    for start in range(0, len(shown), SIZE):
        found.append(function(shown[start : start + SIZE]))
        done = min(start + SIZE, len(shown))
        progress(done / len(shown), f"images {done}/{len(shown)}")
    return torch.cat(found)
