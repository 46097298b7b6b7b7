"""The desk: the one table of requests. Every change of state and its row in the ledger are one transaction.

A request is known by (source, external id): brought twice it is one, brought twice with another
content it is a conflict. When it has ended, whatever named the person is deleted in the same
transaction; ``scrub`` then takes it out of the database's free pages.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from efface.errors import RequestError
from efface.ledger import Ledger, Transaction
from efface.service.states import CANCELLABLE, DAY, ENDS, Reason, State, check
from efface.service.tables import STATEMENTS
from efface.service.tickets import COLUMNS, Intake, Ticket

ROW = "service.request"  # the kind of the ledger's rows
SELECT = f"SELECT {', '.join(COLUMNS)} FROM service_tickets"
NUMBERED = f"{SELECT} WHERE source = ? AND external_tag = ?"
ANNOUNCED = {  # protocol -> the word it has for a state; other states are not told
    "opendsr": {
        State.WAITING: "pending",
        State.RUNNING: "in_progress",
        State.DONE: "completed",
        State.CANCELLED: "cancelled",
        State.REFUSED: "cancelled",
    },
    "fides": {State.DONE: "resume"},
}


class ConflictError(RequestError):
    """A number that was used before for another request."""


class UnknownTicketError(RequestError):
    """There is no such request."""


class Desk:
    """Takes requests in, and keeps what becomes of them. ``key`` is the workspace's, for keyed hashes."""

    def __init__(self, ledger: Ledger, key: bytes) -> None:
        self.ledger, self.key = ledger, key
        ledger.define(STATEMENTS)

    def tag(self, kind: str, value: str | bytes) -> str:
        """HMAC-SHA-256(key, kind ‖ 0 ‖ value): the same for the same value, and no name."""
        data = value.encode() if isinstance(value, str) else value
        return hmac.digest(self.key, b"service " + kind.encode() + b"\0" + data, "sha256").hex()

    # --- taking in --------------------------------------------------------------------------------

    def submit(self, intake: Intake, now: float | None = None) -> tuple[Ticket, bool]:
        """The request, and whether it is new; one that came before is answered as it stands."""
        now = time.time() if now is None else now
        external, body = (
            self.tag("external", intake.external_id),
            self.tag("body", essence(intake.body)),
        )
        with self.ledger.transaction() as tx:
            found = self._found(tx, intake.source, external)
            if found is not None:
                return _same(found, body), False
            ticket = self._insert(tx, intake, external, body, now)
            states = [State.VERIFIED, State.WAITING]
            for state in [State.REFUSED] if intake.refused else states:
                reason = str(intake.refused or "")
                ticket = self._move(tx, ticket, state, now, reason=reason)
        return ticket, True

    def seen(self, intake: Intake) -> Ticket | None:
        """The request, if it came before."""
        rows = self.ledger.query(
            NUMBERED, (intake.source, self.tag("external", intake.external_id))
        )
        return (
            _same(Ticket.of_row(rows[0]), self.tag("body", essence(intake.body))) if rows else None
        )

    def _insert(
        self, tx: Transaction, intake: Intake, external: str, body: str, now: float
    ) -> Ticket:
        name = secrets.token_hex(12)
        started = now if intake.submitted is None else min(intake.submitted, now)
        due = started + intake.regulation.days * DAY
        told = {
            "request": name,
            "state": str(State.RECEIVED),
            "source": intake.source,
            "client": intake.client,
            "regulation": str(intake.regulation),
            "due": round(due),
            "external": external,
            "body": body,
            "people": [self.tag("owner", owner) for owner in sorted(intake.owners)],
        }
        row = tx.append(ROW, told)
        values = (
            *(name, intake.source, external, body, intake.client, str(intake.regulation)),
            *(str(State.RECEIVED), "", now, due, now, None, None, "", 0, 0.0),
            json.dumps([[str(State.RECEIVED), now, row.seq]]),
            *(json.dumps(intake.owners), intake.external_id),
            base64.b64encode(intake.body).decode(),
        )
        marks = ", ".join("?" * len(COLUMNS))
        tx.execute(f"INSERT INTO service_tickets ({', '.join(COLUMNS)}) VALUES ({marks})", values)
        for text in intake.named:
            row_of_it = (name, self.tag("identity", text))
            tx.execute("INSERT INTO service_named (ticket, tag) VALUES (?, ?)", row_of_it)
        for wish in intake.wishes:
            tx.execute(
                "INSERT INTO service_wishes (ticket, kind, url, token) VALUES (?, ?, ?, ?)",
                (name, wish.kind, wish.url, wish.token),
            )
        return self._get(tx, name)

    # --- changes ----------------------------------------------------------------------------------

    def _move(
        self, tx: Transaction, ticket: Ticket, state: State, now: float, **changes: Any
    ) -> Ticket:
        """One change of state and its row; at an end, what names the person goes in the same breath."""
        check(ticket.state, state)
        told = {"request": ticket.id, "state": str(state)}
        told |= {name: value for name, value in changes.items() if name in ("reason", "release")}
        row = tx.append(
            ROW, {name: value for name, value in told.items() if value not in ("", None)}
        )
        steps = [[str(step.state), step.when, step.row] for step in ticket.history]
        changes |= {
            "state": str(state),
            "changed": now,
            "history": json.dumps([*steps, [str(state), now, row.seq]]),
        }
        self._announce(tx, ticket, state)
        if state in ENDS:
            changes |= {"owners": None, "external": None, "body": None, "problem": ""}
            tx.execute("DELETE FROM service_wishes WHERE ticket = ?", (ticket.id,))
        if state in ENDS and state is not State.DONE:
            tx.execute("DELETE FROM service_named WHERE ticket = ?", (ticket.id,))
        return self._update(tx, ticket.id, changes)

    def _update(self, tx: Transaction, name: str, changes: dict[str, Any]) -> Ticket:
        assigned = ", ".join(f"{column} = ?" for column in changes)
        tx.execute(f"UPDATE service_tickets SET {assigned} WHERE id = ?", (*changes.values(), name))
        return self._get(tx, name)

    def _announce(self, tx: Transaction, ticket: Ticket, state: State) -> None:
        """Leave a note for whoever wished to be told; the worker delivers it."""
        rows = tx.execute(
            "SELECT kind, url, token FROM service_wishes WHERE ticket = ?", (ticket.id,)
        )
        for kind, url, token in rows:
            status = ANNOUNCED[kind].get(state)
            if status is not None:
                values = (secrets.token_hex(12), ticket.id, kind, url, token, ticket.external or "")
                tx.execute(
                    "INSERT INTO service_callbacks (id, ticket, kind, url, token, external, status, "
                    "attempts, not_before) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)",
                    (*values, status),
                )

    def move(
        self, tickets: Iterable[Ticket], state: State, now: float | None = None, **changes: Any
    ) -> list[Ticket]:
        """Bring several requests to one state, all or none; each is looked up again first."""
        now = time.time() if now is None else now
        with self.ledger.transaction() as tx:
            return [
                self._move(tx, self._get(tx, ticket.id), state, now, **changes)
                for ticket in tickets
            ]

    def cancel(self, name: str, now: float | None = None) -> Ticket:
        """Call a request off, while nobody works on it yet; doing so twice is once."""
        now = time.time() if now is None else now
        with self.ledger.transaction() as tx:
            ticket = self._get(tx, name)
            if ticket.state is State.CANCELLED:
                return ticket
            if ticket.state not in CANCELLABLE:
                fix = "only a request that still waits can be cancelled."
                raise ConflictError(f"the request is {ticket.state} already.", fix)
            return self._move(tx, ticket, State.CANCELLED, now)

    def refuse(self, ticket: Ticket, reason: Reason, now: float | None = None) -> Ticket:
        return self.move([ticket], State.REFUSED, now, reason=str(reason))[0]

    def postpone(self, tickets: Sequence[Ticket], problem: str, until: float) -> None:
        """Keep requests open, with what stands in their way; those that ran wait again."""
        now = time.time()
        with self.ledger.transaction() as tx:
            for name in [ticket.id for ticket in tickets]:
                ticket = self._get(tx, name)
                if ticket.state is State.RUNNING:
                    ticket = self._move(tx, ticket, State.WAITING, now)
                changes = {
                    "problem": problem,
                    "attempts": ticket.attempts + 1,
                    "not_before": until,
                }
                self._update(tx, name, changes)

    def count(self, numbers: Mapping[str, int]) -> None:
        """How many records requests are about, by their ids; a count that is there stays."""
        sql = "UPDATE service_tickets SET num_records = ? WHERE id = ? AND num_records IS NULL"
        with self.ledger.transaction() as tx:
            for name, number in numbers.items():
                tx.execute(sql, (number, name))

    # --- looking ----------------------------------------------------------------------------------

    def get(self, name: str) -> Ticket:
        return _only(self.ledger.query(f"{SELECT} WHERE id = ?", (name,)))

    def _get(self, tx: Transaction, name: str) -> Ticket:
        return _only(tx.execute(f"{SELECT} WHERE id = ?", (name,)))

    def find(self, source: str, external_id: str) -> Ticket:
        """By the number that the asker gave it."""
        return _only(self.ledger.query(NUMBERED, (source, self.tag("external", external_id))))

    def _found(self, tx: Transaction, source: str, external: str) -> Ticket | None:
        rows = tx.execute(NUMBERED, (source, external))
        return Ticket.of_row(rows[0]) if rows else None

    def done_for(self, named: Iterable[str]) -> Ticket | None:
        """The last request that is done and came with one of these identities."""
        tags = [self.tag("identity", text) for text in named]
        marks = ", ".join("?" * len(tags))
        sql = f"{SELECT} WHERE state = ? AND id IN (SELECT ticket FROM service_named WHERE tag IN ({marks}))"
        rows = self.ledger.query(f"{sql} ORDER BY changed DESC LIMIT 1", (str(State.DONE), *tags))
        return Ticket.of_row(rows[0]) if rows else None

    def latest(self, number: int = 100) -> list[Ticket]:
        """The newest requests."""
        rows = self.ledger.query(f"{SELECT} ORDER BY received DESC, id LIMIT ?", (number,))
        return [Ticket.of_row(row) for row in rows]

    def in_state(self, *states: State) -> list[Ticket]:
        """All requests in these states, the oldest first."""
        marks = ", ".join("?" * len(states))
        sql = f"{SELECT} WHERE state IN ({marks}) ORDER BY received, id"
        rows = self.ledger.query(sql, tuple(str(state) for state in states))
        return [Ticket.of_row(row) for row in rows]

    def counts(self) -> dict[State, int]:
        rows = self.ledger.query("SELECT state, COUNT(*) FROM service_tickets GROUP BY state")
        found = {State(state): number for state, number in rows}
        return {state: found.get(state, 0) for state in State}


def essence(body: bytes) -> bytes:
    """JSON in one spelling, so that a repeated request is the same however it was written."""
    try:
        return json.dumps(json.loads(body), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return body


def _same(found: Ticket, body_tag: str) -> Ticket:
    """The request that has this number, if it is the one that was brought now."""
    if not hmac.compare_digest(found.body_tag, body_tag):
        fix = "give a new request a number of its own."
        raise ConflictError("this number was used for another request.", fix)
    return found


def _only(rows: Sequence[Sequence[Any]]) -> Ticket:
    if not rows:
        raise UnknownTicketError("there is no such request.", "check its number.")
    return Ticket.of_row(rows[0])
