"""The solvers of the tangent part as settings: ``[user.solver]``, or their name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from efface.pipeline.options import ConfigSection

if TYPE_CHECKING:
    from efface.parts.tangent.user import Solver


class ConjugateGradientConfig(ConfigSection):
    kind: Literal["cg"] = "cg"
    tolerance: float = Field(default=1e-4, gt=0)
    absolute: float | None = Field(default=None, gt=0)
    max_passes: int = Field(default=500, ge=3)
    refinements: int = Field(default=8, ge=0)

    def build(self) -> Solver:
        from efface.parts.tangent.cg import ConjugateGradient

        return ConjugateGradient(**self.model_dump(exclude={"kind"}))


class DualConfig(ConfigSection):
    """``precision``: until ‖w − w*‖ is proved to be at most this share of ‖w‖, ``distance``: this itself;
    without them until the gradient is ``tolerance`` of that at zero, or ``absolute``."""

    kind: Literal["dual"] = "dual"
    tolerance: float = Field(default=1e-4, gt=0)
    absolute: float | None = Field(default=None, gt=0)
    precision: float | None = Field(default=None, gt=0)
    distance: float | None = Field(default=None, gt=0)
    max_passes: int = Field(default=500, ge=4)
    refinements: int = Field(default=8, ge=0)
    max_samples: int = Field(default=12_000, ge=1)

    def build(self) -> Solver:
        from efface.parts.tangent.dual import DualConjugateGradient

        return DualConjugateGradient(**self.model_dump(exclude={"kind"}))


class SGDConfig(ConfigSection):
    kind: Literal["sgd"] = "sgd"
    epochs: int = Field(default=50, ge=1)
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    milestones: tuple[int, ...] = (25, 40)
    factor: float = Field(default=0.1, gt=0, le=1)
    replacement: bool = False
    tolerance: float | None = Field(default=None, gt=0)
    seed: int = 0

    def build(self) -> Solver:
        from efface.parts.tangent.sgd import SGD

        return SGD(**self.model_dump(exclude={"kind"}))


class CholeskyConfig(ConfigSection):
    kind: Literal["cholesky"] = "cholesky"
    max_weights: int = Field(default=20_000, ge=1)

    def build(self) -> Solver:
        from efface.parts.tangent.dense import Cholesky

        return Cholesky(**self.model_dump(exclude={"kind"}))


SOLVERS: dict[str, type[ConfigSection]] = {
    "cg": ConjugateGradientConfig,
    "dual": DualConfig,
    "sgd": SGDConfig,
    "cholesky": CholeskyConfig,
}


def _named(value: Any) -> Any:
    """``solver = "cg"`` is short for a table with only its kind; a table without one is cg's."""
    if isinstance(value, str):
        return {"kind": value}
    return {"kind": "cg", **value} if isinstance(value, Mapping) else value


SolverConfig = Annotated[
    Annotated[
        ConjugateGradientConfig | DualConfig | SGDConfig | CholeskyConfig,
        Field(discriminator="kind"),
    ],
    BeforeValidator(_named),
]
