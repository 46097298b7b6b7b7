"""The model's own files, safetensors and JSON: what ``efface.load`` and ``from_pretrained`` open."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from efface.export.format import Format, Subject
from efface.model.mixed_linear import MixedLinear
from efface.version import VERSION

NAMES = ("core.json", "core.safetensors", "model.json", "user.safetensors")


class ModelFiles(Format):
    """See the module. A model whose network is code of yours needs that code to be opened again."""

    name, main = "files", "model.json"
    ran_with = f"efface {VERSION}"

    def write(self, subject: Subject, folder: Path) -> None:
        subject.model.save(folder)

    def logits(self, subject: Subject, folder: Path) -> np.ndarray:
        core = subject.model.core
        is_code = core.backbone.spec.partition(":")[0] in ("module", "torch")
        model = MixedLinear.load(folder, core=core if is_code else None)
        return model.logits(subject.sample.pictures).numpy()
