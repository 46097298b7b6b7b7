"""A user part as a linear problem, offset(x) + J(x) w with a ridge: what audits and baselines work on.

Both parts have this form, so one set of forgetting methods and attacks serves both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from torch import Tensor

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.network.activations import Activations
from efface.parts.part import UserPart
from efface.parts.training_set import TrainingSet, select

Part = TypeVar("Part", bound=UserPart)


@dataclass(frozen=True, eq=False)
class Samples:
    """``inputs`` are what J is evaluated on; ``offset`` is added to the operator's own output."""

    inputs: Activations
    labels: Tensor  # (n,)
    offset: Tensor  # (n, c)

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Samples:
        inputs = select(self.inputs, index.numpy())
        return Samples(inputs, self.labels[index], self.offset[index])


class LinearView(ABC, Generic[Part]):
    """A fitted part, looked at. Abstract; nothing of the part is changed."""

    closed_form: ClassVar[
        bool
    ]  # whether all classes share the features, so that one solve gives all

    def __init__(self, part: Part) -> None:
        self.part = part

    @abstractmethod
    def training(self, data: TrainingSet) -> Samples:
        """The training samples."""

    @abstractmethod
    def samples(self, activations: Activations, labels: Tensor) -> Samples:
        """Any others."""

    @abstractmethod
    def operator(self) -> TangentOperator:
        """J."""

    @abstractmethod
    def weights(self) -> Tensor:
        """The released weights in the order of J's columns, (d,) float64."""

    def weights_without(self, train: Samples, targets: Tensor, gone: Tensor) -> Tensor:
        """The weights by the part's own exact forgetting, where it has one, in the order of J's columns.

        ``targets`` are those of ``train`` less its offset; ``gone`` are positions in it.
        """
        raise EffaceError(f"{self.part.kind} does not forget exactly.", "use the compact part.")

    @abstractmethod
    def mean_jacobian_square(self, inputs: Activations) -> float:
        """mean_i ‖J_i‖_F² over core samples; it only sets σ."""
