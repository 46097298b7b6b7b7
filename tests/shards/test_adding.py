"""``efface add --engine``: the same release as without one, whoever computes the rows."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import cases
from tests.devices import watched
from tests.shards.jobs import MARKS, killed_midway
from tests.shell import efface, values_of, write
from tests.workspaces import (
    CLASSES,
    CORE,
    NEW,
    OWNER,
    assert_checks,
    fingerprint,
    people,
)

from efface.data.record import Record
from efface.data.records import Records
from efface.network.device import CPU, TWIN
from efface.pipeline import adding, sharded
from efface.workspace import Workspace
from efface.workspace.steps import Milestone

WITH_RAY = pytest.param(
    "ray",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed"
    ),
)
ENGINES = ["here", "processes:1", "processes:2", WITH_RAY]


@pytest.fixture
def model(made: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(made["compact"], tmp_path / "w")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write(tmp_path / "new.npz", NEW)


@pytest.fixture
def plain(made: dict[str, Path], new: Path, tmp_path: Path) -> dict[str, Any]:
    """The workspace after the records were added without an engine."""
    path = shutil.copytree(made["compact"], tmp_path / "plain")
    values_of(efface("add", path, new, "--json"))
    return fingerprint(path)


def added(path: Path, data: Path, *options: object) -> str:
    result = efface("add", path, data, *options)
    assert result.exit_code == 0, result.output
    return " ".join(result.stderr.split())


def refused(path: Path, data: Path, *options: object) -> str:
    result = efface("add", path, data, *options)
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


def leftovers(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{path.name}.*")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_makes_the_same_release(
    engine: str, model: Path, new: Path, plain: dict[str, Any]
) -> None:
    added(model, new, "--engine", engine, "--shards", 3)
    assert fingerprint(model) == plain
    assert_checks(model)
    assert not any(leftovers(model))


def test_some_of_the_records(model: Path, new: Path, tmp_path: Path) -> None:
    """One owner of one cohort, in more shards than there are records of theirs."""
    other = shutil.copytree(model, tmp_path / "other")
    whom = ("--owner", "person-one", "--cohort", "cohort-1")
    added(model, new, *whom, "--engine", "here", "--shards", 5)
    added(other, new, *whom)
    assert fingerprint(model) == fingerprint(other)
    chosen = NEW.select(owner="person-one", cohort="cohort-1")
    assert set(Workspace.open(model).records.ids) == {*people().ids, *chosen.ids}


def test_what_was_finished_is_not_made_again(
    model: Path, new: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = sharded.make_rows

    def dying(job: sharded.ShardJob) -> object:
        if len(made) == 1:
            raise KeyboardInterrupt
        made.append(job.shard)
        return make(job)

    words = ("add", model, new, "--engine", "here", "--shards", 2)
    monkeypatch.setattr(sharded, "make_rows", dying)
    result = efface(*words)
    assert result.exit_code == 130
    assert "hold rows of people" in result.stderr
    assert any(leftovers(model))
    again: list[str] = []
    monkeypatch.setattr(sharded, "make_rows", lambda job: again.append(job.shard) or make(job))
    assert efface(*words).exit_code == 0
    assert (made, again) == (["1/2"], ["2/2"])
    assert fingerprint(model) == plain
    assert not any(leftovers(model))


def test_a_worker_killed_in_the_middle_of_a_shard_changes_nothing(
    model: Path,
    new: Path,
    plain: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    monkeypatch.setattr(adding, "make_missing", killed_midway)
    monkeypatch.setenv(MARKS, str(marks))
    added(model, new, "--engine", "processes:2", "--shards", 2)
    killed = (marks / "killed").read_text()
    assert [mark.read_text() for mark in marks.glob("begun-*")].count(killed) == 2
    assert fingerprint(model) == plain
    assert not any(leftovers(model))


def test_a_run_that_died_once_the_request_was_accepted_is_finished_by_the_next(
    model: Path, new: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from efface.workspace import protocol

    def dying(step: Milestone) -> None:
        if step is Milestone.ACCEPTED:
            raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "reach", dying)
        assert efface("add", model, new, "--engine", "here").exit_code == 9
    assert any(leftovers(model))
    assert "is in the workspace already" in refused(model, new, "--engine", "here")
    assert fingerprint(model) == plain
    assert not any(leftovers(model))  # rows of people are not left lying about


def _as(name: str, record: Record) -> Records:
    return Records([replace(record, id=name)], CLASSES)


REFUSED = {
    "a known id": lambda: NEW + people(1),
    "an image of core": lambda: NEW + _as("copy", replace(CORE[0], split=NEW[0].split)),
    "a forgotten image": lambda: NEW + _as("again", people().select(owner=OWNER)[0]),
    "no user records": lambda: cases.tiny_records(3, 4, split=CORE[0].split),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_as_without_an_engine(
    case: str, model: Path, tmp_path: Path
) -> None:
    Workspace.open(model).forget(owner=OWNER)
    before = fingerprint(model)
    data = write(tmp_path / "data.npz", REFUSED[case]())
    alone, by_engine = refused(model, data), refused(model, data, "--engine", "here")
    words = alone[alone.index("error:") :].split()[:4]  # error: which record: what
    assert " ".join(words) in by_engine
    assert fingerprint(model) == before
    # A worker refuses what needs an image: what others have finished is kept for the next try.
    assert any(leftovers(model)) == ("hold rows of people" in by_engine)
    assert case == "an image of core" or not any(leftovers(model))


def test_forgotten_images_come_back_if_that_is_asked_for(model: Path, tmp_path: Path) -> None:
    Workspace.open(model).forget(owner=OWNER)
    data = write(tmp_path / "data.npz", people().select(owner=OWNER))
    added(model, data, "--engine", "here", "--allow-reingest")
    assert set(Workspace.open(model).records.ids) == set(people().ids)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--owner", "person-nobody"), "no record here has owner"),
        (("--cohort", "cohort-9"), "no record here has cohort"),
        (("--engine", "spark"), "unknown engine 'spark'"),
        (("--device", "cuda"), "Fix: use --device cpu"),
        (("--device", "tpu"), "use auto, cuda, mps or cpu"),
    ],
)
def test_slips_in_the_options(
    options: tuple[str, ...], said: str, model: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert said in refused(model, new, "--engine", "here", *options)
    assert not any(leftovers(model))


def test_known_ids_are_refused_before_a_row_is_computed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "make_rows", lambda job: pytest.fail(f"{job.shard} was computed"))
    data = write(tmp_path / "data.npz", NEW, people(1))
    assert "is in the workspace already" in refused(model, data, "--engine", "here")


def test_a_part_that_has_no_rows_is_refused(
    made: dict[str, Path], new: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "t")
    assert "a tangent part cannot be trained in shards" in refused(path, new, "--engine", "here")
    assert not any(leftovers(path))


def test_jobs_compute_where_it_was_asked_for(
    model: Path, new: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = watched(monkeypatch)
    added(model, new, "--engine", "here", "--shards", 2, "--device", "cpu:0")
    assert TWIN in used
    assert used <= {TWIN, CPU}
    assert fingerprint(model) == plain
