"""Code of one's own as the network: found in the working directory, as docs/networks.md says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.photos import write_photos

from efface.workspace import Workspace

MYNET = """
from torch import nn


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 16, stride=16), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )
"""
TRAIN = ("train", "photos", "--backbone", "torch:mynet:build", "--linearize", "2")
NOBODY = ("--core-fraction", "0", "--classes", "disc,stripes,checks", "--features", "20")
TRUST = ("--trust-module", "mynet:build")


def efface(folder: Path, *words: str, alone: bool = False) -> subprocess.CompletedProcess[str]:
    """In that folder; ``alone``: without its modules, as the installed command runs."""
    command = [sys.executable, *(["-P"] if alone else []), "-m", "efface", *words]
    return subprocess.run(
        command, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("own")
    (made / "mynet.py").write_text(MYNET)
    write_photos(made / "photos", num_owners=4, each=4, num_test=3)
    done = efface(made, *TRAIN, *NOBODY, "--out", "model")
    assert done.returncode == 0, done.stderr
    return made


def test_a_module_in_the_working_directory_is_the_network(folder: Path) -> None:
    done = efface(folder, "forget", "model", "--owner", "person-01")  # no code: rows are enough
    assert done.returncode == 0, done.stderr
    assert "person-01" not in Workspace.open(folder / "model").records.owners
    said = efface(folder, "evaluate", "model", "photos", *TRUST, "--json")
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["release"] == 2


def test_a_saved_model_does_not_name_the_code_that_runs(folder: Path) -> None:
    refused = efface(folder, "evaluate", "model", "photos")
    assert refused.returncode == 2
    assert "--trust-module" in refused.stderr


def test_the_installed_command_does_not_look_in_the_working_directory(folder: Path) -> None:
    missing = efface(folder, *TRAIN, *NOBODY, "--out", "other", alone=True)
    assert missing.returncode == 2
    assert "mynet" in missing.stderr
    assert not (folder / "other").exists()
