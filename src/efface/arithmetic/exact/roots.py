"""Square roots as IEEE 754 defines them.

torch's float64 ``sqrt`` is not correctly rounded: measured with torch 2.13 (CPU), it is off by one unit in
the last place for 2,455 of the first 200,000 whole numbers (51 is the first), presumably because it calls
MKL's vector library. numpy's agreed with ``math.sqrt`` on all of them; ``self_test`` asks again.
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
