"""Engines: the same model whoever computes the rows, also where a worker is killed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.shards.jobs import always_killed, fragile, refused
from typer.testing import CliRunner

from efface.cli import app
from efface.errors import EffaceError
from efface.shards import engine_named
from efface.workspace import Workspace

OPTIONS = ("--core-fraction", "0.3", "--features", "200", "--seed", "1")


def efface(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def weights(path: Path) -> str:
    certificate = Workspace.open(path).certificate
    assert certificate is not None
    return certificate.weights_digest  # type: ignore[attr-defined,no-any-return]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "w"
    efface("train", "digits", *OPTIONS, "--out", path)
    return path


@pytest.mark.parametrize(
    ("engine", "shards"),
    [
        ("here", 3),
        ("processes:2", 2),
        pytest.param(
            "ray",
            2,
            marks=pytest.mark.skipif(
                importlib.util.find_spec("ray") is None, reason="ray is not installed"
            ),
        ),
    ],
)
def test_every_engine_gives_the_same_weights(
    plain: Path, tmp_path: Path, engine: str, shards: int
) -> None:
    path = tmp_path / "w"
    efface("train", "digits", *OPTIONS, "--engine", engine, "--shards", shards, "--out", path)
    assert weights(path) == weights(plain)
    assert not path.with_name("w.shards").exists()


def test_rows_and_merge_from_the_command_line(plain: Path, tmp_path: Path) -> None:
    path = tmp_path / "w"
    efface("train", "digits", *OPTIONS, "--core-only", "--out", path)
    for i in (1, 2):
        out = tmp_path / f"part{i}"
        efface("rows", "digits", "--model", path, "--shard", f"{i}/2", "--out", out)
    said = efface("merge", tmp_path / "part2", tmp_path / "part1", "--into", path)
    assert "hold rows of people" in said
    assert weights(path) == weights(plain)


def test_what_was_finished_is_not_made_again(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efface.pipeline import sharded

    made: list[str] = []
    make = sharded.make_rows

    def dying(job: sharded.ShardJob, progress: object = None) -> object:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(job.shard)
        return make(job)

    monkeypatch.setattr(sharded, "make_rows", dying)
    path = tmp_path / "w"
    words = ("train", "digits", *OPTIONS, "--engine", "here", "--shards", 4, "--out", path)
    assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 130
    again: list[str] = []
    monkeypatch.setattr(sharded, "make_rows", lambda job: again.append(job.shard) or make(job))
    efface(*words)
    assert made == ["1/4", "2/4"]
    assert again == ["3/4", "4/4"]
    assert weights(path) == weights(plain)


def test_a_worker_that_is_killed_is_replaced(tmp_path: Path) -> None:
    seen: list[float] = []
    engine_named("processes:1").run(fragile, [str(tmp_path)] * 3, lambda f, _: seen.append(f))
    assert seen[-1] == 1
    assert (tmp_path / "killed").exists()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_runs_again_what_a_killed_worker_had(tmp_path: Path) -> None:
    seen: list[float] = []
    engine_named("ray").run(fragile, [str(tmp_path)] * 3, lambda f, _: seen.append(f))
    assert seen[-1] == 1
    assert (tmp_path / "killed").exists()


WITH_RAY = pytest.param(
    "ray",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="ray is not installed"
    ),
)


@pytest.mark.parametrize("engine", ["here", "processes:1", WITH_RAY])
def test_what_a_worker_says_is_wrong_is_said(engine: str) -> None:
    with pytest.raises(EffaceError, match="photo 7 is no image") as caught:
        engine_named(engine).run(refused, [1, 2])
    assert caught.value.fix == "remove it."


def test_workers_that_always_die_are_an_error() -> None:
    with pytest.raises(EffaceError, match="workers died"):
        engine_named("processes:1").run(always_killed, [1])


@pytest.mark.parametrize("name", ["spark", "processes", "processes:x", "processes:0", ""])
def test_an_unknown_engine_is_named(name: str) -> None:
    with pytest.raises(EffaceError, match=r"unknown engine|cannot work"):
        engine_named(name)
