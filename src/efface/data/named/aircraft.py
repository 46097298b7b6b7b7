"""FGVC-Aircraft: 100 variants (or 70 families, or 30 manufacturers), train + val against test.

The bottom 20 rows of every photograph are a copyright banner, which the authors ask to remove before
training and testing. The files stay as they are: the rows are left out when an image is decoded, and the
record's digest says so.
"""

from __future__ import annotations

from pathlib import Path

from efface.data.found import Found, Row
from efface.data.named.listed import AGAIN, image_row, pairs
from efface.data.named.listed import lines as lines_of
from efface.data.record import Split
from efface.errors import FormatError

BANNER_ROWS = 20
CLASS_LISTS = {
    "variant": "variants.txt",
    "family": "families.txt",
    "manufacturer": "manufacturers.txt",
}


def find_aircraft(root: Path, variant: str = "") -> Found:
    """``data/images_<level>_trainval.txt`` and ``…_test.txt``: a file's number and its class."""
    level = variant or "variant"
    data = root / "data" if (root / "data").is_dir() else root
    classes = lines_of(data / CLASS_LISTS[level])
    rows = _rows(data, f"images_{level}_trainval.txt", classes, Split.USER)
    rows += _rows(data, f"images_{level}_test.txt", classes, Split.TEST)
    return Found(rows, classes)


def _rows(data: Path, file: str, classes: list[str], split: Split) -> list[Row]:
    known = set(classes)
    rows = []
    for number, label in pairs(data / file).items():
        if label not in known:
            raise FormatError(f"{file} gives {number} the unknown class {label!r}.", AGAIN)
        rows.append(
            image_row(data / "images", number, label, split, hidden_rows=BANNER_ROWS, suffix=".jpg")
        )
    return rows
