"""Plans, noise and the state that a release keeps, on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.shell import efface, values_of
from tests.workspaces import OWNER, contents, without_ledger

from efface import files
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.workspace import Workspace
from efface.workspace.published import load


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
    assert without_ledger(before) == without_ledger(after)
