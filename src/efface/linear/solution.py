"""What a solver hands back: the value, and whether to believe it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Status(StrEnum):
    CONVERGED = "converged"
    STOPPED_SHORT = "stopped short"
    DIVERGED = "diverged"
    FIXED_BUDGET = "ran its fixed number of passes"


@dataclass(frozen=True)
class Solution:
    """``residual_norm`` is ‖g_D(value)‖ recomputed on the final value; ``passes`` counts sweeps over
    the data, the residual's own pass included. ``distance_bound`` ≥ ‖value − w*‖ where a solver proves it.
    ``multipliers`` is α with value = Jᵀα, one row a sample, where it was solved between samples: they tell of
    every sample, so nobody keeps them but experiments, for problems that are near."""

    value: Tensor
    status: Status
    residual_norm: float
    passes: float
    advice: str = ""
    history: tuple[float, ...] = field(default=(), repr=False)
    distance_bound: float | None = None
    multipliers: Tensor | None = field(default=None, repr=False)

    @property
    def ok(self) -> bool:
        return self.status in (Status.CONVERGED, Status.FIXED_BUDGET)

    def __str__(self) -> str:
        text = f"{self.status}: residual {self.residual_norm:.2e} after {self.passes:.1f} passes"
        return f"{text}. {self.advice}" if self.advice else text
