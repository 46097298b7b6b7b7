"""Generated photos with owners: small scenes of discs and stripes, as files in a folder."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("disc", "stripes", "checks")
SIDE = 24


def picture(label: str, rng: np.random.Generator) -> Image.Image:
    """A noisy picture of one of ``CLASSES``, somewhere and of some colour."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    if label == "disc":
        cy, cx = rng.uniform(8, 16, 2)
        shape = (y - cy) ** 2 + (x - cx) ** 2 < rng.uniform(25, 60)
    elif label == "stripes":
        shape = np.sin(x * rng.uniform(0.8, 1.2) + rng.uniform(0, 6)) > 0
    else:
        period = rng.uniform(3.5, 5)
        shape = (np.floor(x / period) + np.floor(y / period)) % 2 > 0
    colours = rng.uniform(0, 255, (2, 3))
    pixels = np.where(shape[..., None], colours[0], colours[1]) + rng.normal(0, 12, (SIDE, SIDE, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def write_photos(
    folder: Path, num_owners: int = 16, each: int = 6, num_test: int = 30, seed: int = 0
) -> Path:
    """``metadata.csv`` with owners and cohorts beside PNG files; owner i is ``person-i``."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    people = [(f"person-{i:02d}", f"cohort-{i % 3}", "train") for i in range(num_owners)]
    for owner, cohort, split in [p for p in people for _ in range(each)] + [
        ("nobody", "none", "test")
    ] * num_test:
        label = CLASSES[int(rng.integers(len(CLASSES)))]
        name = f"{len(rows):04d}.png"
        picture(label, rng).save(folder / name)
        rows.append((name, label, owner, cohort, split))
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("file_name", "label", "owner", "cohort", "split"), *rows])
    return folder
