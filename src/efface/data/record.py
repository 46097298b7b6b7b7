"""A record: one labelled image and the person it belongs to.

Its digest is the SHA-256 of its content, so that a record is known by what it shows and not by where it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from efface.data.images import Channels, ImageSource, decode, digest_of, naming
from efface.errors import RecordError

DEFAULT_COHORT = "default"


class Split(StrEnum):
    """Core data is never forgotten, user data can be, test data is never trained on."""

    CORE = "core"
    USER = "user"
    TEST = "test"


class Depicted(Protocol):
    """What has an image: a record, or a picture without a label."""

    @property
    def id(self) -> str: ...
    @property
    def source(self) -> ImageSource: ...
    @property
    def digest(self) -> str: ...
    @property
    def channels(self) -> Channels | None: ...


def checked_image(shown: Depicted) -> np.ndarray:
    """The decoded pixels, if the content still has the digest it was read with."""
    with naming(shown.id):
        content = shown.source.content()
    if digest_of(content) != shown.digest:
        raise RecordError(
            shown.id, "its content changed after it was read.", "read the records again."
        )
    with naming(shown.id):
        return decode(content, shown.channels)


NOTHING: Mapping[
    str, Any
] = {}  # one for all records that have nothing else to say; nobody changes it


@dataclass(frozen=True, slots=True)
class Record:
    """One labelled image. Two records are equal when all but their place in storage is.

    There may be millions: it has slots, and what many have in common is one object (``data/assemble.py``).
    """

    id: str
    owner: str
    cohort: str
    label: str
    split: Split
    source: ImageSource = field(compare=False, repr=False)
    digest: str
    channels: Channels | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)

    def image(self) -> np.ndarray:
        """The decoded pixels, uint8 (h, w, channels), or RecordError when they cannot be had; of a row of
        numbers these.

        The content is checked against ``digest``: whatever is derived from this image is filed
        under its digest, and must not come from a file that was swapped in the meantime.
        """
        return checked_image(self)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something found in the data that is no record, and why."""

    id: str
    reason: str
