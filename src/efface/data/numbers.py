"""Rows of whole numbers in the place of images: token ids of a text, or a vector in fixed steps.

Such a record's content is one row, int32, and its digest the SHA-256 of that, as of any array: the same text
in the same tokens is the same record. There are no near copies of it. What a network makes of the numbers is
said by its preparation, ``Tokens`` or ``Vectors``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from efface.data.images import ArrayImage
from efface.data.preparation import Preparation, Unfit
from efface.errors import FormatError, RecordError

DTYPE = np.dtype("<i4")  # of contents, on every machine
LONGEST = 1 << 20  # numbers in a row
LARGEST_ID = 2**31 - 1
COLUMNS = ("tokens", "vectors")  # what rows of numbers are called in lists and .npz files
WHOLE = (
    "give whole numbers: token ids, or a vector in fixed steps (in Python, for numbers from -1 to 1: "
    "np.rint(127 * vectors).astype('int8'))."
)


def row_sources(table: np.ndarray, name: str) -> list[ArrayImage]:
    """A source for every row of a table (n, length) of whole numbers, which is copied."""
    held = held_rows(table, name)
    return [ArrayImage(held, i) for i in range(len(held))]


def row_source(values: Any, name: str) -> ArrayImage:
    """One row, by value, from a list or an array; ``name`` is what an error calls it."""
    try:
        row = np.asarray(values)
    except (ValueError, OverflowError) as problem:  # nested lists of different lengths
        raise RecordError(name, f"it is no row of numbers ({problem}).", WHOLE) from problem
    return ArrayImage(held_rows(row[None], name), 0)


def is_row(item: Any) -> bool:
    """Whether a list or an array is meant as a row of numbers, whole or not."""
    if isinstance(item, list | tuple):
        return bool(item) and all(isinstance(value, int | float | np.number) for value in item)
    return getattr(item, "ndim", 0) == 1 and getattr(item, "dtype", None) is not None


def held_rows(table: np.ndarray, name: str) -> np.ndarray:
    """A table (n, length) of whole numbers as contents are held: a copy that nobody writes to."""
    if table.ndim != 2 or not table.shape[1]:
        raise RecordError(name, f"shape {table.shape[1:]} is no row of numbers.", WHOLE)
    if table.dtype.kind not in "iu":
        raise RecordError(name, f"its numbers are {table.dtype}, not whole ones.", WHOLE)
    if table.shape[1] > LONGEST:
        fix = "cut it into several records."
        raise RecordError(name, f"{table.shape[1]:,} numbers are more than {LONGEST:,}.", fix)
    if table.size and not -LARGEST_ID <= int(table.min()) <= int(table.max()) <= LARGEST_ID:
        fix = "give numbers of 32 bits."
        raise RecordError(name, f"a number is beyond {LARGEST_ID:,}.", fix)
    held = np.array(table, dtype=DTYPE, order="C", copy=True)
    held.setflags(write=False)
    return held


class Numbers(Preparation):
    """Rows of ``length`` numbers, each in a range; abstract."""

    kind: ClassVar[str]
    length: int

    @property
    def reads(self) -> None:
        return None

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    @abstractmethod
    def range(self) -> tuple[int, int]:
        """The smallest and the largest number that there may be."""

    @abstractmethod
    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """A row of nobody, for calibration without data."""

    def pixels(self, content: np.ndarray) -> np.ndarray:
        """The row as it is, if it is one: (length,) int64."""
        if content.ndim != 1:
            fix = "this network's records are rows of numbers: see docs/networks.md."
            raise Unfit(f"an image, where {self.described} are read.", fix)
        if len(content) != self.length:
            fix = f"bring every row to {self.length} numbers (of token ids: Tokens.padded)."
            raise Unfit(f"{len(content)} numbers, where {self.described} are read.", fix)
        low, high = self.range
        outside = (content < low) | (content > high)
        if outside.any():
            at = int(outside.argmax())
            raise Unfit(f"number {at} is {int(content[at])}, not {low} to {high}.", self.cure)
        return content.astype(np.int64)

    @property
    @abstractmethod
    def cure(self) -> str:
        """What to do about numbers out of range."""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Tokens(Numbers):
    """x = the token ids themselves, (length,) int64, for a network that begins with an ``nn.Embedding``.

    ``vocabulary`` is how many ids there are, ``pad`` the one that shorter texts are filled up with
    (:meth:`padded`); whether the network passes over it is the network's business.
    """

    kind = "tokens"

    length: int
    vocabulary: int
    pad: int = 0

    def __post_init__(self) -> None:
        _require("length", self.length, 1, LONGEST)
        _require("vocabulary", self.vocabulary, 1, LARGEST_ID)
        _require("pad", self.pad, 0, self.vocabulary - 1)

    @property
    def range(self) -> tuple[int, int]:
        return 0, self.vocabulary - 1

    @property
    def described(self) -> str:
        return f"{self.length} token ids below {self.vocabulary:,}"

    @property
    def cure(self) -> str:
        return "use the tokenizer that the network was trained with; the vocabulary is as large as its."

    def __call__(self, content: np.ndarray) -> np.ndarray:
        return self.pixels(content)

    def blank(self) -> np.ndarray:
        """With the largest id in it: a table that is too short for the vocabulary is noticed."""
        row = np.full((1, self.length), self.pad, np.int64)
        row[0, 0] = self.vocabulary - 1
        return row

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """Few tokens to many, of any, then padding."""
        used = int(np.ceil(self.length ** rng.uniform(0, 1)))
        row = np.full(self.length, self.pad, DTYPE)
        row[:used] = rng.integers(0, self.vocabulary, used)
        return row

    def padded(self, texts: Iterable[Sequence[int]], *, cut: bool = False) -> np.ndarray:
        """Lists of token ids of any lengths as one array (n, length); ``cut`` drops what is too long."""
        rows = [
            np.asarray(row_source([*text, self.pad], f"text {i}").content())
            for i, text in enumerate(texts)
        ]
        table = np.full((len(rows), self.length), self.pad, DTYPE)
        for i, row in enumerate(row[:-1] for row in rows):
            if len(row) > self.length and not cut:
                fix = "in Python: a larger length=, or cut=True."
                raise RecordError(f"text {i}", f"{len(row)} tokens, more than {self.length}.", fix)
            table[i, : len(row)] = row[: self.length]
        return table


@dataclass(frozen=True)
class Vectors(Numbers):
    """x = q / 2^(bits − 1), float32, of whole numbers q of so many bits: from −1 to 1."""

    kind = "vectors"

    length: int
    bits: int = 8

    def __post_init__(self) -> None:
        _require("length", self.length, 1, LONGEST)
        _require("bits", self.bits, 2, 16)

    @property
    def range(self) -> tuple[int, int]:
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    @property
    def described(self) -> str:
        return f"{self.length} numbers of {self.bits} bits"

    @property
    def cure(self) -> str:
        return "scale the vectors to that range before rounding, and clip what is left."

    def __call__(self, content: np.ndarray) -> np.ndarray:
        return self.pixels(content).astype(np.float32) / np.float32(2 ** (self.bits - 1))

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        low, high = self.range
        return rng.integers(low, high + 1, self.length).astype(DTYPE)


def _require(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise FormatError(f"{name} cannot be {value!r:.80}.", f"give {least} to {most:,}.")


def numbers_of(values: dict[str, Any]) -> Numbers:
    """What ``to_dict`` gave; FormatError for anything else."""
    kinds: dict[str, type[Numbers]] = {made.kind: made for made in (Tokens, Vectors)}
    given = {name: value for name, value in values.items() if name != "kind"}
    try:
        return kinds[values["kind"]](**given)
    except (KeyError, TypeError) as problem:
        raise FormatError(
            f"unknown preprocessing {values!r:.200}.", "restore the files."
        ) from problem
