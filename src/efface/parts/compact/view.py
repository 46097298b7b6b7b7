"""The compact part as a linear problem: J(x) = x ⊗ I on the quantised features, shared by all classes."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import torch
from torch import Tensor, nn

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.network.activations import Activations
from efface.network.targets import one_hot
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser
from efface.parts.training_set import TrainingSet
from efface.parts.view import LinearView, Samples


class CompactView(LinearView[CompactUser]):
    closed_form = True

    def training(self, data: TrainingSet) -> Samples:
        if data.rows is None:
            raise EffaceError("the model was fitted on no records.", "fit it on user records.")
        if data.num_from_partners:
            fix = "audit a model without partners: their records are not at hand."
            raise EffaceError("part of this model was learnt from partners' sums.", fix)
        return self._samples(data.rows.whole(), data.labels)

    def samples(self, activations: Activations, labels: Tensor) -> Samples:
        return self._samples(self.part.rows(activations, labels), labels)

    def _samples(self, rows: Rows, labels: Tensor) -> Samples:
        """The offset is the targets less the residuals that are learnt."""
        residuals = torch.from_numpy(self.part.target_quantiser.dequantise(rows.targets))
        full = one_hot(labels, residuals.shape[1], self.part.target_scale)
        return Samples(torch.from_numpy(self.part.real(rows.features)), labels, full - residuals)

    def operator(self) -> TangentOperator:
        """A head without bias, zero, so that the operator's own output is 0."""
        assert self.part.projection is not None
        size, classes = self.part.projection.num_features, len(self.part.core.classes)
        head = nn.Linear(size, classes, bias=False).double().requires_grad_(False)
        nn.init.zeros_(head.weight)
        return TangentOperator(nn.Sequential(OrderedDict(classifier=head)))

    def weights(self) -> Tensor:
        if self.part.theta is None:
            message = "everything was forgotten: the model is its core."
            raise EffaceError(message, "nothing to audit.")
        return _flat(self.part.theta)

    def weights_without(self, train: Samples, targets: Tensor, gone: Tensor) -> Tensor:
        """Sums of everybody's integers, minus those of the forgotten, solved."""
        part = self.part
        assert part.quantiser is not None
        features = np.rint(np.asarray(train.inputs[slice(None)]) / part.quantiser.scale)
        integers = features.astype(part.quantiser.dtype)
        residuals = part.target_quantiser.quantise(targets.numpy())[0]
        statistics = part.no_statistics()
        statistics.add(integers, residuals)
        statistics.remove(integers[gone.numpy()], residuals[gone.numpy()])
        return _flat(part.solution_of(statistics).theta)

    def mean_jacobian_square(self, inputs: Activations) -> float:
        rows = inputs[slice(0, len(inputs))].double()
        return len(self.part.core.classes) * float(rows.square().sum(1).mean())


def _flat(theta: np.ndarray) -> Tensor:
    return torch.from_numpy(theta.T.copy()).reshape(-1).double()
