"""``efface plan``: fix, before any request, what forgetting will promise."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.forget import WorkspacePath, open_workspace
from efface.commands.output import JsonFlag, TrustModule, finish, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface plan model --epsilon 1 --delta 1e-5[/bold]

Example: [bold]efface plan model --retire[/bold]"""
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
    retire: Annotated[
        bool, typer.Option("--retire", help="No plan any more; give no other option with it.")
    ] = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Store the guarantee of later requests: what the tangent user part promises.

    The numbers are public, and must not depend on who asks to be forgotten: so they are fixed here. The
    compact user part forgets exactly and needs none, unless you also fear somebody who has the release before
    a request: with --sigma its releases get noise that hides the difference.
    """
    if retire:
        _retire(workspace, (epsilon, delta, sigma, state) != (1.0, 1e-5, None, "secret"), json)
        return
    guarantee = open_workspace(workspace, trust_module).plan(epsilon, delta, sigma, state)
    values = {"workspace": str(workspace), "guarantee": asdict(guarantee)}
    finish(values, as_json=json, render=lambda console: _render(console, values))


def _retire(workspace: Path, numbers: bool, as_json: bool) -> None:
    if numbers:
        from efface.errors import RequestError

        raise RequestError("a plan is made or retired.", "give --retire alone.")
    planned = open_workspace(workspace, None).retire_plan()
    values = {"workspace": str(workspace), "retired": None if planned is None else asdict(planned)}
    text = "the plan is retired: later requests promise what they do without one"
    if planned is None:
        text = "there was no plan"
    finish(values, as_json=as_json, render=lambda console: console.print(text, soft_wrap=True))


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("guarantee", "", right=(1,))
    for name, value in values["guarantee"].items():
        rows.add_row(name, value if isinstance(value, str) else f"{value:.4g}")
    console.print(rows)
