"""The head's share of the tangent model, which has a closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from efface.linear.last_layer import ridge, with_ones
from efface.linear.operator import TangentOperator

WEIGHT, BIAS = "classifier.weight", "classifier.bias"


def head_rows(operator: TangentOperator, features: Tensor) -> Tensor:
    """The head's tangent of every class alike, (s_w h, s_b): (n, p + 1) in float64."""
    rows = with_ones(features) * operator.scales[WEIGHT]
    rows[:, -1] = operator.scales[BIAS]
    return rows


def best_head(operator: TangentOperator, features: Tensor, missing: Tensor, mu: float) -> Tensor:
    """The weights that come closest to ``missing`` = y − f when only the head's may differ from zero.

    All classes have the same rows, so they solve one ridge of size p + 1.
    """
    theta = ridge(head_rows(operator, features), missing, mu)  # (p + 1, c)
    start = torch.zeros(operator.d, dtype=torch.float64)
    views = operator.layout.views(start)
    views[WEIGHT].copy_(theta[:-1].T)
    views[BIAS].copy_(theta[-1])
    return start
