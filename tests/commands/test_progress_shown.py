"""Whatever may take long says how far it is and how much time is left: to people, programs and logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.shell import efface, write
from tests.workspaces import CORE, OWNER, TEST, fitted, people
from typer.testing import Result

from efface.commands import display
from efface.commands.display import Mode, show
from efface.network import in_turn
from efface.workspace import Workspace

COMMANDS = {
    "evaluate": ("{model}", "{data}", "--split", "all"),
    "predict": ("{model}", "{data}"),
    "verify": ("{model}", "--retrain", "--from-images", "{data}"),
    "scan": ("{model}", "{data}", "--owner", OWNER),
    "export": ("{model}", "--numpy-head", "--files", "--out", "{out}"),
    "check": ("cnn",),
    "find": ("{model}", "{image}"),
    "warm": ("{model}",),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("progress")
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(folder / "image.png")
    return {
        "model": Workspace.create(folder / "model", fitted("compact", people())).path,
        "data": write(folder / "data.npz", CORE, people(), TEST),
        "image": folder / "image.png",
        "out": folder / "out",
    }


def told(result: Result, task: str) -> list[dict[str, Any]]:
    """The JSON lines of a task on stderr."""
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    return [line for line in lines if line["task"] == task]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_may_take_long_says_how_far_it_is(
    command: str, places: dict[str, Path]
) -> None:
    words = (word.format(**places) for word in COMMANDS[command])
    result = efface(command, *words, "--json")
    assert result.stdout.count("\n") == 1, result.stderr
    lines = told(result, command)
    assert lines[-1]["progress"] == 1
    assert lines[-1]["seconds_left"] == 0
    fractions = [line["progress"] for line in lines]
    assert fractions == sorted(fractions)


def test_training_is_not_silent_after_the_user_part(
    places: dict[str, Path], tmp_path: Path
) -> None:
    words = ("train", places["data"], "--features", 40, "--out", tmp_path / "m", "--json")
    result = efface(*words)
    assert result.exit_code == 0, result.stderr
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    tasks = list(dict.fromkeys(line["task"] for line in lines))
    assert tasks == ["core", "user part", "workspace", "test"]
    for task in ("workspace", "test"):
        assert told(result, task)[-1]["progress"] == 1


def test_a_few_images_are_predicted_without_a_word(places: dict[str, Path]) -> None:
    result = efface("predict", places["model"], places["image"], "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_predictions_are_the_same_however_many_are_computed_at_a_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, seen = fitted(kind, people()), []
    want = model.logits(TEST)
    monkeypatch.setattr(in_turn, "SIZE", 7)
    found = model.logits(TEST, progress=lambda fraction, message: seen.append((fraction, message)))
    assert torch.equal(found, want)
    assert seen[0] == (7 / 30, "images 7/30")
    assert seen[-1] == (1.0, "images 30/30")
    assert len(seen) == 5
    none = model.logits(TEST[:0], progress=lambda *_: None)
    assert none.shape == (0, 3)


# In a log.


class Time:
    """A clock that goes on when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_log_hears_of_a_long_task_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Time()
    monkeypatch.setattr(display, "time", clock)
    with show("core", Mode.LOG) as progress:
        for i in range(1, 101):  # a step a second
            clock.now += 1
            progress(i / 100, f"epoch {i}/100")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "core: 30% after 30 s, about 70 s left (epoch 30/100)",
        "core: 60% after 60 s, about 40 s left (epoch 60/100)",
        "core: 90% after 90 s, about 10 s left (epoch 90/100)".replace("90 s", "2 min"),
        "core: 100.0 s (epoch 100/100)",
    ]


def test_a_log_of_a_short_task_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with show("core", Mode.LOG) as progress:
        progress(0.0, "")
        progress(0.5, "half")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("core: ")
    assert line.endswith("(half)")


def test_before_anything_is_done_no_time_is_foretold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Time()
    monkeypatch.setattr(display, "time", clock)
    with show("core", Mode.LOG) as progress:
        clock.now += 31
        progress(0.0, "reading")
    assert capsys.readouterr().err.splitlines()[0] == "core: 0% after 31 s (reading)"
