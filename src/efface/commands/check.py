"""``efface check``: can this network be linearised, and what would efface change in it?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from efface.commands.output import JsonFlag, cell, finish, table

if TYPE_CHECKING:
    from rich.console import Console

    from efface.check import Finding

EXAMPLES = """\
Example: [bold]efface check cnn[/bold]

Example: [bold]efface check hf:models/resnet-50 --linearize last-stage[/bold]"""


def check(
    backbone: Annotated[
        str, typer.Argument(help="cnn, hf:DIR_OR_ID, timm:NAME or torch:module.path:callable.")
    ],
    linearize: Annotated[
        str,
        typer.Option(help="Where the tail begins: head, last-block, last-stage, all or a step."),
    ] = "last-block",
    json: JsonFlag = False,
) -> None:
    """List what in a network would break linearisation, and what to do about it.

    Exit code 2 if something is left that you have to change yourself.
    """
    from efface.check import check as find

    findings = find(backbone, linearize=linearize)
    open_ = [finding for finding in findings if not finding.fixed]
    values = {
        "backbone": backbone,
        "linearize": linearize,
        "ok": not open_,
        "findings": [asdict(finding) for finding in findings],
    }
    finish(values, as_json=json, render=lambda console: _render(console, backbone, findings))
    if open_:
        raise typer.Exit(2)


def _render(console: Console, backbone: str, findings: list[Finding]) -> None:
    open_ = sum(not finding.fixed for finding in findings)
    if findings:
        rows = table("module", "problem", "fix", "")
        for finding in findings:
            state = "[green]done[/green]" if finding.fixed else "[bold red]to do[/bold red]"
            rows.add_row(
                cell(finding.module or "·"), cell(finding.problem), cell(finding.fix), state
            )
        console.print(rows)
    verdict = f"{open_} to fix by hand" if open_ else "ready to linearise"
    style = "bold red" if open_ else "bold green"
    console.print(f"{cell(backbone)}: {verdict}", style=style)
