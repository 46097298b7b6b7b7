"""Two readings of the loss that the paper's printed rates and weight decays belong to (docs/errata.md, 28).

The paper prints numbers for "the MSE loss" and writes a sum over the classes. Libraries of deep learning
average over the classes, too. With c classes and our loss L = 1/(2n) Σ‖f − y‖² + μ/2 ‖w‖²,

    1/(nc) Σ‖f − y‖² + λ/2 ‖w‖²  =  2/c · L    for  μ = λ c/2,

so a printed rate η is ours times 2/c, and a printed weight decay λ is ours times c/2.
"""

from __future__ import annotations

from enum import StrEnum


class Reading(StrEnum):
    SUM = "sum"  # the loss as the paper writes it, and ours: summed over the classes
    PAPER = "paper"  # the loss as the paper's numbers seem to mean it: averaged over them, too

    def rate(self, printed: float, num_classes: int) -> float:
        """The learning rate on our loss."""
        return printed * 2 / num_classes if self is Reading.PAPER else printed

    def printed_rate(self, rate: float, num_classes: int) -> float:
        """The inverse."""
        return rate * num_classes / 2 if self is Reading.PAPER else rate

    def ridge(self, printed: float, num_classes: int) -> float:
        """The ridge μ of our loss."""
        return printed * num_classes / 2 if self is Reading.PAPER else printed
