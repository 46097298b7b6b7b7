"""What went wrong in somebody's first hour stays repaired; docs/first-hour.md names what holds each of it."""

from __future__ import annotations

import ast
import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tests.places import ROOT
from tests.shell import efface
from tests.workspaces import CORE, fitted, people

from efface.workspace import Workspace

PAGE = (ROOT / "docs/first-hour.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+::.+?) \|$", PAGE, re.MULTILINE)
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_twelve_of_them() -> None:
    assert len(ROWS) == 12
    assert len(NAMED) > 12


@pytest.mark.parametrize(("path", "test"), NAMED, ids=[test for _, test in NAMED])
def test_each_is_held_by_a_test_that_is_there(path: str, test: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert test in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_a_class_that_is_also_core_is_said_to_be_still_known(tmp_path: Path) -> None:
    path = Workspace.create(tmp_path / "model", fitted("compact", people())).path
    number = len(CORE.select(label="a"))
    for words in (("--dry-run",), ()):
        result = efface("forget", path, "--label", "a", *words)
        assert result.exit_code == 0, result.stderr
        said = " ".join((result.stdout + result.stderr).split())
        assert f"the class 'a' is still known: {number} images of it are core data" in said


def test_the_benchmark_holds_the_estimate_against_what_training_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    script, said = import_module("first_hour"), '{"minutes_estimate": 1.5}'

    class Clock(script.Clock):
        def run(self, part: str, command: Any) -> Any:
            self.timed.setdefault(part, []).append({"line": command.text, "seconds": 120.0})
            return script.Printed(0, said if "--dry-run" in command.words else "")

    clock = Clock(Path("bin"))
    words = ("efface", "train", "--config", "run.toml", "--out", "model")
    clock.estimates.append(script._estimate(clock, words))
    clock.must("readme", *words)
    clock.must("scikit-learn", "python", script.PLAIN, "fit")
    values = script.summary(clock.timed, clock.estimates)
    assert (values["estimate_minutes"], values["train_minutes"]) == (1.5, 2.0)
    assert clock.timed["estimate"][0]["line"].endswith("--dry-run --json")


def test_the_seconds_on_the_page_are_those_that_were_measured() -> None:
    text = (ROOT / "benchmarks/results/first-hour.json").read_text(encoding="utf-8")
    values = json.loads(text)["details"]
    names = {"train": "train", "forget one person": "forget_one_person"}
    for shown, key in names.items():
        row = f"| {shown} | {values[key]['efface']:.1f} s | {values[key]['scikit-learn']:.1f} s |"
        assert row in PAGE
    assert f"| a stranger verifies | {values['stranger_verifies']['efface']:.1f} s | – |" in PAGE
    assert all(step["exit_code"] == 0 for step in values["steps"]["readme"])
