"""Jobs of an engine compute where it was asked for, and say so where they cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.devices import watched
from tests.shards.jobs import MARKS, noted_device
from tests.shards.training import OPTIONS, efface, failing, weights

from efface.errors import EffaceError
from efface.network.device import CPU, TWIN
from efface.pipeline import sharded
from efface.pipeline.sections import DataConfig
from efface.pipeline.sharded import ShardJob, make_missing
from efface.shards import engine_named
from efface.shards.ray_engine import cards_for
from efface.shards.same_model import given_of
from efface.workspace.published import load


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "w"
    efface("train", "digits", *OPTIONS, "--out", path)
    return path


def test_workers_are_told_the_device_and_give_the_same_weights(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharded, "make_missing", noted_device)
    monkeypatch.setenv(MARKS, str(tmp_path))
    path = tmp_path / "w"
    engine = ("--engine", "processes:1", "--shards", 2, "--device", "cpu:0")
    efface("train", "digits", *OPTIONS, *engine, "--out", path)
    assert [mark.read_text() for mark in tmp_path.glob("device-*")] == ["cpu:0", "cpu:0"]
    assert weights(path) == weights(plain)


@pytest.mark.parametrize(("device", "where"), [("cpu", {CPU}), ("cpu:0", {CPU, TWIN})])
def test_rows_are_computed_there(
    device: str, where: set[object], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = watched(monkeypatch)
    job = digits_job(plain, tmp_path / "part", device)
    make_missing(job)
    assert used == where  # a self-test compares another device with the CPU


@pytest.mark.parametrize("engine", ["here", "processes:1"])
@pytest.mark.parametrize(
    ("device", "said"),
    [("cuda", "torch finds no cuda here"), ("tpu", "there is no device 'tpu'")],
)
def test_a_worker_without_the_device_says_so(
    engine: str,
    device: str,
    said: str,
    plain: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    job = digits_job(plain, tmp_path / "part", device)
    with pytest.raises(EffaceError, match=said):
        engine_named(engine, device).run(make_missing, [job])
    assert not (tmp_path / "part").exists()


def test_training_refuses_the_device_before_workers_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sharded, "make_missing", lambda job: pytest.fail("a worker started"))
    words = ("train", "digits", *OPTIONS, "--engine", "here", "--out", tmp_path / "w")
    assert "torch finds no cuda here" in failing(*words, "--device", "cuda")
    assert "not 'tpu'" in failing(*words, "--device", "tpu")


@pytest.mark.parametrize(
    ("device", "resources", "cards"),
    [
        ("cpu", {"CPU": 4.0, "GPU": 2.0}, 0),
        ("cpu:0", {"GPU": 2.0}, 0),
        ("auto", {"CPU": 4.0}, 0),
        ("auto", {"CPU": 4.0, "GPU": 2.0}, 1),
        ("cuda", {"GPU": 1.0}, 1),
    ],
)
def test_a_job_on_ray_asks_for_the_card_that_it_needs(
    device: str, resources: dict[str, float], cards: int
) -> None:
    assert cards_for(device, resources) == cards


def test_a_card_that_ray_cannot_give_is_refused() -> None:
    with pytest.raises(EffaceError, match="has no graphics card"):
        cards_for("cuda", {"CPU": 4.0})
    with pytest.raises(EffaceError, match="Ray itself says which card"):
        cards_for("cuda:1", {"GPU": 2.0})


@pytest.mark.parametrize(("arithmetic", "apart"), [("integer", False), ("float32", True)])
def test_shards_of_another_device_are_taken_for_the_same_where_integers_are(
    arithmetic: str, apart: bool, plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on elsewhere must not mix floats of two devices."""
    model = load(plain)
    given = replace(given_of(model), arithmetic=arithmetic)
    monkeypatch.setattr(sharded, "given_of", lambda _: given)
    homes = {sharded.home_of(tmp_path, model, (), 4, device) for device in ("cpu", "cpu:0")}
    assert (len(homes) == 2) == apart


def digits_job(model: Path, out: Path, device: str) -> ShardJob:
    """A small shard of other records than the model's: of its ids none is taken."""
    data = DataConfig(spec="digits", core_fraction=0.3, seed=1).model_dump(mode="json")
    return ShardJob(str(model), data, "1/40", str(out), None, device)
