"""Workspaces made by ``efface train``, a pretrained network, and data sets to be fetched."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import cases
from tests.commands.downloads import Server, offer, sha256, tar_of
from tests.data.named import archives
from tests.shell import efface, values_of, write
from tests.workspaces import KINDS, as_in_other_processes, people  # noqa: F401 (a fixture)

from efface.data.named.catalog import Archive
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


DIGITS = """
[data]
spec = "digits"

[core]
calibrate_to = 0
stages = [{ train = "all", epochs = 20, lr = 0.1 }]

[user]
kind = "tangent"
mu = 0.1
solver = { kind = "cg", tolerance = 0.01 }
"""


@pytest.fixture(scope="session")
def run_toml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "run.toml"
    path.write_text(DIGITS)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, run_toml: Path) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("trained") / "model"
    return folder, values_of(efface("train", "--config", run_toml, "--out", folder, "--json"))


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("resnet")
    net = cases.tiny("resnet-bottleneck")
    cases.randomised(net)
    net.save_pretrained(folder)
    size = {"size": {"shortest_edge": 16}, "crop_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(size))
    return f"hf:{folder}"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EFFACE_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def cifar(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """cifar10 as a tar on the server."""
    content = tar_of(archives.cifar10(tmp_path / "packed"))
    url = server.url("cifar-10-binary.tar.gz", content)
    archive = Archive(url, sha256(content), len(content))
    offer(monkeypatch, "cifar10", archives=(archive,))
    return content
