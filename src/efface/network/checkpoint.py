"""Where a fine-tuning is: weights and momenta after an epoch, in a folder of their own, as data and not code.

``finetuning.json`` says which epoch is the last one, and names its ``epoch-NNNN.safetensors``. It is written
after the tensors and replaced in one step: whenever a run is killed, the folder has one whole epoch. Files
are not trusted: what does not belong to this run, or is not as it was saved, is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from efface import files
from efface.digests import tensors_digest
from efface.errors import FormatError

SCHEMA = "efface.finetuning/1"
NAME = "finetuning.json"


@dataclass(frozen=True)
class TuningRun:
    """What decides a run's result, and must be the same when it goes on."""

    settings: Mapping[str, Any]
    data: str  # SHA-256 of the records' digests and labels, in order
    network: str  # SHA-256 of the network it starts from

    def differences(self, values: Mapping[str, Any]) -> list[str]:
        """What of a file's ``values`` belongs to another run, in words."""
        found = values["settings"] if isinstance(values["settings"], dict) else {}
        names = sorted({*self.settings, *found})
        changed = [n for n in names if found.get(n) != _plain(self.settings.get(n))]
        words = [f"{n} {found.get(n)!r:.40} (now {self.settings.get(n)!r})" for n in changed]
        words += ["other records, labels or order"] if values["data"] != self.data else []
        return words + (["another network"] if values["network"] != self.network else [])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class Checkpoint:
    """The folder of one run."""

    folder: Path
    run: TuningRun

    def save(self, tensors: Mapping[str, Tensor], losses: list[float]) -> None:
        """After epoch ``len(losses)``; the epoch before goes when this one is safe."""
        name = f"epoch-{len(losses):04d}.safetensors"
        files.write_tensors(self.folder / name, tensors)
        values = {
            "schema": SCHEMA,
            "settings": {k: _plain(v) for k, v in self.run.settings.items()},
            "data": self.run.data,
            "network": self.run.network,
            "losses": losses,
            "digest": tensors_digest(tensors),
        }
        files.write_json(self.folder / NAME, values)
        for old in self.folder.glob("epoch-*.safetensors*"):
            if old.name != name:
                old.unlink()

    def load(self, like: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[float]] | None:
        """The tensors and losses so far, or None where nothing was saved; FormatError for anything else.

        ``like`` are tensors of the names, shapes and types that there must be.
        """
        path = self.folder / NAME
        if not path.exists():
            return None
        with files.as_saved(path):
            values = files.read_json(path, SCHEMA)
            self._check_run(values)
            losses = _losses(values["losses"], int(self.run.settings["epochs"]))
        found = files.read_tensors(self.folder / f"epoch-{len(losses):04d}.safetensors")
        shapes = {name: (tuple(t.shape), t.dtype) for name, t in found.items()}
        if shapes != {name: (tuple(t.shape), t.dtype) for name, t in like.items()}:
            raise self._damaged("its weights do not fit the network")
        if tensors_digest(found) != values["digest"]:
            raise self._damaged("its weights do not have the digest they were saved with")
        return found, losses

    def _check_run(self, values: Mapping[str, Any]) -> None:
        differences = self.run.differences(values)
        if differences:
            raise FormatError(
                f"the fine-tuning begun in {self.folder} is another one: {'; '.join(differences)}.",
                "go on with what it was begun with, name another folder, or remove this one.",
            )

    def _damaged(self, what: str) -> FormatError:
        return FormatError(
            f"the fine-tuning begun in {self.folder} cannot go on: {what}.",
            "restore the folder from a copy, or remove it to begin again.",
        )


def _losses(values: Any, most: int) -> list[float]:
    """One finite number an epoch."""
    fine = isinstance(values, list) and 0 < len(values) <= most
    if not fine or not all(type(v) is float and math.isfinite(v) for v in values):
        raise ValueError(f"losses cannot be {values!r:.80}")
    return list(values)
