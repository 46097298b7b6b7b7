"""The compact user part: α f_core(x) + Θᵀψ(x), Θ from exact integer statistics of quantised features.

Fit: quantise ψ and the target residuals, sum them up, solve (G + λI) Θ = B. Forget: subtract the
samples' integers and solve again; the sums are then byte for byte those of a model never given them, and so
are the weights: the exact solution rounded to float32, on whatever machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface import files
from efface.errors import EffaceError, GuaranteeError
from efface.guarantee import noise
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import Certificate, Difference, ExactCertificate, reached
from efface.guarantee.checks import Check
from efface.guarantee.promise import Guarantee
from efface.linear.solution import Solution, Status
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core
from efface.parts.compact.exact_product import exact_product
from efface.parts.compact.ridge import RidgeSolution, solve
from efface.parts.compact.row_maker import RowMaker
from efface.parts.compact.rows import Rows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.verification import Snapshot, compare
from efface.parts.part import Agreement, Change, within_rounding
from efface.parts.training_set import TrainingSet
from efface.progress import Progress

STATISTICS = "statistics.safetensors"


class Direction(Enum):
    IN, OUT = "in", "out"


class CompactUser(RowMaker):
    """Exact forgetting: see the module. Zero until fitted, so the model is the core's.

    Its arguments are those of :class:`RowMaker`.
    """

    def fit(
        self, activations: Activations, labels: Tensor, progress: Progress | None = None
    ) -> Solution:
        """Statistics of all samples, then one solve."""
        self._require_calibrated()
        self.statistics = self.no_statistics()
        return self.add_rows(self.rows(activations, labels))

    def add_rows(self, rows: Rows) -> Solution:
        """Take samples in, and solve; if that fails they are out again."""
        statistics = self._require_calibrated()[2]
        statistics.add(rows.features, rows.targets)
        try:
            return self.solve()
        except EffaceError:
            statistics.remove(rows.features, rows.targets)
            raise

    def remove_rows(self, rows: Rows) -> Solution:
        """Take samples out, exactly, and solve: the cost does not depend on how many remain.

        If the solve fails they are in again, and the weights are as they were.
        """
        statistics = self._require_calibrated()[2]
        statistics.remove(rows.features, rows.targets)
        try:
            # The certificate will ask for the digest: hashing leaves the interpreter to the solve.
            with ThreadPoolExecutor(1) as beside:
                beside.submit(statistics.digest)
                return self.solve()
        except EffaceError:
            statistics.add(rows.features, rows.targets)
            raise

    def solve(self) -> Solution:
        result = self.solution_of(self._require_calibrated()[2])
        self.theta, self.weights_proved = result.theta, result.proved
        value = torch.from_numpy(result.theta.copy())
        return Solution(value, Status.CONVERGED, result.relative_residual, 1.0)

    def solution_of(self, statistics: Statistics) -> RidgeSolution:
        """The weights of these sums, with this part's scales and ridge: λ itself, or μ times n."""
        return solve(
            statistics,
            self.mu,
            ridge=self.total_ridge if self.mu is None else None,
            scale=self._require_calibrated()[1].scale,
            target_scale=self.target_quantiser.scale,
        ).checked()

    @property
    def ridge_mu(self) -> float:
        """μ as given, or λ/n for the rows there are now."""
        if self.mu is not None:
            return self.mu
        assert self.total_ridge is not None
        return self.total_ridge / max(self._require_calibrated()[2].num_rows, 1)

    def logits(self, activations: Activations) -> Tensor:
        """α f_core + Θᵀψ, ψ quantised as in training; with Θ = 0 the core's logits in this form."""
        if self.theta is None or not self.theta.any():
            return self.form.logits(activations)
        projection = self._require_calibrated()[0]
        found = [torch.zeros(0, len(self.core.classes))]
        for psi, core in self.form.rows(projection, activations):
            product = self._product(self._quantised(psi))
            found.append(self.kept * core + torch.from_numpy(product).float())
        return torch.cat(found)

    def _product(self, features: np.ndarray) -> np.ndarray:
        """Θᵀψ, (n, c). Of float32 weights it has one rounding, and is the same on every machine."""
        assert self.quantiser is not None
        assert self.theta is not None
        if self.theta.dtype == np.float32:
            return exact_product(features, self.theta, self.quantiser.scale)
        return self.real(features) @ self.theta

    def reset(self) -> None:
        """Forget everything: no statistics, Θ = 0."""
        if self.projection is not None:
            self.statistics = self.no_statistics()
        self.theta, self.weights_proved = None, True  # no rows: Θ = 0 exactly

    # --- requests ---------------------------------------------------------------------------------

    def samples(self, data: TrainingSet, activations: Activations) -> TrainingSet:
        return replace(data, rows=self.rows(activations, data.labels))

    def learn(self, data: TrainingSet, progress: Progress | None = None) -> Solution:
        assert data.rows is not None
        self.reset()
        return self.add_rows(data.rows.whole())

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
        solution, difference = self._changed(rows, Direction.OUT, guarantee, test_seed)
        left = data.without(positions)
        certificate = self._certificate(len(left), len(positions), solution, difference)
        return Change(left, certificate, solution)

    def add(
        self,
        data: TrainingSet,
        new: TrainingSet,
        guarantee: Guarantee | None,
        *,
        cache: ActivationCache | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Change:
        """Add their integers and solve; the certificate is that of a model fitted on all at once."""
        rows, both = new.rows, data.plus(new)
        if len(both.records) == len(new.records):
            # After everything was forgotten Θ is 0, replayed records and all: begin as fit() does.
            self.reset()
            rows = both.rows
        assert rows is not None
        solution, difference = self._changed(rows.whole(), Direction.IN, guarantee, test_seed)
        certificate = self._certificate(len(both), 0, solution, difference)
        return Change(both, certificate, solution)

    def _changed(
        self, rows: Rows, way: Direction, guarantee: Guarantee | None, test_seed: bytes | None
    ) -> tuple[Solution, Difference | None]:
        """Rows in or out; with a ``guarantee``, noise on the weights after it.

        The noise is for somebody who has the release before, too: the weights that would be released if
        nothing had changed are solved for as well, and must be near enough to be hidden by it. If they
        are not, GuaranteeError, and nothing is changed. The sums stay exact; the noise is in no other
        place than the released weights.
        """
        change = self.add_rows if way is Direction.IN else self.remove_rows
        if guarantee is None:
            return change(rows), None
        served, proved = self.theta, self.weights_proved
        statistics = self._require_calibrated()[2]
        before = self.solution_of(statistics).theta
        solution = change(rows)
        assert self.theta is not None
        distance = float(np.linalg.norm(self.theta.astype(np.float64) - before))
        difference = Difference(guarantee, distance, self.num_weights, test_seed is None)
        if not difference.passed:
            undo = statistics.remove if way is Direction.IN else statistics.add
            undo(rows.features, rows.targets)
            self.theta, self.weights_proved = served, proved
            raise GuaranteeError(
                f"epsilon {guarantee.epsilon} between the two releases asked for, "
                f"{reached(difference.epsilon_bound)} reached; nothing was changed.",
                f"raise sigma above {distance / guarantee.shift(self.num_weights):.2g}, or epsilon.",
            )
        self.theta = noise.release_on_grid(
            self.theta, guarantee.sigma, guarantee.grid, test_seed=test_seed
        ).values
        return solution, difference

    def _certificate(
        self,
        num_retained: int,
        num_forgotten: int,
        solution: Solution | None,
        difference: Difference | None = None,
    ) -> ExactCertificate:
        return ExactCertificate(
            self.statistics_digest,
            self.weights_digest,
            num_retained,
            num_forgotten,
            0.0 if solution is None else solution.residual_norm,
            difference,
            self.weights_proved,
            self.given,
        )

    def first_certificate(
        self, data: TrainingSet, solution: Solution | None
    ) -> ExactCertificate | None:
        return self._certificate(len(data) if len(data.records) else 0, 0, solution)

    def plan(
        self,
        epsilon: float,
        delta: float,
        sigma: float | None,
        state: StatePolicy | str,
        core_activations: Callable[[], Activations | None],
    ) -> Guarantee:
        return self.promise(epsilon, delta, sigma, self.num_weights, state)

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

    def verify(self, data: TrainingSet, certificate: Certificate | None) -> Iterator[Check]:
        stored = self._solved()
        self.learn(data)
        yield from compare(stored, self._solved(), certificate)

    def _solved(self) -> Snapshot:
        return Snapshot(
            self.statistics_digest, self.weights_digest, self.theta, self.weights_proved
        )

    def agreement(self, data: TrainingSet, at: np.ndarray, again: TrainingSet) -> Agreement:
        """In integers a row is a function of the image alone: one that differs is wrong."""
        assert data.rows is not None
        assert again.rows is not None
        stored, anew = data.rows.select(at), again.rows.whole()
        if self.form.arithmetic != "integer":
            equal, within = within_rounding(stored.features, anew.features, 1.0)
            return Agreement(equal, within, everywhere=False)
        differ = (stored.features != anew.features).any(1) | (stored.targets != anew.targets).any(1)
        first = int(differ.argmax()) if differ.any() else None
        return Agreement(int((~differ).sum()), first is None, everywhere=True, first=first)

    def traces(self, activations: Activations, labels: Tensor) -> Iterator[tuple[str, np.ndarray]]:
        if self.projection is not None:
            rows = self.rows(activations, labels)
            yield "the ψ row", rows.features
            yield "the target row", rows.targets

    @property
    def num_weights(self) -> int:
        size = 0 if self.projection is None else self.projection.num_features
        return size * len(self.core.classes)

    @property
    def statistics_digest(self) -> str:
        return self._require_calibrated()[2].digest()

    @property
    def weights_digest(self) -> str:
        """SHA-256 of Θ's little-endian bytes, row by row: of float32, unless there is noise on them."""
        theta = np.zeros(self.num_weights, np.float32) if self.theta is None else self.theta
        kind = "<f4" if theta.dtype == np.float32 else "<f8"
        return hashlib.sha256(np.ascontiguousarray(theta, dtype=kind).tobytes()).hexdigest()

    # --- files ------------------------------------------------------------------------------------

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What predictions need: bases, scales and Θ. The statistics are kept by the workspace."""
        tensors = self.calibration_tensors
        if tensors and self.theta is not None:
            tensors["theta"] = torch.from_numpy(np.array(self.theta))
        return tensors

    def load_tensors(
        self, tensors: Mapping[str, Tensor], layers: Sequence[str] | None = None
    ) -> None:
        if tensors:
            self.load_calibration(tensors, layers or ())
            self.theta = tensors["theta"].numpy() if "theta" in tensors else None

    @classmethod
    def load(
        cls, core: Core, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> CompactUser:
        options = {name: value for name, value in settings.items() if name != "kind"}
        layers = options.pop("layers", None)
        part = cls(core, **options)
        part.load_tensors(tensors, layers)
        return part

    def save_private(self, folder: Path) -> None:
        """The sums."""
        assert self.statistics is not None
        arrays = self.statistics.to_arrays()
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        files.write_tensors(folder / STATISTICS, tensors)

    def load_private(self, folder: Path) -> None:
        tensors = files.read_tensors(folder / STATISTICS)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        with files.as_saved(folder / STATISTICS):
            self.statistics = Statistics.from_arrays(arrays)
