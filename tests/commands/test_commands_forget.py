"""The commands of a workspace, as people and programs use them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import cases
from tests.workspace.test_workspace import (  # noqa: F401
    KINDS,
    OWNER,
    as_in_other_processes,
    contents,
    people,
    without_journal,
)
from typer.testing import CliRunner, Result

from efface import files
from efface.cli import app
from efface.data.record import Split
from efface.data.records import Records
from efface.guarantee.certificates import ExactCertificate
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.workspace import Workspace
from efface.workspace.published import load
from efface.workspace.verify import _other_givens

CONFIG = """
[core]
calibrate_to = 0
stages = [{ train = "all", epochs = 2, lr = 0.05 }]

[user]
mu = 0.1
features = 120
"""


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "160"})


def values_of(result: Result, code: int = 0) -> dict[str, Any]:
    """The one JSON object on stdout."""
    assert result.exit_code == code, result.stderr
    (line,) = result.stdout.splitlines()
    return json.loads(line)


def write(path: Path, *sets: Records) -> Path:
    """The records as an .npz file, which gives them the digests they have."""
    records = [record for records in sets for record in records]
    np.savez(
        path,
        images=np.stack([record.image()[:, :, 0] for record in records]),
        labels=np.array([record.label for record in records]),
        ids=np.array([record.id for record in records]),
        owners=np.array([record.owner for record in records]),
        cohorts=np.array([record.cohort for record in records]),
        splits=np.array([str(record.split) for record in records]),
        classes=np.array(["a", "b", "c"]),
    )
    return path


CORE = cases.tiny_records(12, 0, split=Split.CORE, name="core-record-")
TEST = cases.tiny_records(9, 9, split=Split.TEST)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data.npz, new.npz, and a workspace of each kind, made by ``efface train``."""
    folder = tmp_path_factory.mktemp("commands")
    write(folder / "data.npz", CORE, people(), TEST)
    write(folder / "new.npz", people(6, seed=5))
    (folder / "run.toml").write_text(CONFIG)
    for kind in KINDS:
        words = ("--user", kind, "--config", folder / "run.toml", "--out", folder / kind)
        assert efface("train", folder / "data.npz", *words).exit_code == 0
    return folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(folder: Path, kind: str, tmp_path: Path) -> Path:
    return shutil.copytree(folder / kind, tmp_path / "w")


def test_train_makes_a_workspace_that_checks(path: Path, folder: Path) -> None:
    values = values_of(
        efface("verify", path, "--retrain", "--from-images", folder / "data.npz", "--json")
    )
    assert values["ok"]
    detail = {check["name"]: check["detail"] for check in values["checks"]}
    assert re.match("42 of 42 (agree|are equal)", detail["rows from images"])
    assert efface("evaluate", path, folder / "data.npz").exit_code == 0
    assert efface("predict", path, folder / "data.npz", "--split", "test").exit_code == 0


