"""``efface init``: look at data, say what is in it, and write the config of a first training."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, cell, finish, plain, table, warn
from efface.commands.settings import Given, takes_settings
from efface.errors import EffaceError

if TYPE_CHECKING:
    from rich.console import Console

    from efface.pipeline.survey import Pair, Survey

EXAMPLES = """\
Example: [bold]efface init photos/[/bold]

Example: [bold]efface init photos.csv --core-data public/ --backbone hf:models/resnet-50[/bold]

Example: [bold]efface init photos/ --core-fraction 0.3 --config-file photos.toml[/bold]"""

SHOWN = 5  # of each kind of finding; --json has them all
SETTINGS = {
    "data.spec": "A folder, or a .csv, .jsonl, .parquet or .npz file.",
    "data.core_fraction": "The share of the people to make core, never forgotten. Default: 0, nobody.",
    "data.core_data": "A public set with the same classes, as core.",
    "data.absolute_paths": "Let the list name files anywhere, by their absolute paths.",
    "core.backbone": "The network: hf:FOLDER, hf:NAME, timm:NAME, open_clip:NAME:WEIGHTS or cnn. "
    "Default: hf:microsoft/resnet-50.",
    "output.dir": "The model's folder, for the config. Default: {default}.",
}


@takes_settings(SETTINGS)
def init(
    given: Given,
    config_file: Annotated[
        Path, typer.Option(help="Where the config goes; nothing else is written.")
    ] = Path("run.toml"),
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a config that is already there.")
    ] = False,
    no_input: Annotated[
        bool, typer.Option("--no-input", help="Ask nothing, on a terminal either.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Look at photos and say what is in them, then write the config of a first training.

    Shows people, classes, owners that look like mistakes, copies between people and damaged files. Which data
    may be core is answered in the config: by default nobody's. Asks only on a terminal, and only what no
    option answers.
    """
    from efface.pipeline.starting import PUBLIC_NETWORK, answers, config_text, warnings
    from efface.pipeline.survey import survey

    if config_file.exists() and not overwrite:
        fix = "choose another name with --config-file, or replace it with --overwrite."
        raise EffaceError(f"{config_file} is already there.", fix)
    with show("look", mode_for(as_json=json)) as progress:
        absolute = bool(given.get("data.absolute_paths"))
        found = survey(given["data.spec"], absolute_paths=absolute, progress=progress)
    if not json:
        finish({}, as_json=False, render=lambda console: _render(console, found))
    chosen = {"core.backbone": PUBLIC_NETWORK, **given}
    if not (json or no_input) and _somebody_is_there():
        chosen |= _ask(given, found)
    config = answers(_config(chosen), found)
    config_file.write_text(config_text(config, found), encoding="utf-8")
    told = list(warnings(config, found))
    for sentence in told:
        warn(sentence)
    values = {"config": str(config_file), "found": asdict(found), "warnings": told}
    finish(values, as_json=json, render=lambda console: _next(console, config_file))


def _somebody_is_there() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _config(chosen: dict[str, Any]) -> Any:
    from efface.pipeline.config import load_config

    return load_config(None, chosen)


def _ask(given: Given, found: Survey) -> dict[str, Any]:
    """The questions that no option and not the data itself answers."""
    answered: dict[str, Any] = {}
    if "core.backbone" not in given:
        answered["core.backbone"] = typer.prompt(
            "The network (hf:FOLDER, hf:NAME or timm:NAME)", default="hf:microsoft/resnet-50"
        )
    decided = found.splits["core"] or "data.core_fraction" in given or "data.core_data" in given
    if not decided:
        answered |= _ask_core(found)
    return answered


def _ask_core(found: Survey) -> dict[str, Any]:
    typer.echo(
        "Which data may be core? It is never forgotten.\n"
        "  1  nobody's: the network stays as it is (recommended)\n"
        "  2  a public set with the same classes\n"
        "  3  some of these people, who then can never be forgotten"
    )
    choice = typer.prompt("1, 2 or 3", default="1")
    if choice == "2":
        return {"data.core_data": typer.prompt("The public set (folder, file or name)")}
    if choice != "3":
        return {"data.core_fraction": 0.0}
    share = typer.prompt("Which share of them", default=0.3, type=float)
    people = found.core_people(share)
    sure = f"{people:,} of {found.people:,} people can then never be forgotten. Go on?"
    return {"data.core_fraction": share if typer.confirm(sure, default=False) else 0.0}


def _render(console: Console, found: Survey) -> None:
    from efface.pipeline.starting import summary

    console.print(f"{plain(found.spec)}: {summary(found)}", markup=False, soft_wrap=True)
    rows = table("class", "images to learn from", right=(1,))
    for name, count in list(found.classes.items())[:SHOWN]:
        rows.add_row(cell(name), f"{count:,}")
    console.print(rows)
    if len(found.classes) > SHOWN:
        console.print(f"and {len(found.classes) - SHOWN:,} more classes", style="dim")
    _list(console, "owners to look at", list(found.suspicious))
    _list(console, "the same image under two owners", [_text(pair) for pair in found.equal])
    _list(console, "nearly the same image under two owners", [_text(pair) for pair in found.near])
    if not found.near_compared:
        console.print("too many images to look for near copies; equal ones were looked for")
    for title, files in (
        ("images that cannot be read", found.damaged),
        ("files that are not used", found.set_aside),
    ):
        _list(console, title, [f"{one.id}: {one.reason}" for one in files])
    _list(console, "also", list(found.notes))


def _text(pair: Pair) -> str:
    return f"{pair.first} ({pair.owners[0]}) and {pair.second} ({pair.owners[1]})"


def _list(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(f"{title}: {len(lines):,}", style="bold")
    for line in lines[:SHOWN]:
        console.print(f"  {plain(line)}", markup=False, soft_wrap=True)
    if len(lines) > SHOWN:
        console.print(f"  and {len(lines) - SHOWN:,} more (--json has all)", style="dim")


def _next(console: Console, config_file: Path) -> None:
    name = plain(config_file)
    console.print(f"\nwritten: {name}", style="bold", markup=False, soft_wrap=True)
    console.print(f"next: efface train --config {name} --dry-run", markup=False, soft_wrap=True)
