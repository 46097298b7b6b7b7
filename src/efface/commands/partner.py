"""``efface partner``: models learnt together with others, who send sums and keep their records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import (
    DeviceName,
    JsonFlag,
    ModelPath,
    TrustModule,
    finish,
    plain,
    table,
    warn,
)
from efface.commands.whom import Cohort, Everything, Id, Ids, Label, Owner, named_by

if TYPE_CHECKING:
    from rich.console import Console

    from efface.receipts.keys import SigningKey
    from efface.shards import Partner

EXAMPLES = """\
Example: [bold]efface partner admit model --name clinic --out clinic.json[/bold] (whose model it is)

The partner, with clinic.json and a copy of the model's core/, releases/ and CURRENT:
[bold]efface partner join photos/ --model model --invitation clinic.json --out ours --message sums[/bold]

Whose model it is: [bold]efface partner take sums --into model[/bold]

The partner, later: [bold]efface partner forget ours --owner u17 --message less[/bold]"""

FEW = 10
Folder = Annotated[
    Path, typer.Argument(help="The partner's own folder, from `efface partner join`.")
]
Name = Annotated[str, typer.Option(help="The partner's name.")]
Message = Annotated[Path, typer.Option(help="A new folder for the message to be sent.")]
Key = Annotated[Path | None, typer.Option(help="Sign the message with this key (efface keys new).")]
Again = Annotated[
    bool, typer.Option("--allow-reingest", help="Take in images that were forgotten here before.")
]


def admit(
    workspace: ModelPath,
    name: Name,
    out: Annotated[Path, typer.Option(help="A new file: the invitation, for the partner alone.")],
    key: Annotated[
        Path | None, typer.Option(help="The partner's public keys: it then has to sign.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Admit a partner: from then on it may send sums of its records, and never the records.

    The invitation holds the key of the tags by which images are told apart. It is for the partner alone.
    """
    from efface.commands.forget import open_workspace
    from efface.errors import EffaceError
    from efface.receipts.keys import PublicKeys
    from efface.shards import invite

    if out.exists():
        raise EffaceError(f"{out} is there already.", "choose another --out, or delete it.")
    ring = None if key is None else PublicKeys.load(key)
    invitation = invite(open_workspace(workspace, None), name, ring)
    invitation.save(out)
    values = {"workspace": str(workspace), "partner": name, "invitation": str(out)}
    text = f"{name} is admitted; give it {out} in private, and core/, releases/ and CURRENT"
    finish(values, as_json=json, render=lambda console: _say(console, text))


