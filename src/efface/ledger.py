"""The ledger of a workspace: who works on it, what was asked for, and how far it got.

Three small files. ``lock`` makes requests queue up. ``pending.json`` is the request in flight, with the
ids or the owner it names: it is what a crash is recovered from, and it is deleted before the request is
done. ``journal.jsonl`` is kept for ever: one line a step, each with the SHA-256 of the line before.

Of a forgotten record the journal keeps the SHA-256 of its content, and nothing else: no id, owner, label
or path. The digest is needed to refuse the same image when it comes again. Whoever has the image can
therefore tell from the journal that it was once forgotten here; whoever does not learns nothing of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from efface import files
from efface.certificates import Guarantee
from efface.errors import LedgerError
from efface.requests import Request

SCHEMA = "efface.pending/1"
KILL_AT = "EFFACE_TEST_KILL_AT"


class Action(StrEnum):
    TRAIN = "train"
    FORGET = "forget"
    ADD = "add"
    PLAN = "plan"


class Step(StrEnum):
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
    OLD_STATE_GONE = "old-state-gone"
    OLD_ROWS_GONE = "old-rows-gone"
    PURGED = "purged"  # *
    CLEARED = "cleared"  # pending.json is gone
    DONE = "done"  # *
    ABORTED = "aborted"  # * instead of all from COMPUTED on


def reach(step: Step) -> None:
    """Where tests kill the process: nothing happens unless EFFACE_TEST_KILL_AT names the step."""
    if os.environ.get(KILL_AT) == step.value:
        os.kill(os.getpid(), signal.SIGKILL)


def sync_directory(path: Path) -> None:
    """Make renames and deletions in ``path`` survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Intent:
    """A request in flight: all it takes to carry it out again from the release before it.

    ``digests`` are the content digests of the records it is about; ``restored`` those of them that were
    forgotten before and are taken in again on purpose.
    """

    number: int
    action: Action
    digests: tuple[str, ...]
    request: Request | None = None
    guarantee: Guarantee | None = None
    restored: tuple[str, ...] = ()

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
        files.write_json(path, values)
        sync_directory(path.parent)

    @classmethod
    def load(cls, path: Path) -> Intent | None:
        if not path.is_file():
            return None
        values = files.read_json(path, SCHEMA)
        request, guarantee = values["request"], values["guarantee"]
        return cls(
            number=values["number"],
            action=Action(values["action"]),
            digests=tuple(values["digests"]),
            request=None if request is None else Request.from_dict(request),
            guarantee=None if guarantee is None else Guarantee(**guarantee),
            restored=tuple(values["restored"]),
        )


@dataclass(frozen=True)
class Entry:
    """A line of the journal; ``number`` is the release that the request makes."""

    number: int
    action: Action
    step: Step
    when: str
    forgotten: tuple[str, ...]
    restored: tuple[str, ...]


class Journal:
    """``journal.jsonl``; see the module. Appending needs the lock, reading does not."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(
        self,
        number: int,
        action: Action,
        step: Step,
        *,
        forgotten: Iterable[str] = (),
        restored: Iterable[str] = (),
    ) -> None:
        """Add a line and wait until it is on disk; if that fails the journal is as it was."""
        self.repair()
        lines = self._lines()
        values = {
            "number": number,
            "action": str(action),
            "step": str(step),
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "forgotten": sorted(set(forgotten)),
            "restored": sorted(set(restored)),
            "previous": _digest(lines[-1]) if lines else "",
        }
        data = memoryview(json.dumps(values, sort_keys=True).encode() + b"\n")
        with self.path.open("ab", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            try:
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise

    def entries(self) -> list[Entry]:
        """All lines; a LedgerError names the first that does not follow from the one before."""
        result, previous = [], ""
        for i, line in enumerate(self._lines(), 1):
            try:
                values = json.loads(line)
                chained = values.pop("previous") == previous
                values["action"], values["step"] = Action(values["action"]), Step(values["step"])
                values["forgotten"] = tuple(values["forgotten"])
                values["restored"] = tuple(values["restored"])
                entry = Entry(**values)
            except (ValueError, TypeError, KeyError, AttributeError) as problem:
                raise self._broken(i) from problem
            if not chained:
                raise self._broken(i)
            result.append(entry)
            previous = _digest(line)
        return result

    def forgotten(self) -> set[str]:
        """Content digests that must not come back."""
        result: set[str] = set()
        for entry in self.entries():
            result = (result | set(entry.forgotten)) - set(entry.restored)
        return result

    def repair(self) -> None:
        """Drop a last line that a crash cut short; it was never acted upon."""
        if not self.path.is_file():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())

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
