"""``efface service``: the keys of a deletion service, and what it has to do.

A key is shown once, when it is made; only its hash is kept.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from efface.commands.output import JsonFlag, finish, table
from efface.commands.serve import Config, WorkspacePath, needed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

EXAMPLES = """\
Example: [bold]efface service new-key model crm --role submit[/bold]

Example: [bold]efface service keys model[/bold]

Example: [bold]efface service revoke-key model crm[/bold]

Example: [bold]efface service requests model --json[/bold]"""

KeyName = Annotated[str, typer.Argument(help="Letters, digits, dots and dashes.")]


class KeyRole(StrEnum):
    """As ``efface.service.keys`` has them; here too, so that help needs no torch."""

    read = "read"
    submit = "submit"
    operate = "operate"


def new_key(
    workspace: WorkspacePath,
    name: KeyName,
    role: Annotated[KeyRole, typer.Option(help="What it may do.")] = KeyRole.submit,
    config: Config = None,
    json: JsonFlag = False,
) -> None:
    """Make an API key: read sees requests, submit brings its own, operate may do everything."""
    needed()
    from efface.service import keys
    from efface.service.place import Place

    with Place.open(workspace, config) as place:
        key = keys.ApiKeys(place.ledger).new(name, keys.Role(role))
    values = {"name": name, "role": str(role), "key": key}
    finish(values, as_json=json, render=lambda console: console.print(key, soft_wrap=True))


def list_keys(workspace: WorkspacePath, config: Config = None, json: JsonFlag = False) -> None:
    """List the API keys; not the keys themselves, which are not kept."""
    needed()
    from efface.service.keys import ApiKeys
    from efface.service.place import Place
    from efface.service.times import rfc3339

    with Place.open(workspace, config) as place:
        found = ApiKeys(place.ledger).all()
    rows = [{"name": k.name, "role": str(k.role), "created": rfc3339(k.created)} for k in found]
    finish({"keys": rows}, as_json=json, render=lambda console: _render(console, rows))


def revoke_key(
    workspace: WorkspacePath, name: KeyName, config: Config = None, json: JsonFlag = False
) -> None:
    """Take an API key back: it is refused from now on."""
    needed()
    from efface.service.keys import ApiKeys
    from efface.service.place import Place

    with Place.open(workspace, config) as place:
        ApiKeys(place.ledger).revoke(name)
    text = f"{name} is revoked"
    finish({"revoked": name}, as_json=json, render=lambda console: console.print(text))


def requests(workspace: WorkspacePath, config: Config = None, json: JsonFlag = False) -> None:
    """List the newest requests with their states; they name nobody."""
    needed()
    from efface.service.desk import Desk
    from efface.service.place import Place
    from efface.service.times import rfc3339

    with Place.open(workspace, config) as place:
        found = Desk(place.ledger, place.key).latest()
    rows = [
        {
            "id": ticket.id,
            "source": ticket.source,
            "state": str(ticket.state),
            "due": rfc3339(ticket.due),
            "release": ticket.release,
            "problem": ticket.problem,
        }
        for ticket in found
    ]
    finish({"requests": rows}, as_json=json, render=lambda console: _render(console, rows))


def _render(console: Console, rows: Sequence[Mapping[str, object]]) -> None:
    if not rows:
        console.print("none")
        return
    drawn = table(*rows[0])
    for row in rows:
        drawn.add_row(*("–" if value is None else str(value) for value in row.values()))
    console.print(drawn)


MEMBERS = {
    "new-key": new_key,
    "keys": list_keys,
    "revoke-key": revoke_key,
    "requests": requests,
}
