"""``efface forget``: take records out of a model, publish, purge, and say what is proved about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.output import JsonFlag, TrustModule, finish, plain, table, warn
from efface.commands.procedure import (
    Epochs,
    Loss,
    MaxPasses,
    Momentum,
    Procedure,
    Rate,
    SolvedBy,
    chosen_procedure,
)

if TYPE_CHECKING:
    from rich.console import Console

    from efface.model.request import Request
    from efface.workspace import Preview, Result, Workspace
    from efface.workspace.batches import Batch

EXAMPLES = """\
Example: [bold]efface forget model --owner u17[/bold]

Example: [bold]efface forget model --ids photos/12.jpg,photos/13.jpg --dry-run[/bold]

Example: [bold]efface forget model --from requests.jsonl --minimum-batch 10 --deadline 25[/bold]

Example: [bold]efface forget model --image holiday.jpg --near[/bold]

Example: [bold]efface forget model --owner u17 --key signing.key[/bold]

Example: [bold]efface forget model --owner u17 --epsilon 0.5 --json[/bold]

Example: [bold]efface forget model --owner u17 --procedure paper --momentum 0.9 --epochs 4[/bold]"""

WorkspacePath = Annotated[Path, typer.Argument(help="A folder written by `efface train`.")]
FROM = 'A file of requests, one JSON object a line ({"owner": "u17"}), for one release together.'
PART = "Forget the user records of somebody who has core records too; these stay."
KEY = "Sign receipts with this key from now on (efface keys new)."
EXACT = "Compact forgets exactly: there it is for the difference to the release before, with sigma."


def forget(
    workspace: WorkspacePath,
    owner: Annotated[str | None, typer.Option(help="All records of this person.")] = None,
    ids: Annotated[str | None, typer.Option(help="Record ids, separated by commas.")] = None,
    id_: Annotated[
        list[str] | None, typer.Option("--id", help="One record id, verbatim; repeatable.")
    ] = None,
    cohort: Annotated[str | None, typer.Option(help="All records of this cohort.")] = None,
    label: Annotated[str | None, typer.Option(help="All records of this class.")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="All user records: the core model is left.")
    ] = False,
    image: Annotated[
        Path | None, typer.Option(help="The records that are this picture (see efface find).")
    ] = None,
    near: Annotated[
        bool, typer.Option("--near", help="With --image: near copies of it, too.")
    ] = False,
    from_: Annotated[Path | None, typer.Option("--from", help=FROM)] = None,
    minimum_batch: Annotated[
        int, typer.Option(min=1, help="With --from: wait until so many people are together.")
    ] = 1,
    deadline: Annotated[
        float | None, typer.Option(min=0, help="With --from: days after which nobody waits longer.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help=f"Instead of the plan's. {EXACT}")] = None,
    delta: Annotated[float | None, typer.Option(help=f"Instead of the plan's. {EXACT}")] = None,
    sigma: Annotated[float | None, typer.Option(help=f"Instead of the plan's. {EXACT}")] = None,
    procedure: Procedure = None,
    momentum: Momentum = None,
    rate: Rate = None,
    epochs: Epochs = None,
    loss: Loss = None,
    max_passes: MaxPasses = None,
    solver: SolvedBy = None,
    user_part_only: Annotated[bool, typer.Option("--user-part-only", help=PART)] = False,
    key: Annotated[Path | None, typer.Option(help=KEY)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which records would be forgotten.")
    ] = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Forget records: the new model is published, and everything derived from them is deleted.

    Killed at any point, the request is finished by the next command (or by efface resume). Exit code 3,
    and nothing published, when the guarantee was not reached, or when some of the person's images are core
    data: --user-part-only then forgets the others.
    """
    from efface.model.request import Request

    chosen = chosen_procedure(procedure, momentum, rate, epochs, loss, max_passes, solver)
    opened = open_workspace(workspace, trust_module, recover=not dry_run)
    named = _named(owner, ids, id_, cohort, label, everything)
    if image is not None:
        named |= _pictured(opened, image, near, named)
    together: tuple[Request, ...] = ()
    if from_ is not None:
        batch = _batch(opened, from_, named, user_part_only, deadline)
        if not dry_run and not batch.is_due(minimum_batch, _days(deadline)):
            _wait(batch, workspace, minimum_batch, as_json=json)
            return
        named |= {"ids": batch.ids, "in_core": batch.in_core}
        together = batch.requests
    request = Request.of(**named)
    if dry_run:
        preview = opened.preview(request, user_part_only=user_part_only)
        _show_preview(preview, workspace, as_json=json)
        return
    _warn_of_copies(opened, request, user_part_only)
    guarantee = opened.guarantee_with(epsilon, delta, sigma)
    if key is not None:
        opened.protocol.signing.use(key)
    with show("forget", mode_for(as_json=json)) as progress:
        result = opened.forget(
            request,
            guarantee=guarantee,
            procedure=chosen,
            user_part_only=user_part_only,
            tell=warn,
            together=together,
            progress=progress,
        )
    if from_ is not None:
        warn(f"{from_} names the people who were forgotten: delete it")
    report(result, workspace, as_json=json)


