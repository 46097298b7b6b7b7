"""The compact user part: α f_core(x) + Θᵀψ(x), Θ from exact integer statistics of quantised features.

Fit: quantise ψ and the target residuals, sum them up, solve (G + λI) Θ = B. Forget: subtract the
samples' integers and solve again; the sums are then byte for byte those of a model never given them, and so
are the weights: the exact solution rounded to float32, on whatever machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface.arithmetic.kinds import INTEGER
from efface.data.records import Records
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import Certificate, ExactCertificate
from efface.guarantee.check import Check
from efface.guarantee.promise import Guarantee
from efface.linear.solution import Solution, Status
from efface.network.activations import ActivationCache, Activations
from efface.network.core import Core
from efface.parts.compact.addend import Piece
from efface.parts.compact.chain import NO_ROUNDING, ROUNDING, CompactChain
from efface.parts.compact.exact_product import SlicedWeights
from efface.parts.compact.ridge import RidgeSolution
from efface.parts.compact.row_maker import RowMaker
from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import kept
from efface.parts.compact.summed import Direction
from efface.parts.compact.verification import Snapshot, compare
from efface.parts.exported import Exported
from efface.parts.part import Agreement, Change, within_rounding
from efface.parts.training_set import TrainingSet
from efface.progress import Progress

BATCH = 64  # records whose activations are in memory at once


class CompactUser(RowMaker):
    """Exact forgetting: see the module. Zero until fitted, so the model is the core's.

    Its arguments are those of :class:`RowMaker`.
    """

    _made: tuple[np.ndarray, SlicedWeights] | None = None

    def fit(
        self, activations: Activations, labels: Tensor, progress: Progress | None = None
    ) -> Solution:
        """Statistics of all samples, then one solve."""
        self._require_calibrated()
        self.statistics = self.no_statistics()
        return self.add_rows(self.rows(activations, labels))

    def add_rows(self, *pieces: Piece) -> Solution:
        """Take samples in (rows, or their sums), and solve; if that fails they are out again."""
        return self.told(self.put_in(*pieces))

    def remove_rows(self, *pieces: Piece) -> Solution:
        """Take samples out, exactly, and solve."""
        return self.told(self.take_out(*pieces))

    def solve(self) -> Solution:
        return self.told(self.solve_sums())

    def told(self, result: RidgeSolution) -> Solution:
        value = torch.from_numpy(result.theta.copy())
        return Solution(value, Status.CONVERGED, result.relative_residual, 1.0)

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
            return self._sliced(self.theta).times(features)
        return self.real(features) @ self.theta

    def _sliced(self, theta: np.ndarray) -> SlicedWeights:
        """The weights as products want them, made once for each Θ."""
        assert self.quantiser is not None
        made = self._made
        if made is None or made[0] is not theta:
            made = (theta, SlicedWeights(theta, self.quantiser.scale, self.quantiser.limit))
            self._made = made  # at once, so that threads see a whole one
        return made[1]

    # --- requests ---------------------------------------------------------------------------------

    def samples(self, data: TrainingSet, activations: Activations) -> TrainingSet:
        return replace(data, rows=self.rows(activations, data.labels))

    def samples_of(
        self,
        data: TrainingSet,
        records: Records,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> TrainingSet:
        """Rows of some records after the others: nobody's activation is in memory for longer than that.

        Many rows are kept in a temporary file. Which records come together makes no difference to a row.
        """
        if len(records) == 0:
            return self.samples(data, self.activations(records, cache))
        stream = self._streamed(records, cache, progress)
        return replace(data, rows=kept(self._rows_of(stream, data.labels, progress)))

    def _streamed(
        self, records: Records, cache: ActivationCache | None, progress: Progress | None
    ) -> Iterator[Tensor]:
        """Activations, some after the others: computed, or where there is a cache read from that."""
        if cache is None:
            yield from (activations for _, activations in self.form.stream(records, BATCH))
            return
        whole = self.activations(records, cache, progress=progress)
        for start in range(0, len(records), BATCH):
            yield whole[slice(start, start + BATCH)]

    def _rows_of(
        self, stream: Iterator[Tensor], labels: Tensor, progress: Progress | None
    ) -> Iterator[Rows]:
        done = 0
        for activations in stream:
            yield self.rows(activations, labels[done : done + len(activations)])
            done += len(activations)
            if progress is not None:
                progress(done / len(labels), f"rows {done}/{len(labels)}")

    def learn(self, data: TrainingSet, progress: Progress | None = None) -> Solution:
        self.reset()
        own = data.rows if data.sums is None else data.sums
        guests = [guest.sums for guest in data.guests if guest.num_rows]
        return self.add_rows(*(() if own is None else (own,)), *guests)

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
        assert new.rows is not None
        pieces: tuple[Piece, ...] = (new.rows if new.sums is None else new.sums,)
        both = data.plus(new)
        if not data.num_retained:
            # After everything was forgotten Θ is 0, replayed records and all: begin as fit() does.
            self.reset()
            pieces += () if data.rows is None else (data.rows,)
        result, difference = self.changed(pieces, Direction.IN, guarantee, test_seed)
        certificate = self.certified(both, 0, result.relative_residual, difference)
        return Change(both, certificate, self.told(result))

    def first_certificate(
        self, data: TrainingSet, solution: Solution | None
    ) -> ExactCertificate | None:
        residual = 0.0 if solution is None else solution.residual_norm
        return self.certified(data, 0, residual)

    def plan(
        self,
        epsilon: float,
        delta: float,
        sigma: float | None,
        state: StatePolicy | str,
        core_activations: Callable[[], Activations | None],
    ) -> Guarantee:
        return self.promise(epsilon, delta, sigma, self.num_weights, state)

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
            if not _labels_alone(rows.targets, labels.numpy()):
                yield "the target row", rows.targets

    # --- for others -------------------------------------------------------------------------------

    def exported(self) -> Exported:
        projection, quantiser, _ = self._require_calibrated()
        known = self.theta is not None and bool(self.theta.any())
        theta = self.theta if known else None
        share = self.kept if known else 1.0  # with Θ = 0 the model is its core
        module = CompactChain(
            self.form.chain(projection), quantiser, self.power_map, theta, share
        ).eval()
        integer = self.form.kind == INTEGER
        head = {
            "theta": np.zeros((0, len(self.classes))) if theta is None else np.array(theta),
            "scale": quantiser.scale,
            "centre": quantiser.centre,
            "limit": np.array(quantiser.limit),
            "core_weight": np.array(share),
            "classes": np.array(self.classes, dtype=np.str_),
        }
        return Exported(
            module,
            self.form.image,
            module.outputs,
            batched=integer,
            bit_equal=integer and module.exact,
            rounding=NO_ROUNDING if integer and module.exact else ROUNDING,
            head=head,
        )

    # --- files ------------------------------------------------------------------------------------

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What predictions need: bases, scales and Θ. The statistics are kept by the workspace."""
        tensors = self.calibration_tensors
        if tensors and self.theta is not None:
            tensors["theta"] = torch.from_numpy(np.array(self.theta))
        return tensors

    def load_tensors(
        self,
        tensors: Mapping[str, Tensor],
        layers: Sequence[str] | None = None,
        energies: Sequence[str] = (),
    ) -> None:
        if tensors:
            self.load_calibration(tensors, layers or (), energies)
            self.theta = tensors["theta"].numpy() if "theta" in tensors else None

    @classmethod
    def load(
        cls, core: Core, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> CompactUser:
        # Files of the first versions have neither: their rows are gradients, as they are.
        options: dict[str, Any] = {"layer_features": None, "power": None, **settings}
        del options["kind"]
        layers, energies = options.pop("layers", None), options.pop("energies", ())
        part = cls(core, **options)
        part.load_tensors(tensors, layers, energies)
        part._share_tables()
        return part

    def _share_tables(self) -> None:
        """Of one core and calibration there is one form and one projection, with all that is built of them:
        another release of a model that is in memory then costs no more than its weights."""
        if self.projection is not None:
            key = self.given.calibration_digest
            own = (self.form, self.projection)
            self.form, self.projection = self.core.tables.setdefault(key, own)


def _labels_alone(targets: np.ndarray, labels: np.ndarray) -> bool:
    """Whether every target row is that of its label, as it is without a core weight: everybody of the class
    has it, and it tells nothing of anybody."""
    others = np.arange(targets.shape[1]) != labels[:, None]
    return all(len(np.unique(row[rest])) <= 1 for row, rest in zip(targets, others, strict=True))
