"""The compact user part: α f_core(x) + Θᵀψ(x), Θ from exact integer statistics of quantised features.

Fit: quantise ψ and the target residuals, sum them up, solve (G + λI) Θ = B. Forget: subtract the
samples' integers and solve again; the sums are then byte for byte those of a model never given them, and so
are the weights: the exact solution rounded to float32, on whatever machine.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface.activations import Activations
from efface.arithmetic import Arithmetic, Choice, load_form
from efface.certificates import Given
from efface.compact.exact_product import exact_product
from efface.compact.power_map import PowerMap, require_power
from efface.compact.projection import GRADIENTS, MOMENTS, Projection, require_known
from efface.compact.quantiser import Quantiser
from efface.compact.ridge import RidgeSolution, solve
from efface.compact.rows import Rows
from efface.compact.statistics import Statistics
from efface.core import Core
from efface.digests import tensors_digest
from efface.environment import environment
from efface.errors import EffaceError
from efface.forms import FloatForm, Form
from efface.tangent.sgd import Progress
from efface.tangent.solution import Solution, Status
from efface.targets import one_hot

RIDGES = (0.001, 0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.6, 1.0, 2.0, 5.0, 10.0)
DEFAULT_POWER = 0.5
DEFAULT_RIDGE = 0.2  # λ where there is nothing to choose it on; see docs/method.md


class Calibration(StrEnum):
    """Where bases and scales came from. Never from user data."""

    CORE = "core records"
    GIVEN = "given records"
    STATISTICS = "the network's normalisation statistics"
    SYNTHETIC = "synthetic images"

    @property
    def headroom(self) -> float:
        """How far beyond what was seen user data may reach unsaturated; see ``Quantiser.fit``."""
        return 2.0 if self in (Calibration.CORE, Calibration.GIVEN) else 4.0


class CompactUser:
    """Exact forgetting: see the module. Zero until fitted, so the model is the core's.

    Args:
        features: about how many features k (the pooled ones come first; the rest is shared by layers).
        bits: width of the quantised features, 2 to 16; targets always have 16.
        mu: the ridge μ of (G/n + μI) Θ = B/n. None chooses a total ridge λ = n μ instead, by
            cross-validation on the calibration samples (core data): the best λ depends far less on n
            than the best μ, and core data are few. Without labels to choose on, ``DEFAULT_RIDGE``.
        target_scale: targets are one-hot times this, minus what stays of the core's logits.
        bases: "core" (leading directions of core data) or "random" (seeded).
        layer_features: what is kept of each layer, "moments" (the default) or "gradients": ``projection``.
        power: p of the power normalisation of ψ, 0.25, 0.5 (the default), 0.75 or 1; see ``power_map``. Files
            of earlier versions have neither: gradients, and p = 1.
        core_weight: how much of the core's logits a fitted model keeps: f = α f_core + Θᵀψ. None lets
            ``MixedLinear.fit`` decide: 0 where core records are replayed (their own rows say it all, and
            the core is overconfident on just these records), else 1.
        calibration: where bases and scales came from; ``calibrate`` sets it, files keep it.
        arithmetic: "integer" (the same bits on every machine), "float32", or "auto": integer where the
            network has such a form. ``MixedLinear.calibrate`` finds it, and ``form`` says which it is.
        form: the settings of the form, from a file.
    """

    kind = "compact"

    def __init__(
        self,
        core: Core,
        *,
        features: int = 4096,
        bits: int = 8,
        mu: float | None = None,
        target_scale: float = 5.0,
        bases: str = "core",
        layer_features: str | None = None,
        power: float | None = None,
        seed: int = 0,
        total_ridge: float | None = None,
        core_weight: float | None = None,
        calibration: str | None = None,
        arithmetic: str = "auto",
        form: dict[str, Any] | None = None,
    ) -> None:
        self.arithmetic = Arithmetic(arithmetic)
        self.form: Form = FloatForm(core) if form is None else load_form(core, form)
        self.form_reasons: tuple[str, ...] = ()  # why it is not a better one
        self.core, self.num_wanted, self.bits, self.mu = core, features, bits, mu
        self.target_scale, self.bases, self.seed = target_scale, bases, seed
        self.layer_features, self.power = layer_features, power
        require_known(layer_features or MOMENTS)
        require_power(DEFAULT_POWER if power is None else power)
        self.total_ridge, self.core_weight = total_ridge, core_weight
        self.calibration = None if calibration is None else Calibration(calibration)
        self.projection: Projection | None = None
        self.power_map: PowerMap | None = None  # None: ψ as it is
        self.quantiser: Quantiser | None = None
        self.statistics: Statistics | None = None
        # (k, c) float32; float64 with noise on it, and in files of earlier versions.
        self.theta: np.ndarray | None = None
        self.weights_proved: bool | None = None  # of the last solve; None: not solved here

    # --- from core data ---------------------------------------------------------------------------

    @property
    def wants_gradients(self) -> bool:
        """Whether ψ will have gradient features."""
        wanted = self.layer_features or MOMENTS
        return wanted == GRADIENTS and Projection.side(self.core.tail, self.num_wanted) > 0

    def take_form(self, choice: Choice) -> None:
        """Compute in this form from now on; before ``calibrate``."""
        self.form, self.form_reasons = choice.form, choice.reasons

    def calibrate(
        self,
        activations: Activations,
        labels: Tensor | None,
        source: Calibration = Calibration.CORE,
    ) -> None:
        """Bases, scales and (if not given) the ridge, from core samples or from ``synthetic`` ones.

        User data never comes here. Without ``labels`` there is nothing to choose a ridge on.
        """
        samples = activations[slice(0, len(activations))]
        self.layer_features = self.layer_features or MOMENTS
        self.power = DEFAULT_POWER if self.power is None else self.power
        self.projection = Projection.build(
            self.core.tail,
            self.form.plain(samples),
            self.num_wanted,
            layer_features=self.layer_features,
            bases=self.bases,
            seed=self.seed,
        )
        self.form.fit_projection(self.projection, samples)
        rows = self._psi(activations)
        if self.power != 1.0:
            self.power_map = PowerMap.fit(rows, self.power, self.projection.part_sizes)
            rows = self.power_map(rows)
        bias = self.projection.bias
        self.quantiser = Quantiser.fit(rows, self.bits, headroom=source.headroom, bias=bias)
        if self.mu is None and self.total_ridge is None:
            features = self.quantiser.quantise(rows)[0]
            self.total_ridge = (
                DEFAULT_RIDGE if labels is None else self._choose_ridge(features, labels)
            )
        self.calibration, self.statistics = source, self._empty()

    def _choose_ridge(self, features: np.ndarray, labels: Tensor, folds: int = 5) -> float:
        """The λ of least ``folds``-fold squared error on core data.

        Core data are few: the squared error, which is what ridge minimises, is a far steadier guide than
        the number of right answers. The targets are fitted directly: the core was trained on these very
        records, so its logits would leak their labels into the validation folds.
        """
        position = folds_of(labels.numpy(), folds)
        if len(np.unique(position)) < 2:
            return DEFAULT_RIDGE
        q, t = self._real(features), self._core_targets(labels)
        error = np.zeros(len(RIDGES))
        for fold in np.unique(position):
            train, test = position != fold, position == fold
            kernel, across = q[train] @ q[train].T, q[test] @ q[train].T
            for i, ridge in enumerate(RIDGES):
                dual = np.linalg.solve(kernel + ridge * np.eye(len(kernel)), t[train])
                error[i] += np.square(across @ dual - t[test]).sum()
        return RIDGES[int(error.argmin())]

    def _core_targets(self, labels: Tensor) -> np.ndarray:
        return one_hot(labels, len(self.core.classes), self.target_scale).numpy()

    @property
    def target_quantiser(self) -> Quantiser:
        """±8 target scales on 16 bits: a step of about 0.001 for targets of 5."""
        return Quantiser.uniform(len(self.core.classes), 8 * self.target_scale, 16)

    def _require_calibrated(self) -> tuple[Projection, Quantiser, Statistics]:
        if self.projection is None or self.quantiser is None or self.statistics is None:
            raise EffaceError(
                "the compact user part has no bases and scales yet.",
                "call model.calibrate() or model.fit() first.",
            )
        return self.projection, self.quantiser, self.statistics

    def _empty(self) -> Statistics:
        assert self.projection is not None
        size = self.projection.num_features
        return Statistics(size, len(self.core.classes), bits=self.bits)

    # --- rows, statistics, weights ----------------------------------------------------------------

    def rows(self, activations: Activations, labels: Tensor) -> Rows:
        """Quantised ψ and residuals y − α f_core of some samples: one forward and one backward each.

        A sample's row is the same whoever else is there: each is computed alone.
        """
        assert self.projection is not None
        assert self.quantiser is not None
        features = [np.zeros((0, self.projection.num_features), self.quantiser.dtype)]
        logits = [np.zeros((0, len(self.core.classes)))]
        for psi, some in self.form.rows(self.projection, activations):
            features.append(self._quantised(psi))
            logits.append(some.double().numpy())
        residuals = self._core_targets(labels) - self.kept * np.concatenate(logits)
        return Rows(np.concatenate(features), self.target_quantiser.quantise(residuals)[0])

    def _quantised(self, psi: Tensor) -> np.ndarray:
        """The integers of ψ: power, centre, step. Every operation is on one number, and rounded once."""
        assert self.quantiser is not None
        rows = psi.double().numpy()
        return self.quantiser.quantise(rows if self.power_map is None else self.power_map(rows))[0]

    def _psi(self, activations: Activations) -> np.ndarray:
        assert self.projection is not None
        rows = [psi.double().numpy() for psi, _ in self.form.rows(self.projection, activations)]
        return np.concatenate([np.zeros((0, self.projection.num_features)), *rows])

    @property
    def kept(self) -> float:
        """α, the weight of the core's logits in a fitted model."""
        return 1.0 if self.core_weight is None else self.core_weight

    def num_saturated(self, rows: Rows) -> int:
        """How many numbers of these rows are at the end of their range, so were (nearly all) clipped."""
        projection, quantiser, _ = self._require_calibrated()
        ends = np.abs(rows.features.astype(np.int32)) == quantiser.limit
        ends[:, projection.bias] = False  # always 1, which is the limit of 2 bits
        targets = np.abs(rows.targets.astype(np.int32)) == self.target_quantiser.limit
        return int(ends.sum() + targets.sum())

    def fit(
        self, activations: Activations, labels: Tensor, progress: Progress | None = None
    ) -> Solution:
        """Statistics of all samples, then one solve."""
        self._require_calibrated()
        self.statistics = self._empty()
        return self.add(self.rows(activations, labels))

    def add(self, rows: Rows) -> Solution:
        """Take samples in, and solve; if that fails they are out again."""
        statistics = self._require_calibrated()[2]
        statistics.add(rows.features, rows.targets)
        try:
            return self.solve()
        except EffaceError:
            statistics.remove(rows.features, rows.targets)
            raise

    def remove(self, rows: Rows) -> Solution:
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
        return self._real(features) @ self.theta

    def reset(self) -> None:
        """Forget everything: no statistics, Θ = 0."""
        if self.projection is not None:
            self.statistics = self._empty()
        self.theta, self.weights_proved = None, True  # no rows: Θ = 0 exactly

    def _real(self, features: np.ndarray) -> np.ndarray:
        assert self.quantiser is not None
        return features.astype(np.float64) * self.quantiser.scale

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

    @property
    def given(self) -> Given:
        """What a certificate of this part is relative to."""
        core = self.core
        settings = {k: v for k, v in self.settings.items() if k != "layers"}
        kept = {k: v for k, v in self.tensors.items() if k != "theta"}
        return Given(
            arithmetic=self.form.arithmetic,
            core_digest=core.digest,
            calibration_digest=tensors_digest(kept, settings),
            classes_digest=tensors_digest({}, {"classes": list(core.classes)}),
            preprocess_digest=tensors_digest({}, core.backbone.preprocess.to_dict()),
            ridge=self.total_ridge if self.mu is None else None,
            mu=self.mu,
            environment=environment(integer=self.form.arithmetic == "integer"),
        )

    # --- files ------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        projection = self.projection
        # Only where it is known: files of earlier versions have none, and a digest of what they have.
        known: dict[str, Any] = {}
        if self.calibration is not None:
            known = {"calibration": str(self.calibration), "form": self.form.settings}
            known |= {"arithmetic": str(self.arithmetic)}
        for name in ("layer_features", "power"):
            if getattr(self, name) is not None:
                known[name] = getattr(self, name)
        return {
            "kind": self.kind,
            "features": self.num_wanted,
            "bits": self.bits,
            "mu": self.mu,
            "total_ridge": self.total_ridge,
            "target_scale": self.target_scale,
            "bases": self.bases,
            "seed": self.seed,
            "core_weight": self.core_weight,
            "layers": list(projection.names) if projection is not None else None,
            **known,
        }

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What predictions need: bases, scales and Θ. The statistics are kept by the workspace."""
        if self.projection is None or self.quantiser is None:
            return {}
        tensors = {f"projection.{k}": v for k, v in self.projection.to_tensors().items()}
        for key, array in self.quantiser.to_arrays().items():
            tensors[f"quantiser.{key}"] = torch.from_numpy(np.array(array))
        if self.power_map is not None:
            tensors["power_map.divisors"] = torch.from_numpy(np.array(self.power_map.divisors))
        if self.theta is not None:
            tensors["theta"] = torch.from_numpy(np.array(self.theta))
        return tensors

    def load_tensors(self, tensors: dict[str, Tensor], layers: list[str] | None = None) -> None:
        if not tensors:
            return
        part = lambda p: {k[len(p) :]: v for k, v in tensors.items() if k.startswith(p)}  # noqa: E731
        names, pooled = tuple(layers or ()), self.core.tail.head.in_features
        self.projection = Projection.from_tensors(part("projection."), names, pooled)
        if names and self.projection.has_gradients != (self.layer_features in (None, GRADIENTS)):
            raise ValueError(f"these are no {self.layer_features}")
        if self.power is not None and self.power != 1.0:  # None: of an earlier version
            sizes, divisors = self.projection.part_sizes, tensors["power_map.divisors"].numpy()
            self.power_map = PowerMap(self.power, sizes, divisors)
        elif "power_map.divisors" in tensors:
            raise ValueError("divisors of powers that are not taken")
        arrays = {k: v.numpy() for k, v in part("quantiser.").items()}
        self.quantiser = Quantiser.from_arrays(arrays)
        self.theta = tensors["theta"].numpy() if "theta" in tensors else None
        self.statistics = self._empty()


def folds_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """A fold for each sample, the classes spread evenly: the i-th sample of a class goes to i mod f."""
    position = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        position[members] = np.arange(len(members)) % folds
    return position
