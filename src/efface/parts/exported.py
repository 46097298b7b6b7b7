"""A model as other programs can have it: a plain module from pixels to logits, and the linear head alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from torch import nn

LOGITS, ROWS, CORE_LOGITS = "logits", "rows", "core_logits"


@dataclass(frozen=True, eq=False)
class Exported:
    """What ``UserPart.exported`` gives.

    Args:
        module: pixels (n, c, h, w) uint8, resized and cropped already, to the ``outputs``, in order.
        image: the shape of one image's pixels.
        outputs: what the module gives; ``logits`` first.
        batched: whether it takes any number of images at once, else one.
        bit_equal: whether its logits have the same bits as ours, on any machine that adds as IEEE 754 says.
        rounding: in words, what they may differ by.
        head: the linear head as arrays, where there is one that works on rows.
    """

    module: nn.Module
    image: tuple[int, int, int]
    outputs: tuple[str, ...]
    batched: bool
    bit_equal: bool
    rounding: str
    head: dict[str, np.ndarray] = field(default_factory=dict)
