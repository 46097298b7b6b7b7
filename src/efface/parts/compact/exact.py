"""Exact arithmetic on arrays: kernels that multiply blocks of small integers, arrays that sum them.

A kernel is given so few rows that no partial sum passes what its type holds exactly; an
``ExactArray`` holds integers in one or two float64 limbs and carries after every update.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Words = NDArray[np.int64]  # (limbs, ...), see ExactArray.words
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
SMALL = 64  # up to here the in-place float64 update wins: memory traffic is all there is


@cache
def int8_kernel_is_exact() -> bool:
    """Whether torch multiplies int8 fast and without saturating.

    Processors without VNNI instructions add pairs of products in 16 bits and may saturate
    (pytorch issue 136746), hence the condition; the extreme rows then show that sums are right.
    """
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
    product = torch._int_mm(left, right)
    if torch.equal(product.sum(1).double(), row_sums):
        return product
    return left.double() @ right.double()


def pick_kernel(bits: int, num_rows: int) -> Kernel:
    """The fastest exact kernel for ``num_rows`` rows of ``bits`` bits, as measured on CPUs."""
    if bits > 8 or num_rows <= SMALL:
        return Kernel.FLOAT64
    return Kernel.INT8 if int8_kernel_is_exact() else Kernel.FLOAT32


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
        self, left: Tensor, right: Tensor, sign: int, row_sums: Tensor | None = None
    ) -> None:
        """``self += sign * left @ right``, in place; the operands' type is the kernel's.

        ``row_sums`` are those of the product, and needed for int8.
        """
        low = torch.from_numpy(self.low)
        if row_sums is not None:
            low.add_(int8_product(left, right, row_sums), alpha=sign)
        elif left.dtype == torch.float32:
            low.add_(left @ right, alpha=sign)
        else:
            low.addmm_(left, right, alpha=sign)
        self._carry()

    def add(self, other: ExactArray) -> None:
        """``self += other``, in place."""
        self.low += other.low
        if self.high is not None and other.high is not None:
            self.high += other.high
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

    def to_tensor(self) -> Tensor:
        """:meth:`to_float` as a tensor, which shares the memory of one limb: not to be written."""
        return torch.from_numpy(self.low if self.high is None else self.high * BASE + self.low)

    def to_limbs(self) -> tuple[Tensor, ...]:
        """One or two tensors, multiples of 1 and of 2^48, that add up to the integers: not to be written."""
        low = torch.from_numpy(self.low)
        return (low,) if self.high is None else (low, torch.from_numpy(self.high * BASE))

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
