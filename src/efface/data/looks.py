"""Looks: 64-bit perceptual hashes, by which a photo is known after it was re-encoded, resized or mirrored.

The hash is imagehash's pHash: the 8 × 8 lowest frequencies of the gray image's cosine transform, each
compared with their median. Two looks are compared by the number of bits in which they differ; a mirrored
copy is found by asking for the mirrored picture as well. The look of a record says something about it, so
it is private data, kept with the record and deleted with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from efface.data.images import Channels
from efface.data.record import Depicted, Record
from efface.errors import RecordError

NEAR = 10  # bits of 64: copies of one photo differ by fewer, other photos hardly ever
SMALLEST = 16  # pixels: smaller pictures (digits) all look alike
UNKNOWN = ""  # of a record whose image was not at hand, or is tiny


def look_of(pixels: np.ndarray) -> str:
    """The look of an image, uint8 (h, w, channels), as 16 hexadecimal digits; ``UNKNOWN`` of a tiny one, and
    of what is no image."""
    if pixels.ndim < 3 or min(pixels.shape[:2]) < SMALLEST:
        return UNKNOWN
    import imagehash
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    return str(imagehash.phash(image))


def both_looks(pixels: np.ndarray) -> tuple[str, str]:
    """As it is, and mirrored."""
    if pixels.ndim < 3:
        return UNKNOWN, UNKNOWN
    return look_of(pixels), look_of(np.ascontiguousarray(pixels[:, ::-1]))


Seen = dict[
    tuple[str, Channels | None], str
]  # looks of images that were decoded, by what a look depends on


def key_of(shown: Depicted) -> tuple[str, Channels | None]:
    """What the look of an image depends on: its content, and what it is converted to."""
    return shown.digest, shown.channels


def looks_of(records: Iterable[Record], seen: Seen | None = None) -> tuple[str, ...]:
    """One a record; ``UNKNOWN`` where the image cannot be had any more. Those seen are not decoded again."""
    return tuple(_look(record, seen or {}) for record in records)


def _look(record: Record, seen: Seen) -> str:
    known = seen.get(key_of(record))
    if known is not None:
        return known
    try:
        return look_of(record.image())
    except RecordError:
        return UNKNOWN


def distances(look: str, others: Sequence[str]) -> np.ndarray:
    """Bits in which each of ``others`` differs from ``look``, (n,); 64 for those that are unknown."""
    if look == UNKNOWN:
        return np.full(len(others), 64)
    known = np.array([other != UNKNOWN for other in others], dtype=bool)
    values = np.array([int(other or "0", 16) for other in others], dtype=np.uint64)
    differing = (values ^ np.uint64(int(look, 16))).view(np.uint8).reshape(-1, 8)
    return np.where(known, np.unpackbits(differing, axis=1).sum(1, dtype=np.int64), 64)


def near_pairs(looks: Sequence[str], most: int) -> list[tuple[int, int]]:
    """Positions i < j of looks that differ in at most ``most`` bits; unknown ones are near nothing."""
    known = np.array([i for i, look in enumerate(looks) if look != UNKNOWN], dtype=np.int64)
    values = np.array([int(looks[i], 16) for i in known], dtype=np.uint64)
    words = values.view(np.uint16).reshape(len(values), 4)  # a table of 65,536 counts bits fastest
    counts = np.array([i.bit_count() for i in range(1 << 16)], dtype=np.uint8)
    pairs: list[tuple[int, int]] = []
    for i in range(len(words) - 1):
        bits = counts[words[i + 1 :] ^ words[i]].sum(1, dtype=np.uint8)
        pairs += [(int(known[i]), int(known[i + 1 + j])) for j in np.flatnonzero(bits <= most)]
    return pairs
