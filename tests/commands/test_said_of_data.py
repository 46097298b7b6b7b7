"""Whatever reads data says what looks like a slip: a column that means nothing, owners that look alike."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.shell import efface, write
from tests.workspaces import CORE, TEST, people

from efface.errors import EffaceError
from efface.pipeline.train import Training

COLUMN = "the column 'fotograf' means nothing to efface"
COMMANDS = {
    "add": ("add", "{model}", "{new}"),
    "evaluate": ("evaluate", "{model}", "{data}"),
    "evaluate, all": ("evaluate", "{model}", "{data}", "--split", "all"),
    "predict": ("predict", "{model}", "{data}"),
    "scan": ("scan", "{model}", "{data}", "--owner", "person-one"),
    "verify": ("verify", "{model}", "--from-images", "{data}"),
    "audit": ("audit", "{model}", "{data}", "--owner", "person-one", "--out", "{out}"),
    "rows": ("rows", "{data}", "--model", "{model}", "--out", "{out}"),
    "train": ("train", "{data}", "--out", "{out}"),
    "dry run": ("train", "{data}", "--out", "{out}", "--dry-run"),
    "calibration": ("train", "{plain}", "--calibration", "{data}", "--out", "{out}"),
    "core data": ("train", "{plain}", "--core-data", "{new}", "--out", "{out}"),
    "compare": ("compare", "{data}", "--out", "{out}"),
    "trial": ("trial", "{data}"),
    "init": ("init", "{data}", "--config-file", "{out}"),
}


def with_column(path: Path) -> Path:
    """The file, and in it a column that is none of ours."""
    with np.load(path) as found:
        arrays = dict(found)
    np.savez(path, **arrays, fotograf=["ann"] * len(arrays["images"]))
    return path


@pytest.fixture
def places(folder: Path, tmp_path: Path) -> dict[str, Path]:
    return {
        "model": shutil.copytree(folder / "compact", tmp_path / "model"),
        "plain": folder / "data.npz",
        "data": with_column(write(tmp_path / "data.npz", CORE, people(), TEST)),
        "new": with_column(write(tmp_path / "new.npz", people(6, seed=5))),
        "out": tmp_path / "out",
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_a_column_that_means_nothing_is_named_by_every_command(
    command: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def enough(*_: object, **__: object) -> None:
        raise EffaceError("enough.")

    if command not in ("dry run", "calibration"):  # what comes after reading is not asked about
        monkeypatch.setattr(Training, "core", enough)
    monkeypatch.setattr("efface.pipeline.audit.run", enough)
    result = efface(*(word.format(**places) for word in COMMANDS[command]))
    said = " ".join((result.stdout + result.stderr).split())
    assert said.count(COLUMN) == 1, said
    if command not in ("dry run", "init"):  # there it is part of the answer
        assert COLUMN not in result.stdout


def test_a_partner_who_joins_is_told_too(places: dict[str, Path], tmp_path: Path) -> None:
    letter, ours = tmp_path / "invitation.json", ("--out", tmp_path / "ours")
    assert not efface("partner", "admit", places["model"], "--name", "p", "--out", letter).exit_code
    words = ("--invitation", letter, "--message", tmp_path / "message", "--minimum-people", 1)
    result = efface("partner", "join", places["new"], "--model", places["model"], *ours, *words)
    assert result.exit_code == 0, result.stderr
    assert COLUMN in result.stderr


def test_an_owner_who_joins_and_looks_like_another_is_named(
    places: dict[str, Path], tmp_path: Path
) -> None:
    with np.load(places["new"]) as found:
        arrays = {k: v for k, v in found.items() if k != "fotograf"}
    arrays["owners"] = ["Person-One", *arrays["owners"][1:]]
    np.savez(tmp_path / "alike.npz", **arrays)
    result = efface("add", places["model"], tmp_path / "alike.npz")
    assert result.exit_code == 0, result.stderr
    assert "the new owner 'Person-One' looks like 'person-one', and is another person" in (
        result.stderr
    )
