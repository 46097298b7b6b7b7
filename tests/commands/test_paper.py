"""The paper from the command line: its training by a preset, and forgetting by a named procedure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.commands.conftest import CONFIG, CORE
from tests.shell import efface, values_of
from tests.workspaces import OWNER, contents, without_ledger

from efface.ledger import Ledger
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.network.tail import Layout
from efface.workspace.published import load

# Procedures by name.


def test_every_procedure_is_held_to_the_guarantee_on_its_final_weights(
    folder: Path, tmp_path: Path
) -> None:
    """A few steps of SGD end nowhere near: exit code 3, and nothing is published."""
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    before = without_ledger(contents(path))
    for name in ("paper", "finetune"):
        words = ("--owner", OWNER, "--procedure", name, "--rate", 1e-3, "--sigma", 1e-3)
        result = efface("forget", path, *words)
        assert result.exit_code == 3, result.stderr
        assert "nothing was changed" in result.stderr
        assert "λmax(H) is about" in result.stderr
        assert without_ledger(contents(path)) == before
    words = ("--owner", OWNER, "--procedure", "solved", "--max-passes", 500, "--json")
    values = values_of(efface("forget", path, *words))
    assert values["certificate"]["passed"]
    assert efface("verify", path, "--retrain").exit_code == 0


def test_the_papers_sgd_is_published_where_noise_makes_up_for_it(
    folder: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    words = ("--procedure", "paper", "--momentum", 0.9, "--rate", 1e-3, "--epochs", 4)
    words = (*words, "--sigma", 1000, "--loss", "sum", "--json")
    values = values_of(efface("forget", path, "--owner", OWNER, *words))
    certificate = values["certificate"]
    assert certificate["passed"]
    assert 0 < certificate["epsilon_bound"] <= 1
    assert certificate["apriori"]["steps"] == 4  # one minibatch an epoch
    assert efface("verify", path).exit_code == 0


def test_between_samples_training_and_a_request_end_where_they_would_between_weights(
    folder: Path, tmp_path: Path
) -> None:
    words = ("--user", "tangent", "--solver", "dual", "--config", folder / "run.toml")
    result = efface("train", folder / "data.npz", *words, "--out", tmp_path / "w", "--json")
    assert values_of(result)["solution"]["status"] == "converged"
    asked = ("--owner", OWNER, "--procedure", "solved", "--solver", "dual", "--json")
    assert values_of(efface("forget", tmp_path / "w", *asked))["certificate"]["passed"]
    assert efface("verify", tmp_path / "w", "--retrain").exit_code == 0


def test_user_weights_in_the_final_layers_alone(folder: Path, tmp_path: Path) -> None:
    """Trained, saved, loaded, forgotten and verified like all; another part has no such setting."""
    words = ("--user", "tangent", "--linearize", "all", "--layers", "final")
    words = (*words, "--config", folder / "run.toml")
    result = efface("train", folder / "data.npz", *words, "--out", tmp_path / "w", "--json")
    assert values_of(result)["solution"]["status"] == "converged"
    user = load(tmp_path / "w").user
    assert 0 < user.num_weights < Layout.of(user.core.tail).d
    assert user.settings["layers"] == "final"
    asked = ("--owner", OWNER, "--procedure", "solved", "--json")
    assert values_of(efface("forget", tmp_path / "w", *asked))["certificate"]["passed"]
    assert efface("verify", tmp_path / "w", "--retrain").exit_code == 0
    result = efface("train", folder / "data.npz", "--layers", "final")
    assert result.exit_code == 2
    assert "should be 'all' for the compact part" in result.stderr


def test_a_rate_that_is_not_stable_is_refused_before_work_starts(
    folder: Path, tmp_path: Path
) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    before = contents(path)
    result = efface("forget", path, "--owner", OWNER, "--procedure", "paper", "--rate", 1e4)
    assert result.exit_code == 2
    assert "it would diverge, so nothing was started" in result.stderr
    assert contents(path) == before


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--procedure", "magic"), "magic"),
        (("--momentum", 0.9), "none is named"),
        (("--procedure", "solved", "--rate", 0.1), "--rate"),
        (("--procedure", "paper", "--epochs", 0), "--epochs"),
        (("--procedure", "paper", "--loss", "mean"), "mean"),
    ],
)
def test_mistakes_in_a_procedure_change_nothing(
    folder: Path, tmp_path: Path, words: tuple[object, ...], named: str
) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    before = contents(path)
    result = efface("forget", path, "--owner", OWNER, *words)
    assert result.exit_code == 2
    assert named in result.stderr
    assert "Fix: " in result.stderr
    assert contents(path) == before


def test_compact_has_one_way_to_forget(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    before = contents(path)
    result = efface("forget", path, "--owner", OWNER, "--procedure", "paper")
    assert result.exit_code == 2
    assert "the compact part has one way to forget" in result.stderr
    assert contents(path) == before


def test_a_request_in_flight_keeps_its_procedure(folder: Path, tmp_path: Path) -> None:
    """Killed once it was accepted, it is finished by SGD as it was asked for, not by the default."""
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    words = ["forget", str(path), "--owner", OWNER, "--procedure", "paper", "--epochs", "4"]
    words += ["--momentum", "0.9", "--rate", "0.001", "--sigma", "1000"]
    code = "from efface.cli import main; main()"
    environment = {**os.environ, "EFFACE_TEST_KILL_AT": "accepted"}
    killed = subprocess.run([sys.executable, "-c", code, *words], env=environment, check=False)
    assert killed.returncode not in (0, 2, 3)
    values = values_of(efface("resume", path, "--json"))
    assert values["certificate"]["apriori"]["steps"] == 4
    spoilt = shutil.copytree(folder / "tangent", tmp_path / "spoilt")
    subprocess.run(
        [sys.executable, "-c", code, "forget", str(spoilt), *words[2:]],
        env=environment,
        check=False,
    )
    with Ledger.open(spoilt / "ledger.sqlite") as ledger, ledger.transaction() as tx:
        pending = json.loads(tx.execute("SELECT body FROM pending")[0][0])
        pending["procedure"]["epochs"] = -1
        tx.execute("UPDATE pending SET body = ?", (json.dumps(pending),))
    result = efface("resume", spoilt)
    assert result.exit_code == 4
    assert "not a request as it was saved" in result.stderr


# The paper's training.


def test_the_papers_training_from_a_preset(folder: Path, tmp_path: Path) -> None:
    shown = efface("train", folder / "data.npz", "--preset", "paper", "--print-config").stdout
    config = tomllib.loads(shown)
    assert config["core"]["fold_batchnorm"] is False
    assert config["user"]["kind"] == "tangent"
    assert (config["user"]["loss"], config["user"]["scales"]) == ("paper", "plain")
    solver = config["user"]["solver"]
    assert (solver["kind"], solver["epochs"], solver["milestones"]) == ("sgd", 50, [25, 40])
    quick = tmp_path / "quick.toml"
    quick.write_text(CONFIG.replace("mu = 0.1\n", "mu = 0.01\n"))
    words = ("train", folder / "data.npz", "--preset", "paper", "--config", quick)
    result = efface(*words, "--epochs", 2, "--out", tmp_path / "w", "--json")
    assert "rate 0.05 is 0.0333, weight decay 0.01 is mu 0.015" in result.stderr
    assert "λmax(H) is about" in result.stderr
    values = values_of(result)
    assert values["solution"]["status"] == "ran its fixed number of passes"
    assert values["solution"]["passes"] == 3  # two epochs, and the residual
    user = load(tmp_path / "w").user
    assert user.mu == pytest.approx(0.015)
    assert set(user.operator.scales.values()) == {1.0}


def test_a_training_rate_that_is_not_stable_is_refused(folder: Path, tmp_path: Path) -> None:
    quick = tmp_path / "quick.toml"
    quick.write_text(CONFIG)
    words = ("train", folder / "data.npz", "--preset", "paper", "--config", quick)
    result = efface(*words, "--rate", 1e5, "--out", tmp_path / "w")
    assert result.exit_code == 2
    assert "it would diverge, so nothing was started" in result.stderr
    assert not (tmp_path / "w" / "CURRENT").exists()
    result = efface("train", folder / "data.npz", "--user", "tangent", "--rate", 0.1)
    assert result.exit_code == 2
    assert "user.rate is for the solver sgd and not for cg" in result.stderr
    assert "leave --rate (user.rate in a config) out, or ask for --solver sgd" in result.stderr
    result = efface("train", folder / "data.npz", "--epochs", 5)
    assert result.exit_code == 2
    assert "user.epochs is for the tangent part's solver sgd" in result.stderr
    assert "leave --epochs (user.epochs in a config) out" in result.stderr
    result = efface("train", folder / "data.npz", "--preset", "papers")
    assert result.exit_code == 2
    assert "no preset 'papers'" in result.stderr


def test_scales_come_from_core_records_and_travel_with_the_model(
    folder: Path, tmp_path: Path
) -> None:
    words = ("--user", "tangent", "--scales", "balanced", "--config", folder / "run.toml")
    assert efface("train", folder / "data.npz", *words, "--out", tmp_path / "w").exit_code == 0
    model = load(tmp_path / "w")
    scales = balanced_scales(TangentOperator(model.core.tail), model.core.activations(CORE))
    assert model.user.operator.scales == pytest.approx(scales, rel=1e-4)
    assert len(set(scales.values())) > 1
    assert efface("forget", tmp_path / "w", "--owner", OWNER).exit_code == 0
    assert load(tmp_path / "w").user.operator.scales == model.user.operator.scales
    for option, value in (("--scales", "balanced"), ("--loss", "paper")):
        result = efface("train", folder / "data.npz", option, value, "--out", tmp_path / "x")
        assert result.exit_code == 2
        assert "for the compact part" in result.stderr
