"""Random resized crops and mirroring for training: functions of the image and (seed, epoch, place) alone.

The randomness is SHA-512 of these three numbers: no generator is passed from record to record, so a record's
view depends neither on the batch it comes in nor on where a run was interrupted, and is the same for every
version of every library.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from efface.data.preprocess import Preprocess

RATIOS = (3 / 4, 4 / 3)  # width : height of a crop
AREA, RATIO, LEFT, TOP, FLIP, ORDER = range(6)  # what each draw decides


def draws(seed: int, epoch: int, place: int) -> tuple[float, ...]:
    """Eight numbers, uniform in [0, 1): the 64-bit words of a SHA-512, their first 53 bits."""
    digest = hashlib.sha512(f"efface.augmentation/{seed}/{epoch}/{place}".encode()).digest()
    words = (int.from_bytes(digest[i : i + 8], "big") for i in range(0, 64, 8))
    return tuple((word >> 11) * 2.0**-53 for word in words)


def shuffled(seed: int, epoch: int, num_records: int) -> list[int]:
    """All places once, in the order of their draws of this epoch."""
    return sorted(range(num_records), key=lambda place: draws(seed, epoch, place)[ORDER])


@dataclass(frozen=True)
class Box:
    left: int
    top: int
    width: int
    height: int


def random_box(height: int, width: int, scale: tuple[float, float], drawn: Sequence[float]) -> Box:
    """A part of the image: its area a·h·w with a uniform in ``scale``, log(width : height) uniform between
    log ¾ and log 4/3, its corner uniform where it fits. A side that would not fit is the image's own
    (torchvision draws again instead: ten times, then takes the centre)."""
    area = height * width * (scale[0] + (scale[1] - scale[0]) * drawn[AREA])
    low, high = (math.log(ratio) for ratio in RATIOS)
    ratio = math.exp(low + (high - low) * drawn[RATIO])
    w = min(width, max(1, round(math.sqrt(area * ratio))))
    h = min(height, max(1, round(math.sqrt(area / ratio))))
    return Box(int(drawn[LEFT] * (width - w + 1)), int(drawn[TOP] * (height - h + 1)), w, h)


@dataclass(frozen=True)
class Augmentation:
    """x = normalise(mirror?(resize(crop(image)))), (channels, size, size).

    ``size`` 0 keeps the size the image has; ``scale`` is the range of the crop's share of its area.
    """

    preprocess: Preprocess
    size: int = 0
    scale: tuple[float, float] = (0.25, 1.0)
    flip: bool = True

    def __call__(self, image: np.ndarray, drawn: Sequence[float]) -> np.ndarray:
        """uint8 (h, w[, channels]) -> float32 (channels, size, size)."""
        array = np.asarray(image)
        array = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
        height, width = array.shape[:2]
        box = random_box(height, width, self.scale, drawn)
        # Cut out first: resize(box=…) would look at pixels beyond the box.
        array = array[box.top : box.top + box.height, box.left : box.left + box.width]
        side = (self.size, self.size) if self.size else (width, height)
        how = Image.Resampling[self.preprocess.interpolation.upper()]
        array = np.asarray(Image.fromarray(np.ascontiguousarray(array)).resize(side, how))
        if self.flip and drawn[FLIP] < 0.5:
            array = array[:, ::-1]
        return replace(self.preprocess, resize=0, crop=0)(np.ascontiguousarray(array))
