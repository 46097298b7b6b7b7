"""What may be asked of a model in a folder: is it whole, is anything left, does it hold against attacks?

The values are those of the commands' ``--json``: ``efface verify``, ``scan``, ``audit`` and ``compare``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from pathlib import Path
from typing import Any

from efface.audit.study import Settings
from efface.data.readers.examples import label_name
from efface.data.records import Records
from efface.door.warning import warn
from efface.errors import EffaceError
from efface.pipeline import audit as auditing
from efface.pipeline import compare as comparing
from efface.pipeline.config import Config
from efface.workspace import Workspace
from efface.workspace.scan import scan as look
from efface.workspace.verify import all_checks


class Questions(ABC):
    """The questions, for a class that knows its folder and its settings."""

    backbone: Any
    classes: Any
    device: Any

    @property
    @abstractmethod
    def _folder(self) -> Workspace:
        """Where the model lives; an error if it is in memory only."""

    @property
    @abstractmethod
    def _config(self) -> Config:
        """The settings that the parameters are."""

    @abstractmethod
    def _named(self, images: Any) -> Records:
        """Records of images whose labels do not matter."""

    def verify(self, *, retrain: bool = False, images: Any = None) -> dict[str, Any]:
        """Check files, ledger and certificate of the folder, as ``efface verify``: ``["ok"]`` says it.

        ``retrain`` computes the sums from the rows again; ``images`` (those that were given, or a data
        spec) computes the rows themselves again. Nothing is changed.
        """
        shown = images if images is None or isinstance(images, str) else self._named(images)
        opened = self._looked_at()
        options: dict[str, Any] = {"images": shown, "device": str(self.device), "note": warn}
        checks = list(all_checks(opened, retrain=retrain, **options))
        return {
            "workspace": str(opened.path),
            "release": opened.number,
            "ok": all(check.ok is not False for check in checks),
            "checks": [asdict(check) for check in checks],
        }

    def scan(
        self, images: Any = None, *, owner: Any = None, ids: Any = (), digests: Any = ()
    ) -> dict[str, Any]:
        """Search every file of the folder for images, names and digests: ``["clean"]`` if nothing is left."""
        folder = self._folder
        records = Records([]) if images is None else self._named(images)
        owners = [] if owner is None else [str(owner)]
        names = [ids] if isinstance(ids, str) else [str(value) for value in ids]
        wanted = {"records": records, "owners": owners, "ids": names, "digests": digests}
        options: dict[str, Any] = {"module": folder.inventory.module, "device": str(self.device)}
        found = look(folder.path, **options, **wanted)
        return {
            "workspace": str(folder.path),
            "clean": found.clean,
            "num_records": len(records),
            "num_patterns": found.num_patterns,
            "files": list(found.files),
            "findings": [asdict(finding) for finding in found.findings],
            "kept": [asdict(finding) for finding in found.kept],
            "not_searched": list(found.not_searched),
        }

    def audit(
        self,
        data: str | Records,
        *,
        owner: Any = None,
        ids: Any = None,
        worlds: int = 24,
        canaries: int = 200,
        seed: int = 0,
        out: Path | str = "efface-audit",
    ) -> dict[str, Any]:
        """Attack the folder's model after a request, as ``efface audit``: ``["ok"]`` if all claims hold.

        ``data`` (a spec or records) still holds the forgotten records, and test records; the model is held
        against one retrained without them. ``out`` gets a report.
        """
        owners = None if owner is None else [str(owner)]
        names = [ids] if isinstance(ids, str) else None if ids is None else list(ids)
        settings = Settings(seeds=1, worlds=worlds, canaries=canaries, seed=seed)
        opened = self._looked_at()
        asked, test = auditing.read(opened, data, owners, names, note=warn)
        options: dict[str, Any] = {"owners": owners or (), "device": str(self.device)}
        return auditing.run(opened, asked, test, settings, Path(out), **options)

    def compare(
        self,
        data: str | Records,
        *,
        owner: Any = None,
        methods: tuple[str, ...] | None = None,
        seeds: int = 3,
        worlds: int = 48,
        canaries: int = 200,
        seed: int = 0,
        out: Path | str = "efface-compare",
    ) -> dict[str, Any]:
        """Every forgetting method with these parameters on ``data``, as ``efface compare``; needs no fit."""
        if not isinstance(self.backbone, str):
            raise EffaceError("compare builds the network itself.", "name the backbone, hf:… say.")
        settings = Settings(
            seeds=seeds, worlds=worlds, canaries=canaries, methods=methods, seed=seed
        )
        listed = None if self.classes is None else tuple(map(label_name, self.classes))
        config, records = self._config, None
        if isinstance(data, str):
            named = config.data.model_copy(update={"spec": data, "classes": listed})
            config = config.model_copy(update={"data": named})
        else:
            records = data if listed is None else Records(data, listed)
        name = None if owner is None else str(owner)
        where = Path(out)
        return comparing.run(config, settings, where, owner=name, records=records, note=warn)

    def _looked_at(self) -> Workspace:
        """The folder, opened anew such that nothing in it is changed."""
        folder = self._folder
        return Workspace.open(folder.path, module=folder.inventory.module, recover=False)
