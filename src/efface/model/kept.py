"""A model as its files have it, without its network: what a request needs where the part needs no more.

Rebuilding a network and loading what it is built with takes many times as long as forgetting. Sums, rows and
the class list are all that an exact request is about; the core's digest, which its certificate names, is in
the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from efface import files
from efface.data.preprocess import preparation_of
from efface.digests import tensors_digest
from efface.errors import FormatError
from efface.guarantee.certificates import Certificate
from efface.guarantee.promise import Guarantee
from efface.model.carrying import carry_out
from efface.model.core_index import CoreIndex
from efface.model.request import Request
from efface.network import saved
from efface.parts.table import stored_part
from efface.parts.training_set import TrainingSet
from efface.progress import Progress

SCHEMA = "efface.model/1"


class KeptModel:
    """User part, training data and the index of core. ``load`` it from what ``MixedLinear`` saved."""

    cache = None  # such parts keep no activations

    def __init__(self, user: Any, values: dict[str, Any]) -> None:
        self.user, self._values = user, values
        self.data: TrainingSet | None = None
        self.index: CoreIndex | None = None

    @classmethod
    def load(cls, directory: Path, core: Path) -> KeptModel:
        """``directory`` has the user part, ``core`` the core; its weights are not read.

        So they are not checked either: that is for whoever predicts with them, and for ``verify``.
        """
        values = files.read_json(directory / "model.json", SCHEMA)
        facts = files.read_json(core / "core.json", saved.CORE_SCHEMA)
        arrays = files.read_arrays(directory / "user.safetensors")
        if tensors_digest(arrays, values.get("user")) != values.get("user_digest"):
            raise tampered(directory)
        if not saved.is_digest(facts.get("digest")) or facts["digest"] != values.get("core_digest"):
            raise another_core(directory)
        saved.check_user(values["user"])
        part = stored_part(values["user"]["kind"])
        assert part is not None
        with files.as_saved(directory / "model.json"):
            prep = preparation_of(facts["preprocess"]).to_dict()
            made = part(values["user"], arrays, facts["classes"], facts["digest"], prep)
        return cls(made, values)

    def carry_out(
        self,
        request: Request,
        guarantee: Guarantee | None,
        *,
        user_part_only: bool = False,
        progress: Progress | None = None,
    ) -> Certificate:
        """As ``MixedLinear.carry_out``: the same sums, the same weights, the same certificate."""
        assert self.data is not None
        assert self.index is not None
        options: dict[str, Any] = {"user_part_only": user_part_only, "progress": progress}
        carried = carry_out(self.user, self.data, self.index, request, guarantee, **options)
        self.data = carried.change.data
        return carried.certificate

    def save_user(self, directory: Path) -> None:
        """User weights and settings: what changes from one release to the next."""
        arrays = self.user.arrays
        files.write_arrays(directory / "user.safetensors", arrays)
        digest = tensors_digest(arrays, self.user.settings)
        files.write_json(directory / "model.json", {**self._values, "user_digest": digest})


def tampered(directory: Path) -> FormatError:
    return FormatError(
        f"the user weights in {directory.name} are not those that were saved.",
        "restore the files from a copy; they were changed after saving.",
    )


def another_core(directory: Path) -> FormatError:
    return FormatError(
        f"{directory.name}: the user weights belong to another core.",
        "restore core.safetensors and user.safetensors from the same save.",
    )
