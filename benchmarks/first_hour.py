"""The first hour: the tutorial and the README, line by line, in an empty environment made from the wheel.

    python benchmarks/first_hour.py [--network FOLDER] [--photos FOLDER] [--note TEXT] [--out FILE]

Builds the wheel, installs it with the extra ``hf`` into a fresh environment, and does there what
``docs/tutorial.md`` says and then every command line of the README's section on one's own photos, on the
photos that the tutorial draws. Every line must do what the page says (``transcript.py``); both end in a
receipt that is verified. Then a scikit-learn script does the same without guarantees, on features of the same
network. Seconds of each step go into the JSON. ``--network`` is a folder with a ResNet for the README (its
files are linked, not copied); without one a tiny ResNet with random weights takes its place, which knows
nothing but takes every step. ``--photos`` is a folder with a ``metadata.csv`` in which there are people
``u17`` and ``u18`` (``owned_photos.py`` makes one), instead of the tutorial's.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outcome import Outcome
from transcript import Command, Printed, Script, Step, follow, steps

PEER = "scikit-learn"
ROOT = Path(__file__).parents[1]
TUTORIAL, README = ROOT / "docs/tutorial.md", ROOT / "README.md"
PLAIN = ROOT / "benchmarks/first_hour_sklearn.py"
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "src")  # to build a wheel from
IMAGENET = {  # what a folder of an ImageNet ResNet says of its images, where it says nothing
    "image_processor_type": "ConvNextImageProcessor",
    "size": {"shortest_edge": 224},
    "crop_pct": 0.875,
}
TINY = """\
import json, sys, torch
from transformers import ResNetConfig, ResNetForImageClassification
torch.manual_seed(0)
config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=3)
ResNetForImageClassification(config).save_pretrained(sys.argv[1])
size = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 32}, "crop_pct": 1.0}
open(sys.argv[1] + "/preprocessor_config.json", "w").write(json.dumps(size))
"""


@dataclass
class Clock:
    """Runs programs of a fresh environment, and notes how long each took."""

    bin: Path
    timed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    estimates: list[float] = field(
        default_factory=list
    )  # minutes, of each training line of the README

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of ours: no PYTHONPATH, the environment's programs first."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        path = f"{self.bin}{os.pathsep}{kept.get('PATH', '')}"
        return {**kept, "PATH": path, "COLUMNS": "200", "HF_HUB_OFFLINE": "1"}

    def run(self, part: str, command: Command) -> Printed:
        words = [shutil.which(command.words[0], path=self.environment["PATH"]) or command.words[0]]
        words += command.words[1:]
        start = time.perf_counter()
        done = subprocess.run(
            words, capture_output=True, text=True, env=self.environment, check=False
        )
        seconds = time.perf_counter() - start
        if command.to is not None:
            Path(command.to).write_text(done.stdout, encoding="utf-8")
        told = {"line": command.text, "seconds": round(seconds, 2), "exit_code": done.returncode}
        self.timed.setdefault(part, []).append(told)
        print(f"{part}: {seconds:6.1f} s  {command.text}", file=sys.stderr)
        return Printed(done.returncode, done.stdout + done.stderr)

    def must(self, part: str, *words: object) -> Printed:
        came = self.run(part, Command(0, tuple(map(str, words))))
        if came.exit_code:
            raise SystemExit(f"{words}: {came.output}")
        return came


def fresh_environment(folder: Path, dependencies: Path | None) -> Clock:
    """The wheel, and nothing else of this checkout; its dependencies from the index, or from elsewhere."""
    source, clock = folder / "source", Clock(folder / "venv" / "bin")
    source.mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    part, pip = "install", ("python", "-m", "pip", "--disable-pip-version-check", "-q")
    clock.must(part, sys.executable, "-m", "venv", folder / "venv")
    clock.must(part, *pip, "wheel", "--no-deps", "-w", folder / "dist", source)
    shutil.rmtree(source)
    (wheel,) = (folder / "dist").glob("*.whl")
    if dependencies is None:
        clock.must(part, *pip, "install", "-c", ROOT / "constraints.txt", f"{wheel}[hf]")
    else:
        clock.must(part, *pip, "install", "--no-deps", wheel)
        (packages,) = (folder / "venv").glob("lib/*/site-packages")
        (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    return clock


def tutorial(clock: Clock) -> None:
    def script(step: Script) -> None:
        Path("step.py").write_text(step.text, encoding="utf-8")
        clock.must("tutorial", "python", "step.py")

    follow(TUTORIAL, lambda command: clock.run("tutorial", command), script)


def readme(clock: Clock, network: Path | None, photos: Path | None) -> None:
    """The lines are those that begin with ``efface``; photos and network get the names they have there."""
    if photos is None:
        scripts = [step for step in _steps(TUTORIAL) if isinstance(step, Script)]
        Path("draw.py").write_text(scripts[0].text, encoding="utf-8")
        clock.must("setting", "python", "draw.py")
    else:
        Path("photos").symlink_to(photos)
    if network is None:
        clock.must("setting", "python", "-c", TINY, "my-resnet50")
    else:
        _link(network, Path("my-resnet50"))
    picture = next(row["file_name"] for row in _listed() if row["owner"] == "u05")
    reencode = f"from PIL import Image; Image.open('photos/{picture}').save('holiday.jpg')"
    clock.must("setting", "python", "-c", reencode)
    for step in _steps(README):
        if isinstance(step, Command):
            if step.words[:2] == ("efface", "train") and "--dry-run" not in step.words:
                clock.estimates.append(_estimate(clock, step.words))
            clock.must("readme", *step.words)


def _estimate(clock: Clock, words: tuple[str, ...]) -> float:
    """The minutes that ``--dry-run`` says of a training line."""
    came = clock.must("estimate", *words, "--dry-run", "--json")
    line = next(line for line in came.output.splitlines() if '"minutes_estimate"' in line)
    return float(json.loads(line)["minutes_estimate"])


def _link(network: Path, to: Path) -> None:
    to.mkdir()
    for path in network.iterdir():
        (to / path.name).symlink_to(path)
    prepared = to / "preprocessor_config.json"
    if not prepared.exists():
        prepared.write_text(json.dumps(IMAGENET))


def _listed() -> list[dict[str, str]]:
    """The rows of ``photos/metadata.csv``."""
    with Path("photos/metadata.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plain(clock: Clock) -> None:
    """The same without guarantees."""
    for words in (("features", "photos/", "./my-resnet50"), ("fit",), ("forget", "u17")):
        clock.must("scikit-learn", "python", PLAIN, *words)


def _steps(page: Path) -> Iterator[Step]:
    yield from steps(page.read_text(encoding="utf-8"))


def summary(timed: dict[str, list[dict[str, Any]]], estimates: list[float]) -> dict[str, Any]:
    """What one compares: the same step of both, and what ``--dry-run`` said of training with what it took."""

    def of(part: str, start: str) -> float | None:
        found = [
            t["seconds"] for t in timed[part] if start in t["line"] and "dry-run" not in t["line"]
        ]
        return found[0] if found else None

    both = of("scikit-learn", "features"), of("scikit-learn", " fit")
    trained = of("readme", "efface train")
    return {
        "estimate_minutes": estimates[0] if estimates else None,
        "train_minutes": None if trained is None else round(trained / 60, 2),
        "seconds_by_part": {
            part: round(sum(t["seconds"] for t in ts), 1) for part, ts in timed.items()
        },
        "train": {
            "efface": trained,
            "scikit-learn": round(sum(map(float, filter(None, both))), 2),
        },
        "forget_one_person": {
            "efface": of("readme", "efface forget"),
            "scikit-learn": of("scikit-learn", "forget"),
        },
        "stranger_verifies": {
            "efface": of("readme", "efface verify model/receipts"),
            "scikit-learn": None,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--note", help="What else was running, for the JSON.")
    parser.add_argument("--dependencies", type=Path, help="A site-packages that has them already.")
    parser.add_argument("--skip-tutorial", action="store_true", help="Only the README.")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    network = None if args.network is None else args.network.resolve()
    photos = None if args.photos is None else args.photos.resolve()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clock = fresh_environment(folder, args.dependencies)
        for part in ("readme",) if args.skip_tutorial else ("tutorial", "readme"):
            (folder / part).mkdir()
            with chdir(folder / part):
                if part == "tutorial":
                    tutorial(clock)
                else:
                    readme(clock, network, photos)
                    rows = _listed()
                    plain(clock)
        versions = clock.must("setting", "efface", "--version").output.strip()
    values: dict[str, Any] = {
        "efface": versions,
        "network": "a tiny ResNet with random weights" if network is None else network.name,
        "photos": {
            "train": sum(row["split"] != "test" for row in rows),
            "test": sum(row["split"] == "test" for row in rows),
            "people": len({row["owner"] for row in rows if row["split"] != "test"}),
            "classes": len({row["label"] for row in rows}),
        },
        "load_before": round(load, 1),
        "load_after": round(os.getloadavg()[0], 1),
    }
    steps = {part: _shown(ts, folder) for part, ts in clock.timed.items()}
    report(values, summary(clock.timed, clock.estimates), steps, args)


def report(
    setting: dict[str, Any], found: dict[str, Any], steps: dict[str, Any], args: argparse.Namespace
) -> None:
    """Each deed beside scikit-learn's script, where that can do it."""
    pairs = {name: pair for name, pair in found.items() if isinstance(pair, dict)}
    deeds = {name: pair for name, pair in pairs.items() if pair.get("efface") is not None}
    both = {name: pair for name, pair in deeds.items() if pair[PEER] is not None}
    Outcome(
        name="first-hour",
        question="How long do the README and the tutorial take, line by line, in an empty environment?",
        setting=setting,
        ours={name: pair["efface"] for name, pair in deeds.items()},
        peers={f"{PEER}: {name}": pair[PEER] for name, pair in both.items()},
        ratios={f"{PEER} / ours, {name}": p[PEER] / p["efface"] for name, p in both.items()},
        notes=[] if args.note is None else [args.note],
        details={**found, "steps": steps},
    ).write(args.out)


def _shown(timed: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Without the paths of this machine."""
    return [{**t, "line": _line(t["line"], folder)} for t in timed]


def _line(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "NEW").replace(str(ROOT), "CHECKOUT")
    text = text.replace(sys.executable, "python")
    return text if len(text) < 160 else f"{text[:70]} …"


if __name__ == "__main__":
    main()
