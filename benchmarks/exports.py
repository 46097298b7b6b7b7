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
    values = {
        "cpus": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 1),
        **({} if args.note is None else {"note": args.note}),
        "formats": {name: measured(args.model, name, FORMATS[name]) for name in args.formats},
    }
    text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    if args.out is None:
        print(text, end="")
    else:
        args.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
