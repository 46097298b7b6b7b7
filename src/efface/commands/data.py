"""``efface data``: the data sets that efface knows by name, and fetching them.

``get`` is the only command of efface that opens a network connection.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, finish, table, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface data list[/bold]

Example: [bold]efface data get cifar10[/bold]

Example: [bold]efface data get cub200 --root data --accept-terms[/bold]"""

ROOT = "The folder of all data sets. Default: EFFACE_DATA, else efface/data in the cache folder."
FROM = "Take the archives from this folder instead of the network."


def list_(
    root: Annotated[Path | None, typer.Option(help=ROOT)] = None, json: JsonFlag = False
) -> None:
    """List the data sets: how many images and classes, where they come from, under which terms."""
    from efface.data.named.catalog import CATALOG
    from efface.data.named.layouts import data_root, folder_of

    where = root or data_root()
    entries = [
        {
            "name": entry.name,
            "title": entry.title,
            "images": entry.num_images,
            "classes": entry.num_classes,
            "get": str(entry.access),
            "terms": entry.terms,
            "page": entry.page,
            "folder": folder_of(entry.name, where),
        }
        for entry in CATALOG
    ]
    values = {"root": str(where), "datasets": entries}
    finish(values, as_json=json, render=lambda console: _render_list(console, where, entries))


def _render_list(console: Console, root: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    rows = table("name", "images", "classes", "here", "get", "terms and page", right=(1, 2))
    rows.columns[0].no_wrap = True
    for entry in entries:
        here = entry["folder"] is not None or entry["get"] == "built in"
        counts = (f"{entry['images']:,}", str(entry["classes"]))
        about = f"{entry['terms']}\n{entry['page']}"
        rows.add_row(entry["name"], *counts, "yes" if here else "–", entry["get"], about)
    console.print(rows)
    console.print(f"looked in {root}", style="dim", markup=False, soft_wrap=True)


def get(
    name: Annotated[str, typer.Argument(help="As `efface data list` has it.")],
    root: Annotated[Path | None, typer.Option(help=ROOT)] = None,
    archives: Annotated[Path | None, typer.Option("--from", help=FROM)] = None,
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="You have read the terms and agree to them.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Go on where no checksum is known.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Fetch a data set, verify its checksum and unpack it into ROOT/NAME, whole or not at all.

    A download that was cut short goes on where it stopped. Where the terms do not allow it, the command says
    what to do by hand.
    """
    from efface.data.named.catalog import dataset
    from efface.data.named.install import Consent, install
    from efface.data.named.layouts import data_root

    where = (root or data_root()).absolute()
    with show(name, mode_for(as_json=json)) as progress:
        done = install(
            dataset(name),
            where,
            consent=Consent(accept_terms, unverified),
            archives=archives,
            progress=progress,
        )
    for archive in done.receipt:
        if not archive["verified"]:
            warn(f"unverified: {archive['url']} had the SHA-256 {archive['sha256']}")
    spec = name if where == data_root().absolute() else f"{name}:{done.folder}"
    values = {
        "name": name,
        "folder": str(done.folder),
        "fetched": bool(done.receipt),
        "archives": list(done.receipt),
        "spec": spec,
    }
    finish(values, as_json=json, render=lambda console: _render_get(console, values))


def _render_get(console: Console, values: Mapping[str, Any]) -> None:
    state = "unpacked" if values["fetched"] else "already there"
    line = f"{values['name']}: {state} in {values['folder']}"
    console.print(line, style="bold", markup=False, soft_wrap=True)
    use = f"use it: efface train {values['spec']} …"
    console.print(use, style="dim", markup=False, soft_wrap=True)


MEMBERS = {"list": list_, "get": get}
