"""Floats to small integers on a public scale: the only lossy step of the compact user part.

``q = clip(rint((x - centre) / scale), -limit, limit)`` with ``limit = 2^(bits-1) - 1``, so that
``x ≈ centre + scale * q``. Centre and scale come from core data, or from the caller, never from
user data: they need not be forgotten. Scales are powers of two, so ``scale * q`` is exact in
float64 and a Gram matrix of integers is rescaled without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from efface.errors import EffaceError, FormatError, RecordError

MIN_BITS, MAX_BITS = 2, 16
MIN_EXPONENT = -400


def integer_limit(bits: int) -> int:
    """``2^(bits-1) - 1``, the largest magnitude of a symmetric ``bits``-bit integer."""
    if not MIN_BITS <= bits <= MAX_BITS:
        raise EffaceError(f"{bits} bits asked for.", f"Choose {MIN_BITS} to {MAX_BITS} bits.")
    return 2 ** (int(bits) - 1) - 1


def power_of_two_at_least(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least ``2^e >= value`` for each positive value; 1 where the value is 0.

    No power is below ``2^MIN_EXPONENT``, so that squares of scales stay normal numbers.
    """
    mantissa, exponent = np.frexp(values)  # value = mantissa * 2^exponent, mantissa in [0.5, 1)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)  # already a power of two
    powers: NDArray[np.float64] = np.ldexp(1.0, np.maximum(exponent, MIN_EXPONENT))
    return np.where(values == 0, 1.0, powers)


