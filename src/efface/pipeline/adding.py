"""New records into a workspace, their rows computed by an engine: the same release as without one.

Finished shards lie beside the workspace until the request is over, so that a run that was killed goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from efface import files
from efface.data import promises
from efface.data.found import Row
from efface.data.listing import Listing
from efface.data.remarks import Note, tell, unheard
from efface.errors import EffaceError, RecordError, RequestError
from efface.model.mixed_linear import MixedLinear
from efface.pipeline.inputs import as_added
from efface.pipeline.known_core import known_core
from efface.pipeline.sections import DataConfig
from efface.pipeline.sharded import (
    PER_WORKER,
    ShardJob,
    absolute_data,
    checked,
    chosen_rows,
    home_of,
    jobs_of,
    make_missing,
)
from efface.progress import Progress, part
from efface.shards import Engine, Gathering
from efface.shards.partial import NAME
from efface.workspace import Workspace
from efface.workspace.disk import remove
from efface.workspace.protocol import Result

LOCK = "lock"


@dataclass(frozen=True)
class ShardedAdd:
    """User records of ``spec`` for an opened workspace and its ``model``, some of them if one is named."""

    opened: Workspace
    model: MixedLinear
    engine: Engine
    spec: str
    owner: str | None = None
    cohort: str | None = None
    absolute_paths: bool = False
    num_shards: int | None = None
    trusted: str | None = None
    device: str = "cpu"
    note: Note = unheard

    @property
    def folder(self) -> Path:
        """Outside of the workspace, since nothing in it is the model's yet."""
        path = self.opened.path.absolute()
        return path.with_name(f"{path.name}.adding")

    @cached_property
    def how(self) -> DataConfig:
        """How the data is read: as without an engine."""
        folder, anywhere = self.opened.path, self.absolute_paths
        return as_added(self.model, folder, self.spec, absolute_paths=anywhere)

    def chosen(self, listing: Listing) -> list[Row]:
        """The rows that are meant; what can be refused without images is refused."""
        rows = listing.user
        if not rows:
            raise EffaceError(f"{self.spec} has no user records.", "check the data and its split.")
        for attribute, asked in (("owner", self.owner), ("cohort", self.cohort)):
            if asked is not None:
                known = {getattr(row, attribute) for row in rows}
                promises.check_known(attribute, {asked}, known)
        promises.check_labels(rows, self.model.classes)
        return chosen_rows(rows, self.owner, self.cohort)

    def add(
        self,
        listing: Listing,
        rows: Sequence[Row],
        *,
        allow_reingest: bool = False,
        progress: Progress | None = None,
    ) -> Result:
        """As ``Workspace.add`` with the records of these rows: all of them, or on any error none."""
        try:
            with files.locked(self.folder / LOCK):
                self._refuse_known(rows)
                return self._taken_in(listing, rows, allow_reingest, progress)
        finally:
            if not any(self._homes()):
                remove(self.folder)

    def _taken_in(
        self,
        listing: Listing,
        rows: Sequence[Row],
        allow_reingest: bool,
        progress: Progress | None,
    ) -> Result:
        gathered, notes = self._gathered(rows, part(progress, 0, 0.9))
        try:
            made = set(gathered.ids)
            expected = made | self._left(listing, [row for row in rows if row.id not in made])
            data = gathered.ordered([row.id for row in rows if row.id in expected])
            rest = part(progress, 0.9, 1)
            result = self.opened.merge(data, allow_reingest=allow_reingest, progress=rest)
        except (RecordError, RequestError):  # refused: these rows are of no use to anybody
            self._clear()
            raise
        self._clear()
        return replace(result, notes=(*notes, *result.notes))

    def _homes(self) -> Iterator[Path]:
        return (path for path in self.folder.glob("*") if path.name != LOCK)

    def _clear(self) -> None:
        for path in self._homes():
            remove(path)

    def _gathered(
        self, rows: Sequence[Row], progress: Progress | None
    ) -> tuple[Gathering, tuple[str, ...]]:
        count = min(self.num_shards or PER_WORKER * self.engine.workers, len(rows))
        home = home_of(self.folder, self.model, rows, count, self.device)
        data, base = absolute_data(self.how).model_dump(mode="json"), self.opened.path.absolute()
        job = ShardJob(str(base), data, "", "", self.trusted, self.device, self.owner, self.cohort)
        jobs = jobs_of(home, job, count)
        try:
            self.engine.run(make_missing, jobs, progress)
        except BaseException:
            self._tell_of_what_is_kept()
            raise
        notes: dict[str, str] = {}
        folders = [Path(job.out) for job in jobs if Path(job.out).exists()]
        try:
            return Gathering.of(checked(folders, self.model, notes)), tuple(notes.values())
        except EffaceError:
            self._clear()
            raise

    def _tell_of_what_is_kept(self) -> None:
        if any(self.folder.glob(f"*/*/{NAME}")):
            where = f"finished shards are kept in {self.folder}, and hold rows of people"
            self.note(f"{where}: run it again, or delete them")
        else:
            self._clear()

    def _left(self, listing: Listing, rows: Sequence[Row]) -> set[str]:
        """Ids of rows that are in no shard and should be; what was set aside is told, as elsewhere."""
        core = listing.core_images(known_core(self.opened.path)) if rows else {}
        return set(tell(listing.look_at(rows, self.model.classes, core).records, self.note).ids)

    def _refuse_known(self, rows: Sequence[Row]) -> None:
        """Before work starts. A run that was killed after the request was accepted ends here, too."""
        known = {*self.opened.records.ids, *self.opened.core_index.ids}
        for row in rows:
            if row.id in known:
                self._clear()
                fix = "take it out of the data, or give it another id."
                raise RecordError(row.id, "is in the workspace already.", fix)
