"""A trial of the claim: random requests, each compared with a model trained without them, from images.

A *round* trains a workspace on part of the user records (the rest can be added later) and sends it random
requests: people, records, classes, cohorts and additions. After each of them everything is done again from
the images of whoever is left: core split, class list, core training, bases, rows, sums and weights; and the
two workspaces are compared file by file, byte by byte. A round ends when half of its records are gone.

``MAY_DIFFER`` lists all that is left out of the comparison, and why.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from efface import files
from efface.data.class_list import settled
from efface.data.record import Record
from efface.data.records import Records
from efface.data.remarks import Note, tell, unheard
from efface.errors import EffaceError
from efface.model.core_index import SCHEMA as CORE_SCHEMA
from efface.model.request import Request
from efface.network.core import Core
from efface.parts.table import part_named
from efface.pipeline.config import Config
from efface.pipeline.train import Training
from efface.progress import Progress
from efface.workspace import Workspace

MAY_DIFFER = {
    "lock": "it is empty",
    "receipts/": "they speak about a request, too",
    "private/signing.json": "where the key lies",
    "ledger.sqlite": "times, and that there were requests",
    "CURRENT": "the release's number: how many requests there were",
    "certificates/": "they speak about a request",
    "private/N/manifest.json": "digests of the release's files, its number and certificate among them",
    "private/N/forgotten.json": "by what forgotten images are refused: hashes under the key",
    "private/key.json": "a random key",
    "core/K/core-records.json": "hashes under that key: compared as who is the same person, not as bytes",
}
KINDS = ("ids", "owner", "cohort", "label", "add")
HELD_OUT = 0.2  # of the user records: those to be added
LEFT = 0.5  # a round ends when a smaller share of its records is there


@dataclass(frozen=True)
class Trial:
    """One request, and the files in which the workspace differs from a newly trained one."""

    kind: str
    num_records: int
    num_retained: int
    differences: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences


class Recipe:
    """How a workspace is made from records, whoever they are; ``reuse_core`` trains a core once for each
    set of core records and classes, instead of every time."""

    def __init__(self, config: Config, *, reuse_core: bool = False) -> None:
        if part_named(config.user.kind).noisy:
            fix = "use the compact user part: the tangent one forgets up to (epsilon, delta)."
            raise EffaceError("only exact forgetting can be compared byte by byte.", fix)
        # No activations are kept between two trainings: each begins with the images.
        output = config.output.model_copy(update={"cache": None})
        self.config = config.model_copy(update={"output": output})
        self.training, self.reuse_core = Training(self.config), reuse_core
        self._cores: dict[tuple[Any, ...], Core] = {}

    def split(self, records: Records) -> Records:
        """Core split and class list, from these records alone."""
        fraction, seed = self.config.data.core_fraction, self.config.data.seed
        drawn = records if fraction is None else records.with_core_fraction(fraction, seed)
        return settled(drawn)

    def train(self, records: Records, folder: Path) -> Workspace:
        """From images to a workspace."""
        records = self.split(records)
        model = self.training.fit_user(self._core(records), records)
        return self.training.save(model, folder)

    def _core(self, records: Records) -> Core:
        key = (records.classes, tuple((r.id, r.digest, r.label) for r in records.core))
        if self.reuse_core and key in self._cores:
            return self._cores[key]
        core = self.training.fine_tuned(self.training.core(records), records)
        self.training.fit_core(core, records)
        self._cores = {key: core}
        return core


def run(
    config: Config,
    num_requests: int = 100,
    *,
    seed: int = 0,
    reuse_core: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
    note: Note = unheard,
) -> list[Trial]:
    """Carry out and compare ``num_requests`` random requests on the data of ``config``.

    Workspaces are made in ``folder`` (default: a temporary one) and deleted.
    """
    recipe = Recipe(config, reuse_core=reuse_core)
    plain = config.data.model_copy(update={"core_fraction": None})
    records = tell(plain.build(), note)
    made: list[Trial] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        number = 0
        while len(made) < num_requests:
            rng = np.random.default_rng((seed, number))
            steps = _round(recipe, records, rng, Path(place) / str(number))
            for trial in steps:
                made.append(trial)
                if progress is not None:
                    done = f"{sum(t.agrees for t in made)} of {len(made)} agree"
                    progress(len(made) / num_requests, done)
                if len(made) == num_requests:
                    break
            shutil.rmtree(Path(place) / str(number), ignore_errors=True)
            number += 1
    return made


def _round(
    recipe: Recipe, data: Records, rng: np.random.Generator, folder: Path
) -> Iterator[Trial]:
    """Requests on one workspace, each with its comparison, until half of it is gone."""
    user = recipe.split(data).user
    if len(user) < 4:
        raise EffaceError(f"{len(user)} user records are too few for a trial.", "use more data.")
    kept_back = rng.choice(len(user), max(1, round(HELD_OUT * len(user))), replace=False)
    waiting = [user[int(i)] for i in np.sort(kept_back)]
    present = _without(data, waiting)
    workspace = recipe.train(present, folder / "forgetting")
    enough = LEFT * len(workspace.records)
    while len(workspace.records) > enough:
        kind, act = _random_request(workspace, waiting, rng)
        before = Counter(workspace.records.ids)
        act()
        after = Counter(workspace.records.ids)
        gone, new = before - after, after - before
        by_id = {record.id: record for record in waiting}
        joined = [by_id[name] for name in workspace.records.ids if name in new]  # in its order
        present = _joined(present.without(gone), joined)
        waiting = [record for record in waiting if record.id not in new]
        again = recipe.train(present, folder / "trained")
        found = tuple(differences(workspace.path, again.path))
        shutil.rmtree(again.path)
        yield Trial(kind, len(gone) + len(new), len(workspace.records), found)


def _without(records: Records, gone: list[Record]) -> Records:
    return records.without([record.id for record in gone])


def _joined(records: Records, new: list[Record]) -> Records:
    """``new`` behind the others: where a workspace puts what is added."""
    return Records((*records, *new), records.classes, listed=records.listed) if new else records


def _random_request(
    workspace: Workspace, waiting: list[Record], rng: np.random.Generator
) -> tuple[str, Callable[[], Any]]:
    """What to do next, with the records that are there now."""
    there = workspace.records
    kinds = [kind for kind in KINDS if kind != "add" or waiting]
    odds = np.array([{"ids": 3, "owner": 3, "add": 3}.get(kind, 1) for kind in kinds])
    kind = str(rng.choice(kinds, p=odds / odds.sum()))
    if kind == "add":
        size = int(rng.integers(1, min(len(waiting), 8) + 1))
        chosen = [waiting[int(i)] for i in rng.choice(len(waiting), size, replace=False)]
        new = Records(chosen, workspace.settings["classes"])
        return kind, lambda: workspace.add(new, allow_reingest=True)
    if kind == "ids":
        size = min(int(rng.integers(1, 6)), max(len(there) - 1, 1))
        request = Request.of(ids=[str(i) for i in rng.choice(there.ids, size, replace=False)])
    else:
        value = str(rng.choice(sorted(set(there.column(kind)))))
        request = Request.of(**{kind: value})  # type: ignore[arg-type]
    # Cohorts are no people: core may have records of them, and keeps them in both workspaces.
    return kind, lambda: workspace.forget(request, user_part_only=kind == "cohort")


# --- comparing ------------------------------------------------------------------------------------


def differences(one: Path, other: Path) -> Iterator[str]:
    """The files in which two workspaces differ, ``MAY_DIFFER`` left out; empty if they are the same."""
    mine, theirs = _files(one), _files(other)
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in mine or name not in theirs:
            yield f"{name} (only in one)"
        elif mine[name] != theirs[name]:
            yield name


def _files(root: Path) -> dict[str, bytes]:
    """Contents by name, the release's number replaced by N."""
    now, found = Workspace(root).inventory.current, {}
    for path in root.rglob("*"):
        parts = list(path.relative_to(root).parts)
        if parts[0] in ("releases", "private") and parts[1:2] == [str(now.release)]:
            parts[1] = "N"
        if parts[0] == "core" and parts[1:2] == [str(now.core)]:
            parts[1] = "K"
        name = "/".join(parts)
        if path.is_file() and name not in MAY_DIFFER and f"{parts[0]}/" not in MAY_DIFFER:
            found[name] = path.read_bytes()
    found["core/K/core-records.json"] = _core_records(Workspace(root).inventory.base)
    return found


def _core_records(folder: Path) -> bytes:
    """``core-records.json`` with every keyed hash replaced by the position where it is first seen."""
    values = files.read_json(folder / "core-records.json", CORE_SCHEMA)
    for column in ("owners", "cohorts"):
        first: dict[str, int] = {}
        values[column] = [first.setdefault(tag, i) for i, tag in enumerate(values[column])]
    return repr(sorted(values.items())).encode()


def summary(trials: list[Trial]) -> dict[str, Any]:
    """How many agree, in all and of each kind of request."""
    kinds = Counter(trial.kind for trial in trials)
    return {
        "requests": len(trials),
        "agree": sum(trial.agrees for trial in trials),
        "kinds": {
            kind: {
                "requests": kinds[kind],
                "agree": sum(t.agrees for t in trials if t.kind == kind),
            }
            for kind in KINDS
            if kinds[kind]
        },
        "differences": sorted({name for trial in trials for name in trial.differences}),
        "may_differ": MAY_DIFFER,
    }