@dataclass(frozen=True, eq=False)
class Quantiser:
    """``q = clip(rint((x - centre) / scale), -limit, limit)``, feature by feature.

    Args:
        centre: what is subtracted first, (k,).
        scale: the step of each feature, a power of two, (k,).
        bits: width of the integers, 2 to 16; up to 8 they are stored as int8, above as int16.
    """

    centre: NDArray[np.float64]  # (k,)
    scale: NDArray[np.float64]  # (k,)
    bits: int = 8

    def __post_init__(self) -> None:
        integer_limit(self.bits)
        centre, scale = (np.array(a, dtype=np.float64) for a in (self.centre, self.scale))
        if centre.ndim != 1 or centre.shape != scale.shape:
            raise EffaceError(
                f"centre has shape {centre.shape} and scale {scale.shape}.",
                "Give two vectors with one entry per feature.",
            )
        if not np.isfinite(centre).all():
            raise EffaceError("A centre is not finite.", "Check the core rows for NaN or infinity.")
        if not (np.isfinite(scale).all() and (scale > 0).all() and _are_powers_of_two(scale)):
            raise EffaceError("A scale is not a power of two.", "Build it with Quantiser.fit.")
        for name, array in (("centre", centre), ("scale", scale)):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @classmethod
    def fit(
        cls,
        core_rows: ArrayLike,
        bits: int = 8,
        *,
        headroom: float = 2.0,
        quantile: float = 1.0,
        bias: int | None = None,
    ) -> Quantiser:
        """``limit * scale_j >= headroom * quantile(|x_j - mean_j|)`` on core rows, scale_j minimal.

        Args:
            core_rows: features of core records only, (n, k), n >= 1.
            bits: width of the integers.
            headroom: how far beyond the core data user data may reach unsaturated. The default
                spends one bit, since few core rows understate the range.
            quantile: 1 takes the largest deviation, less ignores outliers.
            bias: index of the feature that is always 1, which is kept as the integer 1.
        """
        rows = np.asarray(core_rows, dtype=np.float64)  # (n, k)
        if rows.ndim != 2 or len(rows) == 0:
            raise EffaceError(
                f"Core rows of shape {rows.shape} cannot set a scale.",
                "Give at least one core row, or use Quantiser.from_scale.",
            )
        _require_finite(rows, None)
        centre = rows.mean(axis=0)
        # A mean of equal numbers may round away from them: a constant feature must centre to 0.
        constant = (rows == rows[0]).all(axis=0)
        centre[constant] = rows[0, constant]
        reach = np.quantile(np.abs(rows - centre), quantile, axis=0)
        return cls._reaching(centre, headroom * reach, bits, bias)

    @classmethod
    def from_scale(
        cls,
        mean: ArrayLike,
        std: ArrayLike,
        bits: int = 8,
        *,
        num_std: float = 6.0,
        bias: int | None = None,
    ) -> Quantiser:
        """``limit * scale_j >= num_std * std_j``: for when there is no core data.

        Args:
            mean, std: of each feature, from public numbers such as the network's own
                normalisation statistics, (k,).
            num_std: deviations from the mean that must fit.
            bits, bias: as in :meth:`fit`.
        """
        centre = np.array(mean, dtype=np.float64)
        reach = num_std * np.asarray(std, dtype=np.float64)
        if not (np.isfinite(reach).all() and (reach >= 0).all()):
            raise EffaceError("A standard deviation is negative or not finite.", "Check std.")
        return cls._reaching(centre, reach, bits, bias)

    @classmethod
    def uniform(cls, size: int, max_abs: float, bits: int = 16) -> Quantiser:
        """Centre 0 and one scale for all, ``limit * scale >= max_abs``: for target residuals."""
        if not (np.isfinite(max_abs) and max_abs > 0):
            raise EffaceError(f"max_abs is {max_abs}.", "Give a positive number.")
        return cls._reaching(np.zeros(size), np.full(size, float(max_abs)), bits, None)

    @classmethod
    def _reaching(
        cls,
        centre: NDArray[np.float64],
        reach: NDArray[np.float64],
        bits: int,
        bias: int | None,
    ) -> Quantiser:
        scale = power_of_two_at_least(reach / integer_limit(bits))
        if bias is not None:
            centre[bias], scale[bias] = 0.0, 1.0
        return cls(centre, scale, bits)

    @property
    def num_features(self) -> int:
        return len(self.centre)

    @property
    def limit(self) -> int:
        return integer_limit(self.bits)

    @property
    def dtype(self) -> np.dtype[np.signedinteger]:
        return np.dtype(np.int8 if self.bits <= 8 else np.int16)

    def quantise(
        self, rows: ArrayLike, ids: Sequence[str] | None = None
    ) -> tuple[NDArray[np.signedinteger], int]:
        """The integers of ``rows`` (n, k), and how many entries were clipped to ±limit.

        ``ids`` names the records in the error about a row that is not finite.
        """
        values = np.array(rows, dtype=np.float64)  # (n, k), a copy to work in
        if values.ndim != 2 or values.shape[1] != self.num_features:
            raise EffaceError(
                f"Rows of shape {values.shape} for a quantiser of {self.num_features} features.",
                "Give rows of shape (n, k) from the features this quantiser was fitted to.",
            )
        _require_finite(values, ids)
        with np.errstate(over="ignore"):  # an infinite quotient saturates, and is counted
            values -= self.centre
            values /= self.scale
        np.rint(values, out=values)
        num_saturated = int(np.count_nonzero(np.abs(values) > self.limit))
        np.clip(values, -self.limit, self.limit, out=values)
        return values.astype(self.dtype), num_saturated

    def dequantise(self, integers: ArrayLike) -> NDArray[np.float64]:
        """``centre + scale * q``, within ``scale / 2`` of what was quantised unsaturated."""
        restored: NDArray[np.float64] = self.centre + self.scale * np.asarray(integers)
        return restored

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything needed to build it again."""
        return {"centre": self.centre, "scale": self.scale, "bits": np.array(self.bits, np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Quantiser:
        missing = {"centre", "scale", "bits"} - set(arrays)
        if missing:
            raise FormatError(f"A quantiser without {sorted(missing)}.", "Save it again.")
        centre, scale = (np.asarray(arrays[key], dtype=np.float64) for key in ("centre", "scale"))
        try:
            return cls(centre, scale, int(arrays["bits"]))
        except EffaceError as error:
            raise FormatError(f"Not a quantiser: {error.message}", "Save it again.") from error


def _are_powers_of_two(values: NDArray[np.float64]) -> bool:
    return bool((np.frexp(values)[0] == 0.5).all())


def _require_finite(rows: NDArray[np.float64], ids: Sequence[str] | None) -> None:
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        name = ids[bad[0]] if ids is not None else f"row {bad[0]}"
        raise RecordError(
            name, "a feature is NaN or infinite.", "Check the image, or leave it out."
        )
