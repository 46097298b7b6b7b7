"""What a format of an export is, and what it is made and checked with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from efface.data.pictures import Pictures
from efface.export.program import program_of
from efface.model.mixed_linear import MixedLinear
from efface.network import synthetic
from efface.parts.exported import Exported

if TYPE_CHECKING:
    from torch.export import ExportedProgram

CHECKED = 16  # images


@dataclass(frozen=True, eq=False)
class ShownImages:
    """Images of nobody: as files would have them, and as their pixels (n, c, h, w) uint8 after preprocessing.

    ``logits`` are what the model itself makes of them, (n, classes) float32.
    """

    pictures: Pictures
    pixels: np.ndarray
    logits: np.ndarray

    def batches(self, size: int | None) -> Iterator[np.ndarray]:
        """The pixels, so many at once; None: all."""
        step = len(self.pixels) if size is None else size
        yield from (self.pixels[i : i + step] for i in range(0, len(self.pixels), step))


class Subject:
    """What is exported: a model, and what all formats make use of, made once."""

    def __init__(self, model: MixedLinear) -> None:
        self.model = model

    @cached_property
    def exported(self) -> Exported:
        found: Exported = self.model.user.exported()
        return found

    @cached_property
    def program(self) -> ExportedProgram:
        return program_of(self.exported)

    @cached_property
    def sample(self) -> ShownImages:
        channels, height, width = self.exported.image
        made = synthetic.images(CHECKED, max(height, width), channels, seed=1)
        pictures = self.model.shown([image[:height, :width] for image in made])
        assert isinstance(pictures, Pictures)
        pixels = self.model.core.pixels(pictures).numpy()
        return ShownImages(pictures, pixels, self.model.logits(pictures).numpy())

    @property
    def at_once(self) -> int | None:
        """How many images the module takes; None: any number."""
        return None if self.exported.batched else 1


class Format(ABC):
    """One way to write a model for others. Abstract."""

    name: ClassVar[str]  # its option on the command line
    main: ClassVar[str]  # the file that a program opens
    ran_with: str  # what `logits` runs it with, with its version

    @abstractmethod
    def write(self, subject: Subject, folder: Path) -> None:
        """Write its files into a folder."""

    @abstractmethod
    def logits(self, subject: Subject, folder: Path) -> np.ndarray:
        """What another program computes from the files, of the subject's sample."""
