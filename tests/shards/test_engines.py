"""Engines: the same model whoever computes the rows, also where a worker is killed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.shards.jobs import MARKS, always_killed, fragile, killed_midway, refused
from tests.shards.training import efface, weights
from typer.testing import CliRunner

from efface.cli import app
from efface.errors import EffaceError
from efface.shards import engine_named

OPTIONS = ("--core-fraction", "0.3", "--features", "200", "--seed", "1")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "w"
    efface("train", "digits", *OPTIONS, "--out", path)
    return path


@pytest.mark.parametrize(
    ("engine", "shards"),
    [
        ("here", 3),
        ("processes:1", 1),
        ("processes:2", 2),
        ("processes:4", 7),
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


def test_a_worker_killed_in_the_middle_of_a_shard_changes_nothing(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL once its rows are written and do not count yet: what it had is made again, by another."""
    from efface.pipeline import sharded

    monkeypatch.setattr(sharded, "make_missing", killed_midway)
    monkeypatch.setenv(MARKS, str(tmp_path))
    path = tmp_path / "w"
    efface("train", "digits", *OPTIONS, "--engine", "processes:2", "--shards", 4, "--out", path)
    killed = (tmp_path / "killed").read_text()
    begun = [mark.read_text() for mark in tmp_path.glob("begun-*")]
    assert begun.count(killed) == 2  # by the one that died, and by another
    assert set(begun) == {"1/4", "2/4", "3/4", "4/4"}
    assert weights(path) == weights(plain)
    assert not path.with_name("w.shards").exists()


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


def test_a_core_that_was_trained_is_not_trained_again(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where training twice does not give the same bits, finished shards would else be of no use."""
    from efface.network import core_fitting
    from efface.network.core import Core
    from efface.pipeline import sharded

    path = tmp_path / "w"
    words = ("train", "digits", *OPTIONS, "--engine", "here", "--shards", 2, "--out", path)
    with monkeypatch.context() as patch:
        patch.setattr(sharded, "make_rows", interrupt)
        assert CliRunner().invoke(app, [str(word) for word in words]).exit_code == 130
    assert len(list(path.with_name("w.shards").glob("core-*"))) == 1
    trained: list[int] = []
    fit = core_fitting.fit_core

    def counted(core: Core, *given: object, **options: object) -> None:
        trained.append(1)
        fit(core, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("efface.network.core.fit_core", counted)
    said = efface(*words)
    assert not trained
    assert "goes on with the core that was trained before" in said
    assert weights(path) == weights(plain)
    assert not path.with_name("w.shards").exists()


def test_a_core_of_other_settings_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efface.pipeline import sharded

    path = tmp_path / "w"
    words = ("train", "digits", "--core-fraction", "0.3", "--features", "60", "--engine", "here")
    monkeypatch.setattr(sharded, "make_rows", interrupt)
    for seed in (1, 2, 1):
        given = (*words, "--shards", "2", "--seed", str(seed), "--out", str(path))
        assert CliRunner().invoke(app, list(given)).exit_code == 130
    cores = list(path.with_name("w.shards").glob("core-*"))
    assert len(cores) == 2
    for core in cores:
        (core / "core.safetensors").write_bytes(b"damaged")
    given = (*words, "--shards", "2", "--seed", "1", "--out", str(path))
    assert CliRunner().invoke(app, list(given)).exit_code == 2


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt
