"""What the machine or the caller did wrong is said as such, and before anything is trained."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.shell import efface, values_of, write
from tests.workspaces import (
    CORE,
    OWNER,
    contents,
    people,
)

from efface.model.mixed_linear import MixedLinear


@pytest.mark.parametrize("option", ["--epsilon", "--sigma", "--delta"])
def test_zero_is_not_the_same_as_nothing(path: Path, option: str) -> None:
    before = contents(path)
    more = () if option == "--sigma" else ("--sigma", 1e5)
    for words in (("forget", "--owner", OWNER), ("plan",)):
        result = efface(words[0], path, *words[1:], option, 0, *more)
        assert result.exit_code == 2
        assert "no guarantee with" in result.stderr
    assert contents(path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_no_permission_is_no_bug(path: Path) -> None:
    (path / "private").chmod(0)
    result = efface("forget", path, "--owner", OWNER)
    (path / "private").chmod(0o700)
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.ENOSPC])
def test_what_the_machine_says_is_no_bug_of_ours(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(MixedLinear, "load", refuse)
    result = efface("predict", path, "x.png")
    assert result.exit_code == 2
    assert "some/file" in result.stderr
    assert "bug" not in result.stderr


def test_errors_are_json_where_json_is_asked_for(path: Path) -> None:
    values = values_of(efface("forget", path, "--owner", "nobody", "--json"), code=2)
    assert "nobody" in values["error"]
    assert values["fix"]
    assert values["exit_code"] == 2


def test_a_folder_that_cannot_be_written_is_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data.npz", CORE, people())
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(
        "efface.pipeline.sections.DataConfig.build", lambda *_: pytest.fail("it went on")
    )
    for out in (tmp_path / "file", tmp_path / "file" / "w"):
        result = efface("train", tmp_path / "data.npz", "--out", out)
        assert result.exit_code == 2
        assert "bug" not in result.stderr
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", raising(errno.EROFS))
        result = efface("train", tmp_path / "data.npz", "--out", tmp_path / "w")
    assert "nothing can be written" in result.stderr


def test_a_model_that_will_not_fit_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data.npz", CORE, people())
    monkeypatch.setattr("efface.network.core.Core.fit", lambda *_, **__: pytest.fail("it went on"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 10_000))
    result = efface("train", tmp_path / "data.npz", "--out", tmp_path / "w")
    assert result.exit_code == 2
    assert "GB free" in result.stderr


def raising(number: int) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse
