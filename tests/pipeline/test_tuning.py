"""``efface train --finetune``: chosen on held-out core images, resumable, saved with its weights, exact."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import cases
from tests.photos import write_photos
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.data.preprocess import Preprocess
from efface.network.backbone import load_backbone
from efface.network.checkpoint import Checkpoint
from efface.network.device import CPU, TWIN
from efface.pipeline import tuning
from efface.pipeline.config import load_config
from efface.pipeline.estimate import Speed, _tuning_seconds
from efface.pipeline.tuning import TuningFolder

QUICK = ("--core-fraction", 0.4, "--features", 60, "--finetune")
GOOD = ("--finetune-rates", "0.01,0.02", "--finetune-epochs", 2, "--finetune-size", 16)
RUINOUS = ("--finetune-rates", "1e12", "--finetune-epochs", 5)


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "300"})


def train(data: Path, out: Path, *words: object) -> dict[str, Any]:
    done = efface("train", data, "--out", out, "--json", *words)
    assert done.exit_code == 0, done.output
    return {**json.loads(done.stdout), "told": done.stderr}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), num_owners=16, each=5, num_test=6)


@pytest.fixture
def network(tmp_path: Path) -> str:
    """A tiny ResNet of random weights, as a folder that can be taken away."""
    cases.tiny("resnet-bottleneck").save_pretrained(tmp_path / "network")
    prep = {"size": {"height": 24, "width": 24}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "network" / "preprocessor_config.json").write_text(json.dumps(prep))
    return f"hf:{tmp_path / 'network'}"


def chosen_to_be(monkeypatch: pytest.MonkeyPatch, trial: int) -> None:
    """Random weights on a few images: which trial is best is luck, so it is said."""
    from efface.network.tuning_choice import TuningChoice

    monkeypatch.setattr(TuningChoice, "best", property(lambda self: self.trials[trial]))


def test_fine_tuning_runs_where_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.device] = []
    monkeypatch.setattr(tuning, "tuned_backbone", lambda *_, device, **__: seen.append(device))
    gray = Preprocess(0, 0, 1, (0.5,), (0.5,))
    backbone, records = (
        load_backbone(cases.named_sequential(), preprocess=gray),
        cases.tiny_records(),
    )
    for name in ("cpu", "cpu:0"):
        config = load_config(None, {"data.spec": "digits", "core.device": name})
        tuning.fine_tuned(config, backbone, records)
    assert seen == [CPU, TWIN]


def test_a_tuned_core_needs_no_other_file_and_forgets_exactly(
    tmp_path: Path, photos: Path, network: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen_to_be(monkeypatch, 2)
    plain = train(photos, tmp_path / "plain", *QUICK[:4], "--backbone", network)
    tuned = train(photos, tmp_path / "model", *QUICK, *GOOD, "--backbone", network)
    assert plain["finetuning"] is None
    assert tuned["core_digest"] != plain["core_digest"]
    assert tuned["finetuning"]["chosen"]["rate"] == 0.02
    assert len(tuned["finetuning"]["trials"]) == 3
    assert "rate 0.02 and 2 epochs" in tuned["told"]
    assert tuned["part"]["form"] == "integer"
    assert not (tmp_path / "model.finetuning").exists()
    shutil.rmtree(tmp_path / "network")
    owner = next(
        f"person-{i:02d}"
        for i in range(16)
        if efface("forget", tmp_path / "model", "--owner", f"person-{i:02d}").exit_code == 0
    )
    assert owner
    checked = efface("verify", tmp_path / "model", "--retrain", "--from-images", photos)
    assert checked.exit_code == 0, checked.output


def test_a_killed_run_goes_on_and_ends_with_the_same_core(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*QUICK, "--finetune-rates", 0.02, "--finetune-epochs", 3, "--channels", "gray")
    chosen_to_be(monkeypatch, 1)
    whole = train(photos, tmp_path / "whole", *words)
    saved, calls = Checkpoint.save, []

    def dies(self: Checkpoint, *rest: Any) -> None:
        saved(self, *rest)
        calls.append(self.folder)
        if len(calls) == 5:  # three epochs of the trial, two of the core's
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoint, "save", dies)
        assert efface("train", photos, "--out", tmp_path / "model", *words).exit_code == 130
    assert not (tmp_path / "model").exists()
    assert (tmp_path / "model.finetuning" / "core").is_dir()
    seen: list[Path] = []
    monkeypatch.setattr(
        Checkpoint, "save", lambda self, *rest: (seen.append(self.folder), saved(self, *rest))[1]
    )
    again = train(photos, tmp_path / "model", *words)
    assert [folder.name for folder in seen] == ["core"]  # its third epoch, and no other
    assert again["core_digest"] == whole["core_digest"]
    assert not (tmp_path / "model.finetuning").exists()


def test_a_network_that_only_gets_worse_stays_as_it_came(tmp_path: Path, photos: Path) -> None:
    gray = ("--channels", "gray")
    plain = train(photos, tmp_path / "plain", *QUICK[:4], *gray)
    tuned = train(photos, tmp_path / "model", *QUICK, *RUINOUS, *gray)
    assert tuned["core_digest"] == plain["core_digest"]
    assert tuned["finetuning"]["chosen"] == tuned["finetuning"]["trials"][0]
    assert tuned["finetuning"]["trials"][1]["loss"] is None  # it diverged
    assert "fine-tuning was not chosen" in tuned["told"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--finetune-rates", "0.1,fast"), "core.finetune_rates"),
        (("--finetune-rates", "0"), "core.finetune_rates"),
        (("--finetune-epochs", "2,0"), "core.finetune_epochs"),
        (("--finetune-epochs", ""), "core.finetune_epochs"),
        (("--finetune-size", -1), "core.finetune_size"),
        (("--finetune-precision", "half"), "core.finetune_precision"),
        ((*QUICK, "--finetune-folder", "model/inside"), "inside the model"),
        ((*QUICK, "--finetune-folder", "mine"), "no folder of a fine-tuning: it has 'diary.txt'"),
        ((*QUICK, "--finetune-folder", "mine/diary.txt"), "is not a folder"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_trained(
    tmp_path: Path,
    photos: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear diary")
    shown = efface("train", photos, "--out", "model", "--channels", "gray", *words)
    assert shown.exit_code == 2, shown.output
    assert message in shown.output
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear diary"
    assert not (tmp_path / "model").exists()


def test_without_core_records_there_is_nothing_to_fine_tune_on(
    tmp_path: Path, photos: Path, network: str
) -> None:
    words = ("--core-fraction", 0, "--finetune", "--classes", "disc,stripes,checks")
    shown = efface("train", photos, "--out", tmp_path / "model", "--backbone", network, *words)
    assert shown.exit_code == 2
    assert "0 core records are too few to hold some out" in shown.output


def test_only_its_own_files_are_cleared(tmp_path: Path) -> None:
    for name in ("choice.json", "core/lock", "trial-12/lock", "diary.txt"):
        (tmp_path / "place" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "place" / name).touch()
    TuningFolder(tmp_path / "place").clear()
    assert [entry.name for entry in (tmp_path / "place").iterdir()] == ["diary.txt"]


def test_a_forecast_counts_every_trial_and_the_last_run() -> None:
    speed = Speed(activations=3.0, prefix=1.0, tail=1.0, product=0.0)
    core = load_config(None, {"data.spec": "digits"}).core.build(["a", "b"])

    def seconds(**changes: object) -> float:
        keys = {f"core.finetune{name}": value for name, value in changes.items()}
        return _tuning_seconds(load_config(None, {"data.spec": "d", **keys}), core, 10, speed)

    assert seconds() == 0
    once = seconds(**{"": True, "_rates": [0.1], "_epochs": [5]})
    # 0.8 of 10 images and all 10, 5 epochs, each read (2 s) and stepped (3 × 2 s); features twice
    assert once == pytest.approx((40 + 50) * 8 + 2 * 10 * 4)
    more = seconds(**{"": True, "_rates": [0.1, 0.2], "_epochs": [5]})
    assert more == pytest.approx((80 + 50) * 8 + 3 * 10 * 4)
    side = core.image_side
    half = seconds(**{"": True, "_rates": [0.1], "_epochs": [5], "_size": side // 2})
    assert half == pytest.approx((40 + 50) * (2 + 6 / 4) + 2 * 10 * 4)
