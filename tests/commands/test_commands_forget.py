"""The commands of a workspace, as people and programs use them."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from tests.shell import efface, program, values_of
from tests.workspaces import OWNER, contents

from efface.workspace import Workspace


def test_forget_prints_its_certificate(path: Path, kind: str) -> None:
    result = efface("forget", path, "--owner", OWNER)
    assert result.exit_code == 0
    shown = result.stdout
    assert "records forgotten" in shown
    assert "36" in shown  # 24 users' and 12 replayed core records are retained
    assert "Not covered:" in shown
    assert "release 2 of" in shown
    certificate = Workspace.open(path).certificate
    assert certificate is not None
    if kind == "compact":
        private = certificate.private()
        assert private["statistics_digest"] in shown
        assert private["weights_digest"] in shown
    else:
        assert "epsilon bound" in shown
        assert "1e-05" in shown
        assert "the paper's theorem, a priori" in shown
        assert "vacuous: " in shown


def test_forget_for_programs(path: Path, kind: str) -> None:
    values = values_of(efface("forget", path, "--ids", "image-1-0, image-1-3", "--json"))
    assert values["release"] == 2
    assert values["num_records"] == 2
    assert values["certificate"]["passed"]
    assert values["certificate"]["kind"] == ("exact" if kind == "compact" else "a-posteriori")
    values = values_of(efface("forget", path, "--id", "image-1-5", "--json"))
    assert values["num_records"] == 1
    if kind == "tangent":
        theorem = values["certificate"]["apriori"]
        assert (theorem["num_requests"], theorem["n"], theorem["b"]) == (2, 42, 2)
        assert theorem["vacuous"] is True
        assert theorem["reason"]
        public = json.loads((path / "certificates/3.public.json").read_text())
        assert "apriori" not in public
    assert len(Workspace.open(path).records) == 27


@pytest.mark.parametrize(
    ("words", "left"),
    [(("--cohort", "cohort-1"), 15), (("--label", "a"), 20), (("--everything",), 0)],
)
def test_the_other_kinds_of_request(path: Path, words: tuple[str, ...], left: int) -> None:
    assert efface("forget", path, *words).exit_code == 0
    assert len(Workspace.open(path).records) == left


def test_a_dry_run_changes_nothing(path: Path) -> None:
    before = contents(path)
    values = values_of(efface("forget", path, "--owner", OWNER, "--dry-run", "--json"))
    assert values["num_forgotten"] == 6
    assert values["num_retained"] == 36
    assert "image-1-2" in values["ids"]
    assert "nothing was changed" in efface("forget", path, "--owner", OWNER, "--dry-run").stdout
    assert contents(path) == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--owner", "nobody"), "nobody"),
        (("--ids", "core-record-1"), "core record"),
        (("--ids", ","), "names no record"),
        ((), "exactly one"),
        (("--owner", OWNER, "--everything"), "exactly one"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(
    path: Path, words: tuple[str, ...], named: str
) -> None:
    before = contents(path)
    result = efface("forget", path, *words)
    assert result.exit_code == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert named in line
    assert " Fix: " in line
    assert contents(path) == before


def test_add_refuses_forgotten_images_unless_they_are_allowed(path: Path, folder: Path) -> None:
    assert values_of(efface("add", path, folder / "new.npz", "--json"))["num_records"] == 6
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    words = ("add", path, folder / "data.npz", "--owner", OWNER)
    refused = efface(*words)
    assert refused.exit_code == 2
    assert "--allow-reingest" in refused.stderr
    result = efface(*words, "--allow-reingest")
    assert result.exit_code == 0
    assert "records added" in result.stdout
    assert "already" in efface("add", path, folder / "new.npz", "--cohort", "cohort-1").stderr


def test_training_again_does_not_bring_forgotten_images_back(path: Path, folder: Path) -> None:
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    words = ("train", folder / "data.npz", "--config", folder / "run.toml", "--out", path)
    assert "--overwrite" in efface(*words).stderr
    refused = efface(*words, "--overwrite")
    assert refused.exit_code == 2
    assert "was forgotten here" in refused.stderr
    assert Workspace.open(path).number == 2
    assert efface(*words, "--overwrite", "--allow-reingest").exit_code == 0
    assert OWNER in Workspace.open(path).records.owners


@pytest.mark.parametrize("command", ["forget", "add", "plan", "resume", "verify", "scan"])
def test_a_folder_that_is_no_workspace(command: str, tmp_path: Path) -> None:
    rest = {"forget": ("--owner", "x"), "add": ("digits",), "scan": ("--owner", "x")}
    result = efface(command, tmp_path, *rest.get(command, ()))
    assert result.exit_code == 2


@pytest.mark.needs("posix")
def test_the_program_is_killed_and_resumed(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    kill = {"EFFACE_TEST_KILL_AT": "switched"}
    assert program("forget", path, "--owner", OWNER, **kill).returncode == -signal.SIGKILL
    assert (path / "releases/1").exists()
    values = values_of(efface("resume", path, "--json"))
    assert values["action"] == "forget"
    assert values["num_records"] == 6
    assert values["certificate"]["num_forgotten"] == 6
    assert not (path / "releases/1").exists()
    assert "nothing to resume" in efface("resume", path).stdout
