"""``efface check``: can this network be linearised, and what would efface change in it?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, cell, finish, table
from efface.progress import part

if TYPE_CHECKING:
    from rich.console import Console

    from efface.pipeline.check import FormReport, Obstacle

EXAMPLES = """\
Example: [bold]efface check cnn[/bold]

Example: [bold]efface check hf:models/resnet-50 --linearize last-stage[/bold]"""


def check(
    backbone: Annotated[
        str,
        typer.Argument(
            help="cnn, hf:DIR_OR_ID, timm:NAME, open_clip:NAME:WEIGHTS or torch:module.path:callable."
        ),
    ],
    linearize: Annotated[
        str,
        typer.Option(help="Where the tail begins: head, last-block, last-stage, all or a step."),
    ] = "last-block",
    json: JsonFlag = False,
) -> None:
    """List what in a network would break linearisation, and what to do about it; and the form it gets.

    Compact models compute in integers where the network has an integer form (rows are then the same on
    every machine): its error is shown layer by layer, measured on synthetic images.

    Exit code 2 if something is left that you have to change yourself.
    """
    from efface.pipeline.check import check as find
    from efface.pipeline.check import check_form

    with show("check", mode_for(as_json=json)) as progress:
        progress(0.0, "what would break")
        findings = find(backbone, linearize=linearize)
        form = check_form(backbone, linearize=linearize, progress=part(progress, 0.3, 1))
    open_ = [finding for finding in findings if not finding.fixed]
    values = {
        "backbone": backbone,
        "linearize": linearize,
        "ok": not open_,
        "findings": [asdict(finding) for finding in findings],
        "form": asdict(form),
    }

    def render(console: Console) -> None:
        _render(console, backbone, findings)
        _render_form(console, form)

    finish(values, as_json=json, render=render)
    if open_:
        raise typer.Exit(2)


def _render(console: Console, backbone: str, findings: list[Obstacle]) -> None:
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


def _render_form(console: Console, form: FormReport) -> None:
    if form.arithmetic == "float32":
        console.print("arithmetic of compact models: float32, exact on one machine only")
    elif form.kind == "exact":
        console.print(
            "arithmetic of compact models: exact sums in float64, the same on every machine"
        )
    else:
        console.print("arithmetic of compact models: 8-bit integers, the same on every machine")
        rows = table("tensor that is summed", "relative error", right=(1,))
        for name, error in form.errors:
            rows.add_row(name, f"{error:.2%}")
        console.print(rows)
        console.print(f"{form.parts} layers add in parts, to stay below 2^24", style="dim")
    for reason in form.reasons:
        console.print(f"not {reason}", style="dim", markup=False, soft_wrap=True)
