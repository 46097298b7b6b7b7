"""Images: where a record's content comes from, and how it becomes pixels.

An ``ImageSource`` gives the encoded bytes of a file or the pixels of an array; ``digest_of`` names
such content, ``decode`` turns it into uint8 pixels, ``naming`` tells whose image could not be read. Pillow is
loaded when the first one is decoded.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard

import numpy as np

from efface.errors import RecordError
from efface.regular import LARGEST_IMAGE, read_regular

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "AVIF", "PPM", "JPEG2000")
LARGEST_PIXELS = 100_000_000
REPLACE = (
    "replace the file or take it out of the data; --skip-bad (in Python: skip_bad=True) sets bad "
    "images aside."
)
GRAY_MODES = frozenset({"1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N"})
JPEG_SCAN, JPEG_END = b"\xff\xda", b"\xff\xd9"  # markers; in a scan 0xff is followed by others only

Content: TypeAlias = bytes | np.ndarray


class Channels(StrEnum):
    GRAY = "gray"
    RGB = "rgb"

    @classmethod
    def of_count(cls, count: int) -> Channels:
        """What a model of this many input channels is shown."""
        return cls.GRAY if count == 1 else cls.RGB


class ImageSource(Protocol):
    def content(self) -> Content:
        """The encoded file's bytes, or the pixels themselves."""


class Trimmed(bytes):
    """An encoded image whose bottom ``rows`` (a banner) are no part of it; its digest covers that."""

    rows: int

    def __new__(cls, data: bytes, rows: int) -> Trimmed:
        trimmed = super().__new__(cls, data)
        trimmed.rows = rows
        return trimmed


@dataclass(frozen=True, slots=True, init=False)
class FileImage:
    """A file. Of its path the words alone are kept: a Path takes four times as much, a million times."""

    name: str
    hidden_rows: int  # at the bottom, see ``Trimmed``

    def __init__(self, path: Path | str, hidden_rows: int = 0) -> None:
        object.__setattr__(self, "name", str(path))
        object.__setattr__(self, "hidden_rows", hidden_rows)

    @property
    def path(self) -> Path:
        return Path(self.name)

    def content(self) -> bytes:
        data = read_regular(self.path)
        return Trimmed(data, self.hidden_rows) if self.hidden_rows else data


@dataclass(frozen=True, slots=True)
class BytesImage:
    data: bytes = field(repr=False)

    def content(self) -> bytes:
        return self.data


@dataclass(frozen=True, eq=False, slots=True)
class ArrayImage:
    """Row ``index`` of an array shared by many records."""

    array: np.ndarray = field(repr=False)  # (n, h, w) or (n, h, w, channels)
    index: int

    def content(self) -> np.ndarray:
        return np.asarray(self.array[self.index])


def digest_of(content: Content) -> str:
    """SHA-256 of a file's bytes; for arrays of ``dtype ‖ shape ‖ bytes``, trimmed of ``rows ‖ bytes``."""
    if isinstance(content, Trimmed):
        return hashlib.sha256(f"trimmed {content.rows} ".encode() + content).hexdigest()
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    header = f"{content.dtype.str}{content.shape}".encode()
    return hashlib.sha256(header + content.tobytes()).hexdigest()


def is_numbers(content: Content) -> TypeGuard[np.ndarray]:
    """Whether it is a row of whole numbers (see ``numbers``), and no image."""
    return not isinstance(content, bytes) and content.ndim == 1 and content.dtype.kind == "i"


def num_channels(content: Content) -> int:
    """1 (gray) or 3 (colour), from the header alone; alpha does not count. 0: a row of numbers, no image."""
    if is_numbers(content):
        return 0
    if isinstance(content, bytes):
        with _opened(content) as image:
            return 1 if _is_gray(image.mode) else 3
    if content.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"pixels are {content.dtype}, they must be uint8 or uint16")
    if content.ndim not in (2, 3) or content.size == 0:
        raise ValueError(f"pixels have shape {content.shape}, not (height, width, channels)")
    if content.ndim == 3 and content.shape[2] not in (1, 3, 4):
        raise ValueError(f"pixels have {content.shape[2]} channels in shape {content.shape}")
    return 1 if content.ndim == 2 or content.shape[2] == 1 else 3


