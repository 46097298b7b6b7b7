"""``model.pt2``: a torch.export program. ``torch.export.load`` opens it, without efface."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from efface.export.format import Format, Subject


class TorchFile(Format):
    """See the module."""

    name, main = "torch", "model.pt2"
    ran_with = f"torch {torch.__version__}"

    def write(self, subject: Subject, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(subject.program, folder / self.main)

    def logits(self, subject: Subject, folder: Path) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = torch.export.load(folder / self.main).module()
        batches = subject.sample.batches(subject.at_once)
        with torch.no_grad():
            found = [run(torch.from_numpy(batch))[0] for batch in batches]
        return torch.cat(found).numpy()
