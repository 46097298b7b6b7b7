"""MLflow's model registry: a new version, the alias moved, older versions deleted and their
artifacts looked for.

MLflow's deletions are not always deletions: a deleted run keeps its artifacts, and a version's
files stay where they were. So the files are deleted themselves, and looked for afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from efface.service.hooks.hook import Hook, HookError, PublicModel

TAG = "efface.release"
FOLDER = "model"


class MlflowHook(Hook):
    """The served release as the one version of a registered model."""

    def __init__(self, tracking_uri: str, model: str, alias: str) -> None:
        self.tracking_uri, self.model, self.alias = tracking_uri, model, alias
        self.name = f"mlflow {model}"

    def run(self, model: PublicModel) -> None:
        client = self._client()
        version = self._version(client, model)
        client.set_registered_model_alias(self.model, self.alias, version)
        for other in client.search_model_versions(f"name='{self.model}'"):
            if other.version != version:
                self._remove(client, other)
        left = [
            v for v in client.search_model_versions(f"name='{self.model}'") if v.version != version
        ]
        if left:
            message = f"{len(left)} older versions are still in the registry."
            raise HookError(message, "look who may delete there.")

    def _client(self) -> Any:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError as problem:
            raise HookError("the registry needs MLflow.", "pip install mlflow.") from problem
        return MlflowClient(self.tracking_uri, self.tracking_uri)

    def _version(self, client: Any, model: PublicModel) -> str:
        """The version of this release; made anew unless an earlier try got that far."""
        from mlflow.exceptions import MlflowException

        try:
            client.create_registered_model(self.model)
        except MlflowException as problem:
            if problem.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        for found in client.search_model_versions(f"name='{self.model}'"):
            if found.tags.get(TAG) == str(model.release) and found.status == "READY":
                return str(found.version)
        experiment = client.get_experiment_by_name(self.model)
        number = experiment.experiment_id if experiment else client.create_experiment(self.model)
        run = client.create_run(number, tags={TAG: str(model.release)})
        with tempfile.TemporaryDirectory() as folder:
            copied = _copied(model, Path(folder))
            client.log_artifacts(run.info.run_id, str(copied), FOLDER)
        client.set_terminated(run.info.run_id)
        source = f"{run.info.artifact_uri}/{FOLDER}"
        tags = {TAG: str(model.release)}
        made = client.create_model_version(self.model, source, run.info.run_id, tags=tags)
        return str(made.version)

    def _remove(self, client: Any, version: Any) -> None:
        """The files first: whoever finds the version later knows that there is something left to do."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        artifacts = get_artifact_repository(version.source, self.tracking_uri)
        if _listed(artifacts):
            artifacts.delete_artifacts()
        left = _listed(artifacts)
        if left:
            message = (
                f"version {version.version} still has {len(left)} artifacts, {left[0]} for one."
            )
            raise HookError(message, "look who may delete there.")
        client.delete_model_version(self.model, version.version)
        if version.run_id:
            client.delete_run(version.run_id)


def _copied(model: PublicModel, folder: Path) -> Path:
    for name, path in model.files().items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return folder


def _listed(artifacts: Any) -> list[str]:
    """All files below, folders opened."""
    found, folders = [], [None]
    while folders:
        for entry in artifacts.list_artifacts(folders.pop()) or ():
            if entry.is_dir:
                folders.append(entry.path)
            else:
                found.append(entry.path)
    return found
