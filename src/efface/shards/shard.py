"""Which records one of several workers takes: the same ones wherever it is asked."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from efface.data.records import Records
from efface.errors import EffaceError

MOST = 1_000_000


@dataclass(frozen=True)
class Shard:
    """Shard ``index`` (from 1) of ``count``: the records whose id has that hash modulo ``count``."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``"3/16"``, the third of sixteen."""
        found = re.fullmatch(r"([0-9]{1,7})/([0-9]{1,7})", text)
        index, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= index <= count <= MOST:
            fix = "write it as 3/16: the third of sixteen, counted from 1."
            raise EffaceError(f"{text!r} is no shard.", fix)
        return cls(index, count)

    @classmethod
    def all(cls, count: int) -> tuple[Shard, ...]:
        return tuple(cls(i, count) for i in range(1, count + 1))

    def holds(self, record_id: str) -> bool:
        digest = hashlib.sha256(record_id.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1

    def of(self, records: Records) -> Records:
        """The records of this shard, in their order."""
        return records.where(lambda record: self.holds(record.id))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