def open_workspace(path: Path, trust_module: str | None, *, recover: bool = True) -> Workspace:
    """A module is loaded only if one is named: with it comes torch, which takes longer than most requests."""
    from efface.workspace import Workspace

    if trust_module is None:
        return Workspace.open(path, recover=recover)
    from efface.network.backbone import trusted_module

    return Workspace.open(path, module=trusted_module(trust_module), recover=recover)


def _named(
    owner: str | None,
    ids: str | None,
    id_: list[str] | None,
    cohort: str | None,
    label: str | None,
    everything: bool,
) -> dict[str, Any]:
    """What the options name, as ``Request.of`` takes it."""
    listed = [part.strip() for part in (ids or "").split(",") if part.strip()] + (id_ or [])
    given = ids is not None or bool(id_)
    return {
        "ids": listed if given else None,
        "owner": owner,
        "cohort": cohort,
        "label": label,
        "everything": everything,
    }


def _warn_of_copies(workspace: Workspace, request: Request, user_part_only: bool) -> None:
    from efface.model.request import RequestKind
    from efface.workspace.finding import near_copies

    if request.kind is RequestKind.EVERYTHING:
        return
    asked = workspace.preview(request, user_part_only=user_part_only)
    alike = near_copies(workspace, asked.ids)
    if alike:
        names = ", ".join(alike[:3]) + (f" and {len(alike) - 3} more" if len(alike) > 3 else "")
        warn(f"{len(alike)} other records look like these and stay: {names}; see efface find")


def _days(number: float | None) -> timedelta | None:
    return None if number is None else timedelta(days=number)


def _batch(
    workspace: Workspace,
    path: Path,
    named: Mapping[str, Any],
    user_part_only: bool,
    deadline: float | None,
) -> Batch:
    from efface.errors import RequestError
    from efface.workspace.batches import collect, read_requests

    if any(named.values()):
        raise RequestError("a file of requests and a name are two requests.", "give --from alone.")
    waiting = read_requests(path)
    timeless = [item.line for item in waiting if item.received is None]
    if deadline is not None and timeless:
        fix = 'add "received": "2026-11-03" to every line, or leave --deadline out.'
        raise RequestError(f"line {timeless[0]} does not say when it was received.", fix)
    return collect(workspace, waiting, user_part_only=user_part_only)


def _wait(batch: Batch, workspace: Path, minimum: int, *, as_json: bool) -> None:
    values = {
        "workspace": str(workspace),
        "carried_out": False,
        "num_requests": batch.num_requests,
        "num_people": batch.num_people,
        "minimum_batch": minimum,
        "oldest_days": None if batch.age is None else round(batch.age.total_seconds() / 86400, 2),
    }
    text = f"{batch.num_people} people are waiting, {minimum} are needed: nothing was changed"
    finish(values, as_json=as_json, render=lambda console: console.print(text, soft_wrap=True))


def _pictured(
    workspace: Workspace, image: Path, near: bool, named: Mapping[str, Any]
) -> dict[str, Any]:
    from efface.errors import RequestError
    from efface.workspace.finding import find, request_for

    if any(named.values()):
        fix = "give --image alone, or the ids that efface find lists."
        raise RequestError("a picture and a name are two requests.", fix)
    matches = find(workspace, image)
    others = [match for match in matches if not match.same]
    if others and not near and len(others) < len(matches):
        names = ", ".join(match.id for match in others[:5])
        warn(f"{len(others)} more records look like it and stay: {names}; --near forgets them, too")
    return request_for(matches, near=near)


# What forget, add and resume print.

KEPT = {
    "secret": "secret: weights without noise are kept in private/",
    "noisy": "noisy: no weights without noise are kept",
}


def report(result: Result, workspace: Path, *, as_json: bool) -> None:
    """The outcome of a request, with its certificate."""
    certificate = result.certificate
    for note in result.notes:
        warn(note)
    values = {
        "workspace": str(workspace),
        "action": str(result.action),
        "release": result.release,
        "num_records": result.num_records,
        "certificate": None if certificate is None else certificate.private(),
        "seconds": round(result.seconds, 3),
        "receipt": None if result.receipt is None else str(result.receipt),
    }
    finish(values, as_json=as_json, render=lambda console: render(console, values))


