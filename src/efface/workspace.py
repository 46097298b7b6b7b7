"""A workspace: the directory that holds one model, and carries out requests so that a crash is no harm.

    core.json core.safetensors core-records.json   never change
    model.json guarantee.json config.toml          what this is, what is promised, how it was trained
    CURRENT                                        names the published release; replaced by one rename
    releases/<n>/                                  what is served: user weights and settings
    private/<n>/                                   what later requests start from: records, rows, sums
    activations/                                   boundary activations (tangent)
    certificates/<n>.private.json <n>.public.json
    lock pending.json journal.jsonl                see ``ledger.py``

A request is intent → compute → new files → CURRENT → purge → done (``ledger.Step`` has every step). Until
CURRENT is replaced the old release stands and the request can be computed anew from the intent; after it,
only deletions are left. So a kill at any point ends, when the workspace is next opened, in the state that
an undisturbed run ends in.

Of a forgotten record the journal keeps the SHA-256 of its content, to refuse it when it comes again, and
nothing else; see ``ledger.py``.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from efface import __version__, files
from efface.activations import ActivationCache
from efface.certificates import Certificate, ExactCertificate, Guarantee, ShiftCertificate
from efface.compact.statistics import Statistics
from efface.compact.user import CompactUser
from efface.errors import EffaceError, FormatError, RecordError, RequestError
from efface.forgetting import require_model_data
from efface.ledger import Action, Intent, Journal, Step, locked, reach, sync_directory
from efface.model import CURRENT, CURRENT_SCHEMA, MixedLinear
from efface.progress import Progress
from efface.records import Records, Split
from efface.requests import Request, RequestKind
from efface.tangent.user import TangentUser
from efface.training_set import TrainingSet

SCHEMA = "efface.workspace/1"
STATE_SCHEMA = "efface.state/1"
GUARANTEE_SCHEMA = "efface.guarantee/1"
CORE_RECORDS_SCHEMA = "efface.core-records/1"
CERTIFICATE_SCHEMA = "efface.certificate/1"
MANIFEST_SCHEMA = "efface.manifest/1"
STAGING = "staging"
# What `overwrite` deletes: CURRENT first, so that a half-deleted workspace is none, and never the
# journal, because what was forgotten stays refused. user.safetensors is that of a plain saved model.
REPLACED = (
    CURRENT,
    "pending.json",
    "releases",
    "private",
    "activations",
    "certificates",
    "model.json",
    "guarantee.json",
    "core-records.json",
    "config.toml",
    "core.json",
    "core.safetensors",
    "user.safetensors",
)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Result:
    """What a request did. ``num_records`` were forgotten or added; ``release`` is served now."""

    action: Action
    release: int
    num_records: int
    certificate: Certificate | None
    seconds: float


@dataclass(frozen=True)
class Preview:
    """What a request would do."""

    num_forgotten: int
    num_retained: int
    ids: tuple[str, ...]


class Workspace:
    """The model in a directory. ``open`` one that is there, or ``create`` one from a fitted model."""

    def __init__(self, path: Path | str, module: nn.Module | None = None) -> None:
        self.path, self.module = Path(path), module
        self.journal = Journal(self.path / "journal.jsonl")

    @classmethod
    def open(
        cls, path: Path | str, *, module: nn.Module | None = None, recover: bool = True
    ) -> Workspace:
        """Open a workspace and finish what a crash left unfinished; ``recover=False`` only looks.

        ``module`` is needed only if the core was built from an nn.Module object.
        """
        workspace = cls(path, module)
        if not (workspace.path / CURRENT).is_file():
            raise FormatError(
                f"{workspace.path} is not a workspace.",
                "give a folder that `efface train` has written.",
            )
        if recover and not workspace.settled():
            workspace.resume()
        return workspace

    @classmethod
    def create(
        cls,
        path: Path | str,
        model: MixedLinear,
        *,
        config: str = "",
        module: nn.Module | None = None,
        overwrite: bool = False,
        allow_reingest: bool = False,
    ) -> Workspace:
        """Write a fitted model, and what later requests need of its training records.

        ``overwrite`` replaces the workspace that is there; what was forgotten in it stays refused,
        unless ``allow_reingest``.
        """
        self = cls(path, module)
        data = model.complete(require_model_data(model.data))
        with locked(self.path / "lock"):
            if (self.path / CURRENT).exists() and not overwrite:
                fix = "choose another folder, or overwrite it."
                raise EffaceError(f"there already is a workspace in {self.path}.", fix)
            self.journal.repair()
            sets = (data.records, data.replay, model.core.records)
            restored = self.check_forgotten(*sets, allow_reingest=allow_reingest)
            with explaining_a_full_disk("nothing was published.", "free some space, train again."):
                self._found(model, data, config, restored)
        return self

    # --- what is there ----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the published release."""
        return int(files.read_json(self.path / CURRENT, CURRENT_SCHEMA)["release"])

    @cached_property
    def settings(self) -> dict[str, Any]:
        return files.read_json(self.path / "model.json", SCHEMA)

    @property
    def data(self) -> TrainingSet:
        """The training records without images, and their rows; activations are in ``cache``."""
        return TrainingSet.load(self._private(self.number), self.settings["classes"])

    @property
    def records(self) -> Records:
        """The user records that are retained, without their images."""
        return self.data.records

    @property
    def guarantee(self) -> Guarantee | None:
        """What later requests promise, if that has been planned (tangent)."""
        path = self.path / "guarantee.json"
        if not path.is_file():
            return None
        values = files.read_json(path, GUARANTEE_SCHEMA)
        return Guarantee(**{f.name: values[f.name] for f in fields(Guarantee)})

    @property
    def shifts(self) -> tuple[float, ...]:
        """Bounds on the shifts of the noisy releases so far, for composition."""
        path = self._private(self.number) / "state.json"
        return tuple(files.read_json(path, STATE_SCHEMA)["shifts"])

    @property
    def certificate(self) -> Certificate | None:
        """Of the published release; None where nothing was promised (tangent, before any request)."""
        path = self.path / "certificates" / f"{self.number}.private.json"
        if not path.is_file():
            return None
        return certificate_of(files.read_json(path, CERTIFICATE_SCHEMA), self.shifts)

    @property
    def cache(self) -> ActivationCache | None:
        values = self.settings["activations"]
        return None if values is None else ActivationCache(self.path / "activations", **values)

    def model(self) -> MixedLinear:
        """The published model with its training data and private state, ready to forget in memory.

        To predict, ``MixedLinear.load(path)`` is enough. Hold the lock if requests may be running.
        """
        model = MixedLinear.load(self.path, module=self.module, cache=self.cache)
        data, private = self.data, self._private(self.number)
        model.guarantee, model.shifts = self.guarantee, self.shifts
        if isinstance(model.user, CompactUser):
            tensors = files.read_tensors(private / "statistics.safetensors")
            arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
            model.user.statistics = Statistics.from_arrays(arrays)
        else:
            assert model.cache is not None
            replay = () if data.replay is None else data.replay.digests
            rows = model.cache.rows((*data.records.digests, *replay))
            data = replace(data, activations=rows)
            state = files.read_tensors(private / "state.safetensors")["state"]
            model.user.state = state.clone()  # not a map of a file that will be deleted
        model.data = data
        return model

    def strays(self) -> list[Path]:
        """What a finished request does not leave behind: intents, half-made and old files."""
        number = str(self.number)
        found = [self.path / "pending.json", *self.path.glob("*.tmp")]
        for folder in ("releases", "private"):
            found += [p for p in (self.path / folder).iterdir() if p.name != number]
        for path in (self.path / "certificates").iterdir():
            made_for = path.name.split(".")[0]
            if path.suffix == ".tmp" or (made_for.isdigit() and int(made_for) > int(number)):
                found.append(path)
        return sorted(path for path in found if path.exists())

    def settled(self) -> bool:
        """Whether no request is running or was cut short."""
        entries = self.journal.entries()
        ended = bool(entries) and entries[-1].step in (Step.DONE, Step.ABORTED)
        return ended and not self.strays()

    # --- requests ---------------------------------------------------------------------------------

    def preview(
        self,
        *,
        ids: str | Iterable[str] | None = None,
        owner: str | None = None,
        cohort: str | None = None,
        label: str | None = None,
        everything: bool = False,
    ) -> Preview:
        """What :meth:`forget` would do, from the records alone; nothing is changed."""
        request = Request.of(
            ids=ids, owner=owner, cohort=cohort, label=label, everything=everything
        )
        gone = self._named(request)
        return Preview(len(gone), len(self.data) - len(gone), gone.ids)

    def forget(
        self,
        *,
        ids: str | Iterable[str] | None = None,
        owner: str | None = None,
        cohort: str | None = None,
        label: str | None = None,
        everything: bool = False,
        guarantee: Guarantee | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Forget some records, publish the new release, delete what is left of them.

        An error before the release is published changes nothing. Once the intent is on disk a crash
        does not lose the request: opening the workspace finishes it. ``guarantee`` (tangent) takes the
        place of the planned one for this request.
        """
        request = Request.of(
            ids=ids, owner=owner, cohort=cohort, label=label, everything=everything
        )
        with self._working():
            gone = self._named(request)
            if self.settings["user"] == CompactUser.kind or len(gone) == len(self.records):
                guarantee = None  # exact
            else:
                guarantee = guarantee or self.guarantee or self._planned(1.0, 1e-5, None)
            intent = Intent(self.number + 1, Action.FORGET, gone.digests, request, guarantee)
            return self._accept(intent, progress)

    def add(
        self, records: Records, *, allow_reingest: bool = False, progress: Progress | None = None
    ) -> Result:
        """Take in new user records, under the same protocol as :meth:`forget`."""
        with self._working():
            restored = self._check_new(records, allow_reingest)
            model = MixedLinear.load(self.path, module=self.module)
            part = model.stage(Records(records, model.classes), progress=progress)
            with explaining_a_full_disk("nothing was changed.", "free some space, add them again."):
                self._stage(part)
            reach(Step.STAGED)
            guarantee = None
            if self.shifts:
                guarantee = self.guarantee or self._planned(1.0, 1e-5, None)
            intent = Intent(
                self.number + 1, Action.ADD, part.records.digests, None, guarantee, restored
            )
            return self._accept(intent, progress)

    def plan(
        self, epsilon: float = 1.0, delta: float = 1e-5, sigma: float | None = None
    ) -> Guarantee:
        """Fix what later requests promise (tangent); σ comes from core data unless it is given."""
        with self._working():
            guarantee = self._planned(epsilon, delta, sigma)
            fix = "free some space, plan again."
            with explaining_a_full_disk("the guarantee is as it was.", fix):
                self._save_guarantee(guarantee)
                self.journal.append(self.number, Action.PLAN, Step.DONE)
        return guarantee

    def guarantee_with(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        sigma: float | None = None,
    ) -> Guarantee | None:
        """The planned guarantee with some numbers changed; None if none is given."""
        if epsilon is None and delta is None and sigma is None:
            return None
        planned = self.guarantee
        if planned is not None:
            epsilon, delta = epsilon or planned.epsilon, delta or planned.delta
            sigma = sigma or planned.sigma
        return self._planned(epsilon or 1.0, delta or 1e-5, sigma)

    def resume(self, progress: Progress | None = None) -> Result | None:
        """Finish what was cut short; None if there was no request in flight."""
        with locked(self.path / "lock"):
            return self._recover(progress)

    @property
    def forgotten(self) -> set[str]:
        """Content digests of what was forgotten: all that is kept of it."""
        return self.journal.forgotten()

    # --- checks before anything is touched --------------------------------------------------------

    def _named(self, request: Request) -> Records:
        """The records a request is about; an unknown name may be one that is forgotten already."""
        data = self.data
        core = files.read_json(self.path / "core-records.json", CORE_RECORDS_SCHEMA)
        try:
            positions = request.positions(data.records, core={*core["ids"], *data.core_ids})
        except RequestError as error:
            if not self.forgotten:
                raise
            hint = "if it was forgotten, nothing is left to do: names of forgotten records are not kept."
            raise RequestError(error.message, f"{error.fix} {hint}") from None
        return data.records[positions]

    def _check_new(self, records: Records, allow_reingest: bool) -> tuple[str, ...]:
        """Refuse what cannot be added; returns the digests that were forgotten before."""
        if len(records) == 0:
            raise RequestError("there are no records to add.", "check the data and its split.")
        known = {record.id for record in self.records}
        core = files.read_json(self.path / "core-records.json", CORE_RECORDS_SCHEMA)
        core_ids, core_digests = set(core["ids"]), set(core["digests"])
        for record in records:
            if record.split is not Split.USER:
                fix = "add user records only; core data is fixed when the core is trained."
                raise RecordError(record.id, f"is a {record.split} record.", fix)
            if record.id in known or record.id in core_ids:
                fix = "take it out of the data, or give it another id."
                raise RecordError(record.id, "is in the workspace already.", fix)
            if record.digest in core_digests:
                fix = "core data cannot be forgotten: do not add it as user data."
                raise RecordError(record.id, "the same image is core data.", fix)
            if record.label not in self.settings["classes"]:
                fix = "train a new model with this class."
                raise RecordError(record.id, f"label {record.label!r} is none of the core's.", fix)
        return self.check_forgotten(records, allow_reingest=allow_reingest)

    def check_forgotten(self, *sets: Records | None, allow_reingest: bool) -> tuple[str, ...]:
        """Refuse images that were forgotten here; if they are allowed, returns their digests."""
        forgotten = self.forgotten
        found = [
            record for records in sets for record in records or () if record.digest in forgotten
        ]
        if found and not allow_reingest:
            raise RecordError(
                found[0].id,
                f"this image was forgotten here, as were {len(found) - 1} more of the data.",
                "take them out; if their owners want them in again, use --allow-reingest.",
            )
        return tuple(dict.fromkeys(record.digest for record in found))

    def _planned(self, epsilon: float, delta: float, sigma: float | None) -> Guarantee:
        if self.settings["user"] != TangentUser.kind:
            raise EffaceError("the compact user part forgets exactly.", "no plan is needed.")
        sigma = sigma if sigma is not None else self.settings["sigma"]
        if sigma is None:
            raise EffaceError("sigma is chosen on core records, and there are none.", "give sigma.")
        return Guarantee.plan(epsilon, delta, sigma, self.settings["num_weights"])

    # --- the protocol -----------------------------------------------------------------------------

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Alone in the workspace, nothing left unfinished."""
        with locked(self.path / "lock"):
            reach(Step.LOCKED)
            self._recover(None)
            yield

    def _accept(self, intent: Intent, progress: Progress | None) -> Result:
        """From the saved intent on, the request will be carried out, by this process or another."""
        try:
            with explaining_a_full_disk("nothing was changed.", "free some space, ask again."):
                intent.save(self.path / "pending.json")
                reach(Step.INTENT)
                self._mark(intent, Step.ACCEPTED)
        except EffaceError:
            self._tidy()
            raise
        return self._carry_out(intent, progress)

    def _carry_out(self, intent: Intent, progress: Progress | None) -> Result:
        start = time.monotonic()
        try:
            if self.number < intent.number:
                self._discard(intent.number)
                self._prepare(intent, progress)
                self._switch(intent.number)
            self._finish(intent)
        except (OSError, SafetensorError) as problem:
            if not is_full(problem):
                raise
            raise self._kept(intent) from problem
        seconds = time.monotonic() - start
        certificate = self.certificate
        return Result(intent.action, intent.number, len(intent.digests), certificate, seconds)

    def _prepare(self, intent: Intent, progress: Progress | None) -> None:
        """Compute the new release and write all of it; on an error the request is called off."""
        try:
            model, certificate = self._compute(intent, progress)
            reach(Step.COMPUTED)
            self._write(intent.number, model, certificate)
        except Exception as problem:
            if not is_full(problem):
                self._tidy()
            raise
        self._mark(intent, Step.PREPARED)

    def _compute(
        self, intent: Intent, progress: Progress | None
    ) -> tuple[MixedLinear, Certificate | None]:
        model = self.model()
        if intent.action is Action.FORGET:
            assert intent.request is not None
            named = arguments(intent.request)
            return model, model.forget(**named, guarantee=intent.guarantee, progress=progress)
        part = self._staged()
        if model.cache is not None:
            assert part.activations is not None
            model.cache.put(part.records.digests, part.activations[slice(0, len(part))])
        return model, model.absorb(part, guarantee=intent.guarantee, progress=progress)

    def _switch(self, number: int) -> None:
        """Publish: readers see the release before, or this one."""
        files.write_json(self.path / CURRENT, {"schema": CURRENT_SCHEMA, "release": number})
        sync_directory(self.path)
        reach(Step.SWITCHED)

    def _finish(self, intent: Intent) -> None:
        """After the switch: record it, delete what is older, and the intent last."""
        number = intent.number
        seen = {(entry.number, entry.step) for entry in self.journal.entries()}
        if (number, Step.PUBLISHED) not in seen:
            forgotten = intent.digests if intent.action is Action.FORGET else ()
            restored = intent.restored
            self._mark(intent, Step.PUBLISHED, forgotten=forgotten, restored=restored)
        self._purge()
        self._mark(intent, Step.PURGED)
        (self.path / "pending.json").unlink()
        sync_directory(self.path)
        reach(Step.CLEARED)
        self._mark(intent, Step.DONE)

    def _purge(self) -> None:
        """Delete whatever the published release does not need. Files that readers may have open are
        unlinked, not overwritten: a reader keeps what it has mapped."""
        number = str(self.number)
        for folder, step in (
            ("releases", Step.OLD_RELEASES_GONE),
            ("private", Step.OLD_STATE_GONE),
        ):
            for path in (self.path / folder).iterdir():
                if path.name != number:
                    remove(path)
            sync_directory(self.path / folder)
            reach(step)
        self._purge_rows()
        reach(Step.OLD_ROWS_GONE)

    def _purge_rows(self) -> None:
        cache = self.cache
        if cache is not None:
            data = self.data
            kept = {*data.records.digests, *(() if data.replay is None else data.replay.digests)}
            cache.purge(sorted(cache.digests - kept))

    def _recover(self, progress: Progress | None) -> Result | None:
        if self.settled():
            return None
        self.journal.repair()
        intent = Intent.load(self.path / "pending.json")
        if intent is None:
            self._tidy()
            return None
        return self._carry_out(intent, progress)

    def _tidy(self) -> None:
        """Back to the published release: no intent, no half-made files, the journal's last word said."""
        (self.path / "pending.json").unlink(missing_ok=True)
        for path in self.strays():
            remove(path)
        self._purge_rows()
        entries = self.journal.entries()
        last = entries[-1] if entries else None
        if last is not None and last.step not in (Step.DONE, Step.ABORTED):
            ended = Step.DONE if last.step is Step.PURGED else Step.ABORTED
            self.journal.append(last.number, last.action, ended)

    def _kept(self, intent: Intent) -> EffaceError:
        """The error for a full disk once the request is accepted."""
        if self.number < intent.number:
            self._discard(intent.number)
            state = "the old release is still served, and the request is kept."
        else:
            state = "the new release is served, but not all old files are deleted."
        fix = f"free some space, then run `efface resume {self.path}`."
        return EffaceError(f"the disk is full; {state}", fix)

    def _mark(self, intent: Intent, step: Step, **digests: Iterable[str]) -> None:
        self.journal.append(intent.number, intent.action, step, **digests)
        reach(step)

    # --- files ------------------------------------------------------------------------------------

    def _private(self, number: int) -> Path:
        return self.path / "private" / str(number)

    def _discard(self, number: int) -> None:
        """Delete the half-made files of a release that was never published."""
        remove(self.path / "releases" / str(number))
        remove(self._private(number))
        for path in (self.path / "certificates").glob(f"{number}.*"):
            remove(path)

    def _write(self, number: int, model: MixedLinear, certificate: Certificate | None) -> None:
        """All files of a release, on disk but not yet served."""
        model.save_user(self.path / "releases" / str(number))
        reach(Step.RELEASE)
        self._write_private(number, model)
        reach(Step.PRIVATE)
        if certificate is not None:
            folder = self.path / "certificates"
            for form, values in (
                ("private", certificate.private()),
                ("public", certificate.public()),
            ):
                named = {"schema": CERTIFICATE_SCHEMA, **values}
                files.write_json(folder / f"{number}.{form}.json", named)
            sync_directory(folder)
        reach(Step.CERTIFICATE)
        values = {"schema": MANIFEST_SCHEMA, "files": self._file_digests(number)}
        files.write_json(self._private(number) / "manifest.json", values)
        for folder in (self._private(number), self.path / "releases" / str(number)):
            sync_directory(folder)
            sync_directory(folder.parent)

    def _write_private(self, number: int, model: MixedLinear) -> None:
        private, data = self._private(number), require_model_data(model.data)
        data.save(private)
        if isinstance(model.user, CompactUser):
            assert model.user.statistics is not None
            arrays = model.user.statistics.to_arrays()
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            files.write_tensors(private / "statistics.safetensors", tensors)
        else:
            files.write_tensors(private / "state.safetensors", {"state": model.user.state})
        values = {"schema": STATE_SCHEMA, "shifts": model.shifts}
        files.write_json(private / "state.json", values)

    def _file_digests(self, number: int) -> dict[str, str]:
        paths = [*(self.path / "releases" / str(number)).iterdir()]
        paths += [p for p in self._private(number).iterdir() if p.name != "manifest.json"]
        paths += (self.path / "certificates").glob(f"{number}.*")
        return {str(path.relative_to(self.path)): file_digest(path) for path in sorted(paths)}

    def _stage(self, part: TrainingSet) -> None:
        folder = self.path / "private" / STAGING
        remove(folder)
        part.save(folder)
        if part.activations is not None:
            rows = part.activations[slice(0, len(part))]
            files.write_tensors(folder / "activations.safetensors", {"activations": rows})
        sync_directory(folder)
        sync_directory(folder.parent)

    def _staged(self) -> TrainingSet:
        folder = self.path / "private" / STAGING
        part = TrainingSet.load(folder, self.settings["classes"])
        if (folder / "activations.safetensors").is_file():
            tensors = files.read_tensors(folder / "activations.safetensors")
            part = replace(part, activations=tensors["activations"])
        return part

    def _save_guarantee(self, guarantee: Guarantee) -> None:
        values = {"schema": GUARANTEE_SCHEMA, **asdict(guarantee)}
        files.write_json(self.path / "guarantee.json", values)
        sync_directory(self.path)

    # --- the beginning ----------------------------------------------------------------------------

    def _found(
        self, model: MixedLinear, data: TrainingSet, config: str, restored: tuple[str, ...]
    ) -> None:
        """Write a new workspace; CURRENT comes last, so that a crash leaves none."""
        number = 1 + max((entry.number for entry in self.journal.entries()), default=0)
        for name in REPLACED:
            remove(self.path / name)
        for name in ("releases", "private", "activations", "certificates"):
            (self.path / name).mkdir(mode=0o755 if name in ("releases", "certificates") else 0o700)
        model.core.save(self.path)
        self._write_core_records(model, data)
        files.write_json(self.path / "model.json", self._settings_of(model))
        self.__dict__.pop("settings", None)
        if isinstance(model.user, TangentUser):
            if model.guarantee is not None:
                self._save_guarantee(model.guarantee)
            self._fill_cache(data)
        if config:
            (self.path / "config.toml").write_text(config, encoding="utf-8")
        model.data = data
        self._write(number, model, first_certificate(model, data))
        self.journal.append(number, Action.TRAIN, Step.DONE, restored=restored)
        self._switch(number)

    def _settings_of(self, model: MixedLinear) -> dict[str, Any]:
        core, tangent = model.core, isinstance(model.user, TangentUser)
        if tangent and model.guarantee is None and core.records is not None and len(core.records):
            model.plan()
        shape = {"prefix_digest": core.prefix_digest, "shape": core.boundary_shape}
        return {
            "schema": SCHEMA,
            "version": __version__,
            "user": model.user.kind,
            "classes": list(model.classes),
            "core_digest": core.digest,
            "activations": shape if tangent else None,
            "num_weights": model.user.operator.d if tangent else None,
            "sigma": None if model.guarantee is None else model.guarantee.sigma,
        }

    def _write_core_records(self, model: MixedLinear, data: TrainingSet) -> None:
        known = [records for records in (model.core.records, data.replay) if records is not None]
        values = {
            "schema": CORE_RECORDS_SCHEMA,
            "ids": sorted({record.id for records in known for record in records}),
            "digests": sorted({record.digest for records in known for record in records}),
        }
        files.write_json(self.path / "core-records.json", values)

    def _fill_cache(self, data: TrainingSet, batch_size: int = 256) -> None:
        cache, rows = self.cache, data.activations
        if cache is None or rows is None:
            return
        digests = [*data.records.digests, *(() if data.replay is None else data.replay.digests)]
        for start in range(0, len(digests), batch_size):
            part = slice(start, start + batch_size)
            cache.put(digests[part], rows[part])


# --- helpers --------------------------------------------------------------------------------------


def first_certificate(model: MixedLinear, data: TrainingSet) -> Certificate | None:
    """Of a model that has forgotten nothing: its sums' digest, for others to compare with."""
    if not isinstance(model.user, CompactUser):
        return None
    residual = 0.0 if model.solution is None else model.solution.residual_norm
    digests = (model.user.statistics_digest, model.user.weights_digest)
    return ExactCertificate(*digests, len(data) if len(data.records) else 0, 0, residual)


def certificate_of(values: Mapping[str, Any], shifts: tuple[float, ...]) -> Certificate:
    """A certificate from its private form; the numbers that follow from others are computed anew."""
    kind = ExactCertificate if values["kind"] == "exact" else ShiftCertificate
    given = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    if kind is ShiftCertificate:
        given["guarantee"] = Guarantee(**given["guarantee"])
        given["earlier_shifts"] = shifts[:-1]
    return kind(**given)


def arguments(request: Request) -> dict[str, Any]:
    """The request as keyword arguments of ``forget``."""
    if request.kind is RequestKind.EVERYTHING:
        return {"everything": True}
    if request.kind is RequestKind.IDS:
        return {"ids": request.values}
    return {str(request.kind): request.values[0]}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_full(problem: BaseException) -> bool:
    """Whether the disk (or the quota, or the limit on files) was full; safetensors only says so in words."""
    if isinstance(problem, SafetensorError):
        return any(f"os error {number})" in str(problem) for number in FULL)
    return isinstance(problem, OSError) and problem.errno in FULL


@contextmanager
def explaining_a_full_disk(state: str, fix: str) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as problem:
        if not is_full(problem):
            raise
        raise EffaceError(f"the disk is full; {state}", fix) from problem
