"""Labels as the caller has them: names or whole numbers outside, names within."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from efface.data.readers.examples import Examples, label_name, values_of
from efface.errors import EffaceError

OTHER_KIND = "give labels of the kind that the classifier was fitted on."


@dataclass(frozen=True)
class LabelKind:
    """Whether labels are whole numbers: then ``classes_`` and predictions are, too."""

    integer: bool = False

    @classmethod
    def of(cls, examples: Examples, labels: Any = None) -> LabelKind:
        """Of labels that are given, or else come with the examples; numbers that the data names are names."""
        if labels is None:
            known = examples.columns.get("label", []) if examples.names is None else []
        else:
            known = values_of(labels)
        return cls(bool(known) and all(type(value) is int for value in known))

    def classes(self, names: Sequence[str]) -> np.ndarray:
        """The class list as the caller knows it, in the order of the model's outputs."""
        if not self.integer:
            return np.array(list(names))
        try:
            return np.array([int(name) for name in names], dtype=np.int64)
        except ValueError as problem:
            message = f"labels are whole numbers, and the classes are names ({names[0]!r}, …)."
            raise EffaceError(message, "give labels and classes= of one kind.") from problem

    def check(self, other: LabelKind) -> None:
        if other != self:
            kinds = {True: "whole numbers", False: "names"}
            message = f"these labels are {kinds[other.integer]}, the classes {kinds[self.integer]}."
            raise EffaceError(message, OTHER_KIND)

    def array(self, labels: Any) -> np.ndarray:
        """Labels to compare predictions with."""
        values = values_of(labels)
        self.check(LabelKind(bool(values) and all(type(value) is int for value in values)))
        return np.array(values, dtype=np.int64 if self.integer else None)

    @staticmethod
    def name(label: Any) -> str:
        return label_name(label)
