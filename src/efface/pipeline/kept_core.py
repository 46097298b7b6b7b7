"""A trained core, kept until its run is done: a run that was killed goes on with it instead of another one.

Training anew need not give the same bits (on a GPU, with another number of threads), and shards are of one
core. What is kept is core data's, which never has to be forgotten; it lies with the shards, and goes with
them.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from efface import files
from efface.data.records import Records
from efface.errors import FormatError
from efface.network.core import Core
from efface.network.saved import CORE_SCHEMA
from efface.pipeline.config import Config
from efface.version import VERSION
from efface.workspace.disk import remove

SCHEMA = "efface.kept-core/1"
NOTES = "notes.json"


@dataclass(frozen=True)
class KeptCore:
    """``folder`` is called by what the core is trained from: network, settings, records, version."""

    folder: Path

    @classmethod
    def of(cls, home: Path, config: Config, core: Core, records: Records) -> KeptCore:
        """For ``core`` before it is trained on the core records."""
        shown = records.core
        settings = config.core.model_dump_json(exclude={"device"})
        what = (VERSION, core.digest, settings, shown.ids, shown.digests, shown.labels.tolist())
        key = hashlib.sha256(repr((*what, shown.classes)).encode()).hexdigest()[:16]
        return cls(home / f"core-{key}")

    def into(self, core: Core, records: Records) -> bool:
        """Give ``core`` the weights that are kept, if there are any."""
        if not (self.folder / "core.json").is_file():
            return False
        trained = str(files.read_json(self.folder / "core.json", CORE_SCHEMA).get("digest"))
        core.load_tensors(files.read_tensors(self.folder / "core.safetensors"))
        if core.digest != trained:
            fix = f"delete {self.folder.parent}, then train again."
            raise FormatError(f"the core in {self.folder} is not as it was kept.", fix)
        core.records = records.core
        values = files.read_json(self.folder / NOTES, SCHEMA)
        with files.as_saved(self.folder / NOTES):
            core.report += map(str, values["report"])
        return True

    def save(self, core: Core) -> None:
        """Whole or not at all."""
        making = self.folder.with_name(f".{self.folder.name}.{os.getpid()}.making")
        remove(making)
        try:
            files.make_folder(making, files.PRIVATE_FOLDER)
            core.save(making)
            files.write_json(making / NOTES, {"schema": SCHEMA, "report": core.report})
            remove(self.folder)
            os.rename(making, self.folder)
        except BaseException:
            remove(making)
            raise
