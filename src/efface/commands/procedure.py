"""The options by which a command says how to forget; see ``efface.parts.tangent.procedure``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from efface.parts.tangent.procedure import ProcedureChoice

PROCEDURE = (
    "Of the tangent part: solved (until the guarantee is met, the default), paper (its SGD) or finetune. "
    "Whichever it is, the guarantee is checked on the final weights, and nothing is published without it."
)
RATE = "SGD's first learning rate, halved each epoch; refused if it is not stable. Default: 0.01."
LOSS = "Which loss --rate is for: paper (averaged over the classes, the default) or sum."
MOMENTUM = "Of SGD. Default: 0.999 as printed (paper), 0.9 (finetune)."

Procedure = Annotated[str | None, typer.Option(help=PROCEDURE)]
Momentum = Annotated[float | None, typer.Option(help=MOMENTUM)]
Rate = Annotated[float | None, typer.Option(help=RATE)]
Epochs = Annotated[int | None, typer.Option(help="Of SGD. Default: 3.")]
Loss = Annotated[str | None, typer.Option(help=LOSS)]
MaxPasses = Annotated[
    int | None, typer.Option(help="Of solved: stop after so many. Default: 2000.")
]
SolvedBy = Annotated[
    str | None, typer.Option(help="Of solved: cg, or dual for small ridges. Default: cg.")
]


def chosen_procedure(
    name: str | None,
    momentum: float | None,
    rate: float | None,
    epochs: int | None,
    loss: str | None,
    max_passes: int | None,
    solver: str | None,
) -> ProcedureChoice | None:
    """What the options name; None: nothing was said."""
    from efface.errors import RequestError
    from efface.parts.tangent.procedure import ProcedureChoice

    values = {
        "momentum": momentum,
        "rate": rate,
        "epochs": epochs,
        "loss": loss,
        "max_passes": max_passes,
        "solver": solver,
    }
    if name is not None:
        return ProcedureChoice(name, **values)  # type: ignore[arg-type]
    given = [key for key, value in values.items() if value is not None]
    if given:
        option = given[0].replace("_", "-")
        fix = "add --procedure paper, or another."
        raise RequestError(f"--{option} is an option of a procedure, and none is named.", fix)
    return None
