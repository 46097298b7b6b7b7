"""What this machine can do at best: products of matrices, a copy of memory, hashing. For all benchmarks.

python benchmarks/limits.py
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from outcome import Outcome, seconds

COPIED = 1 << 27  # bytes: more than any cache


@dataclass(frozen=True)
class Limits:
    """Flop/s of square products, bytes/s of a copy (each byte is read once and written once)."""

    float32: float
    float64: float
    memory: float

    @classmethod
    def measured(cls, size: int = 1024, rounds: int = 15) -> Limits:
        """The best of some rounds each."""
        return cls(
            _product(torch.float32, size, rounds),
            _product(torch.float64, size, rounds),
            _copy(rounds),
        )

    def request_seconds(self, k: int, c: int) -> float:
        """Least time of a request that makes a new factor: k³/3 multiply-adds in float32, and the sums (half
        a square of 8 bytes) read and written once."""
        return 2 * (k**3 / 3 + 2 * k * k * c) / self.float32 + (4 * k * k) * 2 / self.memory


def _product(dtype: torch.dtype, size: int, rounds: int) -> float:
    square = torch.ones(size, size, dtype=dtype)
    return 2 * size**3 / min(seconds(lambda: square @ square) for _ in range(rounds))


def byte_products(size: int = 1024, rounds: int = 15) -> float:
    """Operations a second of a product of bytes with sums of 32 bits."""
    square = torch.ones(size, size, dtype=torch.int8)
    least = min(seconds(lambda: torch._int_mm(square, square)) for _ in range(rounds))
    return 2 * size**3 / least


def _copy(rounds: int) -> float:
    source = np.ones(COPIED // 8)
    target = np.empty_like(source)
    return 2 * COPIED / min(seconds(lambda: np.copyto(target, source)) for _ in range(rounds))


def hashed(rounds: int = 5) -> float:
    """Bytes a second through SHA-256, on one core: some processors have no instructions for it."""
    source = bytes(COPIED // 2)
    least = min(seconds(lambda: hashlib.sha256(source).digest()) for _ in range(rounds))
    return len(source) / least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found = asdict(Limits.measured())
    found["SHA-256"] = hashed()
    units = {"float32": "Gflop/s", "float64": "Gflop/s", "memory": "GB/s", "SHA-256": "GB/s"}
    Outcome(
        name="limits",
        question="What can this machine do at best?",
        setting={"product": 1024, "copied_bytes": COPIED},
        ours={f"{name}, {units[name]}": value / 1e9 for name, value in found.items()},
        peers={},
        ratios={"float32 / float64": found["float32"] / found["float64"]},
        limit={},
        unit="units as named",
    ).write(args.out)


if __name__ == "__main__":
    main()
