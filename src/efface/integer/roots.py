"""Square roots as IEEE 754 defines them.

torch's float64 ``sqrt`` is not correctly rounded: it calls MKL's vector library, which is off by one unit in
the last place for about one argument in eighty (51 is the first whole number). numpy uses the processor's
own instruction, which is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def square_root(x: Tensor) -> Tensor:
    """√x, correctly rounded."""
    return torch.from_numpy(np.asarray(np.sqrt(x.detach().numpy())))


def inverse_root(x: Tensor) -> Tensor:
    """1 / √x: two correctly rounded operations."""
    return square_root(x).reciprocal_()
