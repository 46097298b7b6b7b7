"""Whether sums could be those of rows at all: what can be told without the rows.

Of n rows of integers with |q| <= a and targets with |t| <= b: 0 <= G_jj <= n a², G_ij² <= G_ii G_jj (Cauchy
and Schwarz), and B_jc² <= G_jj n b². Sums that keep to this may still be of rows that nobody has; sums that
do not are certainly none.
"""

from __future__ import annotations

import numpy as np

from efface.parts.compact.quantiser import integer_limit
from efface.parts.compact.statistics import Statistics

SLACK = 1 + 2.0**-40  # more than the rounding of a product and a root in float64


def objection(sums: Statistics) -> str | None:
    """What is impossible about them; None if nothing is."""
    squares = np.array(sums.diagonal(), dtype=np.float64)
    row_limit, target_limit = integer_limit(sums.bits), integer_limit(sums.target_bits)
    if (squares < 0).any():
        return "a sum of squares is negative"
    if (squares > sums.num_rows * row_limit**2 * SLACK).any():
        return f"a sum of squares is larger than {sums.num_rows} rows can have"
    roots = np.sqrt(squares)
    for start, stop, strip in sums.strips():
        if (np.abs(strip) > roots[start:stop, None] * roots[:stop] * SLACK).any():
            return "a product of two features is larger than their squares allow"
    most = roots[:, None] * (sums.num_rows**0.5 * target_limit * SLACK)
    if (np.abs(sums.cross()) > most).any():
        return "a product with a target is larger than the squares allow"
    return None
