"""The worker: carries out the requests that wait, all of them in one forgetting step.

Killed at any moment, nothing is lost: a request that was running is looked at again by the next
worker. If the person is no longer in the workspace, the release without them is published;
otherwise it is carried out again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from efface.errors import EffaceError
from efface.model.request import Request, RequestKind
from efface.service.aftermath import Aftermath, scrub
from efface.service.callbacks import Messenger
from efface.service.desk import Desk
from efface.service.evaluations import Evaluations
from efface.service.hooks.table import hooks_of
from efface.service.leases import Lease
from efface.service.place import Place
from efface.service.receipts import reference
from efface.service.settings import BatchSettings
from efface.service.states import DAY, Reason, State
from efface.service.tickets import Ticket
from efface.workspace import Workspace

log = logging.getLogger("efface.service")
POLL_SECONDS = 0.25
MOST_DOUBLINGS = 7


def is_due(waiting: Sequence[Ticket], batch: BatchSettings, now: float) -> bool:
    """Whether enough people are together and the window is over, or a deadline is near."""
    if not waiting:
        return False
    people = {owner for ticket in waiting for owner in ticket.owners}
    patient = now - min(ticket.received for ticket in waiting) >= batch.window_seconds
    late = min(ticket.due for ticket in waiting) - batch.margin_days * DAY <= now
    return late or (patient and len(people) >= batch.minimum)


class Worker:
    """One at a time on a model: whoever has the lease."""

    def __init__(self, place: Place) -> None:
        self.place, self.settings, self.desk = place, place.settings, Desk(place.ledger, place.key)
        self.aftermath = Aftermath(
            place.path, place.ledger, hooks_of(place.settings.hooks), place.settings.identities
        )
        self.evaluations = Evaluations(place.path, place.ledger, place.settings.evaluation)
        self._unscrubbed = True  # a worker before this one may have died before it had scrubbed

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``; another worker's lease is waited for."""
        beside = [
            threading.Thread(target=self._deliver, args=(stop,), daemon=True),
            threading.Thread(target=self._evaluate, args=(stop,), daemon=True),
        ]
        for thread in beside:
            thread.start()
        lease = Lease(self.place.ledger, self.settings.lease_seconds)
        while not stop.wait(POLL_SECONDS):
            try:
                if self.is_needed() and lease.take():
                    with lease:
                        self.step()
                elif self._unscrubbed or self.place.has_log():
                    self._unscrubbed = not scrub(self.place.ledger)
            except (
                Exception
            ) as problem:  # the next step is a new attempt; nothing personal in the log
                log.error("the worker met %s", type(problem).__name__)
                stop.wait(self.settings.retry_seconds)
        lease.give_back()
        for thread in beside:
            thread.join()

    def _evaluate(self, stop: threading.Event) -> None:
        """Beside the requests, since it may take its time."""
        lease = Lease(self.place.ledger, self.settings.lease_seconds, "evaluator")
        while not stop.wait(POLL_SECONDS):
            try:
                if self.evaluations.is_needed() and lease.take():
                    with lease:
                        self.evaluations.catch_up()
            except Exception as problem:
                log.error("the evaluation met %s", type(problem).__name__)
                stop.wait(self.settings.retry_seconds)
        lease.give_back()

    def _deliver(self, stop: threading.Event) -> None:
        messenger = Messenger(self.desk, self.settings, self.place.signer)
        lease = Lease(self.place.ledger, self.settings.lease_seconds, "messenger")
        while not stop.wait(POLL_SECONDS):
            try:
                if messenger.is_needed() and lease.take():
                    with lease:
                        messenger.deliver()
                    self._unscrubbed = True
            except Exception as problem:
                log.error("callbacks met %s", type(problem).__name__)
                stop.wait(self.settings.retry_seconds)
        lease.give_back()

    def is_needed(self, now: float | None = None) -> bool:
        """Whether there is anything to do; only then is anything written."""
        now = time.time() if now is None else now
        going = self.desk.in_state(State.PUBLISHED, State.HOOKS)
        ready = any(ticket.not_before <= now for ticket in going)
        return ready or bool(self.desk.in_state(State.RUNNING)) or bool(self._due(now))

    def _due(self, now: float) -> list[Ticket]:
        """Those that wait, if it is time."""
        waiting = [t for t in self.desk.in_state(State.WAITING) if t.not_before <= now]
        waiting = waiting[: self.settings.batch.largest]
        return waiting if is_due(waiting, self.settings.batch, now) else []

    def step(self, now: float | None = None) -> None:
        """Everything that can be done now."""
        now = time.time() if now is None else now
        self._forget(now)
        self._complete(now)
        if self._unscrubbed:
            self._unscrubbed = not scrub(self.place.ledger)

    # --- forgetting -------------------------------------------------------------------------------

    def _forget(self, now: float) -> None:
        running = self.desk.in_state(State.RUNNING)  # a worker died over them
        waiting = self._due(now)
        if not running and not waiting:
            return
        batch = running + self.desk.move(waiting, State.RUNNING)
        try:
            self._carry_out(batch)
        except EffaceError as problem:
            log.warning("%d requests stay open: %s", len(batch), type(problem).__name__)
            self._put_off(batch, problem.message)

    def _carry_out(self, batch: Sequence[Ticket]) -> None:
        workspace = Workspace.open(self.place.path)  # and finish what was cut short
        batch = [ticket for ticket in batch if self._is_covered(workspace, ticket)]
        records = workspace.records
        asked = {owner for ticket in batch for owner in ticket.owners}
        ids = [r.id for r in records if r.owner in asked]
        self._count(batch, records.owners)
        if ids:
            core = workspace.core_index.matching(Request(RequestKind.OWNER, tuple(sorted(asked))))
            request = Request.of(ids=ids, in_core=core)
            self._sign_with(workspace)
            workspace.forget(
                request,
                user_part_only=self.settings.user_part_only,
                references=tuple(reference(ticket) for ticket in batch),
                together=[Request.of(owner=owner) for owner in sorted(asked)],
            )
        self.desk.move(batch, State.PUBLISHED, release=workspace.number)
        log.info("release %d: %d requests, %d records", workspace.number, len(batch), len(ids))

    def _sign_with(self, workspace: Workspace) -> None:
        """The key of the settings, if it is not the workspace's already."""
        key, signing = self.settings.signing_key, workspace.protocol.signing
        if key is not None and signing.key_path != key.absolute():
            signing.use(key)

    def _is_covered(self, workspace: Workspace, ticket: Ticket) -> bool:
        """Who has become core since (the model was trained anew) is refused, alone."""
        in_core = workspace.core_index.owners_among(ticket.owners)
        if in_core and not self.settings.user_part_only:
            self.desk.refuse(ticket, Reason.CLAIM_NOT_COVERED)
            return False
        return True

    def _count(self, batch: Sequence[Ticket], owners: Sequence[str]) -> None:
        """How many records each request is about; kept if a worker that died has counted them."""
        numbers: dict[str, int] = {}
        for owner in owners:
            numbers[owner] = numbers.get(owner, 0) + 1
        found = {t.id: sum(numbers.get(owner, 0) for owner in t.owners) for t in batch}
        self.desk.count(found)

    def _put_off(self, tickets: Sequence[Ticket], problem: str) -> None:
        tries = min(max(ticket.attempts for ticket in tickets), MOST_DOUBLINGS)
        self.desk.postpone(tickets, problem, time.time() + self.settings.retry_seconds * 2**tries)

    # --- afterwards -------------------------------------------------------------------------------

    def _complete(self, now: float) -> None:
        published = self.desk.in_state(State.PUBLISHED)
        if published:
            self.desk.move(published, State.HOOKS)
        tickets = self.desk.in_state(State.HOOKS)
        if not tickets or min(ticket.not_before for ticket in tickets) > now:
            return
        problem = self.aftermath.carry_out(max(ticket.changed for ticket in tickets))
        if problem is None:
            self.desk.move(tickets, State.DONE)
            self._unscrubbed = True
        elif problem:
            log.warning("%d requests stay open after a hook failed", len(tickets))
            self._put_off(tickets, problem)