def join(
    data: Annotated[str, typer.Argument(help="The partner's labelled data, as for train.")],
    model: Annotated[Path, typer.Option(help="The model that the sums are for.")],
    invitation: Annotated[Path, typer.Option(help="The file from `efface partner admit`.")],
    out: Annotated[Path, typer.Option(help="A new folder for rows and names, which stays here.")],
    message: Message,
    key: Key = None,
    minimum_people: Annotated[
        int, typer.Option(min=1, help="Refuse to send sums of fewer people.")
    ] = FEW,
    device: DeviceName = "cpu",
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Compute rows of the user records of some data, keep them, and write a message with their sums.

    Only the message is sent. It holds k² sums, and a keyed tag of every image: no rows, no names. Of few
    images sums tell almost as much as rows do.
    """
    from efface.network.backbone import trusted_module
    from efface.pipeline.inputs import read_labelled
    from efface.shards import Partner
    from efface.workspace.partners import Invitation
    from efface.workspace.published import load

    _require_new(message)
    loaded = load(model, module=trusted_module(trust_module), device=device)
    records = read_labelled(loaded, model, data, "user", note=warn)
    invited = Invitation.load(invitation)
    with show("join", mode_for(as_json=json)) as progress:
        made = Partner.join(
            *(out, loaded, records, invited),
            key=_signing(key),
            minimum_people=minimum_people,
            progress=progress,
        )
    made.send(message)
    warn(f"{out} holds rows and names: it is to stay with you, and forgetting needs it")
    _told(made, message, as_json=json)


def forget(
    folder: Folder,
    message: Message,
    owner: Owner = None,
    ids: Ids = None,
    id_: Id = None,
    cohort: Cohort = None,
    label: Label = None,
    everything: Everything = False,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Take records out of the partner's folder, and write the message that takes them out of the model.

    Nothing of them is left in the folder. The model has forgotten them once its keeper has taken the message.
    """
    from efface.model.request import Request
    from efface.shards import Partner

    _require_new(message)
    request = Request.of(**named_by(owner, ids, id_, cohort, label, everything))
    opened = Partner.open(folder)
    records = opened.partial.data.records[opened.positions(request)]
    people = len(set(records.owners))
    if people < FEW:
        warn(
            f"these are {len(records)} images of {people} people: whoever has the message before, "
            "too, can tell much of each image's row"
        )
    made = opened.forget(folder, request, _signing(key))
    made.send(message)
    _told(made, message, as_json=json)


def send(folder: Folder, message: Message, json: JsonFlag = False) -> None:
    """Write the last message again."""
    from efface.shards import Partner

    opened = Partner.open(folder)
    opened.send(message)
    _told(opened, message, as_json=json)


def find(
    folder: Folder,
    tags: Annotated[list[str], typer.Argument(help="Tags that a refusal has named.")],
    json: JsonFlag = False,
) -> None:
    """Find the partner's records that have these tags."""
    from efface.shards import Partner

    found = Partner.open(folder).find(tags)
    values = {"folder": str(folder), "records": found}
    text = "\n".join(f"{name}  {record}" for name, record in found.items()) or "none"
    finish(values, as_json=json, render=lambda console: _say(console, text))


def take(
    message: Annotated[Path, typer.Argument(help="A folder that a partner has sent.")],
    into: Annotated[Path, typer.Option(help="The model that it was made for.")],
    allow_reingest: Again = False,
    key: Annotated[
        Path | None, typer.Option(help="Sign receipts with this key from now on (efface keys new).")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Take a partner's message into a model: its sums, or that some of its records are forgotten.

    The model is then the one that training on all records gives, the partner's as they are now included.
    Refused are messages of nobody who was admitted, for another model, that do not follow from the last one,
    sums that no rows can have, and images that are here already.
    """
    from efface.commands.forget import open_workspace
    from efface.commands.outcome import report
    from efface.shards import take as run

    opened = open_workspace(into, None)
    if key is not None:
        opened.protocol.signing.use(key)
    with show("take", mode_for(as_json=json)) as progress:
        result = run(opened, message, allow_reingest=allow_reingest, progress=progress)
    warn(f"{message} still holds the partner's sums, and forgetting does not reach it: delete it")
    report(result, opened, as_json=json)


def drop(workspace: ModelPath, name: Name, json: JsonFlag = False) -> None:
    """Take all of a partner's sums out of a model, and take no more messages from it."""
    from efface.commands.forget import open_workspace
    from efface.commands.outcome import report
    from efface.shards import drop as run

    opened = open_workspace(workspace, None)
    with show("drop", mode_for(as_json=json)) as progress:
        result = run(opened, name, progress)
    if result is not None:
        report(result, opened, as_json=json)
        return
    values = {"workspace": str(workspace), "partner": name, "release": None}
    text = f"{name} had sent nothing; its messages are refused from now on"
    finish(values, as_json=json, render=lambda console: _say(console, text))


def list_(workspace: ModelPath, json: JsonFlag = False) -> None:
    """List the partners of a model, and how many records their sums are of."""
    from efface.commands.forget import open_workspace
    from efface.workspace.partners import partners

    opened = open_workspace(workspace, None, recover=False)
    data, known = opened.data, partners(opened.inventory)
    found: list[dict[str, Any]] = []
    for partner in known:
        guest = data.guest(partner.admission)
        counts = (0, 0) if guest is None else (guest.num_rows, guest.num_people)
        keyid = None if partner.ring is None else partner.ring.current.keyid
        said = dict(zip(("num_records", "num_people"), counts, strict=True))
        found.append({"partner": partner.name, **said, "signed_by": keyid})
    values = {"workspace": str(workspace), "partners": found}
    finish(values, as_json=json, render=lambda console: _render_list(console, found))


def _render_list(console: Console, found: list[dict[str, Any]]) -> None:
    rows = table("partner", "records", "people", "signs", right=(1, 2))
    for one in found:
        signs = "no" if one["signed_by"] is None else one["signed_by"][:16]
        rows.add_row(one["partner"], f"{one['num_records']:,}", f"{one['num_people']:,}", signs)
    console.print(rows)


def _signing(key: Path | None) -> SigningKey | None:
    if key is None:
        return None
    from efface.receipts.keys import mended

    return mended(key)


def _require_new(message: Path) -> None:
    from efface.errors import EffaceError

    if message.exists():
        raise EffaceError(f"{message} is there already.", "choose another --message, or delete it.")


def _told(made: Partner, message: Path, *, as_json: bool) -> None:
    said = made.statement
    values = {
        "message": str(message),
        "partner": said.partner,
        "num_records": said.num_rows,
        "num_people": said.num_people,
        "statement_digest": said.digest,
        "statistics_digest": said.sums,
    }
    text = f"{message}: sums of {said.num_rows:,} records of {said.num_people:,} people, to be sent"
    finish(values, as_json=as_json, render=lambda console: _say(console, text))


def _say(console: Console, text: str) -> None:
    console.print(plain(text), markup=False, soft_wrap=True)


MEMBERS = {
    "admit": admit,
    "join": join,
    "forget": forget,
    "send": send,
    "find": find,
    "take": take,
    "drop": drop,
    "list": list_,
}
