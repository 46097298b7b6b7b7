"""Results on disk: one small JSON file per experiment, written as its numbers come in."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

from efface.errors import EffaceError
from efface.version import VERSION


class Results:
    """A JSON file of results by name; what is in it already is not computed again.

    Args:
        path: the file; made with the first result.
        settings: what the results depend on. A file made with others is refused, never mixed.
        show: print each result as it comes.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, show: bool = True) -> None:
        self.path, self.show = path, show
        self.values: dict[str, Any] = {"settings": settings, "environment": environment()}
        self.values["results"] = {}
        if path.is_file():
            old = json.loads(path.read_text())
            if old["settings"] != json.loads(json.dumps(settings)):
                raise EffaceError(
                    f"{path} was made with other settings.", "move it away, or use another --out."
                )
            self.values |= {key: old[key] for key in ("results", "complete") if key in old}

    def __contains__(self, name: str) -> bool:
        return name in self.values["results"]

    def put(self, name: str, value: dict[str, Any]) -> None:
        """Keep one result: the file on disk has it when this returns."""
        self.values["results"][name] = value
        self._write()
        if self.show:
            print(f"{name}: {json.dumps(value)}", flush=True)

    def finish(self) -> None:
        """Say in the file that nothing is missing any more."""
        self.values["complete"] = True
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.values, indent=1, sort_keys=True) + "\n")


def environment() -> dict[str, Any]:
    """The libraries and the machine that measured."""
    return {
        "efface": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
    }


def name_of(data: str) -> str:
    """A short name for a data set: the last part of its path, without ``.npz``."""
    return Path(data).name.removesuffix(".npz")
