"""The mixed-linear model: a frozen core and a linear user part, from records to predictions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from efface import files
from efface.arithmetic.choice import choose_form, choose_form_without_data
from efface.data.records import Records
from efface.digests import tensors_digest
from efface.errors import EffaceError, FormatError
from efface.guarantee.apriori import RequestHistory, StatePolicy
from efface.guarantee.certificates import Certificate, ExactCertificate, Guarantee, ShiftCertificate
from efface.linear.solution import Solution, Status
from efface.model.core_index import CoreIndex
from efface.model.request import Request, Whom
from efface.network import saved
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core
from efface.parts.compact.user import Calibration, CompactUser
from efface.parts.forgetting import (
    Outcome,
    Procedure,
    change_compact,
    forget_compact,
    forget_tangent,
    plan,
    plan_compact,
    require_model_data,
)
from efface.parts.tangent.sgd import Progress
from efface.parts.tangent.user import TangentUser
from efface.parts.training_set import TrainingSet

SCHEMA = "efface.model/1"
CURRENT = "CURRENT"  # in a workspace: the file that names the published release
CURRENT_SCHEMA = "efface.current/2"


class MixedLinear:
    """f(x) = f_core(x) + user part, the user part linear in its weights.

    Args:
        core: a frozen :class:`Core`.
        user: ``"compact"`` (exact forgetting) or ``"tangent"`` (the paper's user part).
        cache: where boundary activations are kept; None computes them anew and keeps those of the
            training records in memory.
        options: passed to the user part (``mu``, ``target_scale``, ``features``, ``solver``, …).
    """

    def __init__(
        self,
        core: Core,
        user: str = "compact",
        *,
        cache: ActivationCache | None = None,
        **options: Any,
    ) -> None:
        if user not in USER_PARTS:
            raise EffaceError(
                f"unknown user part {user!r}.", f"use one of {', '.join(sorted(USER_PARTS))}."
            )
        self.core, self.cache = core, cache
        self.user = USER_PARTS[user](core, **options)
        self.solution: Solution | None = None
        self.data: TrainingSet | None = None
        self.guarantee: Guarantee | None = None
        self.forgotten: dict[str, str] = {}  # id -> when
        self.calibrated_on: Records | None = None  # records given for bases and scales
        self.index: CoreIndex | None = None  # a workspace's; None: of the records at hand
        self.shifts: tuple[float, ...] = ()  # of the releases since the first request
        self.history = RequestHistory()  # the paper's theorem is about all requests so far

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
        labels = self.core.labels(everything)
        self.data, self.solution = TrainingSet(records, replay, labels), None
        if isinstance(self.user, CompactUser) and self.user.core_weight is None:
            # Before the return below, so that records added later meet the same weight.
            self.user.core_weight = 1.0 if replay is None or len(replay) == 0 else 0.0
        if len(records) == 0:
            self.user.reset()
            return self
        activations = self.activations(everything, progress=progress)
        if isinstance(self.user, CompactUser):
            self.user.reset()
            rows = self.user.rows(activations, labels)
            self.data = replace(self.data, rows=rows)
            self.solution = self.user.add(rows)
        else:
            self.data = replace(self.data, activations=activations)
            self.solution = self.user.fit(activations, labels, progress)
        return self

    def calibrate(
        self, records: Records | None = None, *, progress: Progress | None = None
    ) -> None:
        """Bases, scales and ridge of the compact part, once; later calls and the tangent part need none.

        From ``records`` (core or public ones, of any classes), by default those the core was fitted on;
        with neither, from synthetic images and the network's own normalisation statistics. Never give
        user records: what comes from here is not forgotten. ``model.user.calibration`` says which it was.
        """
        if not isinstance(self.user, CompactUser) or self.user.projection is not None:
            return
        source = Calibration.CORE if records is None else Calibration.GIVEN
        records = self.core.records if records is None else records
        if records is None:
            choice, made, matched = choose_form_without_data(
                self.core,
                self.user.arithmetic,
                gradients=self.user.wants_gradients,
                progress=progress,
            )
            self.user.take_form(choice)
            source = Calibration.STATISTICS if matched else Calibration.SYNTHETIC
            self.user.calibrate(made, None, source)
            return
        if len(records) == 0:
            raise EffaceError(
                "no records to calibrate on.",
                "give some, or leave them out: the network's own statistics will do.",
            )
        known = tuple(records.classes) == self.classes
        labels = self.core.labels(records) if known else None
        arithmetic, gradients = self.user.arithmetic, self.user.wants_gradients
        self.user.take_form(choose_form(self.core, arithmetic, records, gradients=gradients))
        activations = self.activations(records, progress=progress)
        self.user.calibrate(activations, labels, source)
        self.calibrated_on = records if source is Calibration.GIVEN else None

    @property
    def core_index(self) -> CoreIndex:
        """Who and what is in core, and what bases and scales came from: none of it is forgotten."""
        if self.index is not None:
            return self.index
        replay = None if self.data is None else self.data.replay
        return CoreIndex.of((self.core.records, replay), self.calibrated_on)

    def forget(
        self,
        *,
        guarantee: Guarantee | None = None,
        procedure: Procedure | None = None,
        user_part_only: bool = False,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
        **whom: Unpack[Whom],
    ) -> Certificate:
        """Forget some records; returns the certificate. On any error the model is as it was.

        ``whom`` is one of ``ids=``, ``owner=``, ``cohort=``, ``label=`` or ``everything=True``. An owner or
        cohort with core records is refused, since these stay; ``user_part_only`` forgets the others, and
        the certificate says how many stay.

        Compact: exact, nothing else is needed; with a ``guarantee`` the weights get noise that hides the
        difference to the release before. Tangent: ``guarantee`` (from :meth:`plan`) says how far
        the solve must go and how much noise is added; without one, :meth:`plan` is called with its
        defaults.
        """
        request = Request.of(**whom)
        data = require_model_data(self.data)
        index = self.core_index
        staying = index.check(request, user_part_only=user_part_only)
        core = data.core_ids | index.ids
        positions = request.positions(data.records, core=core, forgotten=self.forgotten)
        if len(positions) == len(data.records):
            outcome = self._forget_everything(data)
        elif isinstance(self.user, CompactUser):
            promised = guarantee or self.guarantee
            outcome = forget_compact(self.user, data, positions, promised, test_seed=test_seed)
        else:
            guarantee = guarantee or self.guarantee or self.plan()
            outcome = forget_tangent(
                self.user,
                data,
                positions,
                guarantee,
                procedure=procedure,
                earlier_shifts=self.shifts,
                history=self.history,
                test_seed=test_seed,
                progress=progress,
            )
        people = len({data.records[int(i)].owner for i in positions})
        certificate = replace(outcome.certificate, num_in_core=staying, num_people=people)
        self._take_over(replace(outcome, certificate=certificate), data, positions)
        return certificate

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
        if isinstance(self.user, CompactUser):
            self.guarantee = plan_compact(epsilon, delta, sigma, self.user.num_weights, state)
            return self.guarantee
        records = self.core.records
        if sigma is None and (records is None or len(records) == 0):
            raise EffaceError("sigma is chosen on core records, and there are none.", "give sigma.")
        activations: Any = [] if records is None else self.core.activations(records, self.cache)
        self.guarantee = plan(
            self.user, activations, epsilon=epsilon, delta=delta, sigma=sigma, state=state
        )
        return self.guarantee

    def _forget_everything(self, data: TrainingSet) -> Outcome:
        """The user weights are 0 and the model is the core, whatever the user part."""
        self.user.reset()
        compact = isinstance(self.user, CompactUser)
        empty = hashlib.sha256(b"").hexdigest()
        statistics = self.user.statistics_digest if compact else empty
        weights = self.user.weights_digest if compact else tensors_digest(self.user.tensors)
        certificate = ExactCertificate(
            statistics,
            weights,
            0,
            len(data.records),
            0.0,
            weights_proved=True,
            given=self.user.given if compact else None,
        )
        return Outcome(certificate, None)

    def _take_over(self, outcome: Outcome, data: TrainingSet, positions: np.ndarray) -> None:
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self.forgotten.update({data.records[int(i)].id: when for i in positions})
        if isinstance(self.user, TangentUser) and outcome.release is not None:
            assert outcome.state is not None
            self.user.state, self.user.weights = outcome.state, outcome.release
            assert isinstance(outcome.certificate, ShiftCertificate)
            self.shifts = (*self.shifts, outcome.certificate.planned_shift)
            self.history = outcome.history
        self.data, self.solution = data.without(positions), _kept(outcome)

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

    def stage(self, records: Records, *, progress: Progress | None = None) -> TrainingSet:
        """What training needs of these records: quantised rows (compact) or activations (tangent)."""
        labels = self.core.labels(records)
        activations = self.activations(records, progress=progress)
        part = TrainingSet(records, None, labels)
        if isinstance(self.user, CompactUser):
            return replace(part, rows=self.user.rows(activations, labels))
        return replace(part, activations=activations)

    def absorb(
        self,
        part: TrainingSet,
        *,
        guarantee: Guarantee | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Certificate | None:
        """Take staged records in.

        Compact: add their integers and solve; the certificate is that of a model fitted on all at once.
        Tangent: solve again from the present state. Once a release had to hide something, so has every
        later one: then the solve goes as far as the guarantee asks, noise is added, and the certificate
        says so. Before the first request there is nothing to hide and no certificate.
        """
        data = self.complete(require_model_data(self.data))
        if isinstance(self.user, CompactUser):
            return self._absorb_rows(data, part, guarantee or self.guarantee, test_seed)
        data = data.plus(part, self._joined(data, part))
        if not self.shifts:
            assert data.activations is not None
            problem = self.user.problem(data.activations, data.labels)
            solution = self.user.solver.solve(problem, self.user.state, progress=progress)
            if solution.status is Status.DIVERGED:
                raise EffaceError("the solver diverged; nothing was changed.", solution.advice)
            self.user.state = self.user.weights = solution.value
            self.data, self.solution = data, solution
            return None
        nobody = np.zeros(0, dtype=np.int64)
        outcome = forget_tangent(
            self.user,
            data,
            nobody,
            guarantee or self.guarantee or self.plan(),
            earlier_shifts=self.shifts,
            history=self.history,
            num_added=len(part),
            test_seed=test_seed,
            progress=progress,
        )
        self._take_over(outcome, data, nobody)
        return outcome.certificate

    def complete(self, data: TrainingSet) -> TrainingSet:
        """The set with its rows or activations: fitted on no user records, it has none yet."""
        if isinstance(self.user, CompactUser) and self.user.core_weight is None:  # as fit() has it
            self.user.core_weight = 0.0 if data.replay is not None and len(data.replay) else 1.0
        if data.rows is not None or data.activations is not None or data.replay is None:
            return data
        part = self.stage(data.replay)
        return replace(data, rows=part.rows, activations=part.activations)

    def _absorb_rows(
        self,
        data: TrainingSet,
        part: TrainingSet,
        guarantee: Guarantee | None,
        test_seed: bytes | None,
    ) -> Certificate:
        rows, data = part.rows, data.plus(part)
        if len(data.records) == len(part.records):
            # After everything was forgotten Θ is 0, replayed records and all: begin as fit() does.
            self.user.reset()
            rows = data.rows
        assert rows is not None
        solution, difference = change_compact(
            self.user, rows.whole(), self.user.add, guarantee=guarantee, test_seed=test_seed
        )
        self.data, self.solution = data, solution
        digests = (self.user.statistics_digest, self.user.weights_digest)
        proved, residual = self.user.weights_proved, solution.residual_norm
        return ExactCertificate(
            *digests, len(data), 0, residual, difference, proved, self.user.given
        )

    def _joined(self, data: TrainingSet, part: TrainingSet) -> Activations:
        """The activations of both, in the order of ``TrainingSet.plus``."""
        if self.cache is not None:
            replay = () if data.replay is None else data.replay.digests
            return self.cache.rows((*data.records.digests, *part.records.digests, *replay))
        new = part.activations
        assert new is not None
        if data.activations is None:
            return new
        at, old = len(data.records), data.activations
        return torch.cat([old[slice(0, at)], new[slice(0, len(new))], old[slice(at, len(old))]])

    # --- predictions ------------------------------------------------------------------------------

    def logits(self, records: Records) -> Tensor:
        return self.logits_of(self.activations(records))

    def core_logits(self, records: Records) -> Tensor:
        """f_core in the arithmetic of this model: what is left when the user weights are 0."""
        activations = self.activations(records)
        if isinstance(self.user, CompactUser):
            return self.user.form.logits(activations)
        return self.core.logits_of(activations)

    def activations(self, records: Records, *, progress: Progress | None = None) -> Activations:
        """Boundary activations in the arithmetic of this model: what ``logits_of`` and the user part take."""
        if isinstance(self.user, CompactUser):
            return self.user.form.activations(records, self.cache, progress=progress)
        return self.core.activations(records, self.cache, progress=progress)

    def logits_of(self, activations: Activations) -> Tensor:
        return self.user.logits(activations)

    def predict(self, records: Records) -> list[str]:
        """The class names, one a record."""
        return [self.classes[i] for i in self.logits(records).argmax(1)]

    def predict_proba(self, records: Records) -> np.ndarray:
        """Softmax of the logits, (n, c): scores that sum to one, not calibrated probabilities."""
        return self.logits(records).softmax(1).numpy()

    def accuracy(self, records: Records) -> float:
        if len(records) == 0:
            raise EffaceError("no records to evaluate on.", "check the split's name.")
        labels = self.core.labels(records)
        return float((self.logits(records).argmax(1) == labels).float().mean())

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
        module: nn.Module | None = None,
        cache: ActivationCache | None = None,
    ) -> MixedLinear:
        """Read a saved model, or what a workspace has published; its predictions are bit-equal.

        In a workspace no lock is needed: the release is the old one or the new one, never a mixture.
        """
        directory = Path(directory)
        while True:
            published = current(directory)
            root, release = (directory,) * 2 if published is None else published.folders(directory)
            try:
                return cls._load(root, release, module, cache)
            except Exception:
                # A request may have published another release, and deleted this one, in the meantime:
                # then whatever was raised (a file that vanished while it was read) means nothing.
                if current(directory) == published:
                    raise

    @classmethod
    def _load(
        cls, root: Path, directory: Path, module: nn.Module | None, cache: ActivationCache | None
    ) -> MixedLinear:
        values = files.read_json(directory / "model.json", SCHEMA)
        core = Core.load(root, module)
        if core.digest != values.get("core_digest"):
            raise FormatError(
                f"{directory.name}: the user weights belong to another core.",
                "restore core.safetensors and user.safetensors from the same save.",
            )
        tensors = files.read_tensors(directory / "user.safetensors")
        changed = FormatError(
            f"the user weights in {directory.name} are not those that were saved.",
            "restore the files from a copy; they were changed after saving.",
        )
        if tensors_digest(tensors, values.get("user")) != values.get("user_digest"):
            raise changed
        saved.check_user(values["user"])
        try:
            model = cls._with_user(core, values["user"], tensors, cache)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise FormatError(
                f"model.json in {directory.name} is not as it was saved: {error!r:.200}.",
                "restore the files from a copy.",
            ) from error
        if model._user_digest != values["user_digest"]:
            raise changed
        return model

    @classmethod
    def _with_user(
        cls,
        core: Core,
        settings: dict[str, Any],
        tensors: dict[str, Tensor],
        cache: ActivationCache | None,
    ) -> MixedLinear:
        options = dict(settings)
        layers = options.pop("layers", None)
        model = cls(core, options.pop("kind"), cache=cache, **options)
        if isinstance(model.user, CompactUser):
            model.user.load_tensors(tensors, layers)
        else:
            model.user.load_tensors(tensors)
        return model

    def __repr__(self) -> str:
        return f"MixedLinear({self.core!r}, user={self.user.kind!r})"


def _kept(outcome: Outcome) -> Solution | None:
    """The solution as the model remembers it: no noiseless weights where the state has none."""
    if outcome.solution is None or outcome.state is None:
        return outcome.solution
    return replace(outcome.solution, value=outcome.state)


@dataclass(frozen=True)
class Current:
    """What CURRENT names: the number of the published release, and that of the core it belongs to."""

    release: int
    core: int

    def folders(self, directory: Path) -> tuple[Path, Path]:
        return directory / "core" / str(self.core), directory / "releases" / str(self.release)


def current(directory: Path) -> Current | None:
    """What is published if ``directory`` is a workspace, else None."""
    if not (directory / CURRENT).is_file():
        return None
    values = files.read_json(directory / CURRENT, CURRENT_SCHEMA)
    numbers = [values.get(name) for name in ("release", "core")]
    if not all(type(number) is int and number > 0 for number in numbers):  # never a path
        message = (
            f"{CURRENT} in {directory} names release {numbers[0]!r:.80}, core {numbers[1]!r:.80}."
        )
        raise FormatError(message, "restore it from a copy: both are numbers.")
    return Current(*numbers)  # type: ignore[arg-type]


USER_PARTS: dict[str, Any] = {"compact": CompactUser, "tangent": TangentUser}
