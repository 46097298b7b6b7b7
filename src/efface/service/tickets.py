"""A ticket: one person's request as the service follows it, from intake to receipt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from efface.service.states import CANCELLABLE, ENDS, Reason, Regulation, State

COLUMNS = (
    "id",
    "source",
    "external_tag",
    "body_tag",
    "client",
    "regulation",
    "state",
    "reason",
    "received",
    "due",
    "changed",
    "release",
    "num_records",
    "problem",
    "attempts",
    "not_before",
    "history",
    "owners",
    "external",
    "body",
)


@dataclass(frozen=True)
class CallbackWish:
    """Whom to tell when the state changes: a URL that the asker gave, of one ``kind`` of protocol."""

    kind: str
    url: str
    token: str = ""


@dataclass(frozen=True)
class Intake:
    """A request that was checked: who brought it, under which number of theirs, whom it means.

    ``(source, external_id)`` names it: the same brought twice is one request. ``named``: the identities that
    it came with, spelt for keyed hashes.
    """

    source: str
    external_id: str
    body: bytes
    client: str
    owners: tuple[str, ...] = ()
    regulation: Regulation = Regulation.GDPR
    submitted: float | None = None  # when the person asked, if it came later to us
    refused: Reason | None = None
    wishes: tuple[CallbackWish, ...] = ()
    named: tuple[str, ...] = ()


@dataclass(frozen=True)
class Passage:
    """One change of state: when, and the number of its row in the ledger."""

    state: State
    when: float
    row: int


@dataclass(frozen=True)
class Ticket:
    """A request. ``owners``, ``external`` and ``body`` name a person, and are gone once it has ended."""

    id: str
    source: str
    external_tag: str
    body_tag: str
    client: str
    regulation: Regulation
    state: State
    reason: str
    received: float
    due: float
    changed: float
    release: int | None
    num_records: int | None
    problem: str
    attempts: int
    not_before: float
    history: tuple[Passage, ...]
    owners: tuple[str, ...]
    external: str | None
    body: str | None

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> Ticket:
        values = dict(zip(COLUMNS, row, strict=True))
        values["regulation"], values["state"] = (
            Regulation(values["regulation"]),
            State(values["state"]),
        )
        values["history"] = tuple(
            Passage(State(state), when, number)
            for state, when, number in json.loads(values["history"])
        )
        values["owners"] = tuple(json.loads(values["owners"] or "[]"))
        return cls(**values)

    @property
    def has_ended(self) -> bool:
        return self.state in ENDS

    @property
    def can_be_cancelled(self) -> bool:
        return self.state in CANCELLABLE
