"""The command line as people and programs use it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.shell import efface, program, values_of

from efface import __version__
from efface.commands import REGISTRY
from efface.commands.display import Mode, show
from efface.pipeline.evaluate import measure, wilson


def test_help_lists_every_command_and_the_exit_codes() -> None:
    result = efface("--help")
    assert result.exit_code == 0
    for name in REGISTRY:
        assert name in result.stdout
    assert "Exit codes" in result.stdout


@pytest.mark.parametrize("name", REGISTRY)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = efface(name, "--help")
    assert result.exit_code == 0
    assert f"Example: efface {name}" in result.stdout


def test_version() -> None:
    assert efface("--version").stdout.strip() == f"efface {__version__}"


def test_train_reports_what_it_did(trained: tuple[Path, dict]) -> None:
    folder, values = trained
    assert values["model"] == str(folder)
    assert values["records"] == {"core": 539, "user": 899, "test": 359}
    assert values["solution"]["status"] == "converged"
    assert values["accuracy"]["user"] > values["accuracy"]["core"] > 0.3
    assert (folder / "core/1/config.toml").is_file()


def test_evaluate_finds_the_accuracy_of_training(trained: tuple[Path, dict]) -> None:
    folder, values = trained
    found = values_of(efface("evaluate", folder, "digits", "--json"))
    assert found["accuracy"] == pytest.approx(values["accuracy"]["user"], abs=1e-6)
    low, high = found["interval_95"]
    assert low < found["accuracy"] < high
    per_class = found["per_class"].values()
    mean = sum(c["accuracy"] * c["num_records"] for c in per_class) / found["num_records"]
    assert mean == pytest.approx(found["accuracy"])


def test_evaluate_for_people(trained: tuple[Path, dict]) -> None:
    result = efface("evaluate", trained[0], "digits", "--split", "user")
    assert result.exit_code == 0
    assert "899 user records" in result.stdout


def test_predict_agrees_between_files_folder_and_data(
    trained: tuple[Path, dict], tmp_path: Path
) -> None:
    from efface.data.records import Records

    folder, _ = trained
    some = Records.digits().test[:5]
    for i, record in enumerate(some):
        Image.fromarray(record.image()[:, :, 0]).save(tmp_path / f"{i}.png")
    of_data = values_of(efface("predict", folder, "digits", "--split", "test", "--json"))
    files = [tmp_path / f"{i}.png" for i in range(5)]
    of_files = values_of(efface("predict", folder, *files, files[0], "--json"))
    of_folder = values_of(efface("predict", folder, tmp_path, "--top", 1, "--json"))
    expected = [entry["label"] for entry in of_data["predictions"][:5]]
    assert [entry["id"] for entry in of_data["predictions"][:5]] == list(some.ids)
    assert [entry["label"] for entry in of_files["predictions"]] == expected
    assert [entry["label"] for entry in of_folder["predictions"]] == expected
    assert all(len(entry["scores"]) == 1 for entry in of_folder["predictions"])


def test_predict_for_people(trained: tuple[Path, dict], tmp_path: Path) -> None:
    path = tmp_path / "[b]odd.png"  # looks like markup
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    result = efface("predict", trained[0], path)
    assert result.exit_code == 0
    assert "[b]odd.png" in result.stdout.replace("\n", "")


def test_the_core_fraction_of_training_holds_when_its_data_is_evaluated(
    run_toml: Path, tmp_path: Path
) -> None:
    words = ("--core-fraction", 0.5, "--solver", "cg", "--out", tmp_path / "m", "--json")
    values = values_of(efface("train", "--config", run_toml, *words))
    found = values_of(efface("evaluate", tmp_path / "m", "digits", "--split", "user", "--json"))
    assert found["num_records"] == values["records"]["user"] < 899


def test_a_cache_is_filled_and_does_not_change_the_model(
    run_toml: Path, trained: tuple[Path, dict], tmp_path: Path
) -> None:
    words = ("--cache", tmp_path / "cache", "--out", tmp_path / "m", "--json")
    values = values_of(efface("train", "--config", run_toml, *words))
    assert values["accuracy"] == trained[1]["accuracy"]
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_dry_run_says_what_it_takes_and_writes_nothing(tmp_path: Path) -> None:
    words = ("train", "digits", "--out", tmp_path / "m", "--dry-run")
    values = values_of(efface(*words, "--json"))
    assert values["records"] == {"core": 539, "user": 899, "test": 359}
    assert values["classes"] == 10
    assert values["weights"] == 32 * 32 * 9 + 32 + 32 * 10 + 10
    assert values["activations_gib"] == pytest.approx(1438 * 32 * 16 * 4 / 2**30, abs=1e-3)
    assert values["minutes_estimate"] > 0
    shown = efface(*words).stdout
    assert "9,578" in shown
    assert "dry run" in shown
    assert not (tmp_path / "m").exists()


def test_print_config_can_be_used_as_a_config(tmp_path: Path) -> None:
    options = ("--mu", 0.5, "--solver", "sgd", "--seed", 3, "--mirror")
    first = efface("train", "digits", *options, "--print-config")
    assert "mirror = true" in first.output
    path = tmp_path / "again.toml"
    path.write_text(first.stdout)
    second = efface("train", "--config", path, "--print-config")
    assert first.stdout == second.stdout
    assert "mu = 0.5" in first.stdout
    assert first.stdout.count("seed = 3") == 2  # of the split and of the core


def test_a_model_is_not_overwritten_unasked(trained: tuple[Path, dict], run_toml: Path) -> None:
    before = (trained[0] / "core/1/model.json").read_bytes()
    result = efface("train", "--config", run_toml, "--out", trained[0])
    assert result.exit_code == 2
    assert "--overwrite" in result.stderr
    assert (trained[0] / "core/1/model.json").read_bytes() == before


def test_the_program_keeps_stdout_for_the_result(
    trained: tuple[Path, dict], run_toml: Path, tmp_path: Path
) -> None:
    done = program("train", "--config", run_toml, "--out", tmp_path / "m", "--json")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["model"] == str(tmp_path / "m")
    progress = [json.loads(line) for line in done.stderr.splitlines()]
    assert {entry["task"] for entry in progress} == {
        "core",
        "user part",
        "workspace",
        "test",
    }
    assert all(0 <= entry["progress"] <= 1 for entry in progress)


def test_a_traceback_only_for_those_who_ask() -> None:
    plain = program("train", EFFACE_DEBUG="0")
    asked = program("train", EFFACE_DEBUG="1")
    assert plain.returncode == 2
    assert "Traceback" not in plain.stderr
    assert "Traceback" in asked.stderr


def test_check_lists_what_building_changes() -> None:
    values = values_of(efface("check", "cnn", "--json"))
    assert values["ok"]
    assert any("ReLU" in finding["problem"] for finding in values["findings"])
    assert "ready to linearise" in efface("check", "cnn").stdout


def test_check_fails_if_something_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from efface.pipeline.check import Obstacle

    finding = Obstacle("block.0", "mixes samples", "use GroupNorm", False)
    monkeypatch.setattr("efface.pipeline.check.check", lambda backbone, linearize: [finding])
    result = efface("check", "cnn")
    assert result.exit_code == 2
    assert "use GroupNorm" in result.stdout


def test_measure_counts_and_names_confusions() -> None:
    values = measure(["a", "a", "a", "b", "c"], ["a", "b", "b", "b", "a"])
    assert values["accuracy"] == 2 / 5
    assert values["per_class"]["a"] == {"num_records": 3, "accuracy": 1 / 3}
    assert values["confusions"] == [
        {"class": "c", "taken_for": "a", "num_records": 1},
        {"class": "a", "taken_for": "b", "num_records": 2},
    ]


@pytest.mark.parametrize(("correct", "n"), [(0, 10), (7, 10), (10, 10), (350, 359)])
def test_wilson_solves_its_equation(correct: int, n: int) -> None:
    """The ends p satisfy |p̂ − p| = z √(p(1−p)/n), where they are not cut off."""
    z = 1.959964
    for end in wilson(correct, n):
        if 1e-12 < end < 1 - 1e-12:
            assert abs(correct / n - end) == pytest.approx(z * (end * (1 - end) / n) ** 0.5)


def test_log_mode_leaves_one_line_a_task(capsys: pytest.CaptureFixture[str]) -> None:
    with show("core", Mode.LOG) as progress:
        progress(0.5, "epoch 1")
        progress(1.0, "epoch 2")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("core: ")
    assert captured.err.endswith("(epoch 2)\n")


def test_json_mode_always_shows_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with show("core", Mode.JSON) as progress:
        for i in range(101):
            progress(i / 100, f"step {i}")
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    end = {"task": "core", "progress": 1.0, "message": "step 100", "seconds_left": 0.0}
    assert entries[-1] == end
    assert len(entries) < 101


def test_bars_and_silence_keep_stdout_clean(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in (Mode.BAR, Mode.SILENT):
        with show("core", mode) as progress:
            progress(0.5, "half [b]way")
    assert capsys.readouterr().out == ""
