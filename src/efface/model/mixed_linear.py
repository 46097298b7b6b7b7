"""The mixed-linear model: a frozen core and a linear user part, from records to predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from torch import Tensor, nn

from efface import files
from efface.data.looks import looks_of
from efface.data.pictures import Pictures, Shown
from efface.data.records import Records
from efface.digests import tensors_digest
from efface.errors import EffaceError, FormatError
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import Certificate
from efface.guarantee.promise import Guarantee
from efface.linear.solution import Solution
from efface.model.carrying import carry_out
from efface.model.core_index import CoreIndex
from efface.model.kept import SCHEMA, another_core, tampered
from efface.model.request import Request, Whom
from efface.network import saved
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core
from efface.network.device import CPU
from efface.network.in_turn import in_turn
from efface.parts.part import Change, UserPart, require_training_data
from efface.parts.table import part_named, place_for
from efface.parts.training_set import TrainingSet
from efface.progress import Progress


class MixedLinear:
    """f(x) = f_core(x) + user part, the user part linear in its weights.

    Args:
        core: a frozen :class:`Core`.
        user: ``"compact"`` (exact forgetting), ``"tangent"`` (the paper's user part), or a part.
        cache: where boundary activations are kept; None computes them anew and keeps those of the
            training records in memory.
        device: where the core's network is computed, ``"auto"``, ``"cuda"``, ``"mps"`` or ``"cpu"``; None
            leaves it where it is. In integers the outcome is the same everywhere, which is tested at load.
        options: passed to the user part (``mu``, ``target_scale``, ``features``, ``solver``, …).
    """

    def __init__(
        self,
        core: Core,
        user: str | UserPart = "compact",
        *,
        cache: ActivationCache | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.core, self.cache = core, cache
        if device is not None:
            core.place = place_for(user if isinstance(user, str) else user.kind, device)
        # Any: whoever made the model knows which part it has, and asks it for what only that one has.
        self.user: Any = user if isinstance(user, UserPart) else part_named(user)(core, **options)  # type: ignore[call-arg]
        self.solution: Solution | None = None
        self.data: TrainingSet | None = None
        self.guarantee: Guarantee | None = None
        self.forgotten: dict[str, str] = {}  # id -> when
        self.calibrated_on: Records | None = None  # records given for bases and scales
        self.index: CoreIndex | None = None  # a workspace's; None: of the records at hand

    @property
    def classes(self) -> tuple[str, ...]:
        return self.core.classes

    def fit(
        self,
        records: Records,
        *,
        replay: Records | None = None,
        calibration: Records | None = None,
        progress: Progress | None = None,
    ) -> MixedLinear:
        """Fit the user weights on ``records``. Look at ``model.solution``: it says if the solve got there.

        ``replay`` are core records used again (the paper trains on all of the task's data, core part
        included); they stay when user records are forgotten. ``calibration`` are core records for bases
        and scales: see :meth:`calibrate`. With no user records the weights are 0.
        """
        if calibration is not None and set(calibration.digests) & set(records.digests):
            raise EffaceError(
                "some calibration records are user records, and what comes from them is not forgotten.",
                "calibrate on core or public records, or on none.",
            )
        self.calibrate(calibration, progress=progress)
        everything = records if replay is None else records + replay
        data = TrainingSet(records, replay, self.core.labels(everything).numpy())
        self.data, self.solution = data, None
        # Before the return below, so that records added later meet the same model.
        self.user.meet_replay(replay is not None and len(replay) > 0)
        if len(records) == 0:
            self.user.reset()
            return self
        self.data = self.user.samples_of(data, everything, self.cache, progress=progress)
        self.solution = self.user.learn(self.data, progress)
        return self

    def calibrate(
        self, records: Records | None = None, *, progress: Progress | None = None
    ) -> None:
        """Bases, scales and ridge of the compact part, once; later calls and the tangent part need none.

        From ``records`` (core or public ones, of any classes), by default those the core was fitted on;
        with neither, from synthetic images and the network's own normalisation statistics. Never give
        user records: what comes from here is not forgotten. ``model.user.calibration`` says which it was.
        """
        if self.user.prepare(records, self.cache, progress=progress):
            self.calibrated_on = records

    @property
    def core_index(self) -> CoreIndex:
        """Who and what is in core, and what bases and scales came from: none of it is forgotten."""
        if self.index is not None:
            return self.index
        replay = None if self.data is None else self.data.replay
        return CoreIndex.of((self.core.records, replay), self.calibrated_on)

    # --- requests ---------------------------------------------------------------------------------

    def forget(
        self,
        request: Request | None = None,
        *,
        guarantee: Guarantee | None = None,
        procedure: Any = None,
        user_part_only: bool = False,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
        **whom: Unpack[Whom],
    ) -> Certificate:
        """Forget some records; returns the certificate. On any error the model is as it was.

        ``whom`` is one of ``ids=``, ``owner=``, ``cohort=``, ``label=`` or ``everything=True``, or give a
        :class:`Request`. An owner or cohort with core records is refused, since these stay;
        ``user_part_only`` forgets the others, and the certificate says how many stay.

        Compact: exact, nothing else is needed; with a ``guarantee`` the weights get noise that hides the
        difference to the release before. Tangent: ``guarantee`` (from :meth:`plan`) says how far
        the solve must go and how much noise is added; without one, :meth:`plan` is called with its
        defaults.
        """
        return self.carry_out(
            Request.one(request, whom),
            self._promised(guarantee),
            procedure=procedure,
            user_part_only=user_part_only,
            test_seed=test_seed,
            progress=progress,
        )

    def carry_out(
        self,
        request: Request,
        guarantee: Guarantee | None,
        *,
        procedure: Any = None,
        user_part_only: bool = False,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Certificate:
        """A request as it is, with the guarantee that was decided for it."""
        options: dict[str, Any] = {"procedure": procedure, "test_seed": test_seed}
        carried = carry_out(
            self.user,
            require_training_data(self.data),
            self.core_index,
            request,
            guarantee,
            user_part_only=user_part_only,
            forgotten=self.forgotten,
            plan=self.plan,
            progress=progress,
            **options,
        )
        self.forgotten.update(carried.gone)
        self._take(carried.change)
        return carried.certificate

    def _promised(self, guarantee: Guarantee | None) -> Guarantee | None:
        return guarantee or self.guarantee

    def _take(self, change: Change) -> None:
        self.data, self.solution = change.data, change.solution

    def plan(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        sigma: float | None = None,
        state: StatePolicy | str = StatePolicy.SECRET,
    ) -> Guarantee:
        """Fix the guarantee of later requests, from the core records alone.

        ``state="noisy"`` is the paper's way: a request starts from the released weights, and weights
        without noise are not kept. ``"secret"`` keeps them, in ``model.user.state``.

        The compact part needs no plan, unless the *difference* between two releases is to be hidden too:
        then with ``sigma``, from the caller, and after :meth:`fit`.
        """
        self.guarantee = self.user.plan(epsilon, delta, sigma, state, self._core_activations)
        return self.guarantee

    def _core_activations(self) -> Activations | None:
        records = self.core.records
        if records is None or len(records) == 0:
            return None
        return self.core.activations(records, self.cache)

    # --- more records -----------------------------------------------------------------------------

    def add(
        self,
        records: Records,
        *,
        guarantee: Guarantee | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Certificate | None:
        """Take more user records in. On any error the model is as it was."""
        self.core_index.check_new(records)
        part = self.stage(records, progress=progress)
        return self.absorb(part, guarantee=guarantee, test_seed=test_seed, progress=progress)

    def stage(
        self, records: Records, *, looks: bool = False, progress: Progress | None = None
    ) -> TrainingSet:
        """What training needs of these records: quantised rows (compact) or activations (tangent).

        With ``looks`` also what a workspace keeps to know an image again; each is decoded once for both.
        """
        part = TrainingSet(records, None, self.core.labels(records).numpy())
        before = self.core.loader
        if looks and before.seen is None:
            self.core.loader = replace(before, seen={})
        try:
            part = self.user.samples_of(part, records, self.cache, progress=progress)
            seen = self.core.loader.seen
        finally:
            self.core.loader = before
        return replace(part, looks=looks_of(records, seen)) if looks else part

    def absorb(
        self,
        part: TrainingSet,
        *,
        guarantee: Guarantee | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Certificate | None:
        """Take staged records in; the part says how (``UserPart.add``) and what is certified."""
        data = self.complete(require_training_data(self.data))
        guarantee = self._promised(guarantee)
        if guarantee is None and self.user.shifts:
            guarantee = self.plan()
        options: dict[str, Any] = {"cache": self.cache, "test_seed": test_seed}
        change = self.user.add(data, part, guarantee, progress=progress, **options)
        self._take(change)
        return change.certificate

    def complete(self, data: TrainingSet) -> TrainingSet:
        """The set with its rows or activations: fitted on no user records, it has none yet."""
        self.user.meet_replay(data.replay is not None and len(data.replay) > 0)  # as fit() has it
        if data.rows is not None or data.activations is not None or data.replay is None:
            return data
        part = self.stage(data.replay)
        return replace(data, rows=part.rows, activations=part.activations)

    # --- predictions ------------------------------------------------------------------------------

    def shown(self, images: Any) -> Shown:
        """Records and pictures as they are; of arrays, Pillow images, paths, … the pictures."""
        if isinstance(images, Records | Pictures):
            return images
        return Pictures.of(images, self.core.backbone.preprocess.reads)

    def logits(self, images: Any, *, progress: Progress | None = None) -> Tensor:
        """(n, c), of records or of images without labels, see :meth:`shown`."""
        return in_turn(
            lambda some: self.logits_of(self.activations(some)), self.shown(images), progress
        )

    def core_logits(self, images: Any) -> Tensor:
        """f_core in the arithmetic of this model: what is left when the user weights are 0."""
        return self.user.core_logits(self.activations(self.shown(images)))

    def activations(self, records: Shown, *, progress: Progress | None = None) -> Activations:
        """Boundary activations in the arithmetic of this model: what ``logits_of`` and the user part take."""
        return self.user.activations(records, self.cache, progress=progress)

    def logits_of(self, activations: Activations) -> Tensor:
        return self.user.logits(activations)

    def predict(self, images: Any, *, progress: Progress | None = None) -> np.ndarray:
        """The class names, one an image, (n,); of records or of images without labels, see :meth:`shown`."""
        return np.array(self.classes)[self.logits(images, progress=progress).argmax(1).numpy()]

    def predict_proba(self, images: Any) -> np.ndarray:
        """Softmax of the logits, (n, c): scores that sum to one, not calibrated probabilities."""
        return self.logits(images).softmax(1).numpy()

    def accuracy(self, records: Records, *, progress: Progress | None = None) -> float:
        if len(records) == 0:
            raise EffaceError("no records to evaluate on.", "check the split's name.")
        labels = self.core.labels(records)
        found = self.logits(records, progress=progress).argmax(1)
        return float((found == labels).float().mean())

    def save(self, directory: Path | str) -> None:
        """Core, user weights and settings; safetensors and JSON only. No training data is saved."""
        directory = Path(directory)
        self.core.save(directory)
        self.save_user(directory)

    def save_user(self, directory: Path) -> None:
        """User weights and settings alone: what changes from one release to the next."""
        files.write_tensors(directory / "user.safetensors", self.user.tensors)
        values = {
            "schema": SCHEMA,
            "core_digest": self.core.digest,
            "user": self.user.settings,
            "user_digest": self._user_digest,
        }
        files.write_json(directory / "model.json", values)

    @property
    def _user_digest(self) -> str:
        return tensors_digest(self.user.tensors, self.user.settings)

    @classmethod
    def load(
        cls,
        directory: Path | str,
        *,
        core: Path | Core | None = None,
        module: nn.Module | None = None,
        cache: ActivationCache | None = None,
        device: str | None = None,
    ) -> MixedLinear:
        """Read a model that :meth:`save` wrote; its predictions are bit-equal.

        ``core`` is the folder of the core, where that is another one, or the core itself. For what a
        workspace serves, and for either, there is ``efface.load``.
        """
        directory = Path(directory)
        values = files.read_json(directory / "model.json", SCHEMA)
        loaded = core if isinstance(core, Core) else Core.load(core or directory, module)
        if loaded.digest != values.get("core_digest"):
            raise another_core(directory)
        tensors = files.read_tensors(directory / "user.safetensors")
        changed = tampered(directory)
        if tensors_digest(tensors, values.get("user")) != values.get("user_digest"):
            raise changed
        saved.check_user(values["user"])
        try:
            if device is not None:
                loaded.place = place_for(values["user"]["kind"], device)
            part = part_named(values["user"]["kind"]).load(loaded, values["user"], tensors)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise FormatError(
                f"model.json in {directory.name} is not as it was saved: {error!r:.200}.",
                "restore the files from a copy.",
            ) from error
        model = cls(loaded, part, cache=cache)
        if model._user_digest != values["user_digest"]:
            raise changed
        if loaded.place.device != CPU:
            part.settle()
        return model

    def __repr__(self) -> str:
        return f"MixedLinear({self.core!r}, user={self.user.kind!r})"
