"""The ledger of a workspace: who works on it, what was asked for, and how far it got.

Small files. ``lock`` makes requests queue up. ``pending.json`` is the request in flight, with the ids or the
owner it names: it is what a crash is recovered from, and it is deleted before the request is done.
``journal.jsonl`` is kept for ever: one line a step, each with the SHA-256 of the line before.
``journal.head`` has the number and the digest of its last line, so that a journal that was shortened shows.

The journal names nobody: it has numbers, steps and times. What is kept to refuse forgotten images when they
come again is in ``workspace/forgotten.py``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import EffaceError, LedgerError
from efface.guarantee.promise import Guarantee
from efface.model.request import Request
from efface.parts.tangent.procedure import ProcedureChoice

SCHEMA = "efface.pending/1"
HEAD_SCHEMA = "efface.journal-head/1"
KILL_AT = "EFFACE_TEST_KILL_AT"


class Action(StrEnum):
    TRAIN = "train"
    FORGET = "forget"
    ADD = "add"
    PLAN = "plan"


class Milestone(StrEnum):
    """The protocol of a request, in order. Those marked * are lines of the journal."""

    LOCKED = "locked"
    STAGED = "staged"  # the new records' rows are on disk (add)
    INTENT = "intent"  # pending.json is there: from here on the request will be carried out
    ACCEPTED = "accepted"  # *
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
    CLEARED = "cleared"  # pending.json is gone
    DONE = "done"  # *
    ABORTED = "aborted"  # * instead of all from COMPUTED on


def reach(step: Milestone) -> None:
    """Where tests kill the process: nothing happens unless EFFACE_TEST_KILL_AT names the step."""
    if os.environ.get(KILL_AT) == step.value:
        os.kill(
            os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM)
        )  # Windows: the latter kills


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def sync_directory(path: Path) -> None:
    """Make renames and deletions in ``path`` survive a power cut; Windows cannot open a folder for that."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Intent:
    """A request in flight: all it takes to carry it out again from the release before it.

    ``digests`` are the content digests of the records it is about; ``restored`` those of them that were
    forgotten before and are taken in again on purpose. ``procedure``: how to forget, if that was said.
    """

    number: int
    action: Action
    digests: tuple[str, ...]
    request: Request | None = None
    guarantee: Guarantee | None = None
    restored: tuple[str, ...] = ()
    procedure: ProcedureChoice | None = None

    def save(self, path: Path) -> None:
        values: dict[str, Any] = {
            "schema": SCHEMA,
            "number": self.number,
            "action": str(self.action),
            "digests": self.digests,
            "request": None if self.request is None else self.request.to_dict(),
            "guarantee": None if self.guarantee is None else asdict(self.guarantee),
            "restored": self.restored,
        }
        if self.procedure is not None:
            values["procedure"] = self.procedure.to_dict()
        files.write_json(path, values, mode=files.PRIVATE)
        sync_directory(path.parent)

    @classmethod
    def load(cls, path: Path) -> Intent | None:
        if not path.is_file():
            return None
        values = files.read_json(path, SCHEMA)
        try:
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
            )
        except (KeyError, TypeError, ValueError) as problem:
            message = f"{path.name} is not a request as it was saved: {problem!r:.200}."
            raise LedgerError(message, "restore it from a copy, or `efface cancel`.") from problem


@dataclass(frozen=True)
class Entry:
    """A line of the journal; ``number`` is the release that the request makes."""

    number: int
    action: Action
    step: Milestone
    when: str


class Journal:
    """``journal.jsonl``; see the module. Appending needs the lock, reading does not."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, path.with_suffix(".head")

    def append(self, number: int, action: Action, step: Milestone) -> None:
        """Add a line and wait until it is on disk; if that fails the journal is as it was."""
        self.repair()
        lines = self._lines()
        values = {
            "number": number,
            "action": str(action),
            "step": str(step),
            "when": now(),
            "previous": _digest(lines[-1]) if lines else "",
        }
        line = json.dumps(values, sort_keys=True).encode()
        rest = memoryview(line + b"\n")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | files.BINARY
        handle = os.open(self.path, flags, files.PRIVATE)
        try:
            end = os.fstat(handle).st_size
            try:
                files.set_mode(handle, files.PRIVATE)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, end)
                raise
        finally:
            os.close(handle)
        # If this is lost the head is an earlier line, and that is one of the journal too.
        with contextlib.suppress(OSError):
            head = {"schema": HEAD_SCHEMA, "line": len(lines) + 1, "digest": _digest(line)}
            files.write_json(self.head, head, mode=files.PRIVATE)

    def entries(self) -> list[Entry]:
        """All lines; a LedgerError names the first that does not follow from the one before."""
        head = self._read_head()  # before the lines, because somebody may be adding some
        result, previous, lines = [], "", self._lines()
        self._check_head(head, lines)
        for i, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                chained = values.pop("previous") == previous
                values["action"], values["step"] = (
                    Action(values["action"]),
                    Milestone(values["step"]),
                )
                entry = Entry(**values)
                chained = chained and isinstance(entry.number, int)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
                raise self._broken(i) from problem
            if not chained:
                raise self._broken(i)
            result.append(entry)
            previous = _digest(line)
        return result

    def _read_head(self) -> tuple[int, str] | None:
        """The number and the digest of a line; None if there is no head."""
        if not self.head.exists():
            return None
        try:
            head = files.read_json(self.head, HEAD_SCHEMA)
            return int(head["line"]), str(head["digest"])
        except (EffaceError, KeyError, TypeError, ValueError) as problem:
            raise self._no_head() from problem

    def _no_head(self) -> LedgerError:
        message = f"{self.head.name} is missing or damaged: the journal cannot be trusted."
        return LedgerError(message, "restore the workspace from a copy.")

    def _check_head(self, head: tuple[int, str] | None, lines: list[bytes]) -> None:
        """The line that the head names is there, and is the one it was."""
        if head is None:
            if len(lines) > 1:  # after the first there is one, after a crash perhaps not yet
                raise self._no_head()
            return
        line, digest = head
        if not 1 <= line <= len(lines) or _digest(lines[line - 1]) != digest:
            raise LedgerError(
                f"{self.path.name} is missing, shortened or changed: it had {line} lines.",
                "restore it from a copy.",
            )

    def repair(self) -> None:
        """Drop a last line that a crash cut short; it was never acted upon."""
        if not self.path.is_file():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            handle = os.open(self.path, os.O_WRONLY)
            try:
                os.ftruncate(handle, whole)
                os.fsync(handle)
            finally:
                os.close(handle)

    def _lines(self) -> list[bytes]:
        data = self.path.read_bytes() if self.path.is_file() else b""
        # What follows the last newline is being written, or was cut short.
        return data[: data.rfind(b"\n") + 1].splitlines()

    def _broken(self, line: int) -> LedgerError:
        return LedgerError(
            f"line {line} of {self.path.name} does not follow from the line before it.",
            "the journal was changed after it was written: restore it from a copy.",
        )


def _digest(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
