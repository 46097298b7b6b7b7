"""Regression targets for classification: one-hot times a scale (the paper uses 5)."""

from __future__ import annotations

import torch
from torch import Tensor


def one_hot(labels: Tensor, num_classes: int, scale: float = 5.0) -> Tensor:
    """(n,) class indices -> (n, c) float64 with ``scale`` at the label and 0 elsewhere."""
    targets = torch.zeros(len(labels), num_classes, dtype=torch.float64)
    targets[torch.arange(len(labels)), labels] = scale
    return targets