def render(console: Console, values: Mapping[str, Any]) -> None:
    certificate = values["certificate"]
    done = "forgotten" if values["action"].endswith("forget") else "added"
    rows = table("certificate" if certificate else "request", "")
    rows.columns[1].overflow = "fold"  # digests are of no use without their end
    rows.add_row(f"records {done}", f"{values['num_records']:,}")
    for name, text in lines(certificate) if certificate else ():
        rows.add_row(name, text)
    rows.add_row("seconds", f"{values['seconds']:.2f}")
    console.print(rows)
    if certificate:
        console.print("Not covered:", style="bold")
        for text in certificate["not_covered"]:
            console.print(f"  · {text}", markup=False)
    else:
        text = "no certificate: nothing has been forgotten yet, so there is nothing to hide"
        console.print(text, style="dim")
    console.print(plain(_receipt_text(values)), markup=False, soft_wrap=True)
    place = f"release {values['release']} of {values['workspace']} is published"
    console.print(plain(place), style="bold", markup=False, soft_wrap=True)


def _receipt_text(values: Mapping[str, Any]) -> str:
    if values["receipt"] is not None:
        return f"signed receipt: {values['receipt']} (to pack it up: efface evidence)"
    return "not signed: `efface keys new FILE`, then --key FILE, gives a receipt that strangers can check"


def lines(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A certificate's rows for people."""
    retained = [("kind", certificate["kind"]), ("retained", f"{certificate['num_retained']:,}")]
    if certificate["num_people"]:
        retained.append(("deleted together", _together(certificate["num_people"])))
    if certificate["num_in_core"]:
        retained.append(("stay in core", f"{certificate['num_in_core']:,} images"))
    if certificate.get("num_partners"):
        rows, who = f"{certificate['num_from_partners']:,}", certificate["num_partners"]
        retained.append(("from partners", f"{rows} of them, on the word of {who}"))
    if certificate["kind"] == "exact":
        return [
            *retained,
            ("statistics digest", certificate["statistics_digest"]),
            ("weights digest", certificate["weights_digest"]),
            *_given(certificate),
            *_difference(certificate["difference"]),
        ]
    promised = certificate["guarantee"]
    return [
        *retained,
        ("epsilon promised", f"{promised['epsilon']:g}"),
        ("epsilon bound", f"{certificate['epsilon_bound']:.4g}"),
        ("delta", f"{promised['delta']:g}"),
        ("sigma", f"{promised['sigma']:.4g}"),
        ("state", KEPT[promised["state"]]),
        ("epsilon bound of all releases", _bound(certificate["total_epsilon_bound"])),
        ("the paper's theorem, a priori", theorem(certificate["apriori"])),
    ]


def _together(num_people: int) -> str:
    if num_people == 1:
        return "one person alone: two releases show which images, and that they are one person's"
    return f"records of {num_people:,} people: two releases show which images, not whose together"


def _bound(value: float | None) -> str:
    return "none at this delta" if value is None else f"{value:.4g}"


def _given(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """On which machines the digests hold, and what they take as given."""
    values = certificate.get("given")
    if values is None:
        return []
    where = "every machine" if values["arithmetic"] == "integer" else "this machine"
    proved = ", weights proved" if certificate.get("weights_proved") else ""
    core, classes = values["core_digest"][:12], values["classes_digest"][:12]
    return [
        ("arithmetic", f"{values['arithmetic']}: the same on {where}{proved}"),
        ("given", f"core {core}…, class list {classes}…"),
    ]


def _difference(values: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What somebody with the release before can tell, where noise was asked for."""
    if values is None:
        return []
    promised = values["guarantee"]
    return [
        (
            "epsilon to the release before",
            f"{values['epsilon_bound']:.4g} of {promised['epsilon']:g}",
        ),
        ("delta", f"{promised['delta']:g}"),
        ("sigma", f"{promised['sigma']:.4g}"),
    ]


def theorem(values: Mapping[str, Any]) -> str:
    """What was known before the request: mostly that nothing was."""
    if values["vacuous"]:
        return f"vacuous: {values['reason']}"
    return f"{values['nats_bound']:.3g} nats: {values['reason']}"


def _show_preview(preview: Preview, workspace: Path, *, as_json: bool) -> None:
    for note in preview.notes:
        warn(note)
    values = {
        "workspace": str(workspace),
        "dry_run": True,
        "num_forgotten": preview.num_forgotten,
        "num_retained": preview.num_retained,
        "num_in_core": preview.num_in_core,
        "num_people": preview.num_people,
        "ids": list(preview.ids),
    }
    finish(values, as_json=as_json, render=lambda console: _render_preview(console, values))


def _render_preview(console: Console, values: Mapping[str, Any]) -> None:
    rows = table("would be", "records", right=(1,))
    rows.add_row("forgotten", f"{values['num_forgotten']:,}")
    rows.add_row("retained", f"{values['num_retained']:,}")
    rows.add_row("in core, not forgotten", f"{values['num_in_core']:,}")
    console.print(rows)
    shown = values["ids"][:10]
    more = len(values["ids"]) - len(shown)
    text = ", ".join(shown) + (f" and {more} more" if more else "")
    console.print(plain(text), markup=False, soft_wrap=True)
    console.print("dry run: nothing was changed", style="dim")
