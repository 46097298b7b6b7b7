"""Exact sums of products of integer rows: what training keeps of the user data.

``G = Σ q qᵀ`` (k, k), ``B = Σ q tᵀ`` (k, c) and the number of rows ``n``, for feature rows q and
target rows t of small integers. Every partial sum is an integer that float64 holds exactly, so the
result does not depend on order, batch size, threads or machines, and removing a row is the exact
inverse of adding it: the digest after forgetting is that of never having been told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from efface.errors import EffaceError, FormatError, RequestError
from efface.parts.compact.exact import (
    BLOCK_ROWS,
    ENTRY_LIMIT,
    SMALL,
    ExactArray,
    Floats,
    Kernel,
    Words,
    pick_kernel,
)
from efface.parts.compact.packed import WordsHash, pack_strip, require_exact, unpack_strip, words_of
from efface.parts.compact.quantiser import integer_limit
from efface.parts.compact.row_checks import Integers, require_integers, sums_of_squares
from efface.parts.compact.workers import working

FORMAT = 1
STRIP = 512  # rows of G updated at once: the largest temporary is (STRIP, k)


class Statistics:
    """``G = Σ q qᵀ``, ``B = Σ q tᵀ``, ``n``: exact, mergeable, and free of history.

    Updates work **in place**, since G takes gigabytes; take a :meth:`copy` to keep the old value.
    An update that is refused changes nothing. One that dies half way (out of memory, an interrupt)
    leaves an object that refuses every further use.

    Args:
        num_features: k.
        num_outputs: c.
        bits, target_bits: widths of the integers in feature and in target rows, 2 to 16.
        limbs: 1 takes entries up to 2^52 in magnitude; 2 up to 2^99, for twice the memory.
        entry_limit: refuse rows whose sums could pass this; at most, and by default, the above.
    """

    def __init__(
        self,
        num_features: int,
        num_outputs: int,
        *,
        bits: int = 8,
        target_bits: int = 16,
        limbs: int = 1,
        entry_limit: int | None = None,
    ) -> None:
        if limbs not in ENTRY_LIMIT or num_features < 1 or num_outputs < 1:
            raise EffaceError(
                f"No statistics of {num_features} features, {num_outputs} outputs, {limbs} limbs.",
                "Give at least one feature and one output, and 1 or 2 limbs.",
            )
        self.num_features, self.num_outputs, self.limbs = num_features, num_outputs, limbs
        self.bits, self.target_bits = bits, target_bits
        self._row_max, self._target_max = integer_limit(bits), integer_limit(target_bits)
        self.entry_limit = min(entry_limit or ENTRY_LIMIT[limbs], ENTRY_LIMIT[limbs])
        self.num_rows = 0
        # Rows start:stop of G, up to the end of the diagonal block: half the memory of (k, k).
        self._gram = [ExactArray.zeros((e - s, e), limbs) for s, e in self._spans()]
        self._cross = ExactArray.zeros((num_features, num_outputs), limbs)  # (k, c)
        # A proved bound on every |entry|, whatever was added or (wrongly) removed. It only grows
        # with updates, so it is not saved: on loading, and before refusing, it is measured anew.
        self._entry_bound = 0
        self._whole = True
        self._digest: str | None = None  # of the sums as they are, once asked for

    @property
    def max_rows(self) -> int:
        """``limit / max |q| max(|q|, |t|)``: sums over this many rows are within the limit."""
        return self.entry_limit // self._reach(1)

    def add(self, rows: Integers, targets: Integers) -> None:
        """``G += Σ q qᵀ``, ``B += Σ q tᵀ``, ``n += b``.

        Args:
            rows: integer features, (b, k), at most ``bits`` wide.
            targets: integer targets, (b, c), at most ``target_bits`` wide.
        """
        self._require_valid(rows, targets)
        self._require_room(len(rows), self._reach(len(rows)))
        self._update(rows, targets, sign=1)

    def remove(self, rows: Integers, targets: Integers) -> None:
        """The exact inverse of :meth:`add`: O(b k²), whatever the number of rows that remain.

        Sums cannot tell whether these very rows were added. What they can tell is checked first:
        ``0 <= n - b``, ``0 <= G_jj - Σ q_j² <= (n - b) limit²``, and nothing left over at n = 0.
        """
        self._require_valid(rows, targets)
        self._require_removable(len(rows), sums_of_squares(rows))
        self._require_room(0, self._reach(len(rows)))
        self._update(rows, targets, sign=-1)
        if self.num_rows == 0 and self._any():
            self._update(rows, targets, sign=1)  # exact, so nothing has changed
            raise _remainder()

    def merge(self, other: Statistics) -> None:
        """Add another's sums to these, as if its rows had been added here."""
        self._require_alike(other)
        self._require_room(other.num_rows, other._entry_bound)
        self._combine(other, sign=1)

    def subtract(self, other: Statistics) -> None:
        """The exact inverse of :meth:`merge`; what sums can tell is checked first, as in :meth:`remove`."""
        self._require_alike(other)
        self._require_removable(other.num_rows, other.diagonal())
        self._require_room(0, other._entry_bound)
        self._combine(other, sign=-1)
        if self.num_rows == 0 and self._any():
            self._combine(other, sign=1)  # exact, so nothing has changed
            raise _remainder()

    def _combine(self, other: Statistics, sign: int) -> None:
        with self._changing():
            for strip, theirs in zip(self._gram, other._gram, strict=True):
                strip.add(theirs, sign)
            self._cross.add(other._cross, sign)
            self._entry_bound += other._entry_bound
            self.num_rows += sign * other.num_rows

    def _require_alike(self, other: Statistics) -> None:
        self._require_whole()
        other._require_whole()
        if self._header(0) != other._header(0) or other.limbs > self.limbs:
            raise EffaceError(
                f"{other!r} cannot be merged into {self!r}.",
                "Merge statistics of the same shape and bits; in Python: .widened() on the first if the "
                "second has two limbs.",
            )

    def _any(self) -> bool:
        return self._cross.any() or any(strip.any() for strip in self._gram)

    def copy(self) -> Statistics:
        self._require_whole()
        twin = self._empty_twin(self.limbs)
        twin._gram = [strip.copy() for strip in self._gram]
        twin._cross = self._cross.copy()
        twin.num_rows, twin._entry_bound = self.num_rows, self._entry_bound
        twin.entry_limit = self.entry_limit
        return twin

    def widened(self) -> Statistics:
        """The same sums in two limbs, with room for entries up to 2^99."""
        twin = self._empty_twin(2)
        twin.merge(self)
        return twin

    def digest(self) -> str:
        """SHA-256 of (k, c, bits, n, lower triangle of G by rows, B): the value, not its history.

        Entries count as little-endian 64-bit words; second words only where some are not zero, so
        that one and two limbs agree. Asked for again before the next update, it is not computed again.
        """
        self._require_whole()
        if self._digest is None:
            for _ in self.words():
                pass
        assert self._digest is not None
        return self._digest

    def words(self) -> Iterator[Words]:
        """What is hashed, and saved: the words of the lower triangle of G, some rows at a time, then those of
        B, (limbs, size). Whoever has taken them all need not wait for the digest."""
        self._require_whole()
        running = WordsHash(self.limbs)
        for words in self._word_blocks():
            running.update(words)
            yield words
        self._digest = running.digest(self._header(self.num_rows))

    def strips(self) -> Iterator[tuple[int, int, Floats]]:
        """``(start, stop, G[start:stop, :stop])`` from the top: all of the lower triangle."""
        self._require_whole()
        for (start, stop), strip in zip(self._spans(), self._gram, strict=True):
            yield start, stop, strip.to_float()  # (stop - start, stop)

    def limb_strips(self) -> Iterator[tuple[int, int, tuple[Floats, ...]]]:
        """:meth:`strips` without a rounding: arrays that add up to the integers. Read only."""
        self._require_whole()
        for (start, stop), strip in zip(self._spans(), self._gram, strict=True):
            yield start, stop, strip.to_limbs()

    def gram(self) -> Floats:
        """G in full, (k, k): for small k; the solver reads :meth:`strips`."""
        full = np.zeros((self.num_features, self.num_features))
        for start, stop, strip in self.strips():
            full[start:stop, :stop] = strip
            full[:start, start:stop] = strip[:, :start].T
        return full

    def cross(self) -> Floats:
        """B, (k, c)."""
        self._require_whole()
        return self._cross.to_float()

    def cross_limbs(self) -> tuple[Floats, ...]:
        """Arrays that add up to B, exactly."""
        self._require_whole()
        return self._cross.to_limbs()

    def diagonal(self) -> list[int]:
        """``G_jj``, exactly."""
        self._require_whole()
        values: list[int] = []
        for (start, stop), strip in zip(self._spans(), self._gram, strict=True):
            index = np.arange(stop - start)
            values += strip[index, start + index].to_ints()
        return values

    def to_arrays(self) -> dict[str, Words]:
        """A header, the lower triangle of G packed by rows, and B, as 64-bit words.

        A function of the value and the number of limbs only: equal statistics save equally.
        """
        k, c = self.num_features, self.num_outputs
        packed = np.empty((self.limbs, k * (k + 1) // 2 + k * c), dtype="<i8")
        position = 0
        for words in self.words():
            packed[:, position : position + words.shape[1]] = words
            position += words.shape[1]
        gram, cross = np.split(packed, [k * (k + 1) // 2], axis=1)
        return {"header": self.header(), "gram": gram, "cross": cross.reshape(-1, k, c)}

    def header(self) -> Words:
        """What to_arrays says before the sums."""
        n_first = (self.num_rows + 2**63) % 2**64 - 2**63
        n_words = (n_first, (self.num_rows - n_first) >> 64)
        shape = (self.num_features, self.num_outputs, self.bits, self.target_bits, self.limbs)
        return np.array([FORMAT, *shape, *n_words], dtype="<i8")

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> Statistics:
        """The inverse of :meth:`to_arrays`."""
        header = np.asarray(arrays.get("header", ()))
        if header.shape != (8,) or header.dtype.kind != "i" or header[0] != FORMAT:
            raise FormatError("No statistics header of this version.", "Fit the model again.")
        k, c, bits, target_bits, limbs, n_first, n_second = (int(value) for value in header[1:])
        new = cls(k, c, bits=bits, target_bits=target_bits, limbs=limbs)
        gram = words_of(arrays, "gram", (limbs, k * (k + 1) // 2))
        cross = words_of(arrays, "cross", (limbs, k, c))
        new.num_rows = n_first + (n_second << 64)
        with working() as all_of_them:
            found = all_of_them.each(lambda span: unpack_strip(gram, *span), new._spans()[::-1])
        new._gram = [strip for strip, _ in found[::-1]]
        new._cross = ExactArray.from_words(cross)
        bounds = [require_exact("cross", new._cross), *(bound for _, bound in found)]
        new._entry_bound = max(bounds)
        if new.num_rows < 0 or min(new.diagonal()) < 0 or new._entry_bound > new.entry_limit:
            raise FormatError("These are no sums of squares.", "Restore the file, or fit again.")
        return new

    def __repr__(self) -> str:
        return f"<{self._header(self.num_rows)} limbs={self.limbs}>"

    def _header(self, num_rows: int) -> str:
        shape = f"k={self.num_features} c={self.num_outputs}"
        bits = f"bits={self.bits} target_bits={self.target_bits}"
        return f"efface.statistics.v{FORMAT} {shape} {bits} n={num_rows}"

    def _spans(self) -> list[tuple[int, int]]:
        k = self.num_features
        return [(start, min(start + STRIP, k)) for start in range(0, k, STRIP)]

    def _word_blocks(self) -> Iterator[Words]:
        for (start, _), strip in zip(self._spans(), self._gram, strict=True):
            yield from pack_strip(strip, start)
        yield self.cross_words().reshape(self.limbs, -1)

    def cross_words(self) -> Words:
        """Those of B, (limbs, k, c)."""
        return self._cross.words()

    def _empty_twin(self, limbs: int) -> Statistics:
        return Statistics(
            self.num_features,
            self.num_outputs,
            bits=self.bits,
            target_bits=self.target_bits,
            limbs=limbs,
        )

    def _update(self, rows: Integers, targets: Integers, sign: int) -> None:
        size = BLOCK_ROWS[pick_kernel(self.bits, len(rows))]
        with self._changing():
            for start in range(0, len(rows), size):
                block = slice(start, start + size)
                self._update_block(rows[block], targets[block], sign)
            self._entry_bound += self._reach(len(rows))
            self.num_rows += sign * len(rows)

    def _update_block(self, rows: Integers, targets: Integers, sign: int) -> None:
        kernel = pick_kernel(self.bits, len(rows))  # a short last block has its own
        # np.array copies, so read-only and memory-mapped rows are fine. The int8 kernel is fastest
        # with both operands contiguous along the rows; the others do not mind.
        order: Literal["C", "K"] = "C" if kernel is Kernel.INT8 else "K"
        columns = np.array(rows.T, dtype=kernel.value, order=order)  # (k, b)
        residuals = np.array(targets, dtype=np.float64)  # (b, c)
        total = np.zeros(len(rows))  # sum of the features so far, (b,)
        parts = list(zip(self._spans(), self._gram, strict=True))

        def update(part: tuple[tuple[int, int], ExactArray]) -> None:
            (start, stop), strip = part
            left, wide, row_sums = columns[start:stop], columns[start:stop].astype(np.float64), None
            if kernel is Kernel.INT8:
                np.add(total, wide.sum(0), out=total)
                row_sums = wide @ total
            strip.add_product(left, columns[:stop].T, sign, row_sums)
            self._cross[start:stop].add_product(wide, residuals, sign)

        if len(rows) > SMALL:  # kernels have threads of their own, and int8's wants strips in order
            for part in parts:
                update(part)
            return
        with working() as several:
            several.each(update, parts[::-1])  # the longest first

    @contextmanager
    def _changing(self) -> Iterator[None]:
        self._whole, self._digest = False, None
        yield
        self._whole = True  # not reached by an exception

    def _require_whole(self) -> None:
        if not self._whole:
            raise EffaceError("An update of these statistics was cut short.", "Load them again.")

    def _reach(self, num_rows: int) -> int:
        """A bound on what ``num_rows`` rows change in any entry of G or B."""
        return num_rows * self._row_max * max(self._row_max, self._target_max)

    def _measure_entry_bound(self) -> int:
        return max(array.max_abs_bound() for array in (*self._gram, self._cross))

    def _require_room(self, num_new: int, reach: int) -> None:
        """Refuse, before any harm, ``num_new`` rows too many or a change that may not be exact.

        Sums over any subset of at most ``max_rows`` rows are within the limit, and a change of
        as much again is exact; only the removal of rows never added can break the second rule.
        """
        if self._entry_bound + reach > 2 * self.entry_limit:
            self._entry_bound = self._measure_entry_bound()
        too_many = self.num_rows + num_new > self.max_rows
        if too_many or self._entry_bound + reach > 2 * self.entry_limit:
            raise EffaceError(
                f"{self.num_rows} + {num_new} rows: the sums of more than {self.max_rows} could "
                f"pass {self.entry_limit} and would not be exact.",
                "Use fewer --bits (in Python also: .widened() statistics).",
            )

    def _require_valid(self, rows: Integers, targets: Integers) -> None:
        self._require_whole()
        sizes = (self.num_features, self.num_outputs)
        limits = (self._row_max, self._target_max)
        for name, array, size, limit in zip(
            ("rows", "targets"), (rows, targets), sizes, limits, strict=True
        ):
            require_integers(name, array, (len(rows), size), limit)

    def _require_removable(self, num_rows: int, squares: list[int]) -> None:
        """``squares`` are Σ q_j² of what is to go."""
        num_left = self.num_rows - num_rows
        if num_left < 0:
            raise RequestError(
                f"{num_rows} rows to remove, but only {self.num_rows} were added.",
                "Remove each row once.",
            )
        most = num_left * self._row_max**2
        for feature, (total, square) in enumerate(zip(self.diagonal(), squares, strict=True)):
            if not 0 <= total - square <= most:
                raise RequestError(
                    f"Feature {feature}: these rows cannot all be among the {self.num_rows} added.",
                    "Remove rows and targets exactly as they were added, each once.",
                )


def _remainder() -> RequestError:
    return RequestError(
        "Removing the last rows would leave a remainder: others were added.",
        "Remove rows and targets exactly as they were added.",
    )
