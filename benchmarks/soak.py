"""A soak: writers that forget and add, readers, random kills and a disk that fills up, for some minutes.

    python benchmarks/soak.py --minutes 10

Six writers work on one workspace, each with people of its own: it takes them in, forgets them, and notes in
a file of its own what it asked for and what was answered. Two readers load and predict. The parent kills
writers at random (SIGKILL) and now and then lets every file be at most a few kB (what a full disk does). At
the end the workspace is resumed and compared with what was answered: nothing lost, nothing twice, no reader
error; the compact sums must have the digest of a model that was only ever given the people who are left.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import signal
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from outcome import Outcome

from efface import __version__
from efface.data.images import ArrayImage, digest_of
from efface.data.record import Record, Split
from efface.data.records import Records
from efface.errors import EffaceError
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage
from efface.workspace import Workspace
from efface.workspace.published import load
from efface.workspace.verify import all_checks

CLASSES = ("a", "b", "c")
WRITERS, READERS = 6, 2
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["efface.workspace", "efface.workspace.verify"])


def person(name: str, seed: int, n: int = 2, split: Split = Split.USER) -> Records:
    """Some small images of one person, the same for the same seed."""
    dice = np.random.default_rng(seed)
    records = []
    for i in range(n):
        label = int(dice.integers(3))
        image = (dice.normal(80 + 50 * label, 30, (1, 8, 8)).clip(0, 255)).astype(np.uint8)
        digest = digest_of(image[0])
        source = ArrayImage(image, 0)
        records.append(Record(f"{name}/{i}", name, "soak", CLASSES[label], split, source, digest))
    return Records(records, CLASSES)


def several(prefix: str, count: int, start: int, split: Split = Split.USER) -> Records:
    people = [person(f"{prefix}{i}", start + i, split=split) for i in range(count)]
    return Records([record for records in people for record in records], CLASSES)


def fitted(core: Core, records: Records, replay: Records) -> MixedLinear:
    return MixedLinear(core, features=60).fit(records, replay=replay)


def write(path: Path, number: int, turn: int, full: bool, notes: Path) -> None:
    """One writer's life: take a person in, forget them, until it is killed."""
    torch.set_num_threads(1)
    if full:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
    handle = os.open(notes / f"{number}-{turn}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*entry: Any) -> None:
        os.write(handle, json.dumps(entry).encode() + b"\n")

    for i in range(10**6):
        name = f"w{number}-{turn}-{i}"
        if full and i == 10:
            return
        seed = 10**7 * (number + 1) + 10**4 * turn + i
        for action in ("add", "forget"):
            if action == "forget" and i % 3 == 0:
                continue  # some stay
            note("asked", action, name, seed)
            try:
                workspace = Workspace.open(path)
                if action == "add":
                    workspace.add(person(name, seed))
                else:
                    workspace.forget(owner=name)
                note("done", action, name, seed)
            except EffaceError as problem:
                note("refused", action, name, str(problem)[:60])
                break


def read(path: Path, stop: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    count, errors, test = 0, [], several("t", 2, 5)
    while not stop.is_set():
        try:
            load(path).predict(test)
            count += 1
        except Exception as problem:
            errors.append(repr(problem))
    answers.put((-1, "read", count, errors[:20], len(errors)))


def soak(path: Path, minutes: float, dice: random.Random) -> dict[str, Any]:
    core_records = several("core", 6, 10**9, Split.CORE)
    stages = [Stage("all", epochs=2, batch_size=4)]
    core = Core("cnn", classes=CLASSES).fit(core_records, stages)
    base = several("base", 20, 100)
    Workspace.create(path, fitted(core, base, core_records))
    notes = path.with_name("notes")
    notes.mkdir()
    reading, stop = PROCESSES.Queue(), PROCESSES.Event()
    readers = [PROCESSES.Process(target=read, args=(path, stop, reading)) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    writers: dict[int, Any] = {}
    turns: Counter[int] = Counter()
    kills, fills = 0, 0
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        for number in range(WRITERS):
            if number not in writers or not writers[number].is_alive():
                full = turns[number] > 0 and dice.random() < 0.3
                fills += full
                args = (path, number, turns[number], full, notes)
                writers[number] = PROCESSES.Process(target=write, args=args)
                writers[number].start()
                turns[number] += 1
        time.sleep(dice.uniform(0.3, 4.0))
        victim = writers[dice.randrange(WRITERS)]
        if victim.is_alive() and victim.pid is not None:
            os.kill(victim.pid, signal.SIGKILL)
            kills += 1
    for writer in writers.values():
        writer.kill()
        writer.join()
        kills += 1
    stop.set()
    loads = [reading.get(timeout=60) for _ in readers]
    for reader in readers:
        reader.join()
    return judge(path, core, core_records, base, heard_in(notes), loads) | {
        "minutes": minutes,
        "kills": kills,
        "writers_with_a_full_disk": fills,
        "writers_started": sum(turns.values()),
    }


def heard_in(notes: Path) -> list[list[Any]]:
    """All whole lines: of a killed writer the last one may be cut short."""
    texts = [file.read_bytes() for file in sorted(notes.iterdir())]
    lines = [line for text in texts for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return [json.loads(line) for line in lines]


def judge(
    path: Path,
    core: Core,
    core_records: Records,
    base: Records,
    heard: list[list[Any]],
    loads: list[tuple[Any, ...]],
) -> dict[str, Any]:
    """Compare what was answered with what is there."""
    workspace = Workspace.open(path)
    there = set(workspace.records.owners)
    counts = Counter((kind, action) for kind, action, *_ in heard)
    known = {entry[2]: entry[3] for entry in heard if entry[0] == "asked"}
    done = {(entry[1], entry[2]) for entry in heard if entry[0] == "done"}
    asked = {(entry[1], entry[2]) for entry in heard if entry[0] == "asked"}
    lost_adds = [n for a, n in done if a == "add" and n not in there and ("forget", n) not in asked]
    lost_forgets = [n for a, n in done if a == "forget" and n in there]
    refused = [n for n in known if person(n, known[n])[0].digest in workspace.inventory.forgotten]
    unrefused = [n for a, n in done if a == "forget" and n not in refused]
    ids = workspace.records.ids
    left = sorted((name for name in there if name in known), key=lambda n: known[n])
    expected = Records(
        [replace(r) for r in base] + [r for n in left for r in person(n, known[n])], CLASSES
    )
    never = fitted(core, expected, core_records).user.statistics_digest
    checks = [check for check in all_checks(Workspace.open(path), retrain=True) if not check.ok]
    return {
        "requests_done": counts["done", "add"] + counts["done", "forget"],
        "adds_done": counts["done", "add"],
        "forgets_done": counts["done", "forget"],
        "requests_asked": counts["asked", "add"] + counts["asked", "forget"],
        "refused_because_the_disk_was_full": counts["refused", "add"] + counts["refused", "forget"],
        "releases": workspace.number,
        "loads": sum(entry[2] for entry in loads),
        "reader_errors": sum(entry[4] for entry in loads),
        "first_reader_errors": [text for entry in loads for text in entry[3]][:5],
        "adds_lost": len(lost_adds),
        "forgets_lost": len(lost_forgets),
        "forgotten_but_not_refused_again": len(unrefused),
        "records_twice": len(ids) - len(set(ids)),
        "people_nobody_asked_for": len(there - set(known) - set(base.owners)),
        "sums_as_never_given_the_others": workspace.model().user.statistics_digest == never,
        "failed_checks": [f"{check.name}: {check.detail}" for check in checks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dice = random.Random(options.seed)
        values = soak(Path(folder) / "workspace", options.minutes, dice)
    good = not (
        values["adds_lost"]
        or values["forgets_lost"]
        or values["forgotten_but_not_refused_again"]
        or values["records_twice"]
        or values["reader_errors"]
        or values["people_nobody_asked_for"]
        or values["failed_checks"]
        or not values["sums_as_never_given_the_others"]
        or not values["requests_done"]
    )
    counts = ("requests_asked", "requests_done", "loads", "kills", "writers_with_a_full_disk")
    Outcome(
        name="soak",
        question="Six writers, readers, kills and a full disk: is anything lost, twice, or unreadable?",
        setting={"minutes": options.minutes, "seed": options.seed, "efface": __version__},
        unit="how many",
        ours={name.replace("_", " "): values[name] for name in counts},
        details={"ok": good, **values},
    ).write(options.out)
    raise SystemExit(0 if good else 1)


if __name__ == "__main__":
    main()
