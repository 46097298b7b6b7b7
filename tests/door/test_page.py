"""The snippets of docs/python.md and the README's first one run, in order, on small data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests import cases

ROOT = Path(__file__).parents[2]


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page speaks of: a network in ./resnet-50, photos, and whose they are."""
    monkeypatch.chdir(tmp_path)
    cases.randomised(cases.tiny("resnet-bottleneck")).save_pretrained("resnet-50")
    size = {"size": {"shortest_edge": 16}, "crop_size": 16}
    Path("resnet-50", "preprocessor_config.json").write_text(json.dumps(size))
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


COUNTS = {"": 40, "new_": 9, "more_": 4, "public_": 12}


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_page(names: dict[str, Any]) -> None:
    for block in blocks("docs/python.md"):
        exec(compile(block, "docs/python.md", "exec"), names)
    clf, owners = names["clf"], names["owners"]
    assert clf.verify(retrain=True, images=names["images"])["ok"]
    assert clf.scan(names["images"][owners == "u05"], owner="u05")["clean"]


def test_the_first_snippet_of_the_readme(names: dict[str, Any]) -> None:
    block = blocks("README.md")[0]
    exec(compile(block, "README.md", "exec"), names)
    assert names["receipt"].num_forgotten == 2
    assert "u17" not in names["clf"].records_.owners