def test_a_row_that_differs_is_an_error_in_integers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One integer, by one: as another decoder might, or a backend that is not exact."""
    path, real = shutil.copytree(folder / "compact", tmp_path / "w"), CompactUser.rows

    def off_by_one(self: CompactUser, *args: object) -> Rows:
        rows = real(self, *args)  # type: ignore[arg-type]
        rows.features[5, 0] ^= 1
        return rows

    monkeypatch.setattr(CompactUser, "rows", off_by_one)
    words = ("verify", path, "--from-images", folder / "data.npz", "--json")
    result = efface(*words)
    assert result.exit_code == 4
    check = next(c for c in json.loads(result.stdout)["checks"] if c["name"] == "rows from images")
    assert check["ok"] is False
    assert "41 of 42 are equal" in check["detail"]
    assert f"differs: {people()[5].id}" in check["detail"]


def test_a_certificate_of_another_core_does_not_check(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    workspace = Workspace.open(path)
    certificate = workspace.certificate
    assert isinstance(certificate, ExactCertificate)
    assert certificate.given is not None
    assert certificate.given.arithmetic == "integer"
    other = replace(certificate, given=replace(certificate.given, classes_digest="0" * 64))
    assert _other_givens(other, workspace.model()) == ["it was given another classes digest"]
    assert _other_givens(certificate, workspace.model()) == []


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


def test_a_plan_is_kept_and_can_be_overruled(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    planned = values_of(efface("plan", path, "--epsilon", 0.7, "--delta", 1e-6, "--json"))
    assert planned["guarantee"]["epsilon"] == 0.7
    first = values_of(efface("forget", path, "--owner", OWNER, "--json"))
    assert first["certificate"]["guarantee"] == planned["guarantee"]
    words = ("--owner", "person-one", "--epsilon", 0.3, "--json")
    second = values_of(efface("forget", path, *words))
    assert second["certificate"]["guarantee"]["epsilon"] == 0.3
    assert second["certificate"]["guarantee"]["sigma"] == planned["guarantee"]["sigma"]
    assert "epsilon" in efface("plan", path).stdout


def noisy(folder: Path, tmp_path: Path) -> Path:
    """A workspace that keeps noisy weights only, after a request."""
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    assert efface("plan", path, "--state", "noisy").exit_code == 0
    shown = efface("forget", path, "--owner", OWNER)
    assert shown.exit_code == 0
    assert "noisy: no weights without noise are kept" in shown.stdout
    return path


def test_with_a_noisy_state_verify_says_what_it_cannot_check(folder: Path, tmp_path: Path) -> None:
    path = noisy(folder, tmp_path)
    values = values_of(efface("verify", path, "--retrain", "--json"))
    checks = {check["name"]: check for check in values["checks"]}
    assert values["ok"] is True
    assert checks["certificate"]["detail"] == "a-posteriori, consistent"
    assert checks["epsilon from the gradient"]["ok"] is None
    assert "not checked" in checks["epsilon from the gradient"]["detail"]
    assert checks["noise in the release"]["ok"] is True
    shown = efface("verify", path, "--retrain")
    assert shown.exit_code == 0
    assert "cannot" in shown.stdout
    assert "all that can be checked does" in shown.stdout
    assert "holds" not in shown.stdout
    assert "everything checks" not in shown.stdout
    words = ("forget", path, "--owner", "person-one", "--epsilon", 0.5, "--json")
    assert values_of(efface(*words))["certificate"]["guarantee"]["state"] == "noisy"


@pytest.mark.parametrize("factor", [0.0, 0.5, 2.0], ids=["none", "half", "twice"])
def test_with_a_noisy_state_verify_notices_wrong_noise(
    folder: Path, tmp_path: Path, factor: float
) -> None:
    path = noisy(folder, tmp_path)
    model = Workspace.open(path).model()
    problem = model.user.problem(model.data.activations, model.data.labels)  # type: ignore[union-attr]
    solved = SolvedForgetting().solver(1e-6).solve(problem, model.user.weights).value
    model.user.weights = solved + factor * (model.user.weights - solved)
    model.save_user(path / "releases/2")
    values = values_of(efface("verify", path, "--retrain", "--json"), code=4)
    failed = {check["name"] for check in values["checks"] if check["ok"] is False}
    assert failed == {"files", "noise in the release"}


def test_weights_without_noise_are_found_where_none_should_be(folder: Path, tmp_path: Path) -> None:
    path = noisy(folder, tmp_path)
    assert not (path / "private/2/state.safetensors").exists()
    words = ("scan", path, folder / "data.npz", "--owner", OWNER, "--json")
    assert values_of(efface(*words))["clean"]
    state = load(path).user.state
    files.write_tensors(path / "private/2/state.safetensors", {"state": state})
    found = values_of(efface(*words), code=3)["findings"]
    whats = {finding["what"] for finding in found}
    assert whats == {"weights without noise", "a file that is not the workspace's"}
    assert "state.safetensors" in efface("verify", path).stdout


def test_an_unknown_state_policy_is_refused(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    before = contents(path)
    result = efface("plan", path, "--state", "open")
    assert result.exit_code == 2
    assert "use secret or noisy" in result.stderr
    assert contents(path) == before


def test_compact_needs_no_guarantee(folder: Path) -> None:
    for words in (("plan",), ("forget", "--owner", OWNER, "--epsilon", 1)):
        command, *rest = words
        result = efface(command, folder / "compact", *rest)
        assert result.exit_code == 2
        assert "forgets exactly" in result.stderr


def test_compact_noise_for_an_observer_of_both_releases(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    assert efface("forget", path, "--owner", OWNER, "--sigma", 1e-9).exit_code == 3
    assert Workspace.open(path).number == 1
    planned = values_of(efface("plan", path, "--sigma", 1e5, "--epsilon", 0.5, "--json"))
    shown = efface("forget", path, "--owner", OWNER)
    assert shown.exit_code == 0
    assert "epsilon to the release before" in shown.stdout
    words = ("forget", path, "--owner", "person-one", "--json")
    made = values_of(efface(*words))["certificate"]
    assert made["kind"] == "exact"
    assert made["difference"]["guarantee"] == planned["guarantee"]
    assert made["difference"]["epsilon_bound"] <= 0.5
    public = json.loads((path / "certificates/3.public.json").read_text())
    assert "statistics_digest" not in public
    assert public["passed"] is True
    assert efface("verify", path, "--retrain").exit_code == 0
    model = load(path)
    model.user.theta = model.user.theta * 0.5
    model.save_user(path / "releases/3")
    values = values_of(efface("verify", path, "--retrain", "--json"), code=4)
    failed = {check["name"] for check in values["checks"] if check["ok"] is False}
    assert {"certificate", "noise in the release"} <= failed


def test_a_guarantee_that_is_not_reached_is_exit_code_3(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    before = contents(path)
    result = efface("forget", path, "--owner", OWNER, "--sigma", 1e-15)
    assert result.exit_code == 3
    after = contents(path)
    assert without_journal(before) == without_journal(after)


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


def test_scan_finds_before_and_is_clean_after(path: Path, folder: Path) -> None:
    words = ("scan", path, folder / "data.npz", "--owner", OWNER)
    before = values_of(efface(*words, "--json"), code=3)
    assert not before["clean"]
    assert before["num_records"] == 6
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    after = values_of(efface(*words, "--json"))
    assert after["clean"]
    assert len(after["kept"]) == 6
    assert "journal.jsonl" in after["files"]
    shown = efface(*words).stdout
    assert "nothing is left" in shown
    assert "journal.jsonl" in shown


def test_scan_with_an_image_file(path: Path, tmp_path: Path) -> None:
    """A .png of a record: its pixels, and so its rows, are the record's, its bytes are not."""
    from PIL import Image

    record = people().select(owner=OWNER)[0]
    Image.fromarray(record.image()[:, :, 0]).save(tmp_path / "photo.png")
    words = ("scan", path, "--image", tmp_path / "photo.png")
    assert efface(*words).exit_code == 3
    assert efface("forget", path, "--id", record.id).exit_code == 0
    assert efface(*words).exit_code == 0


