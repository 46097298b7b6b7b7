"""Where a service works: a workspace, its ledger and key, the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from efface.ledger import Ledger
from efface.service.settings import ServiceSettings
from efface.service.signing import ReplySigner
from efface.service.tables import STATEMENTS
from efface.workspace.inventory import Inventory

LEDGER = "ledger.sqlite"


@dataclass(frozen=True)
class Place:
    """Everything that server and worker share. ``key`` is the workspace's secret, for keyed hashes."""

    path: Path
    settings: ServiceSettings
    ledger: Ledger
    key: bytes
    signer: ReplySigner | None

    @classmethod
    def open(cls, path: Path, settings: ServiceSettings | Path | None = None) -> Place:
        """``settings`` may be a TOML file; an error if the folder is no workspace."""
        if not isinstance(settings, ServiceSettings):
            settings = ServiceSettings.read(settings)
        inventory = Inventory(path)
        _ = inventory.current
        key = inventory.key
        ledger = Ledger.open(settings.ledger or path / LEDGER, create=True, key=key)
        ledger.define(STATEMENTS)
        wanted = settings.opendsr
        signer = (
            None if wanted is None else ReplySigner(wanted.key, wanted.certificate, wanted.domain)
        )
        return cls(path, settings, ledger, key, signer)

    def has_log(self) -> bool:
        """Whether the workspace's own ledger has a write-ahead log, with older copies of its pages."""
        log = self.path / f"{LEDGER}-wal"
        return self.settings.ledger is None and log.is_file() and log.stat().st_size > 0

    def __enter__(self) -> Place:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ledger.close()
