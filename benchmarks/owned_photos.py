"""Photos with owners, from a data set that has none: some classes of it, and people who are drawn.

    python benchmarks/owned_photos.py caltech101/ photos/ --classes 40 --train 1170 --test 500 --people 60

``SOURCE`` has ``train/<class>/*.jpg`` and ``test/<class>/*.jpg``. The photos of each split are drawn from the
first classes with a fixed seed, and each training photo goes to one of the people ``u00``, ``u01``, …;
``OUT/metadata.csv`` says whose it is. For ``first_hour.py --photos``; the files are copied, so ``OUT`` lies
outside of the checkout.
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
from pathlib import Path


def drawn(folder: Path, classes: list[str], count: int, rng: random.Random) -> list[Path]:
    """``count`` of the photos of these classes; fewer than there are is an error."""
    found = sorted(path for name in classes for path in (folder / name).iterdir())
    if len(found) < count:
        raise SystemExit(f"{folder}: {len(found)} photos of these classes, {count} were asked for")
    return sorted(rng.sample(found, count))


def write(source: Path, out: Path, *, classes: int, train: int, test: int, people: int) -> None:
    rng = random.Random(0)
    chosen = sorted(path.name for path in (source / "train").iterdir())[:classes]
    rows = [("file_name", "label", "owner", "split")]
    for split, count in (("train", train), ("test", test)):
        for number, path in enumerate(drawn(source / split, chosen, count, rng)):
            name = f"{split}-{number:05d}{path.suffix.lower()}"
            owner = f"u{rng.randrange(people):02d}" if split == "train" else "nobody"
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)
            rows.append((name, path.parent.name, owner, split))
    with (out / "metadata.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    for name, default in (("classes", 40), ("train", 1170), ("test", 500), ("people", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = vars(parser.parse_args())
    write(args.pop("source"), args.pop("out"), **args)


if __name__ == "__main__":
    main()
