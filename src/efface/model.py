"""The mixed-linear model: a frozen core and a linear user part, from records to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from efface import files
from efface.activations import ActivationCache, Activations
from efface.core import Core
from efface.errors import EffaceError, FormatError
from efface.records import Records
from efface.tangent.sgd import Progress
from efface.tangent.solution import Solution
from efface.tangent.user import TangentUser

SCHEMA = "efface.model/1"


class MixedLinear:
    """f(x) = f_core(x) + user part, the user part linear in its weights.

    Args:
        core: a frozen :class:`Core`.
        user: ``"tangent"``, the paper's user part.
        cache: where boundary activations are kept; None computes them anew and keeps those of the
            training records in memory.
        options: passed to the user part (``mu``, ``target_scale``, ``solver``, …).
    """

    def __init__(
        self,
        core: Core,
        user: str = "tangent",
        *,
        cache: ActivationCache | None = None,
        **options: Any,
    ) -> None:
        if user not in USER_PARTS:
            raise EffaceError(
                f"unknown user part {user!r}.", f"use one of {', '.join(sorted(USER_PARTS))}."
            )
        self.core, self.cache = core, cache
        self.user = USER_PARTS[user](core, **options)
        self.solution: Solution | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        return self.core.classes

    def fit(
        self,
        records: Records,
        *,
        replay: Records | None = None,
        progress: Progress | None = None,
    ) -> MixedLinear:
        """Fit the user weights on ``records``. Look at ``model.solution``: it says if the solve got there.

        ``replay`` are core records used again (the paper trains on all of the task's data, core part
        included); they stay when user records are forgotten. With no user records the weights are 0.
        """
        everything = records if replay is None else records + replay
        if len(records) == 0:
            self.user.reset()
            return self
        activations = self.core.activations(everything, self.cache, progress=progress)
        labels = torch.from_numpy(everything.labels)
        self.solution = self.user.fit(activations, labels, progress)
        return self

    def logits(self, records: Records) -> Tensor:
        return self.logits_of(self.core.activations(records, self.cache))

    def logits_of(self, activations: Activations) -> Tensor:
        return self.user.logits(activations)

    def predict(self, records: Records) -> list[str]:
        """The class names, one a record."""
        return [self.classes[i] for i in self.logits(records).argmax(1)]

    def predict_proba(self, records: Records) -> np.ndarray:
        """Softmax of the logits, (n, c): scores that sum to one, not calibrated probabilities."""
        return self.logits(records).softmax(1).numpy()

    def accuracy(self, records: Records) -> float:
        if len(records) == 0:
            raise EffaceError("no records to evaluate on.", "check the split's name.")
        labels = torch.from_numpy(records.labels)
        return float((self.logits(records).argmax(1) == labels).float().mean())

    def save(self, directory: Path | str) -> None:
        """Core, user weights and settings; safetensors and JSON only. No training data is saved."""
        directory = Path(directory)
        self.core.save(directory)
        files.write_tensors(directory / "user.safetensors", self.user.tensors)
        values = {"schema": SCHEMA, "core_digest": self.core.digest, "user": self.user.settings}
        files.write_json(directory / "model.json", values)

    @classmethod
    def load(
        cls,
        directory: Path | str,
        *,
        module: nn.Module | None = None,
        cache: ActivationCache | None = None,
    ) -> MixedLinear:
        """Read a saved model; predictions are bit-equal to those before saving."""
        directory = Path(directory)
        values = files.read_json(directory / "model.json", SCHEMA)
        core = Core.load(directory, module)
        if core.digest != values["core_digest"]:
            raise FormatError(
                f"{directory.name}: the user weights belong to another core.",
                "restore core.safetensors and user.safetensors from the same save.",
            )
        options = dict(values["user"])
        model = cls(core, options.pop("kind"), cache=cache, **options)
        model.user.load_tensors(files.read_tensors(directory / "user.safetensors"))
        return model

    def __repr__(self) -> str:
        return f"MixedLinear({self.core!r}, user={self.user.kind!r})"


USER_PARTS: dict[str, Any] = {"tangent": TangentUser}
