"""Which record's row is at which place of a file. Adding costs what is added, and a crash is no harm.

``index.json`` is all of it at some moment; ``index.log`` has what came after, a line a change, and begins
with its number: lines after another number are of another moment and do not count. Only the last line can
have been cut short by a crash, and then it does not count either.

A place is *pending* before it is written or zeroed: what is pending when the process dies holds anything.
Entries are appended. What is left is written whole, and the log deleted: of a record that is gone no
digest stays behind.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from efface.files import BINARY, PRIVATE, mode_in, set_mode, write_bytes

INDEX, LOG = "index.json", "index.log"
FIRST = 1  # the moment of an index without a log
LEAST = 64  # places; from there on their number doubles


class Places:
    """Every place up to ``capacity`` has a record, is free, or is pending."""

    def __init__(self, folder: Path, shape: Sequence[int]) -> None:
        self.folder, self.shape = folder, tuple(shape)
        self.slots: dict[str, int] = {}
        self.free: deque[int] = deque()
        self.pending: list[int] = []
        self.capacity = 0
        self.is_whole = True  # no line was cut short, nothing of another moment lies there
        self._moment: int | None = None  # the number of index.json; earlier versions gave it none
        self._may_append = False

    @classmethod
    def read(cls, folder: Path, shape: Sequence[int]) -> Places:
        """What is there; ValueError where it cannot be."""
        self = cls(folder, shape)
        self.is_whole = not (folder / f"{INDEX}.tmp").exists()
        if (folder / INDEX).is_file():
            self._take(json.loads((folder / INDEX).read_bytes()))
        if (folder / LOG).is_file():
            self._replay((folder / LOG).read_bytes())
        places = [*self.slots.values(), *self.free, *self.pending]
        if len(places) != self.capacity or sorted(places) != list(range(self.capacity)):
            raise ValueError("places are missing, or have two uses.")
        return self

    def _take(self, values: Mapping[str, Any]) -> None:
        self.slots, self.free = dict(values["slots"]), deque(values["free"])
        self.pending, self.capacity = list(values["pending"]), int(values["capacity"])
        self.shape, moment = tuple(values["shape"]), values.get("moment")
        self._moment = None if moment is None else int(moment)
        self._may_append = moment is not None

    def _replay(self, log: bytes) -> None:
        first, *lines = log.split(b"\n")
        if first != str(self._moment).encode():
            self.is_whole = self._may_append = False
            return
        for line in lines[:-1]:
            change = json.loads(line)
            if "entered" in change:
                self._enter(dict(change["entered"]))
            else:
                self._take_again(int(change["capacity"]), list(change["pending"]))
        self._may_append = log.endswith(b"\n")
        self.is_whole = self.is_whole and self._may_append

    def _take_again(self, capacity: int, places: list[int]) -> None:
        if capacity > 2 * (self.capacity + len(places)) + LEAST:  # it doubles: no more is ever made
            raise ValueError("there cannot be so many places.")
        self._grow(capacity)
        if len(self.free) < len(places) or self._next(len(places)) != places:
            raise ValueError("a place was taken that is not free.")

    # --- in memory --------------------------------------------------------------------------------

    def make_room(self, count: int) -> None:
        """At least ``count`` free places: to be made in the file before :meth:`reserve` tells of them."""
        while len(self.free) < count:
            self._grow(self.capacity + max(self.capacity, LEAST))

    def _grow(self, capacity: int) -> None:
        self.free.extend(range(self.capacity, capacity))
        self.capacity = max(capacity, self.capacity)

    def _next(self, count: int) -> list[int]:
        taken = [self.free.popleft() for _ in range(count)]
        self.pending += taken
        return taken

    def _enter(self, places: Mapping[str, int]) -> None:
        entered = set(places.values())
        self.slots.update(places)
        self.pending = [place for place in self.pending if place not in entered]

    # --- on disk ----------------------------------------------------------------------------------

    def reserve(self, digests: Sequence[str]) -> dict[str, int]:
        """A free place for each of these new records, pending from now on."""
        places = self._next(len(digests))
        self._append({"capacity": self.capacity, "pending": places})
        return dict(zip(digests, places, strict=True))

    def enter(self, places: Mapping[str, int]) -> None:
        """These places are written: they have records now."""
        self._enter(places)
        self._append({"entered": places})

    def leave(self, digests: Sequence[str]) -> None:
        """These records have no row any more; their places are pending, and they are named nowhere."""
        self.pending += [self.slots.pop(digest) for digest in digests]
        self.write()

    def release(self) -> None:
        """What was pending is zeroed, and free."""
        self.free.extend(self.pending)
        self.pending = []
        self.write()

    def _append(self, change: Mapping[str, Any]) -> None:
        """One more line; or all anew, where there is no log that it could follow."""
        if not self._may_append:
            self.write()
            return
        self._may_append = False  # half a line may be there, until all of it is
        line = json.dumps(change).encode() + b"\n"
        handle = os.open(
            self.folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY, PRIVATE
        )
        try:
            set_mode(handle, mode_in(self.folder))
            if not os.fstat(handle).st_size:
                line = f"{self._moment}\n".encode() + line
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        self._may_append = True

    def settle(self) -> None:
        """No log any more: what the files hold then follows from the records, not from how they came."""
        if (self.folder / LOG).exists():
            self.write()

    def write(self) -> None:
        """All of it anew, and no log.

        With a log beside it, all of it is first of a later moment, so that what the log says does not count
        when it is still there after a crash; once it is gone the moment is the first one again.
        """
        log = self.folder / LOG
        if log.exists() and self._moment is not None:
            self._write(self._moment + 1)
        log.unlink(missing_ok=True)  # beside an index without a moment it counts for nothing
        self._write(FIRST)

    def _write(self, moment: int) -> None:
        values = {
            "shape": self.shape,
            "capacity": self.capacity,
            "slots": self.slots,
            "free": list(self.free),
            "pending": self.pending,
            "moment": moment,
        }
        write_bytes(self.folder / INDEX, json.dumps(values).encode())
        self._moment, self._may_append, self.is_whole = moment, True, True
