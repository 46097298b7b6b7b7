"""Seconds and bytes of an export, format by format, each run by the program it is for, beside the model.

    python benchmarks/exports.py MODEL --out benchmarks/results/exports.json

MODEL is a folder written by `efface train`. Whole processes of `efface export`, imports and the check
included; ``bit_equal`` and ``largest_difference`` are what the check found on 16 synthetic images.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from outcome import Outcome

FORMATS = {"torch": "model.pt2", "onnx": "model.onnx", "numpy-head": "head.npz"}


def measured(model: Path, name: str, main: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "served"
        words = [sys.executable, "-m", "efface", "export", str(model), f"--{name}"]
        words += ["--out", str(out)]
        start = time.perf_counter()
        subprocess.run(words, capture_output=True, check=True)
        seconds = time.perf_counter() - start
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        return {
            "seconds": round(seconds, 1),
            "megabytes": round((out / main).stat().st_size / 1e6, 1),
            "bit_equal": manifest["bit_equal"],
            **manifest["checked"][main],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--note", help="Which model, and what else was running, for the JSON.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    found = {name: measured(args.model, name, FORMATS[name]) for name in args.formats}
    Outcome(
        name="exports",
        question="How long does an export take, and has it the model's bits?",
        setting={"load_before": load},
        ours={name: values["seconds"] for name, values in found.items()},
        notes=[] if args.note is None else [args.note],
        details={"formats": found},
    ).write(args.out)


if __name__ == "__main__":
    main()
