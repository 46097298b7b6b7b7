"""Pictures: images without labels or owners, to be shown to a model and to no training."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

import numpy as np

from efface.data.images import Channels, FileImage, ImageSource, digest_of, naming
from efface.data.promises import positions_of
from efface.data.readers.examples import examples_of
from efface.data.record import checked_image
from efface.data.records import Records


@dataclass(frozen=True)
class Picture:
    """One image; ``id`` is what an error calls it: its path, or its place among the others."""

    id: str
    source: ImageSource = field(compare=False, repr=False)
    digest: str
    channels: Channels | None = None

    def image(self) -> np.ndarray:
        """The decoded pixels, uint8 (h, w, channels), or RecordError when they cannot be had."""
        return checked_image(self)


class Pictures(Sequence[Picture]):
    """An immutable sequence of pictures, for ``predict``; records do as well where there are labels."""

    def __init__(self, pictures: Iterable[Picture] = ()) -> None:
        self._pictures = tuple(pictures)

    @classmethod
    def of(cls, images: Any, channels: Channels | None = None) -> Pictures:
        """Of arrays, tensors, Pillow images, bytes, paths or file URLs, or what a DataFrame or Dataset holds
        of them.

        ``channels`` is what they are converted to: a model's input has either gray or RGB.
        """
        sources = examples_of(images).sources
        return cls(_picture(i, source, channels) for i, source in enumerate(sources))

    def __len__(self) -> int:
        return len(self._pictures)

    @overload
    def __getitem__(self, index: int) -> Picture: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> Pictures: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Pictures(self._pictures[index])
        if isinstance(index, Sequence | np.ndarray):
            return Pictures(self._pictures[i] for i in positions_of(index, len(self)))
        return self._pictures[operator.index(index)]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(picture.id for picture in self)

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(picture.digest for picture in self)

    def __repr__(self) -> str:
        return f"Pictures({len(self)})"


Shown: TypeAlias = Records | Pictures  # what a network can be shown


def _picture(i: int, source: ImageSource, channels: Channels | None) -> Picture:
    name = str(source.path) if isinstance(source, FileImage) else f"image {i}"
    with naming(name):
        digest = digest_of(source.content())
    return Picture(name, source, digest, channels)
