"""The tangent part as a linear problem: it is one."""

from __future__ import annotations

import torch
from torch import Tensor

from efface.linear.operator import TangentOperator
from efface.network.activations import Activations
from efface.parts.tangent.user import TangentUser
from efface.parts.training_set import TrainingSet
from efface.parts.view import LinearView, Samples


class TangentView(LinearView[TangentUser]):
    closed_form = False

    def training(self, data: TrainingSet) -> Samples:
        assert data.activations is not None
        return self.samples(data.activations, data.labels)

    def samples(self, activations: Activations, labels: Tensor) -> Samples:
        zeros = torch.zeros(len(labels), len(self.part.core.classes), dtype=torch.float64)
        return Samples(activations, labels, zeros)

    def operator(self) -> TangentOperator:
        return self.part.operator

    def weights(self) -> Tensor:
        return self.part.weights

    def mean_jacobian_square(self, inputs: Activations) -> float:
        return self.part.mean_jacobian_square(inputs)
