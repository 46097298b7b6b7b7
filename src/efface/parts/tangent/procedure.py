"""How a request to the tangent part is carried out, as plain values: what a command, or a file, can say.

The values are kept with the request in flight, so that another process can finish it in the same way. What
is proved does not depend on them: the certificate is computed from the final weights, whoever made them.
Nothing heavy is imported here: a request to another part must not load the network's library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from efface.errors import EffaceError
from efface.parts.tangent.reading import Reading

if TYPE_CHECKING:
    from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting


class ProcedureKind(StrEnum):
    SOLVED = "solved"
    PAPER = "paper"
    FINETUNE = "finetune"


# As printed; fine-tuning has the momentum of training.
MOMENTUM = {ProcedureKind.PAPER: 0.999, ProcedureKind.FINETUNE: 0.9}
EPOCHS, RATE, BATCH_SIZE, MAX_PASSES = 3, 0.01, 64, 2000
OF_SGD = ("momentum", "rate", "epochs", "batch_size", "loss")
OF_SOLVED = ("max_passes", "solver")
SOLVERS = ("cg", "dual")


@dataclass(frozen=True)
class ProcedureChoice:
    """A procedure by name. None: as printed, or the default.

    Args:
        kind: ``solved`` (conjugate gradients until the guarantee is met), ``paper`` (its SGD: the gradient
            complete, the curvature sampled) or ``finetune`` (the same steps with the minibatch's gradient).
        momentum: of SGD; the paper prints 0.999, and probably means 0.9 (docs/errata.md, 15).
        rate: SGD's first learning rate, halved each epoch, in the reading ``loss`` of the loss.
        max_passes: budget of ``solved``.
        solver: of ``solved``: ``cg`` between weights, or ``dual`` between samples.
    """

    kind: str = ProcedureKind.SOLVED
    momentum: float | None = None
    rate: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    loss: str | None = None
    max_passes: int | None = None
    solver: str | None = None

    def __post_init__(self) -> None:
        _one_of("procedure", self.kind, list(ProcedureKind))
        solved = self.kind == ProcedureKind.SOLVED
        for name in OF_SGD if solved else OF_SOLVED:
            if getattr(self, name) is not None:
                fix = "leave it out, or use another procedure."
                raise EffaceError(f"the procedure {self.kind!s} has no {_option(name)}.", fix)
        if self.loss is not None:
            _one_of("loss", self.loss, list(Reading))
        if self.solver is not None:
            _one_of("solver", self.solver, list(SOLVERS))
        _number("momentum", self.momentum, 0, 1)
        _number("rate", self.rate, 0, math.inf, open_below=True)
        for name in ("epochs", "batch_size", "max_passes"):
            _count(name, getattr(self, name))

    @property
    def reading(self) -> Reading:
        return Reading(self.loss or Reading.PAPER)

    def build(self, num_classes: int) -> PaperForgetting | SolvedForgetting:
        """The procedure itself, its rate for our loss."""
        from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting

        if self.kind == ProcedureKind.SOLVED:
            passes, dual = self.max_passes or MAX_PASSES, self.solver == "dual"
            return SolvedForgetting(max_passes=passes, dual=dual)
        kind = ProcedureKind(self.kind)
        printed = RATE if self.rate is None else self.rate
        return PaperForgetting(
            epochs=self.epochs or EPOCHS,
            lr=self.reading.rate(printed, num_classes),
            momentum=MOMENTUM[kind] if self.momentum is None else self.momentum,
            batch_size=self.batch_size or BATCH_SIZE,
            complete=kind is ProcedureKind.PAPER,
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ProcedureChoice:
        """From a file: what it does not know is a ValueError, as for every value there."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise ValueError(f"a procedure has no {sorted(unknown)[0]!r}")
        try:
            return cls(**values)
        except EffaceError as problem:
            raise ValueError(problem.message) from problem


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _one_of(name: str, value: object, known: list[Any]) -> None:
    if value not in [str(item) for item in known]:
        raise EffaceError(f"unknown {name} {value!r:.80}.", f"use one of {', '.join(known)}.")


def _number(name: str, value: object, low: float, high: float, *, open_below: bool = False) -> None:
    if value is None:
        return
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not (low < value if open_below else low <= value) or not value < high:  # type: ignore[operator]
        limit = (
            "positive and finite" if high == math.inf else f"at least {low:g} and below {high:g}"
        )
        raise EffaceError(f"{_option(name)} cannot be {value!r:.80}.", f"use a number {limit}.")


def _count(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        fix = "use a whole number, at least 1."
        raise EffaceError(f"{_option(name)} cannot be {value!r:.80}.", fix)
