"""What the experiments share: results that are kept as they come, and the environment they came from."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

import efface
from efface.errors import EffaceError

RESULTS = Path(__file__).parent / "results"


class Results:
    """A small JSON file of results by name; what is there already is not computed again."""

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

    def finish(self) -> None:
        """Nothing is missing any more."""
        self.values["complete"] = True
        self._write()

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.values, indent=1, sort_keys=True) + "\n")

    def put(self, name: str, value: dict[str, Any]) -> None:
        self.values["results"][name] = value
        self._write()
        if self.show:
            print(f"{name}: {json.dumps(value)}", flush=True)


def environment() -> dict[str, Any]:
    return {
        "efface": efface.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
    }


def parser(description: str) -> argparse.ArgumentParser:
    """Options that all experiments take."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--data", required=True, help="a data set, as for `efface train`")
    result.add_argument("--backbone", default="cnn", help="hf:DIR, timm:NAME, cnn")
    result.add_argument("--cache", help="where boundary activations are kept")
    result.add_argument("--seeds", type=int, nargs="+", default=[0])
    result.add_argument("--core-fraction", type=float, default=0.3)
    result.add_argument("--linearize", default="last-block")
    result.add_argument("--leaky-slope", type=float, default=0.01)
    result.add_argument("--calibrate-to", type=float, default=5.0, help="0: logits as trained")
    result.add_argument("--resize", type=int, help="short side before the central crop")
    result.add_argument("--mirror", action="store_true", help="read every image mirrored, too")
    result.add_argument("--out", type=Path, help="the JSON file to write")
    return result


def name_of(data: str) -> str:
    return Path(data).name.removesuffix(".npz")
