"""All benchmarks of a preset, each in a process of its own; one JSON each, and one page with plots.

    python benchmarks/run.py --preset quick --out efface-bench
    python benchmarks/run.py --preset full --data photos/ --backbone hf:./my-resnet50

``--only NAME`` runs some of them; ``--draw`` draws what is there already. ``--check`` ends with exit code 3
if a guarded ratio is not kept: ratios within one run, never seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from outcome import missed, wrong_form

HERE = Path(__file__).parent
Words = tuple[object, ...]
QUICK: dict[str, tuple[str, Words]] = {
    "limits": ("limits.py", ()),
    "after-deletion": (
        "after_deletion.py",
        ("--features", 1024, "--classes", 20, "--sizes", 500, 2000, 8000, "--slow-up-to", 8000),
    ),
    "requests": ("compact_requests.py", ("--features", 1024, "--sizes", 1000, 10_000)),
    "workspace": ("workspace.py", ("--features", 1024, "--sizes", 1000, 10_000)),
    "statistics": ("compact_statistics.py", ("--sizes", 1024, 2048, "--bits", 8)),
    "papers-sgd": ("papers_sgd.py", ()),
    "hessian-product": ("hessian_product.py", ()),
    "rows": ("rows.py", ("--features", 600)),
    "one-image": ("one_image.py", ()),
}
FULL: dict[str, tuple[str, Words]] = {
    **QUICK,
    "after-deletion": (
        "after_deletion.py",
        (
            "--features",
            4096,
            "--classes",
            40,
            "--sizes",
            1000,
            4000,
            10_000,
            "--slow-up-to",
            10_000,
        ),
    ),
    "requests": ("compact_requests.py", ("--sizes", 1000, 10_000, 100_000)),
    "workspace": ("workspace.py", ("--sizes", 1000, 10_000)),
    "statistics": ("compact_statistics.py", ("--sizes", 1024, 4096, 8192)),
    "growth-n": ("slopes.py", ("--axis", "n", "--sizes", 2000, 8000, 32_000, 128_000)),
    "growth-k": ("slopes.py", ("--axis", "k", "--sizes", 1024, 2048, 4096, 8192)),
    "growth-c": ("slopes.py", ("--axis", "c", "--sizes", 10, 40, 160, 640)),
    "out-of-core": ("out_of_core.py", ("--sizes", 1_000_000, "--features", 2048)),
    "workers": ("workers.py", ()),
    "shell": ("shell.py", ()),
    "warm": ("shell.py", ("--warm", "--features", 4096, "--images", 1000, "--requests", 7)),
    "warm-8192": ("shell.py", ("--warm", "--features", 8192, "--images", 1000, "--requests", 3)),
}
PRESETS = {"quick": QUICK, "full": FULL}


def run(name: str, script: str, words: Words, out: Path) -> bool:
    """Whether it went well; what it said if it did not."""
    command = [sys.executable, str(HERE / script), *map(str, words), "--out", str(out)]
    print(f"{name}: {script} {' '.join(map(str, words))}", flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
    return done.returncode == 0


def with_network(name: str, words: Words, args: argparse.Namespace) -> Words:
    """On a real network and data where these are given."""
    if args.backbone and name in ("hessian-product", "rows", "workers"):
        words = (*words, "--backbone", args.backbone)
    if args.backbone and name in ("rows", "workers"):
        words = (*words, "--features", 4096)
    return (*words, "--data", args.data) if args.data and name in ("rows", "workers") else words


def found(folder: Path) -> list[dict[str, Any]]:
    """The outcomes in a folder, in the order of the presets."""
    paths = [folder / f"{name}.json" for name in FULL]
    read = [json.loads(path.read_text()) for path in paths if path.is_file()]
    return [values for values in read if not wrong_form(values)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--only", nargs="+", choices=FULL, default=list(FULL))
    parser.add_argument("--out", type=Path, default=Path("efface-bench"))
    parser.add_argument("--data", help="of rows.py and workers.py, instead of digits")
    parser.add_argument("--backbone", help="of those and hessian_product.py, instead of cnn")
    parser.add_argument("--draw", action="store_true", help="only the page, of what is there")
    parser.add_argument("--check", action="store_true", help="exit code 3 if a guard is not kept")
    args = parser.parse_args()
    failed = []
    for name, (script, words) in PRESETS[args.preset].items():
        if not args.draw and name in args.only:
            words = with_network(name, words, args)
            if not run(name, script, words, args.out / f"{name}.json"):
                failed.append(name)
    from bench_page import page

    outcomes = found(args.out)
    made = page(outcomes, args.preset, datetime.now(UTC))
    print(made.write(args.out / "index.html"))
    broken = [text for values in outcomes for text in missed(values)]
    for text in (*(f"{name} failed" for name in failed), *broken):
        print(text, file=sys.stderr)
    sys.exit(1 if failed else 3 if broken and args.check else 0)


if __name__ == "__main__":
    main()
