"""Training in shards, for commands: rows of a shard, partials into a workspace, all of it by an engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from efface.data.found import Row
from efface.data.listing import Listing, UserImages
from efface.data.loading import Loader
from efface.data.opening import absolute
from efface.data.records import Records
from efface.data.remarks import Note, tell, unheard
from efface.errors import EffaceError
from efface.model.mixed_linear import MixedLinear
from efface.network.backbone import trusted_module
from efface.pipeline.known_core import known_core, write_core
from efface.pipeline.sections import DataConfig
from efface.progress import Progress, part
from efface.shards import Engine, Gathering, Partial, Shard, combine
from efface.shards.same_model import given_of
from efface.workspace import Workspace
from efface.workspace.disk import remove
from efface.workspace.protocol import Result
from efface.workspace.published import load

BASE = "base"
PER_WORKER = 4  # shards, so that a slow or a lost one costs little


@dataclass(frozen=True)
class ShardJob:
    """One shard of a training run: plain values, so that any process can take it."""

    base: str  # the folder of the model that the rows are for
    data: dict[str, Any]  # a DataConfig
    shard: str
    out: str
    trusted: str | None = None  # torch: code that the caller named
    device: str = "cpu"  # where the network is computed
    owner: str | None = None  # of whom alone
    cohort: str | None = None  # of which alone

    def look(self, classes: Sequence[str]) -> UserImages:
        """The shard's user records; of other people's images none is read, of core's those not known."""
        shard = Shard.parse(self.shard)
        listing = DataConfig(**self.data).listing(shard.holds)
        chosen = chosen_rows(listing.user, self.owner, self.cohort)
        rows = [row for row in chosen if shard.holds(row.piece)]
        core = listing.core_images(known_core(Path(self.base))) if rows else {}
        return listing.look_at(rows, classes, core)


def chosen_rows(rows: Sequence[Row], owner: str | None, cohort: str | None) -> list[Row]:
    """Those of this owner and of this cohort, where one is named."""
    return [row for row in rows if owner in (None, row.owner) and cohort in (None, row.cohort)]


def make_rows(
    job: ShardJob, progress: Progress | None = None, note: Note = unheard
) -> Partial | None:
    """The shard's partial, written to its folder; None if the shard is empty."""
    model = load(job.base, module=trusted_module(job.trusted), device=job.device)
    model.core.loader = Loader(DataConfig(**job.data).decode_workers)
    seen = job.look(model.classes)
    tell(seen.records, note)
    if not len(seen.records):
        return None
    made = Partial.make(model, seen.records, job.shard, progress)
    made = replace(made, num_channels=seen.num_channels, source=_name_of(job.data["spec"]))
    made.save(Path(job.out))
    return made


def absolute_data(data: DataConfig) -> DataConfig:
    """The same for a process in another working directory."""
    core = None if data.core_data is None else absolute(data.core_data)
    return data.model_copy(update={"spec": absolute(data.spec), "core_data": core})


def _name_of(spec: str) -> str:
    """What the data is called, without its place: that may be somebody's home."""
    return PurePosixPath(spec.replace("\\", "/")).name


def make_missing(job: ShardJob) -> None:
    """For engines: a shard that is there already is not made again, if the images are the same still."""
    out = Path(job.out)
    if not out.exists():
        make_rows(job)
        return
    there = Partial.load(out).data.records
    here = job.look(there.classes).records
    if dict(zip(there.ids, there.digests, strict=True)) != dict(
        zip(here.ids, here.digests, strict=True)
    ):
        raise EffaceError(
            f"the shards in {out.parent.parent} were made of other images.",
            "delete that folder, then run it again.",
        )


