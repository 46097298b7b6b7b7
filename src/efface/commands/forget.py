"""``efface forget``: take records out of a model, publish, purge, and say what is proved about it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.display import mode_for, show
from efface.commands.outcome import report
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
from efface.commands.spoken import Spoken, spoken
from efface.commands.whom import Cohort, Everything, Id, Ids, Label, Owner, named_by

if TYPE_CHECKING:
    from rich.console import Console

    from efface.model.request import Request
    from efface.workspace import Preview, Workspace
    from efface.workspace.batches import Batch

EXAMPLES = """\
Example: [bold]efface forget model --owner u17[/bold]

Example: [bold]efface forget model --ids photos/12.jpg,photos/13.jpg --dry-run[/bold]

Example: [bold]efface forget model --from requests.jsonl --minimum-batch 10 --deadline 25[/bold]

Example: [bold]efface forget model --image holiday.jpg --near[/bold]

Example: [bold]efface forget model --owner u17 --key signing.key --language de[/bold]

Example: [bold]efface forget model --owner u17 --epsilon 0.5 --json[/bold]

Example: [bold]efface forget model --owner u17 --procedure paper --momentum 0.9 --epochs 4[/bold]"""

WorkspacePath = Annotated[Path, typer.Argument(help="A folder written by `efface train`.")]
FROM = 'A file of requests, one JSON object a line ({"owner": "u17"}), for one release together.'
PART = "Forget the user records of somebody who has core records too; these stay."
KEY = "Sign receipts with this key from now on (efface keys new)."
EXACT = "Compact forgets exactly: there it is for the difference to the release before, with sigma."


def forget(
    workspace: WorkspacePath,
    owner: Owner = None,
    ids: Ids = None,
    id_: Id = None,
    cohort: Cohort = None,
    label: Label = None,
    everything: Everything = False,
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
    language: Spoken = "en",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which records would be forgotten.")
    ] = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Forget records: the new model is published, and everything derived from them is deleted.

    Killed at any point, the request is finished by the next command (or by efface resume). Exit code 3,
    and nothing published, when the guarantee was not reached, or when some of the person's images are core
    data: --user-part-only then forgets the others. The page about the request, in plain words, is written
    beside its receipt.
    """
    fetch_sums(workspace)
    in_words = spoken(language)
    from efface.model.request import Request

    chosen = chosen_procedure(procedure, momentum, rate, epochs, loss, max_passes, solver)
    opened = open_workspace(workspace, trust_module, recover=not dry_run)
    named = named_by(owner, ids, id_, cohort, label, everything)
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
    report(result, opened, as_json=json, language=in_words)


def fetch_sums(workspace: Path) -> None:
    """Ask the system to have the sums in memory once Python has loaded what works on them. It need not."""
    if not hasattr(os, "posix_fadvise"):
        return
    with contextlib.suppress(OSError):
        for path in workspace.glob("private/*/*.safetensors"):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def open_workspace(path: Path, trust_module: str | None, *, recover: bool = True) -> Workspace:
    """A module is loaded only if one is named: with it comes torch, which takes longer than most requests."""
    from efface.workspace import Workspace

    if trust_module is None:
        return Workspace.open(path, recover=recover)
    from efface.network.backbone import trusted_module

    return Workspace.open(path, module=trusted_module(trust_module), recover=recover)


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
