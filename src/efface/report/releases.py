"""The page that sets two releases side by side: draws what ``efface.workspace.history`` found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from efface.report.figures import Line, Scale, lines
from efface.report.html import Card, Digest, Figure, HowToCheck, Report, Section, Table
from efface.workspace.history import Compared, Release, facts

GONE = "not kept"
WORDS = {
    "forget": "records were forgotten",
    "add": "records were added",
    "plan": "the guarantee of later requests was changed",
    "train": "the model was trained",
    "partner-add": "a partner's sums came in",
    "partner-forget": "records of a partner were forgotten",
}
WHY = """\
A digest of weights or sums that somebody's image went into would let whoever has the image find out by trying
whether it was there. So a release takes them with it when the next one is published, and the number of its
records, too. Whoever asked was given them in the **whole receipt**; brought with `--receipt`, they are shown.

What a request named is kept nowhere: the ledger has a keyed digest of it, and times."""


def page(model: Path, first: Release, last: Release, between: Sequence[Release]) -> Report:
    """About ``last`` beside ``first``, and the requests that led from one to the other."""
    found = facts(first, last)
    return Report(
        f"Release {last.number} beside release {first.number}",
        "What was asked in between, what changed, and what is not known any more.",
        cards=_cards(first, last, between),
        sections=[
            Section("What was asked", _asked(between), tables=[_requests(between)]),
            Section("What changed", _meaning(found), tables=[_table(first, last, found)]),
            _accuracy([first, *between]),
            Section("What is not known any more, and why", WHY),
        ],
        checks=[
            HowToCheck("Is the ledger as it was written?", f"efface ledger verify {model}"),
            HowToCheck(
                "Is the served release what it claims to be?", f"efface verify {model} --retrain"
            ),
            HowToCheck("Make this page again.", _command(model, first, last)),
        ],
        made=datetime.now(UTC),
        subject=f"the model in {model}, releases {first.number} to {last.number}",
    )


def _cards(first: Release, last: Release, between: Sequence[Release]) -> list[Card]:
    counts = Counter(release.action for release in between)
    actions = ", ".join(f"{n} × {action}" for action, n in sorted(counts.items()))
    people = [release.told("num_people") for release in between if release.action == "forget"]
    known = sum(n for n in people if n)
    met = [release.told("passed") for release in between]
    rights = [r.measured for r in (first, last)]
    each = ["?" if m is None else f"{100 * m.accuracy:.1f} %" for m in rights]
    shown = " → ".join(dict.fromkeys(each))  # once, if it is the same
    records = last.told("num_retained")
    return [
        Card("requests", str(len(between)), actions),
        Card(
            "people who asked", str(known) if all(people) else f"{known} or more", "to be forgotten"
        ),
        Card("guarantee met", f"{met.count(True)} of {len(met)}", "each release on its own"),
        Card(
            "accuracy",
            shown if any(rights) else "not measured",
            f"release {first.number} → {last.number}{': the same' * (each[0] == each[1] != '?')}",
        ),
        Card(
            "records now", "?" if records is None else f"{records:,}", f"in release {last.number}"
        ),
    ]


def _asked(between: Sequence[Release]) -> str:
    days = {release.asked[:10] for release in between}
    return (
        f"{len(between)} request{'s' * (len(between) > 1)} on {len(days)} day{'s' * (len(days) > 1)}. The "
        "ledger has these times; it names nobody."
    )


def _requests(between: Sequence[Release]) -> Table:
    rows = []
    for release in between:
        people = release.told("num_people")
        kind, met = release.told("kind"), release.told("passed")
        promise = "–" if kind is None else f"{kind}, {'met' if met else 'not met'}"
        what = WORDS.get(release.action, release.action)
        times = (_time(release.asked), _time(release.served))
        rows.append((release.number, *times, what, people or "–", promise))
    head = ("release", "asked", "served since", "what", "people", "guarantee")
    return Table(head, rows, numeric=(0, 4))


def _meaning(found: Sequence[Compared]) -> str:
    by_name = {fact.name: fact.changed for fact in found}
    fixed = [by_name[name] for name in ("core", "class list", "image preparation", "calibration")]
    if None in fixed:
        return "Whether core and class list are the same is not known of both releases."
    if any(fixed):
        return (
            "**Core, class list, preparation or calibration differ**: the model was trained anew in between, "
            "and the releases differ by more than the requests."
        )
    return (
        "Core, class list, preparation and calibration are the same in both: whatever differs comes from "
        "the requests alone."
    )


def _table(first: Release, last: Release, found: Sequence[Compared]) -> Table:
    words = {True: "**changed**", False: "the same", None: "not both known"}
    rows = [
        (
            fact.name,
            _cell(fact.name, fact.before),
            _cell(fact.name, fact.after),
            words[fact.changed],
        )
        for fact in found
        if fact.before is not None or fact.after is not None
    ]
    return Table(("what", f"release {first.number}", f"release {last.number}", "they are"), rows)


def _accuracy(releases: Sequence[Release]) -> Section:
    measured = [(r.number, r.measured) for r in releases if r.measured is not None]
    rights = [m.accuracy for _, m in measured]
    curve = Line("accuracy", [number for number, _ in measured], rights)
    scales = Scale("release", whole=True), Scale("accuracy", percent=True)
    same = len(rights) > 1 and len(set(rights)) == 1  # there is nothing to see in a level line
    svg = "" if same else lines([curve], *scales, title="accuracy over releases")
    sources = sorted({m.source for _, m in measured})
    counts = sorted({m.num_records for _, m in measured})
    told = f"On {', '.join(map(str, counts))} test records; from {', '.join(sources)}."
    missing = (
        f"{len(measured)} of these releases {'was' if len(measured) == 1 else 'were'} measured. Weights of "
        "earlier ones are gone, so it cannot be done later: a service measures each release by itself, and "
        "`efface evaluate MODEL DATA --json > FILE` before a request is as good, brought with `--evaluation`."
    )
    if len(rights) < 2:
        return Section("Accuracy", figures=[Figure(svg, told, instead=missing)])
    level = f"{100 * rights[0]:.1f} % in each of the {len(rights)} releases that were measured. "
    change = f"From {100 * rights[0]:.1f} % to {100 * rights[-1]:.1f} %. "
    prose = f"{level if same else change}{told}"
    return Section("Accuracy", prose, figures=[] if same else [Figure(svg, "")])


def _cell(name: str, value: Any) -> str | Digest:
    if value is None:
        return GONE if name.endswith("(SHA-256)") or name.startswith("records") else "–"
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, str) and len(value) == 64:
        return Digest(value)
    if name == "accuracy":
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _time(text: str) -> str:
    """To the minute."""
    return f"{text[:10]} {text[11:16]}"


def _command(model: Path, first: Release, last: Release) -> str:
    return f"efface releases {model} --from {first.number} --to {last.number}"
