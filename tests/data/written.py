"""Images and lists written for the readers."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def pixels(seed: int, channels: int = 3, size: int = 6) -> np.ndarray:
    shape = (size, size, channels) if channels > 1 else (size, size)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(seed: int, channels: int = 3) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, channels)).save(buffer, "PNG")
    return buffer.getvalue()


def truncated(seed: int) -> bytes:
    """Its header is sound, its body is not."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, size=64)).save(buffer, "JPEG")
    return buffer.getvalue()[:2000]


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path
