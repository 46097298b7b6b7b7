"""A partial: rows and exact sums of some records, in a folder of their own, made for one model.

The folder holds what a workspace would hold of these records (``TrainingSet``), the sums of their rows, and
``partial.json``: which model they are for, and digests. It appears whole or not at all. Whoever takes one in
believes nothing that it says: the model must be the same, and the sums must be those of the rows.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from efface import files
from efface.data.records import Records
from efface.errors import EffaceError, FormatError
from efface.guarantee.certificates import Given
from efface.model.mixed_linear import MixedLinear
from efface.parts.compact.addend import Addend
from efface.parts.compact.sums_check import agree
from efface.parts.training_set import TrainingSet
from efface.progress import Progress
from efface.receipts.keys import now
from efface.shards.same_model import given_of, require_same
from efface.version import VERSION
from efface.workspace.disk import remove

SCHEMA = "efface.partial/1"
NAME, ROWS = "partial.json", "rows"


@dataclass(frozen=True)
class Partial:
    """``name`` is the shard, or what the caller calls it; ``given`` is what the rows are relative to.

    ``num_channels`` is how many its images have, where they were not converted: all partials must agree.
    ``source`` is what the data is called, without its place; ``time`` when the rows were made.
    """

    name: str
    given: Given
    data: TrainingSet  # with ``sums`` and ``looks``
    num_channels: int | None = None
    source: str = ""
    time: str = ""

    @classmethod
    def make(
        cls, model: MixedLinear, records: Records, name: str, progress: Progress | None = None
    ) -> Partial:
        """Rows of ``records`` and their sums; nothing of the model is changed."""
        if len(records) == 0:
            raise EffaceError(f"{name}: there are no records in it.", "use fewer shards.")
        given = given_of(model)
        data, sums = model.stage(records, looks=True, progress=progress), model.user.no_statistics()
        assert data.rows is not None
        Addend((data.rows,)).into(sums)
        return cls(name, given, replace(data, sums=sums), time=now())

    def save(self, folder: Path) -> None:
        """Write it beside, then rename: the folder is there with all that is in it, or it is not."""
        if folder.exists():
            raise EffaceError(f"{folder} is there already.", "choose another --out, or delete it.")
        making = folder.with_name(f".{folder.name}.{os.getpid()}.making")
        remove(making)
        files.make_folder(making, files.PRIVATE_FOLDER)
        try:
            self.data.save(making, making / ROWS)
            assert self.data.sums is not None
            values: dict[str, Any] = {
                "schema": SCHEMA,
                "version": VERSION,
                "name": self.name,
                "source": self.source,
                "time": self.time,
                "given": asdict(self.given),
                "classes": list(self.data.records.classes),
                "num_records": len(self.data),
                "num_channels": self.num_channels,
                "statistics_digest": self.data.sums.digest(),
            }
            files.write_json(making / NAME, values)
            os.rename(making, folder)
        except BaseException:
            remove(making)
            raise

    @classmethod
    def load(cls, folder: Path) -> Partial:
        """Read it; :meth:`check` says whether it may be believed."""
        if not (folder / NAME).is_file():
            raise FormatError(f"{folder} is no partial.", "make one with `efface rows`.")
        values = files.read_json(folder / NAME, SCHEMA)
        with files.as_saved(folder / NAME):
            name, given = str(values["name"]), Given(**values["given"])
            classes = tuple(map(str, values["classes"]))
            expected = int(values["num_records"]), str(values["statistics_digest"])
            channels = values.get("num_channels")
            num_channels = None if channels is None else int(channels)
            source, time = (str(values.get(key, "")) for key in ("source", "time"))
        data = TrainingSet.load(folder, classes, folder / ROWS)
        sums = data.sums
        if sums is None or (len(data), sums.digest()) != expected or sums.limbs != 1:
            message = f"{folder}: the sums are not those that were saved."
            raise FormatError(message, "make it again with `efface rows`.")
        return cls(name, given, data, num_channels, source, time)

    def check(self, model: MixedLinear) -> tuple[str, ...]:
        """Refuse a partial that was made for another model, or whose sums are not those of its rows.

        Returns what else is worth knowing: images decoded by another library than here.
        """
        notes = require_same(f"partial {self.name}", self.given, given_of(model))
        rows, sums = self.data.rows, self.data.sums
        if rows is None or sums is None or not agree(sums, rows):
            message = f"partial {self.name}: its sums are not those of its rows."
            raise FormatError(message, "make it again with `efface rows`.")
        return notes
