"""What a record's row is: ψ of its image and its target, quantised on scales that core data fixed.

The half of the compact part that looks at images. Everything here comes from core or public data, and is the
same for every record; user records only ever pass through ``rows``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface.arithmetic.choice import (
    Arithmetic,
    Choice,
    choose_form,
    choose_form_without_data,
    load_form,
)
from efface.arithmetic.form import FloatForm, Form
from efface.data.pictures import Shown
from efface.data.records import Records
from efface.errors import EffaceError
from efface.linear.projection import (
    COVARIANCES,
    GRADIENTS,
    MAPS,
    Projection,
    require_known,
    side_of,
)
from efface.linear.taps import BEFORE, named_taps, taps_of
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.parts.compact.calibration import DEFAULT_RIDGE, Calibration, choose_ridge
from efface.parts.compact.power_map import (
    LAYER_WEIGHT,
    MAP_WEIGHT,
    ROOT_WEIGHT,
    PowerMap,
    powers_of,
    require_power,
    weights_of,
)
from efface.parts.compact.quantiser import Quantiser
from efface.parts.compact.rows import Rows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.summed import Facts, Summed
from efface.parts.compact.usual import USUAL, resolved
from efface.parts.part import UserPart
from efface.parts.training_set import TrainingSet
from efface.progress import Progress


class RowMaker(Summed, UserPart):
    """Records in, integers out. Abstract: ``CompactUser`` sums them up.

    Args:
        features: about how many features k (the pooled ones come first; the rest is shared by layers).
        bits: width of the quantised features, 2 to 16; targets always have 16.
        mu: the ridge μ of (G/n + μI) Θ = B/n. None chooses a total ridge λ = n μ instead, by
            cross-validation on the calibration samples (core data): the best λ depends far less on n
            than the best μ, and core data are few. Without labels to choose on, ``DEFAULT_RIDGE``.
        target_scale: targets are one-hot times this, minus what stays of the core's logits.
        bases: "core" (leading directions of core data) or "random" (seeded).
        layer_features: what stands beside pooled features, or for them: "covariances", "maps", "moments"
            or "gradients" (see ``projection``), or "usual": what the network's features ask for (``usual``).
            None, in files of the first versions, means gradients.
        power: p of the power normalisation of ψ, 0.25, 0.5, 0.75 or 1 (see ``power_map``), or "usual". None,
            in those files, means 1.
        core_weight: how much of the core's logits a fitted model keeps: f = α f_core + Θᵀψ. None lets
            ``MixedLinear.fit`` decide: 0 where core records are replayed (their own rows say it all, and
            the core is overconfident on just these records), else 1.
        calibration: where bases and scales came from; ``calibrate`` sets it, files keep it.
        arithmetic: "integer" (the same bits on every machine), "float32", or "auto": integer where the
            network has such a form. ``MixedLinear.calibrate`` finds it, and ``form`` says which it is.
        form: the settings of the form, from a file.
    """

    options = ("features", "bits", "bases", "arithmetic", "layer_features", "power")
    calibrates = larger_images = True

    def __init__(
        self,
        core: Core,
        *,
        features: int = 4096,
        bits: int = 8,
        mu: float | None = None,
        target_scale: float = 5.0,
        bases: str = "core",
        layer_features: str | None = USUAL,
        power: float | str | None = USUAL,
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
        self.layer_features, self.power = resolved(core, layer_features, power)
        require_known(self.layer_features or GRADIENTS)
        require_power(1.0 if self.power is None else self.power)
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
        num_layers = len(taps_of(self.core.tail))
        left = self.num_wanted - self.core.tail.head.in_features - 1
        wanted = self.layer_features or GRADIENTS
        return wanted == GRADIENTS and side_of(left, num_layers, GRADIENTS) > 0

    @classmethod
    def form_for(cls, core: Core, given: Mapping[str, Any], records: Records) -> Form:
        made = cls(core, **given)
        return choose_form(core, made.arithmetic, records, gradients=made.wants_gradients).form

    def take_form(self, choice: Choice) -> None:
        """Compute in this form from now on; before ``calibrate``."""
        self.form, self.form_reasons = choice.form, choice.reasons

    def prepare(
        self,
        records: Records | None,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> bool:
        """Bases, scales and ridge, from core or public records of any classes.

        With none, from synthetic images and the network's own normalisation statistics.
        """
        if self.projection is not None:
            return False
        source = Calibration.CORE if records is None else Calibration.GIVEN
        records = self.core.records if records is None else records
        wanted, gradients = self.arithmetic, self.wants_gradients
        if records is None:
            choice, made, matched = choose_form_without_data(
                self.core, wanted, gradients=gradients, progress=progress
            )
            self.take_form(choice)
            source = Calibration.STATISTICS if matched else Calibration.SYNTHETIC
            self.calibrate(made, None, source)
            return False
        if len(records) == 0:
            raise EffaceError(
                "no records to calibrate on.",
                "give some, or leave them out: the network's own statistics will do.",
            )
        known = tuple(records.classes) == self.core.classes
        labels = self.core.labels(records) if known else None
        self.take_form(choose_form(self.core, wanted, records, gradients=gradients))
        self.calibrate(self.activations(records, cache, progress=progress), labels, source)
        return source is Calibration.GIVEN

    def meet_replay(self, replayed: bool) -> None:
        """α: 0 where core records are replayed, else 1; unless the caller gave it."""
        if self.core_weight is None:
            self.core_weight = 0.0 if replayed else 1.0

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
        self.projection = Projection.build(
            self.core.tail,
            self.form.plain(samples),
            self.num_wanted,
            layer_features=self.layer_features or GRADIENTS,
            bases=self.bases,
            seed=self.seed,
        )
        self.form.fit_projection(self.projection, samples)
        rows = self._psi(activations)
        if self.power is not None and self.power != 1.0:
            weight = MAP_WEIGHT if self.layer_features in (MAPS, COVARIANCES) else LAYER_WEIGHT
            weight = ROOT_WEIGHT if self.projection.roots else weight
            self.power_map = PowerMap.fit(
                rows,
                powers_of(self.projection, self.power),
                self.projection.part_sizes,
                weights=weights_of(self.projection, weight),
            )
            rows = self.power_map(rows)
        bias = self.projection.bias
        self.quantiser = Quantiser.fit(rows, self.bits, headroom=source.headroom, bias=bias)
        if self.mu is None and self.total_ridge is None:
            features = self.quantiser.quantise(rows)[0]
            self.total_ridge = DEFAULT_RIDGE
            if labels is not None:
                targets = self._core_targets(labels)
                self.total_ridge = choose_ridge(self.real(features), targets, labels.numpy())
        self.calibration, self.statistics = source, self.no_statistics()

    def _has_roots(self, layers: Sequence[str]) -> bool:
        """Whether these have roots of covariances: maps do, the layers of tails without places do not."""
        maps = any(name.startswith(BEFORE) for name in layers)
        return self.layer_features == COVARIANCES and maps

    def _core_targets(self, labels: Tensor) -> np.ndarray:
        return one_hot(labels, len(self.core.classes), self.target_scale).numpy()

    def _require_calibrated(self) -> tuple[Projection, Quantiser, Statistics]:
        if self.projection is None or self.quantiser is None or self.statistics is None:
            raise EffaceError(
                "the compact user part has no bases and scales yet.",
                "train it first (in Python: model.calibrate() or model.fit()).",
            )
        return self.projection, self.quantiser, self.statistics

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

    @classmethod
    def kept_bytes(cls, core: Core, num_records: int, given: Mapping[str, Any]) -> int:
        """Rows of 8 or 16 bits, and the sums in 64."""
        k = given["features"]
        rows = num_records * k * (1 if given["bits"] <= 8 else 2)
        return rows + 8 * k * (k + len(core.classes))

    def summary(self, data: TrainingSet | None) -> dict[str, Any]:
        """In which arithmetic, where bases and scales came from, and how many numbers they clipped."""
        values = saturated = 0
        for rows in () if data is None or data.rows is None else data.rows.blocks():
            values += rows.features.size + rows.targets.size
            saturated += self.num_saturated(rows)
        return {
            "arithmetic": self.form.arithmetic,
            "form": self.form.kind,
            "why_not_better": list(self.form_reasons),
            "calibration": self.calibration,
            "total_ridge": self.total_ridge,
            "values": values,
            "saturated": saturated,
        }

    def activations(
        self,
        records: Shown,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> Activations:
        return self.form.activations(records, cache, progress=progress)

    def settle(self) -> None:
        if self.projection is not None:
            self.form.settle(self.projection)

    def core_logits(self, activations: Activations) -> Tensor:
        return self.form.logits(activations)

    def real(self, features: np.ndarray) -> np.ndarray:
        """The numbers that quantised features stand for, not centred back."""
        assert self.quantiser is not None
        return features.astype(np.float64) * self.quantiser.scale

    # --- files ------------------------------------------------------------------------------------

    @property
    def classes(self) -> tuple[str, ...]:
        return self.core.classes

    @property
    def facts(self) -> Facts:
        """What a certificate of this part names."""
        core, prep = self.core, self.core.backbone.preprocess.to_dict()
        return Facts(self.form.arithmetic, core.digest, prep)

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
        if projection is not None and projection.energies:
            known["energies"] = [energy.name for energy in projection.energies]
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
    def calibration_tensors(self) -> dict[str, Tensor]:
        """Bases and scales, for files."""
        if self.projection is None or self.quantiser is None:
            return {}
        tensors = {f"projection.{k}": v for k, v in self.projection.to_tensors().items()}
        for key, array in self.quantiser.to_arrays().items():
            tensors[f"quantiser.{key}"] = torch.from_numpy(np.array(array))
        if self.power_map is not None:
            tensors["power_map.divisors"] = torch.from_numpy(np.array(self.power_map.divisors))
        return tensors

    def load_calibration(
        self, tensors: Mapping[str, Tensor], layers: Sequence[str], energies: Sequence[str] = ()
    ) -> None:
        part = lambda p: {k[len(p) :]: v for k, v in tensors.items() if k.startswith(p)}  # noqa: E731
        pooled = self.core.tail.head.in_features
        self.projection = Projection.from_tensors(
            part("projection."), tuple(layers), pooled, energies, self._has_roots(layers)
        )
        if layers and self.projection.has_gradients != (self.layer_features in (None, GRADIENTS)):
            raise ValueError(f"these are no {self.layer_features}")
        if energies and self.layer_features != COVARIANCES:
            raise ValueError(f"{self.layer_features} have no energies")
        named_taps(self.core.tail, self.projection.tapped)  # which has all of them
        if self.power is not None and self.power != 1.0:
            sizes, divisors = self.projection.part_sizes, tensors["power_map.divisors"].numpy()
            self.power_map = PowerMap(powers_of(self.projection, self.power), sizes, divisors)
        elif "power_map.divisors" in tensors:
            raise ValueError("divisors of powers that are not taken")
        arrays = {k: v.numpy() for k, v in part("quantiser.").items()}
        self.quantiser = Quantiser.from_arrays(arrays)
        self.statistics = self.no_statistics()
