"""A factor kept on disk, so that the next request need not make one.

It is made from the sums that are there, in float64, and belongs to them alone: the request that changes them
uses it once more (see ``updated``), and it is deleted with the state it lies in. Nobody relies on it. A file
that is missing, damaged or another's makes a request slower, and changes no bit of its result.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from efface import files
from efface.errors import EffaceError
from efface.parts.compact.expansion import Floats
from efface.parts.compact.factor import BLOCK, STRIP, Factor, blocks_of
from efface.parts.compact.updated import Updated

NAME = "factor.safetensors"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class KeptFactor:
    """``factor`` is that of the system with this ``ridge``."""

    factor: Factor
    ridge: float

    def without(self, rows: Floats, ridge: float) -> Updated | None:
        """The way to the weights once ``rows``, in the units of the system, are gone, and with this ridge."""
        return Updated.of(self.factor, rows, self.ridge, ridge)

    def save(self, folder: Path) -> None:
        factor = self.factor
        arrays: dict[str, np.ndarray] = {f"strip-{i}": s for i, s in enumerate(factor.strips)}
        header = np.array([FORMAT, len(factor.balance), BLOCK, STRIP], dtype=np.int64)
        arrays |= {"header": header, "ridge": np.array(self.ridge)}
        arrays |= {"inverses": factor.inverses, "balance": factor.balance}
        files.write_arrays(folder / NAME, arrays)

    @classmethod
    def load(cls, folder: Path, num_features: int) -> KeptFactor | None:
        """None where there is none that could be one."""
        if not (folder / NAME).is_file() or (folder / NAME).is_symlink():
            return None
        try:
            return cls._of(files.map_arrays(folder / NAME), num_features)
        except (EffaceError, KeyError, ValueError, OSError):
            return None

    @classmethod
    def _of(cls, arrays: dict[str, np.ndarray], size: int) -> KeptFactor | None:
        if arrays["header"].tolist() != [FORMAT, size, BLOCK, STRIP]:
            return None
        spans = list(blocks_of(size, STRIP))
        strips = tuple(arrays[f"strip-{i}"] for i in range(len(spans)))
        inverses, balance, ridge = arrays["inverses"], arrays["balance"], arrays["ridge"]
        shapes = [strip.shape for strip in strips] + [inverses.shape, balance.shape, ridge.shape]
        blocks = len(list(blocks_of(size)))
        right = [(b - a, b) for a, b in spans] + [(blocks, BLOCK, BLOCK), (size,), ()]
        doubles = all(a.dtype == np.float64 for a in (*strips, inverses, balance, ridge))
        if shapes != right or not doubles:
            return None
        return cls(Factor(strips, inverses, balance), float(ridge))
