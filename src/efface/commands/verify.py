"""``efface verify``: check a workspace against its certificate, its journal and itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.forget import WorkspacePath
from efface.commands.output import AbsolutePaths, JsonFlag, TrustModule, cell, finish, table

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface verify model[/bold]

Example: [bold]efface verify model --retrain --from-images photos/[/bold]"""

STATES = {
    True: "[green]ok[/green]",
    None: "[yellow]cannot[/yellow]",
    False: "[bold red]fails[/bold red]",
}


def verify(
    workspace: WorkspacePath,
    retrain: Annotated[
        bool, typer.Option("--retrain", help="Compute the sums, or the gradient, from the rows.")
    ] = False,
    from_images: Annotated[
        str | None, typer.Option(help="Compute the rows from this data's images, and compare.")
    ] = None,
    absolute_paths: AbsolutePaths = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Check files, journal and certificate; exit code 4 if something does not check.

    With --retrain the compact statistics are summed again from the retained rows and must have the same
    digest; for the tangent part the gradient is computed again in float64, and epsilon from it. Where only
    noisy weights are kept (plan --state noisy) that cannot be: the noise is checked by solving again.
    """
    from efface.network.backbone import trusted_module
    from efface.workspace import Workspace
    from efface.workspace.verify import all_checks

    opened = Workspace.open(workspace, module=trusted_module(trust_module), recover=False)
    found = all_checks(opened, retrain=retrain, images=from_images, absolute_paths=absolute_paths)
    checks = list(found)
    values = {
        "workspace": str(workspace),
        "release": opened.number,
        "ok": all(check.ok is not False for check in checks),
        "checks": [asdict(check) for check in checks],
    }
    finish(values, as_json=json, render=lambda console: _render(console, values))
    if not values["ok"]:
        raise typer.Exit(4)


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("check", "", "detail")
    rows.columns[2].overflow = "fold"
    for check in values["checks"]:
        rows.add_row(check["name"], STATES[check["ok"]], cell(check["detail"]))
    console.print(rows)
    partly = any(check["ok"] is None for check in values["checks"])
    good = "all that can be checked does" if partly else "everything checks"
    verdict = good if values["ok"] else "something does not check"
    console.print(
        f"release {values['release']}: {verdict}",
        style="bold green" if values["ok"] else "bold red",
    )
