"""A request in steps: what they are called, what is written down of them, and the request in flight."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import LedgerError
from efface.guarantee.promise import Guarantee
from efface.model.request import Request
from efface.parts.tangent.procedure import ProcedureChoice

SCHEMA = "efface.pending/1"
KILL_AT = "EFFACE_TEST_KILL_AT"
STEP = "step"  # the kind of a row that is an entry


class Action(StrEnum):
    TRAIN = "train"
    FORGET = "forget"
    ADD = "add"
    PLAN = "plan"
    PARTNER_ADD = "partner-add"  # a partner's sums came in
    PARTNER_FORGET = "partner-forget"  # … and some of its records went out of them

    @property
    def is_partners(self) -> bool:
        return self in (Action.PARTNER_ADD, Action.PARTNER_FORGET)

    @property
    def forgets(self) -> bool:
        return self in (Action.FORGET, Action.PARTNER_FORGET)


class Milestone(StrEnum):
    """The protocol of a request, in order. Those marked * are rows of the ledger."""

    LOCKED = "locked"
    STAGED = "staged"  # the new records' rows are on disk (add)
    ACCEPTED = "accepted"  # * with the request itself: from here on it will be carried out
    COMPUTED = "computed"  # the new weights exist, in memory
    RELEASE = "release"
    PRIVATE = "private"
    CERTIFICATE = "certificate"
    PREPARED = "prepared"  # * every new file is on disk
    SWITCHED = "switched"  # CURRENT names the new release
    PUBLISHED = "published"  # *
    OLD_RELEASES_GONE = "old-releases-gone"
    OLD_CORE_GONE = "old-core-gone"
    OLD_STATE_GONE = "old-state-gone"
    OLD_CERTIFICATES_GONE = "old-certificates-gone"
    OLD_ROWS_GONE = "old-rows-gone"
    FACTOR_KEPT = "factor-kept"  # that of the new sums, where one is kept
    PURGED = "purged"  # *
    RECEIPT = "receipt"  # the receipt is on disk, if there is a key
    DONE = "done"  # * and the request is no longer in flight
    SCRUBBED = "scrubbed"  # no copy of it is left in the ledger's files
    ABORTED = "aborted"  # * instead of all from COMPUTED on


def reach(step: Milestone) -> None:
    """Where tests kill the process: nothing happens unless EFFACE_TEST_KILL_AT names the step."""
    if os.environ.get(KILL_AT) == step.value:
        os.kill(
            os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM)
        )  # Windows: the latter kills


def sync_directory(path: Path) -> None:
    """Make renames and deletions in ``path`` survive a power cut; Windows cannot open a folder for that."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directories(*paths: Path) -> None:
    """:func:`sync_directory` of each, all at the same time."""
    files.at_once(sync_directory, paths)


@dataclass(frozen=True)
class Intent:
    """A request in flight: all it takes to carry it out again from the release before it.

    ``digests`` are the content digests of the records it is about (of a partner's, their tags); ``restored``
    those of them that were forgotten before and are taken in again on purpose; ``references`` are digests by
    which whoever asked knows the request, for the receipt. ``procedure``: how to forget, if that was said.
    """

    number: int
    action: Action
    digests: tuple[str, ...]
    request: Request | None = None
    guarantee: Guarantee | None = None
    restored: tuple[str, ...] = ()
    procedure: ProcedureChoice | None = None
    references: tuple[str, ...] = ()

    def to_text(self) -> str:
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "number": self.number,
            "action": str(self.action),
            "digests": self.digests,
            "request": None if self.request is None else self.request.to_dict(),
            "guarantee": None if self.guarantee is None else asdict(self.guarantee),
            "restored": self.restored,
            "references": self.references,
        }
        if self.procedure is not None:
            values["procedure"] = self.procedure.to_dict()
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Intent:
        """LedgerError if it is not one as it was saved."""
        try:
            values = json.loads(text)
            if values["schema"] != SCHEMA:
                raise ValueError(f"schema {values['schema']!r:.80}")
            request, guarantee = values["request"], values["guarantee"]
            procedure = values.get("procedure")
            return cls(
                number=int(values["number"]),
                action=Action(values["action"]),
                digests=tuple(values["digests"]),
                request=None if request is None else Request.from_dict(request),
                guarantee=None if guarantee is None else Guarantee(**guarantee),
                restored=tuple(values["restored"]),
                procedure=None if procedure is None else ProcedureChoice.from_dict(procedure),
                references=tuple(values.get("references", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
            message = f"the request in flight is not a request as it was saved: {problem!r:.200}."
            raise LedgerError(message, "restore it from a copy, or `efface cancel`.") from problem


@dataclass(frozen=True)
class Entry:
    """A step that was written down; ``number`` is the release that the request makes."""

    number: int
    action: Action
    step: Milestone
    when: str

    @classmethod
    def of(cls, values: Mapping[str, Any], when: str) -> Entry:
        """From what :meth:`values` gave; ValueError, KeyError or TypeError if it is none."""
        if type(values["number"]) is not int:
            raise ValueError("a number is none")
        return cls(values["number"], Action(values["action"]), Milestone(values["step"]), when)

    def values(self) -> dict[str, Any]:
        return {"number": self.number, "action": str(self.action), "step": str(self.step)}

    @property
    def ended(self) -> bool:
        """Whether the request is over."""
        return self.step in (Milestone.DONE, Milestone.ABORTED)
