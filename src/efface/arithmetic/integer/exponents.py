"""The steps of an integer form: powers of two, for every tensor that is summed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from efface.arithmetic.integer.sums import LEAST
from efface.network.saved import LARGEST_IMAGE


@dataclass(frozen=True)
class Exponents:
    """All steps of an integer form, as powers of two: by number of the operation, or by name of the layer."""

    image: tuple[int, int, int]  # the shape of the pixels
    prefix: Mapping[int, int]
    tail: Mapping[int, int]
    gradients: Mapping[int, int] | None  # None: there is no way back through this tail
    projections: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Exponents:
        """ValueError, KeyError or TypeError for what cannot be steps."""
        gradients, image = values["gradients"], tuple(values["image"])
        if len(image) != 3 or not all(type(v) is int and 0 < v <= LARGEST_IMAGE for v in image):
            raise ValueError(f"no image is {image}")
        return cls(
            image,
            _by_number(values["prefix"]),
            _by_number(values["tail"]),
            None if gradients is None else _by_number(gradients),
            {str(k): (_step(a), _step(b)) for k, (a, b) in values["projections"].items()},
        )


def _by_number(values: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): _step(exponent) for number, exponent in values.items()}


def _step(exponent: Any) -> int:
    if type(exponent) is not int or not LEAST <= exponent <= -LEAST:
        raise ValueError(f"2^{exponent!r:.20} is no step")
    return exponent


def strings(exponents: Mapping[int, int]) -> dict[str, int]:
    """For JSON, whose keys are text."""
    return {str(k): int(v) for k, v in exponents.items()}
