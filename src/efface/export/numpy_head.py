"""``head.npz``: the user weights alone, for programs that have rows already. No pickle is in it.

Rows depend on the core and on calibration, which no request changes: the graph that makes them stays, and
after a release only this small file has to be replaced.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import numpy as np

from efface.errors import EffaceError
from efface.export import numpy_loader
from efface.export.format import Format, Subject

LOADER = "numpy_loader.py"


class NumpyHead(Format):
    """See the module."""

    name, main = "numpy-head", "head.npz"
    ran_with = f"numpy {np.__version__}"

    def write(self, subject: Subject, folder: Path) -> None:
        head = dict(subject.exported.head)
        if not head:
            raise EffaceError(
                "this model has no head that works on rows: its user part is in all layers of the tail.",
                "use --onnx or --torch, or train with --user compact.",
            )
        described = json.dumps(self._description(subject), sort_keys=True)
        arrays: dict[str, Any] = {**head, "description": np.array(described)}
        np.savez_compressed(folder / self.main, **arrays)
        source = importlib.resources.files("efface.export") / "numpy_loader.py"
        (folder / LOADER).write_bytes(source.read_bytes())

    def _description(self, subject: Subject) -> dict[str, object]:
        """What rows are, such that somebody could make them anew."""
        user = subject.model.user
        given = user.given
        return {
            "rows": "q = clip(rint((x - centre) / scale), -limit, limit), x the features psi of one image",
            "logits": "core_weight * core_logits + (q * scale) @ theta",
            "settings": user.settings,
            "core_digest": subject.model.core.digest,
            "calibration_digest": None if given is None else given.calibration_digest,
            "preprocess": subject.model.core.backbone.preprocess.to_dict(),
        }

    def logits(self, subject: Subject, folder: Path) -> np.ndarray:
        import torch

        exported = subject.exported
        batches = subject.sample.batches(subject.at_once)
        with torch.no_grad():
            found = [exported.module(torch.from_numpy(batch)) for batch in batches]
        outputs = [torch.cat(parts).numpy() for parts in zip(*found, strict=True)]
        with np.load(folder / self.main, allow_pickle=False) as head:
            return numpy_loader.logits(dict(head), *outputs[1:]).astype(np.float32)
