"""Exact arithmetic on arrays: kernels that multiply blocks of small integers, arrays that sum them.

A kernel is given so few rows that no partial sum passes what its type holds exactly; an
``ExactArray`` holds integers in one or two float64 limbs and carries after every update.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Words = NDArray[np.int64]  # (limbs, ...), see ExactArray.words

# What entries of sums may reach, by the number of limbs: half of what these hold exactly, so that a removal,
# which passes through at most twice as much, is never refused for want of room.
ENTRY_LIMIT = {1: 2**52, 2: 2**99}
BASE_BITS = 48
BASE = 2.0**BASE_BITS


class Kernel(Enum):
    """How a block of rows is multiplied; all are exact for the blocks they are given."""

    INT8 = "int8"  # 32-bit sums
    FLOAT32 = "float32"
    FLOAT64 = "float64"


# Rows in a block. Sums stay below 2^31 (4,096 * 127²), 2^24 (1,024 * 127²), and 2^52, which leaves
# room for a lower limb under 2^48 (1,024 * 32,767²).
BLOCK_ROWS = {Kernel.INT8: 4096, Kernel.FLOAT32: 1024, Kernel.FLOAT64: 1024}
SMALL = 64  # up to here the float64 update in pieces wins: memory traffic is all there is
PIECE = 1 << 16  # entries


@cache
def int8_kernel_is_exact() -> bool:
    """Whether torch multiplies int8 fast and without saturating.

    Processors without VNNI instructions add pairs of products in 16 bits and may saturate
    (pytorch issue 136746), hence the condition; the extreme rows then show that sums are right.
    """
    import torch

    if not (hasattr(torch, "_int_mm") and getattr(torch.cpu, "_is_vnni_supported", bool)()):
        return False
    signs = torch.tensor([[1], [-1], [1]]) ** torch.arange(1024)  # (3, 1024)
    extreme = torch.cat([127 * signs, -127 * signs[:1]]).repeat(16, 1)  # (64, 1024)
    product = torch._int_mm(extreme.to(torch.int8), extreme.to(torch.int8).t())
    return torch.equal(product.to(torch.int64), extreme @ extreme.t())


def int8_product(left: Tensor, right: Tensor, row_sums: Tensor) -> Tensor:
    """``left @ right``, (m, e), whose sums over e must be ``row_sums``, (m,).

    torch does not look whether the kernel refused its operands, and then returns uninitialised
    memory (pytorch issue 195066). So the sums are compared, and float64 is there if they differ.
    """
    import torch

    product = torch._int_mm(left, right)
    if torch.equal(product.sum(1).double(), row_sums):
        return product
    return left.double() @ right.double()


def pick_kernel(bits: int, num_rows: int) -> Kernel:
    """The fastest exact kernel for ``num_rows`` rows of ``bits`` bits, as measured on CPUs.

    The int8 kernel is torch's. Loading torch takes longer than most requests: where nothing else has loaded
    it, float32 does the same.
    """
    if bits > 8 or num_rows <= SMALL:
        return Kernel.FLOAT64
    return Kernel.INT8 if "torch" in sys.modules and int8_kernel_is_exact() else Kernel.FLOAT32


@dataclass(eq=False)
class ExactArray:
    """Integers ``high * 2^48 + low`` in float64; without ``high``, ``|low| <= 2^53``.

    With ``high``, ``0 <= low < 2^48`` after every update, so equal integers have equal limbs.
    """

    low: Floats
    high: Floats | None = None

    @classmethod
    def zeros(cls, shape: tuple[int, int], limbs: int) -> ExactArray:
        return cls(np.zeros(shape), np.zeros(shape) if limbs == 2 else None)

    def __getitem__(self, index: slice | tuple[NDArray[np.intp], NDArray[np.intp]]) -> ExactArray:
        return ExactArray(self.low[index], None if self.high is None else self.high[index])

    def add_product(
        self,
        left: NDArray[Any],
        right: NDArray[Any],
        sign: int,
        row_sums: Floats | None = None,
    ) -> None:
        """``self += sign * left @ right``, in place; the operands' type is the kernel's.

        ``row_sums`` are those of the product, and needed for int8.
        """
        if row_sums is not None:
            self._add_int8(left, right, sign, row_sums)
        else:
            # Of few rows the product is made a piece at a time, so that it never leaves the cache.
            few = left.shape[1] <= SMALL
            step = max(PIECE // max(right.shape[1], 1), 1) if few else max(len(left), 1)
            change = np.add if sign > 0 else np.subtract
            for start in range(0, len(left), step):
                rows = self.low[start : start + step]
                change(rows, left[start : start + step] @ right, out=rows)
        self._carry()

    def _add_int8(
        self, left: NDArray[Any], right: NDArray[Any], sign: int, row_sums: Floats
    ) -> None:
        import torch

        product = int8_product(*map(torch.from_numpy, (left, right, row_sums)))
        torch.from_numpy(self.low).add_(product, alpha=sign)

    def add(self, other: ExactArray, sign: int = 1) -> None:
        """``self += sign * other``, in place."""
        self.low += sign * other.low
        if self.high is not None and other.high is not None:
            self.high += sign * other.high
        self._carry()

    def _carry(self) -> None:
        if self.high is not None:
            carry = np.floor(self.low / BASE)
            self.high += carry
            carry *= BASE
            self.low -= carry

    def words(self) -> Words:
        """``self = words[0] + words[1] * 2^64``, signed 64-bit words, (limbs, ...).

        The first word is the same for one limb and for two; the second is 0 where it suffices.
        """
        if self.high is None:
            return self.low.astype("<i8")[None]
        low, high = self.low.astype("<i8"), self.high.astype("<i8")
        first = (high.view("<u8") << np.uint64(BASE_BITS)).view("<i8") | low  # modulo 2^64
        return np.stack([first, (high >> (64 - BASE_BITS)) + (first < 0)])

    @classmethod
    def from_words(cls, words: Words) -> ExactArray:
        """The inverse of :meth:`words`."""
        if len(words) == 1:
            return cls(words[0].astype(np.float64))
        low = words[0] & (2**BASE_BITS - 1)
        high = (words[0] >> BASE_BITS) + (words[1] << (64 - BASE_BITS))
        return cls(low.astype(np.float64), high.astype(np.float64))

    def to_float(self) -> Floats:
        """Each integer rounded once to float64; a read-only view where there is one limb."""
        values = self.low.view() if self.high is None else self.high * BASE + self.low
        values.flags.writeable = False
        return values

    def to_limbs(self) -> tuple[Floats, ...]:
        """One or two arrays, multiples of 1 and of 2^48, that add up to the integers: not to be written."""
        return (self.low,) if self.high is None else (self.low, self.high * BASE)

    def to_ints(self) -> list[int]:
        """Python integers, flattened."""
        low = [int(value) for value in self.low.flat]
        if self.high is None:
            return low
        return [(int(h) << BASE_BITS) + l for h, l in zip(self.high.flat, low, strict=True)]

    def max_abs_bound(self) -> int:
        """No entry is larger in magnitude; attained where there is one limb."""
        if self.high is None:
            return int(max(self.low.max(), -self.low.min()))
        return int(np.abs(self.to_float()).max() * (1 + 2.0**-50))  # above the rounding

    def any(self) -> bool:
        return bool(self.low.any() or (self.high is not None and self.high.any()))

    def copy(self) -> ExactArray:
        return ExactArray(self.low.copy(), None if self.high is None else self.high.copy())
