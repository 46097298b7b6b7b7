"""``efface trial``: random requests, each compared with a model trained without them, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, finish, table, warn
from efface.commands.settings import Given, takes_settings

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface trial digits[/bold]

Example: [bold]efface trial photos/ --backbone hf:models/resnet-50 --core-fraction 0.3[/bold]

Example: [bold]efface trial digits --requests 10 --reuse-core --json[/bold]"""

REUSE = "Train a core once for each set of core records and classes, not for every comparison."


@takes_settings(
    {
        "data.spec": "Data, as for train.",
        "core.backbone": "As for train. Default: {default}.",
        "data.core_fraction": "As for train.",
        "data.classes": "As for train.",
        "user.features": "As for train.",
    }
)
def trial(
    given: Given,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file, as for train; options given here win over it.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="How many.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the requests.")] = 0,
    reuse_core: Annotated[bool, typer.Option("--reuse-core", help=REUSE)] = False,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the result.")] = None,
    json: JsonFlag = False,
) -> None:
    """Send random requests to a model: people, records, classes, cohorts, additions; and check each.

    After every request everything is trained again from the images of whoever is left, core split and class
    list included, and the two workspaces are compared byte by byte. Exit code 3 if any of them differ.
    """
    from efface import files
    from efface.pipeline.config import load_config
    from efface.pipeline.trial import run, summary

    settings = load_config(config, given)
    with show("trial", mode_for(as_json=json)) as progress:
        made = run(
            settings, requests, seed=seed, reuse_core=reuse_core, progress=progress, note=warn
        )
    values = {"data": settings.data.spec, "seed": seed, **summary(made)}
    if out is not None:
        files.write_json(out, {"schema": "efface.trial/1", **values})
    finish(values, as_json=json, render=lambda console: _render(console, values))
    if values["agree"] < values["requests"]:
        raise typer.Exit(3)


def _render(console: Console, values: dict[str, Any]) -> None:
    rows = table("request", "carried out", "agree", right=(1, 2))
    for kind, counts in values["kinds"].items():
        rows.add_row(kind, str(counts["requests"]), str(counts["agree"]))
    console.print(rows)
    for name in values["differences"][:10]:
        console.print(f"differs: {name}", markup=False, soft_wrap=True)
    console.print("not compared:", style="dim")
    for name, why in values["may_differ"].items():
        console.print(f"  {name}: {why}", style="dim", markup=False, soft_wrap=True)
    whole = values["agree"] == values["requests"]
    text = f"{values['agree']} of {values['requests']} agree byte for byte"
    console.print(text, style="bold green" if whole else "bold red")
