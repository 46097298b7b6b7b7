"""What came of a request, for people and for programs: printed by forget, add, resume, merge and partner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efface.commands.output import finish, plain, table, warn
from efface.errors import EffaceError

if TYPE_CHECKING:
    from rich.console import Console

    from efface.report.language import Language
    from efface.workspace import Result, Workspace

KEPT = {
    "secret": "secret: weights without noise are kept in private/",
    "noisy": "noisy: no weights without noise are kept",
}


def report(
    result: Result, workspace: Workspace, *, as_json: bool, language: Language | None = None
) -> None:
    """The outcome of a request, with its certificate; one that forgets gets its page (in English)."""
    certificate = result.certificate
    for note in result.notes:
        warn(note)
    page = _page(result, workspace, language) if result.action.forgets else None
    values = {
        "workspace": str(workspace.path),
        "action": str(result.action),
        "release": result.release,
        "num_records": result.num_records,
        "certificate": None if certificate is None else certificate.private(),
        "seconds": round(result.seconds, 3),
        "receipt": None if result.receipt is None else str(result.receipt),
        "page": None if page is None else str(page),
    }
    finish(values, as_json=as_json, render=lambda console: render(console, values))


def _page(result: Result, workspace: Workspace, language: Language | None) -> Path | None:
    """Of a request that is done whether or not its page can be written."""
    from efface.report.filed import file_page
    from efface.report.language import Language

    try:
        return file_page(workspace, result.release, language or Language.ENGLISH)
    except (EffaceError, OSError) as problem:
        again = f"efface evidence {workspace.path} --request {result.release}"
        warn(f"the request is done, but its page was not written ({problem}): run `{again}`")
        return None


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
    for text in _files(values):
        console.print(plain(text), markup=False, soft_wrap=True)
    place = f"release {values['release']} of {values['workspace']} is published"
    console.print(plain(place), style="bold", markup=False, soft_wrap=True)


def _files(values: Mapping[str, Any]) -> Iterator[str]:
    """What to file, and what to do with it."""
    if values["receipt"] is not None:
        pack = f"efface evidence {values['workspace']}"
        yield f"signed receipt: {values['receipt']} (to pack everything up: {pack})"
    else:
        yield "not signed: `efface keys new FILE`, then --key FILE, gives a receipt that strangers can check"
    if values["page"] is not None:
        yield f"page to print and file: {values['page']}"


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
