"""What the examples of the docs speak of: a network in ./resnet-50, photos, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests import cases

COUNTS = {"": 40, "new_": 9, "more_": 4, "public_": 12}


def network(folder: str) -> None:
    """A tiny one for the large one that the pages speak of."""
    cases.randomised(cases.tiny("resnet-bottleneck")).save_pretrained(folder)
    size = {"size": {"shortest_edge": 16}, "crop_size": 16}
    Path(folder, "preprocessor_config.json").write_text(json.dumps(size))


def photos_and_network() -> dict[str, Any]:
    """In the working directory, small; by the names that the pages use."""
    network("resnet-50")
    animals = np.array(["ape", "bee", "zebra"])
    photos = {name: cases.blobs(n, seed, 16, 3) for seed, (name, n) in enumerate(COUNTS.items())}
    found: dict[str, Any] = {}
    for name, (images, numbers) in photos.items():
        found[f"{name}images"], found[f"{name}labels"] = images, animals[numbers]
    found["owners"] = np.array([f"u{i // 2:02d}" for i in range(COUNTS[""])])
    found["more_owners"] = ["u90"] * COUNTS["more_"]
    found["paths"] = [f"{i}.png" for i in range(COUNTS[""])]
    for path, pixels in zip(found["paths"], found["images"], strict=True):
        Image.fromarray(pixels).save(path)
    return found
