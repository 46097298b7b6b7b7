"""The head on exact sums: logits that are the same on every machine.

h is rounded to 18 bits beside its largest entry, W held as two limbs of 20 bits beside its largest, so
that each product Σ_j h_j W_jc is a sum of integers below 2^53, exact in float64; the limbs are then
added, once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from efface.arithmetic.integer.ops import NoIntegerForm
from efface.arithmetic.integer.sums import least_exponent, power

FEATURE_BITS, LIMB_BITS = 18, 20
MOST_FEATURES = 2 ** (53 - FEATURE_BITS - LIMB_BITS - 1)


@torch.no_grad()
def exact_linear(h: Tensor, head: nn.Linear) -> Tensor:
    """head(h), (n, c) float32, of features (n, p)."""
    if h.shape[1] > MOST_FEATURES:
        raise NoIntegerForm(f"{h.shape[1]} pooled features are more than {MOST_FEATURES}.")
    e_rows = least_exponent(h.abs().amax(1), 2**FEATURE_BITS)[:, None]
    q = torch.round(h.double() / power(e_rows))
    high, low, unit = limbs(head.weight.double())
    total = (q @ high.T) * 2.0**LIMB_BITS + q @ low.T
    logits = total * (power(e_rows) * power(unit))
    return (logits if head.bias is None else logits + head.bias.double()).float()


def limbs(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W ≈ (high · 2^20 + low) · 2^unit, both limbs at most 20 bits."""
    top = least_exponent(weight.abs().amax(), 2**LIMB_BITS)
    high = torch.round(weight / power(top))
    rest = weight - high * power(top)  # exact: W has 24 bits, high the leading ones
    return high, torch.round(rest / power(top - LIMB_BITS)), top - LIMB_BITS
