"""The workspace: one opened or created, and the requests that it takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from torch import nn

from efface import files
from efface.apriori import StatePolicy
from efface.certificates import Guarantee
from efface.compact.user import CompactUser
from efface.errors import EffaceError, FormatError, RecordError, RequestError
from efface.forgetting import plan_compact, require_model_data
from efface.ledger import Action, Intent, Step, reach
from efface.looks import looks_of
from efface.model import CURRENT, MixedLinear
from efface.progress import Progress
from efface.records import Records, Split
from efface.requests import Request, Whom
from efface.tangent.user import TangentUser
from efface.training_set import TrainingSet
from efface.workspace.disk import explaining_a_full_disk, remove
from efface.workspace.protocol import RequestProtocol, Result
from efface.workspace.store import first_certificate

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


@dataclass(frozen=True)
class Preview:
    """What a request would do."""

    num_forgotten: int
    num_retained: int
    ids: tuple[str, ...]
    num_in_core: int = 0
    num_people: int = 0


class Workspace(RequestProtocol):
    """The model in a directory. ``open`` one that is there, or ``create`` one from a fitted model."""

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
        data = replace(data, looks=data.looks or looks_of(data.records))
        with files.locked(self.path / "lock"):
            if (self.path / CURRENT).exists() and not overwrite:
                fix = "choose another folder, or overwrite it."
                raise EffaceError(f"there already is a workspace in {self.path}.", fix)
            self.journal.repair()
            sets = (data.records, data.replay, model.core.records)
            restored = self.check_forgotten(*sets, allow_reingest=allow_reingest)
            with explaining_a_full_disk("nothing was published.", "free some space, train again."):
                self._found(model, data, config, restored)
        return self

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
        if model.guarantee is not None:
            self._save_guarantee(model.guarantee)
        if isinstance(model.user, TangentUser):
            self._fill_cache(data)
        if config:
            (self.path / "config.toml").write_text(config, encoding="utf-8")
        model.data = data
        self._write(number, model, first_certificate(model, data))
        self.journal.append(number, Action.TRAIN, Step.DONE, restored=restored)
        self._switch(number)

    # --- requests ---------------------------------------------------------------------------------

    def preview(self, *, user_part_only: bool = False, **whom: Unpack[Whom]) -> Preview:
        """What :meth:`forget` would do, from the records alone; nothing is changed."""
        request = Request.of(**whom)
        with self._holding():
            staying = self.core_index.check(request, user_part_only=user_part_only)
            gone = self._named(request)
            retained, people = len(self.data) - len(gone), len(set(gone.owners))
            return Preview(len(gone), retained, gone.ids, staying, people)

    def forget(
        self,
        *,
        guarantee: Guarantee | None = None,
        user_part_only: bool = False,
        progress: Progress | None = None,
        **whom: Unpack[Whom],
    ) -> Result:
        """Forget some records, publish the new release, delete what is left of them.

        ``whom`` is one of ``ids=``, ``owner=``, ``cohort=``, ``label=`` or ``everything=True``. An owner or
        cohort with core records is refused, since these stay; ``user_part_only`` forgets the others, and
        the certificate says how many stay.

        An error before the release is published changes nothing. Once the intent is on disk a crash
        does not lose the request: opening the workspace finishes it. ``guarantee`` takes the place of
        the planned one for this request.
        """
        request = Request.of(**whom)
        with self._working():
            self.core_index.check(request, user_part_only=user_part_only)
            gone = self._named(request)
            if len(gone) == len(self.records):
                guarantee = None  # the weights will be 0
            elif self.settings["user"] == CompactUser.kind:
                guarantee = guarantee or self.guarantee
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
            part = replace(part, looks=looks_of(part.records))
            with explaining_a_full_disk("nothing was changed.", "free some space, add them again."):
                self._stage(part)
            reach(Step.STAGED)
            guarantee = self.guarantee if self.settings["user"] == CompactUser.kind else None
            if self.shifts:
                guarantee = self.guarantee or self._planned(1.0, 1e-5, None)
            intent = Intent(
                self.number + 1, Action.ADD, part.records.digests, None, guarantee, restored
            )
            return self._accept(intent, progress)

    def plan(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        sigma: float | None = None,
        state: StatePolicy | str = StatePolicy.SECRET,
    ) -> Guarantee:
        """Fix what later requests promise; σ comes from core data unless it is given (tangent).

        ``state="noisy"``: from the next request on no weights without noise are kept. Compact: with
        ``sigma``, the difference between a release and the one before it is hidden by noise.
        """
        with self._working():
            guarantee = self._planned(epsilon, delta, sigma, state)
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
        planned, state = self.guarantee, StatePolicy.SECRET
        if planned is not None:
            epsilon, delta = epsilon or planned.epsilon, delta or planned.delta
            sigma, state = sigma or planned.sigma, planned.state
        return self._planned(epsilon or 1.0, delta or 1e-5, sigma, state)

    def resume(self, progress: Progress | None = None) -> Result | None:
        """Finish what was cut short; None if there was no request in flight."""
        with files.locked(self.path / "lock"):
            return self._recover(progress)

    # --- checks before anything is touched --------------------------------------------------------

    def _named(self, request: Request) -> Records:
        """The records a request is about; an unknown name may be one that is forgotten already."""
        data = self.data
        core = self.core_index.ids | data.core_ids
        try:
            positions = request.positions(data.records, core=core)
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
        index = self.core_index
        core_ids = index.ids
        for record in records:
            if record.split is not Split.USER:
                fix = "add user records only; core data is fixed when the core is trained."
                raise RecordError(record.id, f"is a {record.split} record.", fix)
            if record.id in known or record.id in core_ids:
                fix = "take it out of the data, or give it another id."
                raise RecordError(record.id, "is in the workspace already.", fix)
            if record.label not in self.settings["classes"]:
                fix = "train a new model with this class."
                raise RecordError(record.id, f"label {record.label!r} is none of the core's.", fix)
        index.check_new(records)
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

    def _planned(
        self,
        epsilon: float,
        delta: float,
        sigma: float | None,
        state: StatePolicy | str = StatePolicy.SECRET,
    ) -> Guarantee:
        if self.settings["user"] == CompactUser.kind:
            d = (
                0
                if sigma is None
                else MixedLinear.load(self.path, module=self.module).user.num_weights
            )
            return plan_compact(epsilon, delta, sigma, d, state)
        sigma = sigma if sigma is not None else self.settings["sigma"]
        if sigma is None:
            raise EffaceError("sigma is chosen on core records, and there are none.", "give sigma.")
        return Guarantee.plan(epsilon, delta, sigma, self.settings["num_weights"], state)
