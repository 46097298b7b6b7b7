"""Training in shards, for commands: rows of a shard, partials into a workspace, all of it by an engine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efface.data.class_list import settled
from efface.data.loading import Loader
from efface.data.records import Records
from efface.data.remarks import Note, tell, unheard
from efface.errors import EffaceError
from efface.model.mixed_linear import MixedLinear
from efface.network.backbone import trusted_module
from efface.pipeline.sections import DataConfig
from efface.progress import Progress, part
from efface.shards import Engine, Partial, Shard, combine
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

    def records(self) -> Records:
        user = settled(DataConfig(**self.data).build()).user
        return Shard.parse(self.shard).of(user)


def make_rows(
    job: ShardJob, progress: Progress | None = None, note: Note = unheard
) -> Partial | None:
    """The shard's partial, written to its folder; None if the shard is empty."""
    model = load(job.base, module=trusted_module(job.trusted), device=job.device)
    model.core.loader = Loader(DataConfig(**job.data).decode_workers)
    records = Records(tell(job.records(), note), model.classes)
    if not len(records):
        return None
    made = Partial.make(model, records, job.shard, progress)
    made.save(Path(job.out))
    return made


def make_missing(job: ShardJob) -> None:
    """For engines: a shard that is there already is not made again."""
    if not Path(job.out).exists():
        make_rows(job)


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
    partials = []
    for i, folder in enumerate(folders):
        partials.append(Partial.load(folder))
        partials[-1].check(model)
        part(progress, 0, 0.5)((i + 1) / len(folders), f"{i + 1} of {len(folders)} checked")
    data = combine(partials)
    rest = part(progress, 0.5, 1)
    return opened.merge(data, allow_reingest=allow_reingest, progress=rest)


@dataclass(frozen=True)
class ShardedFit:
    """The user part fitted by an engine; what is finished lies in ``folder`` until all is done."""

    engine: Engine
    folder: Path
    data: DataConfig
    num_shards: int | None = None
    trusted: str | None = None

    def fit(
        self,
        model: MixedLinear,
        records: Records,
        replay: Records | None,
        progress: Progress | None = None,
    ) -> MixedLinear:
        """As ``model.fit(records, replay=replay)``, of a model that is calibrated: the same bits."""
        model.fit(records[:0], replay=replay, progress=part(progress, 0, 0.1))
        count = self.num_shards or PER_WORKER * self.engine.workers
        jobs = self._jobs(model, records, min(count, len(records)))
        self.engine.run(make_missing, jobs, part(progress, 0.1, 0.9))
        partials = [Partial.load(Path(job.out)) for job in jobs if Path(job.out).exists()]
        for partial in partials:
            partial.check(model)
        data = combine(partials, records.ids)
        if data.digests != records.digests:
            raise EffaceError(
                f"the shards in {self.folder} were made of other images.",
                "delete that folder, then train again.",
            )
        model.absorb(data, progress=part(progress, 0.9, 1))
        return model

    def _jobs(self, model: MixedLinear, records: Records, count: int) -> list[ShardJob]:
        """The model's own folder by what it is: shards of another one are not taken for its own."""
        given = model.user.given
        key = hashlib.sha256(repr((given, records.ids, count)).encode()).hexdigest()[:16]
        home = self.folder / key
        if not (home / BASE / "model.json").is_file():
            model.save(home / BASE)
        values = self.data.model_dump(mode="json")
        return [
            ShardJob(
                str(home / BASE),
                values,
                str(shard),
                str(home / str(shard).replace("/", "-of-")),
                self.trusted,
            )
            for shard in Shard.all(count)
        ]

    def clean(self) -> None:
        """Rows of people lie there: once the model is saved they go."""
        remove(self.folder)
