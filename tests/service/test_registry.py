"""MLflow's registry, a real server on loopback: one version, the alias on it, no artifacts of older ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.service.offices import picture
from tests.workspaces import OWNER

from efface.service.hooks.hook import HookError, PublicModel
from efface.service.hooks.registry import MlflowHook
from efface.workspace import Workspace
from efface.workspace.published import load

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: it is large")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the folder of its artifacts."""
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    words += ["--artifacts-destination", str(folder / "artifacts")]
    command = [sys.executable, "-m", "mlflow", "server", *words]
    process = subprocess.Popen(command, start_new_session=True)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.2)
        else:
            pytest.fail("the MLflow server does not answer")
        yield f"http://127.0.0.1:{port}", folder / "artifacts"
    finally:
        os.killpg(process.pid, 15)
        process.wait(60)


def stored(artifacts: Path) -> list[str]:
    found = [path for path in artifacts.rglob("*") if path.is_file()]
    return sorted(str(path).partition("/artifacts/model/")[2] for path in found)


def test_the_older_version_is_gone_with_its_artifacts(
    server: tuple[str, Path], folder: Path, tmp_path: Path
) -> None:
    uri, artifacts = server
    hook = MlflowHook(uri, "pets", "production")
    hook.run(PublicModel.of(folder))
    assert "releases/1/user.safetensors" in stored(artifacts)
    Workspace.open(folder).forget(owner=OWNER)
    model = PublicModel.of(folder)
    hook.run(model)
    hook.run(model)  # again is no harm: still one version
    client = hook._client()
    [version] = client.search_model_versions("name='pets'")
    assert client.get_model_version_by_alias("pets", "production").version == version.version
    assert stored(artifacts) == sorted(model.files())
    fetched = client.download_artifacts(version.run_id, "model", str(tmp_path))
    images = [picture(0), picture(200)]
    assert (load(fetched).logits(images) == load(folder).logits(images)).all()


def test_artifacts_that_stay_are_seen(
    server: tuple[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow has said before that it deleted what was still there."""
    from mlflow.store.artifact import artifact_repository_registry as registry

    hook = MlflowHook(server[0], "dogs", "production")
    hook.run(PublicModel.of(folder))
    Workspace.open(folder).forget(owner=OWNER)
    real = registry.get_artifact_repository

    def lazy(*words: Any, **values: Any) -> Any:
        found = real(*words, **values)
        found.delete_artifacts = lambda *_: None
        return found

    with monkeypatch.context() as patch:
        patch.setattr(registry, "get_artifact_repository", lazy)
        with pytest.raises(HookError, match="still has"):
            hook.run(PublicModel.of(folder))
    hook.run(PublicModel.of(folder))
    assert len(hook._client().search_model_versions("name='dogs'")) == 1


def test_a_registry_that_does_not_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(mlflow.exceptions.MlflowException):
        MlflowHook("http://127.0.0.1:9", "pets", "production").run(PublicModel.of(folder))
