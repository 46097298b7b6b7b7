"""MIT Indoor 67: scenes, with 80 training and 20 test images a class in two lists."""

from __future__ import annotations

from pathlib import Path

from efface.data.found import Found
from efface.data.named.listed import AGAIN, check_one_split, image_row, lines
from efface.data.readers.folder import files_below, is_image
from efface.data.record import Split
from efface.errors import FormatError


def find_indoor(root: Path, variant: str = "") -> Found:
    """``TrainImages.txt`` and ``TestImages.txt`` list ``class/file``; other images are not used."""
    images = root / "Images"
    if not images.is_dir():
        images = root / "indoorCVPR_09" / "Images"
    train, test = lines(root / "TrainImages.txt"), lines(root / "TestImages.txt")
    check_one_split(train, test)
    rows = [image_row(images, name, _class(name), Split.USER) for name in train]
    rows += [image_row(images, name, _class(name), Split.TEST) for name in test]
    classes = sorted({row.label for row in rows})  # of the official lists
    return Found(rows, classes, remarks=_unlisted(images, len(rows)))


def _class(name: str) -> str:
    folder, _, file = name.partition("/")
    if not folder or not file:
        raise FormatError(f"the list says {name!r}, not class/file.", AGAIN)
    return folder


def _unlisted(images: Path, num_listed: int) -> list[str]:
    rest = sum(is_image(file) for file in files_below(images)) - num_listed
    return [f"{rest} images are in neither official list and are not used"] if rest > 0 else []