def test_verify_notices_changes(path: Path) -> None:
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    certificate = path / "certificates/2.private.json"
    values = json.loads(certificate.read_text())
    certificate.write_text(json.dumps({**values, "num_retained": 35}))
    result = efface("verify", path)
    assert result.exit_code == 4
    assert "fails" in result.stdout
    assert "36 records are retained, not 35" in result.stdout


def test_verify_retrains(folder: Path, tmp_path: Path) -> None:
    """Statistics that still hold a record are noticed, even if everything else was adapted to them."""
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    old = (path / "private/1/statistics.safetensors").read_bytes()
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    (path / "private/2/statistics.safetensors").write_bytes(old)
    values = values_of(efface("verify", path, "--retrain", "--json"), code=4)
    failed = {check["name"] for check in values["checks"] if not check["ok"]}
    assert {"files", "certificate", "statistics from the retained rows"} <= failed


def test_verify_notices_missing_noise(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    model = Workspace.open(path).model()
    model.user.weights = model.user.state
    model.save_user(path / "releases/2")
    values = values_of(efface("verify", path, "--retrain", "--json"), code=4)
    failed = {check["name"] for check in values["checks"] if not check["ok"]}
    assert "noise in the release" in failed


def test_a_changed_journal_is_exit_code_4(path: Path) -> None:
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    journal = path / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"train"', '"add"', 1))
    for words in (("verify", path), ("forget", path, "--owner", "person-one")):
        result = efface(*words)
        assert result.exit_code == 4
        assert "journal.jsonl" in result.stderr


@pytest.mark.parametrize("command", ["forget", "add", "plan", "resume", "verify", "scan"])
def test_a_folder_that_is_no_workspace(command: str, tmp_path: Path) -> None:
    rest = {"forget": ("--owner", "x"), "add": ("digits",), "scan": ("--owner", "x")}
    result = efface(command, tmp_path, *rest.get(command, ()))
    assert result.exit_code == 2


def program(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "from efface.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, words)]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


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
