"""Workspaces made by ``efface train``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests import cases
from tests.shell import efface, write
from tests.workspaces import KINDS, as_in_other_processes, people  # noqa: F401 (a fixture)

from efface.data.record import Split

CONFIG = """
[core]
calibrate_to = 0
stages = [{ train = "all", epochs = 2, lr = 0.05 }]

[user]
mu = 0.1
features = 120
"""
CORE = cases.tiny_records(12, 0, split=Split.CORE, name="core-record-")
TEST = cases.tiny_records(9, 9, split=Split.TEST)


@pytest.fixture(scope="session")
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