def merge(
    workspace: Path,
    folders: list[Path],
    *,
    trusted: str | None = None,
    allow_reingest: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Partials into a workspace, as one request: all of them, or on any error none."""
    module = trusted_module(trusted)
    opened, model = Workspace.open(workspace, module=module), load(workspace, module=module)
    notes: dict[str, str] = {}
    data = combine(checked(folders, model, notes, part(progress, 0, 0.5)))
    rest = part(progress, 0.5, 1)
    result = opened.merge(data, allow_reingest=allow_reingest, progress=rest)
    return replace(result, notes=(*notes.values(), *result.notes))


def checked(
    folders: Sequence[Path],
    model: MixedLinear,
    notes: dict[str, str],
    progress: Progress | None = None,
) -> Iterator[Partial]:
    """The partials in these folders, one at a time: none is kept here, since their sums are large.

    ``notes`` get what is worth knowing of them, once for each kind of machine that they came from.
    """

    def loaded(folder: Path) -> Partial:
        found = Partial.load(folder)
        for note in found.check(model):
            notes.setdefault(repr(sorted(found.given.environment.items())), note)
        return found

    for i, folder in enumerate(folders):
        yield loaded(folder)
        if progress is not None:
            progress((i + 1) / len(folders), f"{i + 1} of {len(folders)} checked")


def home_of(folder: Path, model: MixedLinear, rows: Sequence[Row], count: int, device: str) -> Path:
    """Where the shards of these rows are kept, by what they are: those of others are not taken for them."""
    given = given_of(model)
    floats = (
        device if given.arithmetic != "integer" else ""
    )  # integers are the same on every device
    told = (given, tuple(row.id for row in rows), count, *([floats] if floats else []))
    key = hashlib.sha256(repr(told).encode()).hexdigest()[:16]
    return folder.absolute() / key  # workers may be in another folder than this process


def jobs_of(home: Path, job: ShardJob, count: int) -> list[ShardJob]:
    """The job for each of so many shards."""
    return [
        replace(job, shard=str(shard), out=str(home / str(shard).replace("/", "-of-")))
        for shard in Shard.all(count)
    ]


@dataclass(frozen=True)
class ShardedFit:
    """The user part fitted by an engine; what is finished lies in ``folder`` until all is done."""

    engine: Engine
    folder: Path
    data: DataConfig
    num_shards: int | None = None
    trusted: str | None = None
    note: Callable[[str], None] = lambda text: None  # hears what is worth knowing
    device: str = "cpu"  # where workers compute the network

    def fit(
        self,
        model: MixedLinear,
        listing: Listing,
        core: Records,
        replay: Records | None,
        progress: Progress | None = None,
    ) -> MixedLinear:
        """As ``model.fit(user records, replay=replay)``, of a model that is calibrated: the same bits.

        ``core`` are the core's records. ``model.data.records.skipped`` says which user rows were set aside.
        """
        nobody = Records([], model.classes)
        model.fit(nobody, replay=replay, progress=part(progress, 0, 0.1))
        count = self.num_shards or PER_WORKER * self.engine.workers
        images = dict(zip(core.digests, core.ids, strict=True))
        jobs = self._jobs(model, listing, images, min(count, len(listing.user)))
        self.engine.run(make_missing, jobs, part(progress, 0.1, 0.9))
        folders = [Path(job.out) for job in jobs if Path(job.out).exists()]
        notes: dict[str, str] = {}
        gathered = Gathering.of(checked(folders, model, notes))
        for text in notes.values():
            self.note(text)
        made = set(gathered.ids)
        left = [row for row in listing.user if row.id not in made]
        seen = listing.look_at(left, model.classes, images).records
        if not made and not len(seen):
            return model
        expected = made | set(seen.ids)
        data = gathered.ordered([row.id for row in listing.user if row.id in expected])
        model.core_index.check_new(data.records)
        records = Records(data.records, model.classes, skipped=seen.skipped)
        model.absorb(replace(data, records=records), progress=part(progress, 0.9, 1))
        return model

    def _jobs(
        self, model: MixedLinear, listing: Listing, core: Mapping[str, str], count: int
    ) -> list[ShardJob]:
        """The model's own folder by what it is: shards of another one are not taken for its own."""
        home = home_of(self.folder, model, listing.user, count, self.device)
        if not (home / BASE / "model.json").is_file():
            write_core(home / BASE, core)
            model.save(home / BASE)
        values = absolute_data(self.data).model_dump(mode="json")
        return jobs_of(
            home, ShardJob(str(home / BASE), values, "", "", self.trusted, self.device), count
        )

    def clean(self) -> None:
        """Rows of people lie there: once the model is saved they go."""
        remove(self.folder)
