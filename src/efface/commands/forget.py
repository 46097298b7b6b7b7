"""``efface forget``: take records out of a model, publish, purge, and say what is proved about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from efface.commands.output import JsonFlag, TrustModule, finish, plain, table, warn
from efface.progress import mode_for, show

if TYPE_CHECKING:
    from rich.console import Console

    from efface.workspace import Result

EXAMPLES = """\
Example: [bold]efface forget model --owner u17[/bold]

Example: [bold]efface forget model --ids photos/12.jpg,photos/13.jpg --dry-run[/bold]

Example: [bold]efface forget model --owner u17 --epsilon 0.5 --json[/bold]"""

WorkspacePath = Annotated[Path, typer.Argument(help="A folder written by `efface train`.")]
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
    epsilon: Annotated[float | None, typer.Option(help=f"Instead of the plan's. {EXACT}")] = None,
    delta: Annotated[float | None, typer.Option(help=f"Instead of the plan's. {EXACT}")] = None,
    sigma: Annotated[float | None, typer.Option(help=f"Instead of the plan's. {EXACT}")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which records would be forgotten.")
    ] = False,
    trust_module: TrustModule = None,
    json: JsonFlag = False,
) -> None:
    """Forget records: the new model is published, and everything derived from them is deleted.

    Killed at any point, the request is finished by the next command (or by efface resume). Exit code 3,
    and nothing published, when the guarantee was not reached.
    """
    from efface.backbone import trusted_module
    from efface.workspace import Workspace

    opened = Workspace.open(workspace, module=trusted_module(trust_module), recover=not dry_run)
    named = _named(owner, ids, id_, cohort, label, everything)
    if dry_run:
        preview = opened.preview(**named)
        for note in preview.notes:
            warn(note)
        values = {
            "workspace": str(workspace),
            "dry_run": True,
            "num_forgotten": preview.num_forgotten,
            "num_retained": preview.num_retained,
            "ids": list(preview.ids),
        }
        finish(values, as_json=json, render=lambda console: _render_preview(console, values))
        return
    guarantee = opened.guarantee_with(epsilon, delta, sigma)
    with show("forget", mode_for(as_json=json)) as progress:
        result = opened.forget(**named, guarantee=guarantee, progress=progress)
    report(result, workspace, as_json=json)


def _named(
    owner: str | None,
    ids: str | None,
    id_: list[str] | None,
    cohort: str | None,
    label: str | None,
    everything: bool,
) -> dict[str, Any]:
    listed = [part.strip() for part in (ids or "").split(",") if part.strip()] + (id_ or [])
    given = ids is not None or bool(id_)
    return {
        "ids": listed if given else None,
        "owner": owner,
        "cohort": cohort,
        "label": label,
        "everything": everything,
    }


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
    }
    finish(values, as_json=as_json, render=lambda console: render(console, values))


def render(console: Console, values: Mapping[str, Any]) -> None:
    certificate = values["certificate"]
    done = "forgotten" if values["action"] == "forget" else "added"
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
    place = f"release {values['release']} of {values['workspace']} is published"
    console.print(plain(place), style="bold", markup=False, soft_wrap=True)


def lines(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A certificate's rows for people."""
    retained = [("kind", certificate["kind"]), ("retained", f"{certificate['num_retained']:,}")]
    if certificate["kind"] == "exact":
        return [
            *retained,
            ("statistics digest", certificate["statistics_digest"]),
            ("weights digest", certificate["weights_digest"]),
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
        ("epsilon bound of all releases", f"{certificate['total_epsilon_bound']:.4g}"),
        ("the paper's theorem, a priori", theorem(certificate["apriori"])),
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


def _render_preview(console: Console, values: Mapping[str, Any]) -> None:
    rows = table("would be", "records", right=(1,))
    rows.add_row("forgotten", f"{values['num_forgotten']:,}")
    rows.add_row("retained", f"{values['num_retained']:,}")
    console.print(rows)
    shown = values["ids"][:10]
    more = len(values["ids"]) - len(shown)
    text = ", ".join(shown) + (f" and {more} more" if more else "")
    console.print(plain(text), markup=False, soft_wrap=True)
    console.print("dry run: nothing was changed", style="dim")
