"""Requests collected and carried out together: one release for all of them.

``requests.jsonl`` has a request a line: one of ``owner``, ``ids``, ``cohort``, ``label``, and when it was
``received`` (ISO 8601), for the deadline:

    {"owner": "u17", "received": "2026-11-03T09:30:00+01:00"}
    {"ids": ["photos/12.jpg", "photos/13.jpg"], "received": "2026-11-05"}

What this hides, and what not: somebody with the releases before and after still tells *which* images were
deleted (``audit.differencing``), but no longer which of them belong together, to whom, and when each asked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from efface.errors import EffaceError, FormatError, RequestError
from efface.model.request import Request, RequestKind
from efface.workspace import Workspace

KNOWN = frozenset({"owner", "ids", "cohort", "label", "received"})


@dataclass(frozen=True)
class Waiting:
    """A request that was received and not carried out yet; ``line`` is where it stands."""

    line: int
    request: Request
    received: datetime | None = None


@dataclass(frozen=True)
class Batch:
    """All waiting requests as one. ``num_people`` whose records it takes out, ``age`` of the oldest."""

    ids: tuple[str, ...]
    in_core: tuple[str, ...]
    num_requests: int
    num_people: int
    age: timedelta | None
    requests: tuple[Request, ...] = ()

    def is_due(self, minimum: int, deadline: timedelta | None) -> bool:
        """Whether enough people are together, or one has waited long enough."""
        late = deadline is not None and self.age is not None and self.age >= deadline
        return self.num_people >= minimum or late


def read_requests(path: Path) -> list[Waiting]:
    """The requests of a file; an error names the line."""
    if not path.is_file():
        raise EffaceError(f"there is no file {path}.", "check the path.")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as problem:
        raise FormatError(f"{path.name} is not UTF-8: {problem}.", "save it as UTF-8.") from problem
    found = [_waiting(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise EffaceError(f"{path.name} has no requests.", "write one a line, as JSON.")
    return found


def _waiting(number: int, line: str) -> Waiting:
    fix = 'write one JSON object a line: {"owner": "u17", "received": "2026-11-03"}.'
    try:
        values = json.loads(line)
        if not isinstance(values, dict) or not set(values) <= KNOWN:
            raise ValueError(f"known keys are {', '.join(sorted(KNOWN))}")
        received = values.pop("received", None)
        when = None if received is None else datetime.fromisoformat(received)
        request = Request.of(**values)
    except (ValueError, TypeError, RecursionError, RequestError) as problem:
        raise EffaceError(f"line {number} is no request: {problem}.", fix) from problem
    if when is not None and when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return Waiting(number, request, when)


def collect(
    workspace: Workspace,
    waiting: Sequence[Waiting],
    *,
    user_part_only: bool = False,
    now: datetime | None = None,
) -> Batch:
    """The waiting requests as one; each is checked by itself, and an error names its line.

    A record that several requests name is taken out once.
    """
    ids: dict[str, None] = {}
    staying: dict[str, None] = {}
    for item in waiting:
        try:
            preview = workspace.preview(item.request, user_part_only=user_part_only)
        except EffaceError as problem:
            raise problem.located(f"line {item.line}") from problem
        ids |= dict.fromkeys(preview.ids)
        if item.request.kind in (RequestKind.OWNER, RequestKind.COHORT):
            staying |= dict.fromkeys(workspace.core_index.matching(item.request))
    records = workspace.records
    people = {owner for name, owner in zip(records.ids, records.owners, strict=True) if name in ids}
    times = [item.received for item in waiting if item.received is not None]
    age = (now or datetime.now(UTC)) - min(times) if times else None
    requests = tuple(item.request for item in waiting)
    return Batch(tuple(ids), tuple(staying), len(waiting), len(people), age, requests)
