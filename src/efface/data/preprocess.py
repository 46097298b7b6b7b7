"""Preprocessing of images: array in, normalised tensor out; and any preparation from a model's file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from efface.data.images import Channels
from efface.data.numbers import numbers_of
from efface.data.preparation import Preparation, Unfit
from efface.errors import BackboneError, FormatError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_RESAMPLING = ("bilinear", "bicubic")  # as Pillow has them, which is loaded for the first image


@dataclass(frozen=True)
class Preprocess(Preparation):
    """x = (crop(resize(image)) / 255 − mean) / std, per channel.

    ``resize`` is the length of the short side (0: keep the size), ``crop`` the side of the central
    square (0: no crop). ``channels`` is 1 or 3; images are converted to it.
    """

    resize: int = 256
    crop: int = 224
    channels: int = 3
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        if len(self.mean) != self.channels or len(self.std) != self.channels:
            raise FormatError(
                f"mean and std have {len(self.mean)} and {len(self.std)} values "
                f"for {self.channels} channels.",
                "give one value per channel.",
            )
        if self.interpolation not in _RESAMPLING:
            raise FormatError(
                f"unknown interpolation {self.interpolation!r}.", f"use one of {list(_RESAMPLING)}."
            )

    @property
    def reads(self) -> Channels:
        return Channels.of_count(self.channels)

    @property
    def side(self) -> int:
        """Of the images that come out, as far as it is fixed."""
        return self.crop or self.resize or 8

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, self.side, self.side)

    @property
    def described(self) -> str:
        return f"images of {self.side} × {self.side}"

    def __call__(self, content: np.ndarray) -> np.ndarray:
        """uint8 (h, w[, channels]) -> float32 (channels, h', w')."""
        x = self.pixels(content).astype(np.float32) / 255.0
        mean, std = (np.asarray(v, dtype=np.float32)[:, None, None] for v in (self.mean, self.std))
        return (x - mean) / std

    def pixels(self, content: np.ndarray) -> np.ndarray:
        """Resized and cropped, not normalised: uint8 (channels, h', w')."""
        content = np.asarray(content)
        if content.ndim < 2:
            fix = "give images; for a network of token ids, in Python: preprocess=efface.Tokens(…)."
            raise Unfit(f"a row of {len(content)} numbers, where images are read.", fix)
        array = self._shape(self._channels(content))
        return np.ascontiguousarray(array.transpose(2, 0, 1))

    def _channels(self, image: np.ndarray) -> np.ndarray:
        if image.ndim == 2:
            image = image[:, :, None]
        if image.shape[2] == self.channels:
            return image
        if image.shape[2] == 1:
            return np.repeat(image, self.channels, axis=2)
        from PIL import Image

        pil = Image.fromarray(image[:, :, :3])
        if self.channels == 1:
            return np.asarray(pil.convert("L"))[:, :, None]
        return np.asarray(pil)

    def _shape(self, image: np.ndarray) -> np.ndarray:
        h, w = image.shape[:2]
        if self.resize and min(h, w) != self.resize:
            from PIL import Image

            k = self.resize / min(h, w)
            size = (max(1, round(w * k)), max(1, round(h * k)))
            pil = Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image)
            image = np.asarray(pil.resize(size, Image.Resampling[self.interpolation.upper()]))
            image = image[:, :, None] if image.ndim == 2 else image
        if self.crop:
            h, w = image.shape[:2]
            top, left = max(0, (h - self.crop) // 2), max(0, (w - self.crop) // 2)
            image = image[top : top + self.crop, left : left + self.crop]
        return image

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Preprocess:
        values = dict(values)
        values["mean"], values["std"] = tuple(values["mean"]), tuple(values["std"])
        return cls(**values)


def preparation_of(values: dict[str, Any]) -> Preparation:
    """What ``to_dict`` of a preparation gave."""
    return numbers_of(values) if "kind" in values else Preprocess.from_dict(values)


def of_images(preparation: Preparation) -> Preprocess:
    """The preparation, if it is one of images: fine-tuning, mirrors and exports know no others."""
    if isinstance(preparation, Preprocess):
        return preparation
    message = f"the network reads {preparation.described}, and this is for images only."
    fix = "leave it out: resizing, mirrored views, fine-tuning and exports know images only."
    raise BackboneError(message, fix)
