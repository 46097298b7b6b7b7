"""What a hook is, and what it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from efface.errors import EffaceError
from efface.workspace.published import CURRENT, Current, current

CORE_FILES = ("core.json", "core.safetensors")  # the rest of that folder is not for others


class HookError(EffaceError):
    """A copy elsewhere could not be replaced, or an older one is still there."""


@dataclass(frozen=True)
class PublicModel:
    """The files that predictions need, by the names they have in a workspace.

    ``efface.load`` takes such a folder.
    """

    workspace: Path
    current: Current

    @classmethod
    def of(cls, workspace: Path) -> PublicModel:
        found = current(workspace)
        if found is None:
            raise HookError(f"{workspace} is not a workspace.", "train a model.")
        return cls(workspace, found)

    @property
    def release(self) -> int:
        return self.current.release

    def files(self) -> dict[str, Path]:
        """Name to file; CURRENT is the last, since it makes the others count."""
        core, release = self.current.folders(self.workspace)
        paths = [core / name for name in CORE_FILES]
        paths += sorted(path for path in release.iterdir() if path.is_file())
        paths += [self.workspace / "certificates" / f"{self.release}.public.json"]
        found = {
            path.relative_to(self.workspace).as_posix(): path for path in paths if path.exists()
        }
        return {**found, CURRENT: self.workspace / CURRENT}


class Hook(ABC):
    """Idempotent: it may be run again after a kill, and for a release that it has brought before."""

    name: str

    @abstractmethod
    def run(self, model: PublicModel) -> None:
        """Bring this release, take away all others, and look. HookError, or any error, if not."""
