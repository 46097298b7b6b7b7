"""The office: what the HTTP side works with, put together once when the server starts."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from efface.errors import EffaceError
from efface.model.request import Request
from efface.service.desk import Desk
from efface.service.evaluations import Evaluations
from efface.service.identities import Directory, Meant, SubjectIdentity
from efface.service.keys import ApiKeys
from efface.service.limits import RateLimiter
from efface.service.metrics import Metrics
from efface.service.place import Place
from efface.service.served import ServedModel
from efface.service.sessions import Sessions
from efface.service.states import Reason
from efface.service.tickets import Intake, Ticket
from efface.service.times import rfc3339, seconds_of
from efface.workspace import Workspace
from efface.workspace.earlier import find
from efface.workspace.inventory import Inventory
from efface.workspace.published import current


class UnknownIdentityError(EffaceError):
    """Nobody in the model is meant by these identities."""


class AlreadyForgottenError(UnknownIdentityError):
    """Nobody is meant any more: the person was forgotten before."""


class Office:
    """Desk, keys, model and directory of one service."""

    def __init__(self, place: Place) -> None:
        self.place, self.settings = place, place.settings
        self.desk, self.keys = Desk(place.ledger, place.key), ApiKeys(place.ledger)
        self.served = ServedModel(place.path, place.ledger)
        self.sessions, self.limiter, self.metrics = Sessions(place.key), RateLimiter(), Metrics()
        self.evaluations = Evaluations(place.path, place.ledger)
        self._lock = threading.Lock()
        self._directory: tuple[object, Directory] | None = None

    @property
    def path(self) -> Path:
        return self.place.path

    def directory(self) -> Directory:
        """Of the release that is published now; made anew when it or the mapping file changes."""
        with self._lock:
            while True:
                state = self._state()
                if self._directory is not None and self._directory[0] == state:
                    return self._directory[1]
                try:
                    workspace = Workspace.open(self.path, recover=False)
                    found = Directory(workspace, self.settings.identities)
                except Exception:
                    if self._state() == state:  # else files vanished while they were read
                        raise
                else:
                    if self._state() == state:
                        self._directory = state, found
                        return found

    def _state(self) -> object:
        mapping = self.settings.identities
        changed = mapping.stat().st_mtime_ns if mapping is not None and mapping.exists() else 0
        return current(self.path), changed

    def take_in(self, intake: Intake, identities: list[SubjectIdentity]) -> tuple[Ticket, bool]:
        """Find out who is meant and put the request on the desk; a replay is answered as it stands.

        Unknown identities are an error that changes nothing. Somebody of whom images are core data
        is refused, and that is kept: they asked, and were told no.
        """
        replayed = self.desk.seen(intake)
        if replayed is not None:
            return replayed, False
        meant = self.directory().meant(identities)
        if not meant.owners and not meant.in_core:
            self._check_forgotten(meant, identities)
            fix = "check the identities; if the person was forgotten, nothing is left to do."
            raise UnknownIdentityError("nobody in the model is meant by these identities.", fix)
        covered = bool(meant.owners) and (self.settings.user_part_only or not meant.in_core)
        refused = None if covered else Reason.CLAIM_NOT_COVERED
        whom = meant.owners or meant.in_core
        named = tuple(sorted({text for identity in identities for text in identity.kept()}))
        return self.desk.submit(replace(intake, owners=whom, refused=refused, named=named))

    def _check_forgotten(self, meant: Meant, identities: list[SubjectIdentity]) -> None:
        """Tell when somebody was forgotten who is not there any more; keyed hashes know it, and no name."""
        ticket = self.desk.done_for({text for identity in identities for text in identity.known()})
        inventory = Inventory(self.path)
        inventory.only_looks = True
        when, number = (0.0, None) if ticket is None else (ticket.changed, ticket.release)
        for name in meant.names:
            found = find(inventory, Request.of(owner=name)) if name else None
            if found is not None and seconds_of(found.when) > when:
                when, number = seconds_of(found.when), found.number
        if number is not None:
            message = (
                f"the person was forgotten already, on {rfc3339(when)[:10]}: receipt {number}."
            )
            raise AlreadyForgottenError(message, "nothing is left to do.")
