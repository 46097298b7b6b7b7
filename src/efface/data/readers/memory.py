"""Images that a program holds: arrays, tensors, Pillow images, encoded bytes, and paths of files; and rows of
whole numbers (``numbers``) in their place.

Everything but a file is taken **by value**: what the caller does to an array afterwards changes no record.
Pixels are uint8 or uint16, (height, width) or (height, width, channels); a tensor has its channels first, as
torch has them. Floats are refused, because their range is nowhere written down. A signed array (n, length)
and a list of rows are numbers; an unsigned array of that shape is one image where several are expected.
"""

from __future__ import annotations

import os
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from efface.data.images import (
    GRAY_MODES,
    ArrayImage,
    BytesImage,
    FileImage,
    ImageSource,
    digest_of,
    naming,
)
from efface.data.numbers import is_row, row_source, row_sources
from efface.errors import EffaceError, RecordError

PIXELS = "uint8 or uint16, (height, width) or (height, width, channels)"
SCALED = "for floats from 0 to 1: (x * 255).round().astype('uint8')"
SIGNED = "token ids, or vectors in whole numbers, as x.astype('int32')"


def sources_of(images: Any, root: Path | None = None) -> list[ImageSource]:
    """Where each image's content comes from; relative paths are below ``root``, by default where we are."""
    if isinstance(images, str | bytes | os.PathLike | Image.Image):
        raise EffaceError("one image was given where several are expected.", "write [image].")
    array = _as_array(images)
    if array is not None and array.dtype.kind not in "OUST":
        return _array_sources(array)
    if array is None and (isinstance(images, Mapping) or not isinstance(images, Iterable)):
        raise EffaceError(f"a {type(images).__name__} holds no images.", _accepted())
    items = list(images) if array is None else array.tolist()
    return [source_of(item, f"image {i}", root) for i, item in enumerate(items)]


def stacked(images: list[Any] | tuple[Any, ...]) -> np.ndarray:
    """One array of images that have one shape."""
    try:
        return np.asarray(images)
    except ValueError as problem:
        fix = "give them one size, or use Records.from_images."
        raise EffaceError("these images differ in shape.", fix) from problem


def source_of(item: Any, name: str, root: Path | None = None) -> ImageSource:
    """One image, by value; ``name`` is what an error calls it."""
    if isinstance(item, Mapping) and {"bytes", "path"} & set(item):  # as Hugging Face stores them
        item = item.get("bytes") or item.get("path")
    if isinstance(item, str) and "://" in item:
        item = path_of_url(item, name)
    if isinstance(item, str | os.PathLike):
        path = Path(os.fspath(item)).expanduser()
        return FileImage((path if root is None else root / path).absolute())
    if isinstance(item, bytes | bytearray | memoryview):
        return BytesImage(bytes(item))
    if isinstance(item, Image.Image):
        with naming(name):
            return _held(_pixels_of(item))
    if is_row(item):
        return row_source(item if isinstance(item, list | tuple) else _as_array(item), name)
    array = None if isinstance(item, list | tuple) else _as_array(item, one=True)
    if array is None or array.ndim == 0:
        hint = " (to give pairs, use Records.from_dataset)" if isinstance(item, tuple) else ""
        raise RecordError(name, f"{type(item).__name__} is no image.", _accepted() + hint)
    _check_dtype(array, name)
    return _held(array)


def path_of_url(url: str, name: str) -> str:
    """The path that a ``file:`` URL of this machine names; nothing is fetched."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() != "file" or parts.netloc.lower() not in ("", "localhost"):
        fix = "fetch it first, and give its bytes or its path."
        raise RecordError(name, f"{url!r:.200} is not a file of this machine.", fix)
    return urllib.request.url2pathname(parts.path)


def default_ids(sources: Iterable[ImageSource]) -> list[str]:
    """What an image is called if nobody says: a file by its path, pixels by the digest of their content.

    So a name depends on the image alone, not on its place among other people's. A second copy gets "-2".
    """
    found: list[str] = []
    times: dict[str, int] = {}
    for source in sources:
        if isinstance(source, FileImage):
            found.append(_shown(source.path))
            continue
        name = digest_of(source.content())[:16]
        times[name] = times.get(name, 0) + 1
        found.append(name if times[name] == 1 else f"{name}-{times[name]}")
    return found


def _shown(path: Path) -> str:
    """Below the working directory without it: the same name on another machine."""
    here = Path.cwd()
    return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()


def _accepted() -> str:
    return (
        "give arrays, tensors, Pillow images, encoded bytes, or paths or file: URLs of files; "
        "or rows of whole numbers."
    )


def _as_array(images: Any, *, one: bool = False) -> np.ndarray | None:
    """The numpy array that this is, or None; tensors get their channels last."""
    if isinstance(images, np.ndarray):
        return images
    if not (hasattr(images, "detach") and hasattr(images, "numpy")):
        return None
    array = np.asarray(images.detach().cpu().numpy())
    channels = 0 if one else 1
    if array.ndim != 3 + channels:
        return array
    array = np.moveaxis(array, channels, -1)
    return array[..., 0] if array.shape[-1] == 1 else array  # gray, as Pillow and (n, h, w) have it


def _array_sources(array: np.ndarray) -> list[ImageSource]:
    if array.ndim == 2 and array.dtype.kind in "if":
        return [*row_sources(array, "row 0")]
    _check_dtype(array, "image 0")
    if array.ndim not in (3, 4):
        fix = (
            "give (n, height, width) or (n, height, width, channels); one image as images[None]; "
            f"{SIGNED}."
        )
        raise EffaceError(f"an array of shape {array.shape} holds no images.", fix)
    held = _copied(array)
    return [ArrayImage(held, i) for i in range(len(held))]


def _check_dtype(array: np.ndarray, name: str) -> None:
    if array.dtype.kind != "u" or array.dtype.itemsize > 2:
        message = f"its pixels are {array.dtype}, which says nothing about their range."
        raise RecordError(name, message, f"give {PIXELS}; {SCALED}.")


def _held(pixels: np.ndarray) -> ArrayImage:
    return ArrayImage(_copied(pixels[None]), 0)


def _copied(array: np.ndarray) -> np.ndarray:
    """A copy of our own in the machine's byte order, that nobody writes to."""
    held = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    held.setflags(write=False)
    return held


def _pixels_of(image: Image.Image) -> np.ndarray:
    """As a person sees it: upright, no alpha, palettes resolved; 16 bits stay 16 bits."""
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("32-bit float pixels have no agreed range; save them as 8 or 16 bits")
    if image.mode.startswith("I"):
        wide = np.asarray(image)
        if wide.size and not 0 <= int(wide.min()) <= int(wide.max()) <= 65535:
            raise ValueError(
                "32-bit integer pixels have no agreed range; save them as 8 or 16 bits"
            )
        return wide.astype(np.uint16)
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA")
    return np.asarray(image.convert("L" if image.mode in GRAY_MODES else "RGB"))
