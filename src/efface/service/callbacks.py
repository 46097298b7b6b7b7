"""Telling those who wished to be told: at least once, with retries that come further and further apart."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from efface.errors import EffaceError
from efface.ledger import Ledger
from efface.service.addresses import AddressError, post, resolve
from efface.service.desk import Desk
from efface.service.settings import CallbackSettings, ServiceSettings
from efface.service.signing import ReplySigner
from efface.service.times import rfc3339

ROW = "service.callback"
COLUMNS = "id, ticket, kind, url, token, external, status, attempts"
LONGEST_WAIT = 6 * 3600.0


@dataclass(frozen=True)
class Delivery:
    """One thing to tell somebody; it names no person, but its number is the asker's own."""

    id: str
    ticket: str
    kind: str
    url: str
    token: str
    external: str
    status: str
    attempts: int


class Messenger:
    """Delivers what waits in the table; a delivery that is done, or given up, is deleted."""

    def __init__(self, desk: Desk, settings: ServiceSettings, signer: ReplySigner | None) -> None:
        self.desk, self.settings, self.signer = desk, settings, signer

    @property
    def _ledger(self) -> Ledger:
        return self.desk.ledger

    def is_needed(self) -> bool:
        sql = "SELECT COUNT(*) FROM service_callbacks WHERE not_before <= ?"
        return bool(self._ledger.query(sql, (time.time(),))[0][0])

    def deliver(self, now: float | None = None) -> int:
        """Try everything that is due, in order for each asker; returns how many arrived."""
        now = time.time() if now is None else now
        sql = f"SELECT {COLUMNS} FROM service_callbacks WHERE not_before <= ? ORDER BY not_before LIMIT 100"
        arrived = 0
        for row in self._ledger.query(sql, (now,)):
            delivery = Delivery(*row)
            problem = self._try(delivery)
            self._note(delivery, problem, now)
            arrived += problem is None
        return arrived

    def _try(self, delivery: Delivery) -> str | None:
        """None if it arrived, else what was in the way, without the URL."""
        wanted: CallbackSettings = self.settings.callbacks
        try:
            body = json.dumps(self._body(delivery)).encode()
            target = resolve(delivery.url, wanted.hosts)
            status = post(target, body, self._headers(delivery, body), wanted.timeout_seconds)
        except AddressError as problem:
            return problem.message
        except (OSError, EffaceError, ValueError) as problem:
            return type(problem).__name__
        except Exception as problem:  # http.client has errors of its own
            return type(problem).__name__
        return None if 200 <= status < 300 else f"status {status}"

    def _body(self, delivery: Delivery) -> Mapping[str, Any]:
        if delivery.kind == "fides":
            return {}
        ticket = self.desk.get(delivery.ticket)
        values: dict[str, Any] = {
            "controller_id": self.settings.opendsr.controller_id if self.settings.opendsr else "",
            "status_callback_url": delivery.url,
            "subject_request_id": delivery.external,
            "request_status": delivery.status,
            "expected_completion_time": rfc3339(ticket.due),
        }
        if delivery.status == "completed":
            url = f"{self.settings.public_url}/v1/requests/{ticket.id}/receipt"
            values |= {"results_url": url, "results_count": ticket.num_records or 0}
        return values

    def _headers(self, delivery: Delivery, body: bytes) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "efface"}
        if delivery.kind == "opendsr" and self.signer is not None:
            headers |= self.signer.headers(body)
        if delivery.token:
            headers["Authorization"] = f"Bearer {delivery.token}"
        return headers

    def _note(self, delivery: Delivery, problem: str | None, now: float) -> None:
        attempts = delivery.attempts + 1
        wanted = self.settings.callbacks
        with self._ledger.transaction() as tx:
            if problem is None or attempts >= wanted.attempts:
                told = {"request": delivery.ticket, "status": delivery.status}
                outcome = {"outcome": "arrived" if problem is None else "given up"}
                tx.append(ROW, told | outcome | ({"problem": problem} if problem else {}))
                tx.execute("DELETE FROM service_callbacks WHERE id = ?", (delivery.id,))
                return
            wait = min(wanted.backoff_seconds * 2 ** (attempts - 1), LONGEST_WAIT)
            tx.execute(
                "UPDATE service_callbacks SET attempts = ?, not_before = ? WHERE id = ?",
                (attempts, now + wait, delivery.id),
            )
