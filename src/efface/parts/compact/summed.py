"""The half of the compact part that forgets: integer sums, and the weights that follow from them.

Forgetting subtracts the records' integers from the sums and solves again. No network has a part in it, and
this module loads none: numbers are numpy's.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from efface.digests import tensors_digest
from efface.environment import environment
from efface.errors import EffaceError, GuaranteeError
from efface.guarantee import noise
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import Difference, ExactCertificate, Given, reached
from efface.guarantee.promise import Guarantee
from efface.parts.compact.addend import Addend, Piece
from efface.parts.compact.factor import Way
from efface.parts.compact.guest import Guest
from efface.parts.compact.kept_factor import KeptFactor
from efface.parts.compact.quantiser import Quantiser
from efface.parts.compact.ridge import RidgeSolution, factor_of, solve
from efface.parts.compact.row_way import RowWay
from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows
from efface.parts.compact.sums_file import NAME as STATISTICS
from efface.parts.compact.sums_file import SumsWriter, read_sums
from efface.parts.compact.updated import Updated
from efface.parts.compact.workers import working
from efface.parts.part import Change, Forgetter
from efface.parts.training_set import TrainingSet
from efface.progress import Progress

if TYPE_CHECKING:
    from torch import Tensor

TARGET_BITS = 16


class Direction(Enum):
    IN, OUT = "in", "out"


@dataclass(frozen=True)
class Facts:
    """What a certificate names of the core and of the numbers that rows are computed in."""

    arithmetic: str  # "integer" or "float32"
    core_digest: str
    preprocess: Mapping[str, Any]


class Summed(Forgetter):
    """Sums and weights; see the module. Abstract: where scales and the core's name come from is left open."""

    kind = "compact"
    noisy = False
    keeps_activations = False

    quantiser: Quantiser | None
    target_scale: float
    statistics: Statistics | None
    # (k, c) float32; float64 with noise on it, and in files of earlier versions.
    theta: np.ndarray | None
    weights_proved: bool | None  # of the last solve; None: not solved here
    kept_factor: KeptFactor | None = None  # of the sums that were loaded
    _writer = SumsWriter()  # of no folder

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def facts(self) -> Facts: ...

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain values, for JSON: what the predictions depend on beside the tensors."""

    @property
    @abstractmethod
    def calibration_tensors(self) -> Mapping[str, Tensor] | Mapping[str, np.ndarray]:
        """Bases and scales, for files."""

    @property
    def num_features(self) -> int:
        return 0 if self.quantiser is None else len(self.quantiser.scale)

    @property
    def num_weights(self) -> int:
        return self.num_features * len(self.classes)

    @property
    def target_quantiser(self) -> Quantiser:
        """±8 target scales on 16 bits: a step of about 0.001 for targets of 5."""
        return Quantiser.uniform(len(self.classes), 8 * self.target_scale, TARGET_BITS)

    def require_sums(self) -> tuple[Quantiser, Statistics]:
        if self.quantiser is None or self.statistics is None:
            fix = "train it first (in Python: model.calibrate() or model.fit())."
            raise EffaceError("the compact user part has no bases and scales yet.", fix)
        return self.quantiser, self.statistics

    def no_statistics(self) -> Statistics:
        """The sums of no rows."""
        assert self.quantiser is not None
        return Statistics(self.num_features, len(self.classes), bits=self.quantiser.bits)

    # --- sums and weights -------------------------------------------------------------------------

    def put_in(self, *pieces: Piece) -> RidgeSolution:
        """Take samples in (rows, or their sums), and solve; if that fails they are out again."""
        statistics, addend = self.require_sums()[1], Addend(pieces)
        addend.into(statistics)
        try:
            return self.solve_sums()
        except EffaceError:
            addend.out_of(statistics)
            raise

    def take_out(
        self, *pieces: Piece, left: Rows | SpooledRows | StoredRows | None = None
    ) -> RidgeSolution:
        """Take samples out, exactly, and solve: the cost does not grow with how many remain.

        If the solve fails they are in again, and the weights are as they were. ``left`` are the rows that
        remain, where they are known: if they are few, they are the faster way to the same weights.
        """
        statistics, addend = self.require_sums()[1], Addend(pieces)
        addend.out_of(statistics)
        try:
            # Hashing and writing leave the interpreter to the solve.
            with ThreadPoolExecutor(1) as beside:
                beside.submit(self._writer.ahead, statistics)
                return self.solve_sums(self._way_without(pieces, left))
        except EffaceError:
            addend.into(statistics)
            raise

    def _way_without(
        self, pieces: tuple[Piece, ...], left: Rows | SpooledRows | StoredRows | None
    ) -> Way | None:
        """From the factor that was kept, which is of the sums with these rows and is used once; or from the
        rows that are ``left``."""
        kept, self.kept_factor = self.kept_factor, None
        some = [piece for piece in pieces if isinstance(piece, Rows)]
        quantiser, statistics = self.require_sums()
        ridge, way = self._ridge_for(statistics.num_rows), None
        with working():
            if kept is not None and len(some) == len(pieces):
                way = self._updated(kept, Rows.joined(some), ridge)
            if way is None and left is not None:
                return RowWay.of(left, quantiser.scale, ridge, statistics.num_rows)
            return way

    def _updated(self, kept: KeptFactor, gone: Rows, ridge: float) -> Updated | None:
        """By the kept factor, from the weights as they were; these may have noise on them: a guess need not
        be right."""
        assert self.quantiser is not None
        features = gone.features * self.quantiser.scale
        way = kept.without(features, ridge)
        if way is None or self.theta is None:
            return way
        targets = gone.targets * self.target_quantiser.scale
        return way.after(self.theta, features @ self.theta - targets)

    def _ridge_for(self, num_rows: int) -> float:
        """λ."""
        if self.mu is not None:
            return float(num_rows) * self.mu
        assert self.total_ridge is not None
        return self.total_ridge

    def solve_sums(self, near: Way | None = None) -> RidgeSolution:
        """The weights of the sums as they are, from now on this part's."""
        result = self.solution_of(self.require_sums()[1], near)
        self.theta, self.weights_proved = result.theta, result.proved
        return result

    def solution_of(self, statistics: Statistics, near: Way | None = None) -> RidgeSolution:
        """The weights of these sums, with this part's scales and ridge: λ itself, or μ times n."""
        return solve(
            statistics,
            self.mu,
            ridge=self.total_ridge if self.mu is None else None,
            scale=self.require_sums()[0].scale,
            target_scale=self.target_quantiser.scale,
            near=near,
        ).checked()

    @property
    def ridge_mu(self) -> float:
        """μ as given, or λ/n for the rows there are now."""
        if self.mu is not None:
            return self.mu
        assert self.total_ridge is not None
        return self.total_ridge / max(self.require_sums()[1].num_rows, 1)

    def reset(self) -> None:
        """Forget everything: no statistics, Θ = 0."""
        if self.quantiser is not None:
            self.statistics = self.no_statistics()
        self.theta, self.weights_proved = None, True  # no rows: Θ = 0 exactly

    # --- requests ---------------------------------------------------------------------------------

    def forget(
        self,
        data: TrainingSet,
        positions: np.ndarray,
        guarantee: Guarantee | None,
        *,
        procedure: Any = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Change:
        """Subtract the records' integers and solve: exact. With a ``guarantee`` the weights get noise that
        hides the difference to the release before."""
        assert data.rows is not None
        rows = data.rows.select(positions)
        left = data.without(positions)
        self._writer.note(left)
        result, difference = self.changed((rows,), Direction.OUT, guarantee, test_seed, left.rows)
        residual = result.relative_residual
        certificate = self.certified(left, len(positions), residual, difference)
        return Change(left, certificate, self.told(result))

    def host(self, data: TrainingSet, guest: Guest, guarantee: Guarantee | None) -> Change:
        """A partner's sums come in; if it had some here, what ``guest`` no longer has goes out."""
        before, after = data.guest(guest.admission), data.hosting(guest)
        gone = 0 if before is None else before.num_rows - guest.num_rows
        if not after.num_retained:
            self.reset()
            return Change(after, self.certified(after, gone, 0.0), None)
        if before is None or not before.num_rows:
            pieces, way = self._joining(data, guest), Direction.IN
        else:
            pieces, way = (before.sums_without(guest),), Direction.OUT
        result, difference = self.changed(pieces, way, guarantee, None)
        certificate = self.certified(after, max(gone, 0), result.relative_residual, difference)
        return Change(after, certificate, self.told(result))

    def _joining(self, data: TrainingSet, guest: Guest) -> tuple[Piece, ...]:
        """Its sums; where nothing was learnt so far, the replayed core records with them, as fit() does."""
        if data.num_retained:
            return (guest.sums,)
        self.reset()
        return (guest.sums,) if data.rows is None else (guest.sums, data.rows)

    def told(self, result: RidgeSolution) -> Any:
        """The solution as a model hands it out; None where nobody asks for it."""
        return None

    def changed(
        self,
        pieces: tuple[Piece, ...],
        way: Direction,
        guarantee: Guarantee | None,
        test_seed: bytes | None,
        left: Rows | SpooledRows | StoredRows | None = None,
    ) -> tuple[RidgeSolution, Difference | None]:
        """Rows in or out (``left``: those that remain); with a ``guarantee``, noise on the weights after it.

        The noise is for somebody who has the release before, too: the weights that would be released if
        nothing had changed are solved for as well, and must be near enough to be hidden by it. If they
        are not, GuaranteeError, and nothing is changed. The sums stay exact; the noise is in no other
        place than the released weights.
        """
        change = self.put_in if way is Direction.IN else partial(self.take_out, left=left)
        if guarantee is None:
            return change(*pieces), None
        served, proved = self.theta, self.weights_proved
        statistics = self.require_sums()[1]
        before = self.solution_of(statistics).theta
        result = change(*pieces)
        assert self.theta is not None
        distance = float(np.linalg.norm(self.theta.astype(np.float64) - before))
        difference = Difference(guarantee, distance, self.num_weights, test_seed is None)
        if not difference.passed:
            addend = Addend(pieces)
            undo = addend.out_of if way is Direction.IN else addend.into
            undo(statistics)
            self.theta, self.weights_proved = served, proved
            raise GuaranteeError(
                f"epsilon {guarantee.epsilon} between the two releases asked for, "
                f"{reached(difference.epsilon_bound)} reached; nothing was changed.",
                f"raise sigma above {distance / guarantee.shift(self.num_weights):.2g}, or epsilon.",
            )
        sigma, grid = guarantee.sigma, guarantee.grid
        self.theta = noise.release_on_grid(self.theta, sigma, grid, test_seed=test_seed).values
        return result, difference

    def certified(
        self,
        data: TrainingSet,
        num_forgotten: int,
        residual: float,
        difference: Difference | None = None,
    ) -> ExactCertificate:
        """``data`` is what is left."""
        return ExactCertificate(
            self.statistics_digest,
            self.weights_digest,
            data.num_retained,
            num_forgotten,
            residual,
            difference,
            self.weights_proved,
            self.given,
            num_partners=len([guest for guest in data.guests if guest.num_rows]),
            num_from_partners=data.num_from_partners,
        )

    @classmethod
    def promise(
        cls, epsilon: float, delta: float, sigma: float | None, d: int, state: StatePolicy | str
    ) -> Guarantee:
        """What hides the difference between two releases; σ is the caller's, nothing else needs it."""
        if sigma is None:
            fix = "no plan is needed; give sigma to hide the difference between releases, too."
            raise EffaceError("the compact user part forgets exactly.", fix)
        if d == 0:
            raise EffaceError("the compact user part has no features yet.", "fit the model first.")
        guarantee = Guarantee.plan(epsilon, delta, sigma, d, state)
        if guarantee.state is not StatePolicy.SECRET:
            fix = "leave the state secret: protect the workspace's private folder."
            raise EffaceError("the compact user part keeps exact sums, which have no noise.", fix)
        return guarantee

    # --- what is proved ---------------------------------------------------------------------------

    @property
    def given(self) -> Given:
        """What a certificate of this part is relative to."""
        facts = self.facts
        settings = {k: v for k, v in self.settings.items() if k != "layers"}
        return Given(
            arithmetic=facts.arithmetic,
            core_digest=facts.core_digest,
            calibration_digest=tensors_digest(self.calibration_tensors, settings),
            classes_digest=tensors_digest({}, {"classes": list(self.classes)}),
            preprocess_digest=tensors_digest({}, facts.preprocess),
            ridge=self.total_ridge if self.mu is None else None,
            mu=self.mu,
            environment=environment(integer=facts.arithmetic == "integer"),
        )

    @property
    def statistics_digest(self) -> str:
        return self.require_sums()[1].digest()

    @property
    def weights_digest(self) -> str:
        """SHA-256 of Θ's little-endian bytes, row by row: of float32, unless there is noise on them."""
        theta = np.zeros(self.num_weights, np.float32) if self.theta is None else self.theta
        kind = "<f4" if theta.dtype == np.float32 else "<f8"
        return hashlib.sha256(np.ascontiguousarray(theta, dtype=kind).tobytes()).hexdigest()

    # --- files ------------------------------------------------------------------------------------

    def save_ahead(self, folder: Path, buckets: Path) -> None:
        self._writer = SumsWriter(folder, buckets)

    def has_saved(self, data: TrainingSet) -> bool:
        return self._writer.saved is data

    def save_private(self, folder: Path) -> None:
        """The sums."""
        self._writer.save(folder, self.require_sums()[1])

    def load_private(self, folder: Path) -> None:
        self.statistics = read_sums(folder / STATISTICS)
        self.kept_factor = KeptFactor.load(folder, self.num_features)

    def keep_factor(self, folder: Path) -> bool:
        """A factor of the sums as they are, so that the next request is served sooner."""
        quantiser, statistics = self.require_sums()
        if statistics.num_rows == 0:
            return False
        ridge = self._ridge_for(statistics.num_rows)
        scales = quantiser.scale, self.target_quantiser.scale
        factor = factor_of(statistics, ridge, *scales)
        if factor is not None:
            KeptFactor(factor, ridge).save(folder)
        return factor is not None
