"""``efface plan``: fix, before any request, what forgetting will promise."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.forget import WorkspacePath, open_workspace
from efface.commands.output import JsonFlag, TrustModule, finish, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = "Example: [bold]efface plan model --epsilon 1 --delta 1e-5[/bold]"
STATE = (
    "secret: keep the weights without noise, for later requests to start from. "
    "noisy (the paper): start from the released weights, keep no others."
)


def plan(
    workspace: WorkspacePath,
    epsilon: Annotated[float, typer.Option(help="How much may be told apart, at most.")] = 1.0,
    delta: Annotated[float, typer.Option(help="With which probability it may be more.")] = 1e-5,
    sigma: Annotated[
        float | None, typer.Option(help="Standard deviation of the noise. Default: from core data.")
    ] = None,
    state: Annotated[str, typer.Option(help=STATE)] = "secret",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Store the guarantee of later requests: what the tangent user part promises.

    The numbers are public, and must not depend on who asks to be forgotten: so they are fixed here. The
    compact user part forgets exactly and needs none, unless you also fear somebody who has the release before
    a request: with --sigma its releases get noise that hides the difference.
    """
    guarantee = open_workspace(workspace, trust_module).plan(epsilon, delta, sigma, state)
    values = {"workspace": str(workspace), "guarantee": asdict(guarantee)}
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("guarantee", "", right=(1,))
    for name, value in values["guarantee"].items():
        rows.add_row(name, value if isinstance(value, str) else f"{value:.4g}")
    console.print(rows)
