"""What the scan looks for: rows, pixels, files, names, digests and pictures of some records."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from efface.data.images import is_numbers
from efface.data.record import Record
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.progress import Progress, part

PIECE = 64  # bytes
PIECES = 3  # of a row
DISTINCT = 12  # byte values in a piece; fewer are too common (zeros) to prove anything
RELATIVE = 1e-3  # rows nearer than this are the same row, rounded differently
OFF_BY_ONE = 0.02  # the share of a quantised row's integers that may round to a neighbour
SHORT_ROW = 16  # entries; shorter rows are alike by chance


@dataclass(frozen=True, eq=False)
class Pattern:
    """One record's row of some kind. ``pieces`` are searched for as bytes, ``row`` among rows."""

    what: str
    pieces: tuple[bytes, ...]
    row: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Wanted:
    """Everything that is searched for."""

    patterns: Sequence[Pattern]
    names: set[str]
    digests: set[str]
    pictures: Mapping[str, np.ndarray]


def patterns_of(
    model: MixedLinear, records: Records, progress: Progress | None = None
) -> list[Pattern]:
    """What a workspace would hold of these records, computed again."""
    if not len(records):
        return []
    records = Records(records, model.classes)
    activations = model.activations(records, progress=part(progress, 0, 0.5))
    floats = model.core.activations(records, progress=part(progress, 0.5, 1))
    shown, plain = (
        some[slice(0, len(records))].reshape(len(records), -1).numpy()
        for some in (activations, floats)
    )
    result = []
    for record, row, numbers in zip(records, shown, plain, strict=True):
        for form in (row, numbers, numbers.astype(np.float16)):
            result.append(_pattern("the boundary activation", record, form))
        result += _content(record)
    for what, rows in model.user.traces(activations, model.core.labels(records)):
        result += [_pattern(what, r, row) for r, row in zip(records, rows, strict=True)]
    return [pattern for pattern in result if pattern.pieces or pattern.row is not None]


def _pattern(what: str, record: Record, row: np.ndarray) -> Pattern:
    telling = len(row) >= SHORT_ROW and row.any()  # a row of zeros is what purging leaves behind
    name = f"{what} of {record.id!r}"
    return Pattern(name, pieces_of(row.tobytes()), row if telling else None)


def _content(record: Record) -> Iterator[Pattern]:
    content, pixels = record.source.content(), record.image()
    if is_numbers(content):  # in whatever width somebody might have written them
        widths = (np.dtype(name) for name in ("<i1", "<i2", "<u2", "<i4", "<i8"))
        forms = (pixels.astype(w) for w in widths if np.array_equal(pixels.astype(w), pixels))
        for form in forms:
            yield Pattern(f"the numbers of {record.id!r}", pieces_of(form.tobytes()))
        return
    yield Pattern(f"the pixels of {record.id!r}", pieces_of(pixels.tobytes()))
    if isinstance(content, bytes):
        yield Pattern(f"the image file of {record.id!r}", pieces_of(content))


def pieces_of(data: bytes) -> tuple[bytes, ...]:
    """The most varied piece of each third of ``data``; none where all are too monotonous.

    Data shorter than a piece is searched for whole, if it is varied enough.
    """
    if len(data) <= PIECE:
        return (data,) if len(set(data)) >= DISTINCT else ()
    chosen = []
    for third in np.array_split(np.arange(0, len(data) - PIECE + 1, 8), PIECES):
        candidates = [data[i : i + PIECE] for i in third[:4096]]
        best = max(candidates, key=lambda piece: len(set(piece)), default=b"")
        if len(set(best)) >= DISTINCT:
            chosen.append(best)
    return tuple(dict.fromkeys(chosen))


def pictures_of(records: Records) -> dict[str, np.ndarray]:
    shown = ((record, record.image()) for record in records)
    return {f"the picture of {r.id!r}": thumbnail(x) for r, x in shown if x.ndim == 3}


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """16 × 16 grays: the same for a copy in another format or size."""
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    small = image.convert("L").resize((16, 16), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float64)


def spellings(names: Iterable[str]) -> set[str]:
    """Accents may be written in two ways; both look the same."""
    return {unicodedata.normalize(form, name) for form in ("NFC", "NFD") for name in names}


def holds(rows: np.ndarray, row: np.ndarray | None, block: int = 1024) -> bool:
    """Whether some row of ``rows`` is ``row`` up to rounding.

    Floats: ‖difference‖ ≤ RELATIVE · ‖row‖. Integers: no entry differs by more than 1, and at most the
    share OFF_BY_ONE of them at all.
    """
    if row is None or rows.shape[1] != len(row) or rows.dtype != row.dtype:
        return False
    wanted = row.astype(np.float64)
    near = RELATIVE * float(np.linalg.norm(wanted))
    for start in range(0, len(rows), block):
        difference = np.abs(rows[start : start + block].astype(np.float64) - wanted)  # (block, k)
        if row.dtype.kind == "i":
            same = (difference.max(1) <= 1) & (difference.sum(1) <= OFF_BY_ONE * len(row))
        else:
            same = np.linalg.norm(difference, axis=1) <= near
        if same.any():
            return True
    return False