def is_whole(content: Content) -> bool:
    """Whether an encoded image ends as its format asks for: a JPEG's last scan and a JPEG 2000 with a marker,
    a PNG with its last chunk, a GIF with its trailer. Others, and pixels, are taken for whole.

    Bytes after the end do no harm, but look like none: what is not whole here may still be decoded.
    """
    if not isinstance(content, bytes):
        return True
    if content.startswith(b"\xff\xd8"):
        return content.rfind(JPEG_END, max(content.rfind(JPEG_SCAN), 0)) >= 0
    if content.startswith((b"\xff\x4f\xff\x51", b"\0\0\0\x0cjP")):
        return content.endswith(JPEG_END)
    if content.startswith(b"\x89PNG"):
        return content[-8:-4] == b"IEND"
    return not content.startswith(b"GIF8") or content.endswith(b";")


def decode(content: Content, channels: Channels | None = None) -> np.ndarray:
    """Pixels as a person sees them: EXIF orientation applied, alpha dropped, 16 bits scaled to 8.

    ``channels`` converts; None keeps what the image has (palettes become RGB). Rows of numbers are returned
    as they are.
    """
    if is_numbers(content):
        return content
    native = num_channels(content)
    wanted = channels or (Channels.GRAY if native == 1 else Channels.RGB)
    image = _open(content) if isinstance(content, bytes) else _from_array(content)
    if image.mode.startswith("I"):
        from PIL import Image

        image = Image.fromarray(_to_8_bits(np.asarray(image)))
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")  # Pillow warns when a palette's alpha is dropped in one step
    pixels = np.array(image.convert("L" if wanted is Channels.GRAY else "RGB"))
    if isinstance(content, Trimmed):
        pixels = _without_bottom(pixels, content.rows)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels  # (h, w, channels)


def _without_bottom(pixels: np.ndarray, rows: int) -> np.ndarray:
    if len(pixels) <= rows:
        raise ValueError(f"{len(pixels)} rows, of which the bottom {rows} are a banner")
    return np.ascontiguousarray(pixels[:-rows])


def _is_gray(mode: str) -> bool:
    if mode == "F":
        raise ValueError("32-bit float pixels have no agreed range; save them as 8 or 16 bits")
    return mode in GRAY_MODES


@cache
def _formats() -> list[str]:
    """Those of ``FORMATS`` that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _opened(data: bytes) -> Image.Image:
    """One of ``FORMATS``, whatever it is called: others are read by programs of their own (Ghostscript)."""
    if len(data) > LARGEST_IMAGE:
        raise ValueError(f"{len(data) >> 20} MB, more than {LARGEST_IMAGE >> 20}")
    from PIL import Image

    image = Image.open(io.BytesIO(data), formats=_formats())
    if image.width * image.height > LARGEST_PIXELS:
        raise ValueError(f"{image.width} × {image.height} pixels, more than {LARGEST_PIXELS:,}")
    return image


def _open(data: bytes) -> Image.Image:
    from PIL import ImageOps

    with _opened(data) as image:
        image.load()
        return ImageOps.exif_transpose(image)


def _from_array(pixels: np.ndarray) -> Image.Image:
    from PIL import Image

    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    eight = pixels if pixels.dtype == np.uint8 else _to_8_bits(pixels)
    return Image.fromarray(np.ascontiguousarray(eight))


def _to_8_bits(pixels: np.ndarray) -> np.ndarray:
    """``round(v · 255 / 65535)``. Pillow's own conversion clips at 255 instead."""
    if pixels.size and not 0 <= int(pixels.min()) <= int(pixels.max()) <= 65535:
        raise ValueError("32-bit integer pixels have no agreed range; save them as 8 or 16 bits")
    return np.rint(pixels / 257.0).astype(np.uint8)


@contextmanager
def naming(record_id: str, fix: str = REPLACE) -> Iterator[None]:
    """Turns what a missing file or a damaged image raises into an error that names the record."""
    try:
        yield
    except FileNotFoundError as problem:
        raise RecordError(record_id, f"the file {problem.filename} is missing.", fix) from problem
    except Exception as problem:  # decoders raise whatever their parser stumbled over
        from PIL import UnidentifiedImageError

        what = f"the image cannot be read ({problem})."
        if isinstance(problem, UnidentifiedImageError):
            what = "not an image, or its header is damaged."
        raise RecordError(record_id, what, fix) from problem
