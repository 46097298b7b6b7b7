"""A preparation: how the content of a record becomes what a network reads. It travels with the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from efface.data.images import Channels
from efface.errors import EffaceError


class Unfit(EffaceError):
    """Content that this network does not read; who knows whose it is, names the record."""


class Preparation(ABC):
    """From content to an input; abstract. Values, so that a model's files can hold them."""

    @property
    @abstractmethod
    def reads(self) -> Channels | None:
        """What images are converted to; None: no images are read."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of one input, as far as it is fixed."""

    @property
    @abstractmethod
    def described(self) -> str:
        """What the network reads, for a sentence."""

    @abstractmethod
    def __call__(self, content: np.ndarray) -> np.ndarray:
        """The input; ``Unfit`` for what cannot be one."""

    @abstractmethod
    def pixels(self, content: np.ndarray) -> np.ndarray:
        """The same in whole numbers, before any scale."""

    def blank(self) -> np.ndarray:
        """One input of zeros, (1, *shape), of the type that the network reads."""
        return np.zeros((1, *self.shape), np.float32)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
