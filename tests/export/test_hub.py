"""Hubs without a network: what is sent, what is taken away there, and what is opened again."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from tests import workspaces

import efface
from efface.door.classifier import ForgettingClassifier
from efface.errors import EffaceError, FormatError
from efface.network.backbone import hub_id
from efface.workspace import Workspace
from efface.workspace.disk import file_digest


@dataclass(frozen=True)
class Large:
    """A large file as the hub lists it."""

    file_oid: str
    oid: str = "of its own"


@dataclass
class FakeHub:
    """A hub in a folder: commits are copies, large files stay until they are deleted by their digest."""

    root: Path
    commits: list[dict[str, bytes]] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)
    private: bool | None = None

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> str:
        assert exist_ok
        self.private = private
        return f"hub/{repo_id}"

    def upload_folder(self, *, folder_path: Path, delete_patterns: str, **_: Any) -> None:
        found = {path.name: path.read_bytes() for path in folder_path.iterdir()}
        for path in folder_path.glob("*.safetensors"):
            self.large[file_digest(path)] = path.read_bytes()
        before = self.commits[-1] if self.commits and delete_patterns != "*" else {}
        self.commits.append({**before, **found})

    def super_squash_history(self, repo_id: str, **_: Any) -> None:
        self.commits = self.commits[-1:]

    def list_lfs_files(self, repo_id: str) -> list[Large]:
        return [Large(digest) for digest in self.large]

    def permanently_delete_lfs_files(self, repo_id: str, files: list[Large]) -> None:
        for found in files:
            del self.large[found.file_oid]

    def fetch(self, name: str, **_: Any) -> str:
        """As snapshot_download: the newest commit in a folder."""
        folder = self.root / name.replace("/", "--")
        folder.mkdir()
        for file, data in self.commits[-1].items():
            (folder / file).write_bytes(data)
        return str(folder)


@pytest.fixture
def hub(tmp_path: Path) -> FakeHub:
    return FakeHub(tmp_path / "hub-cache")


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(made["compact"], tmp_path / "model")


made = workspaces.made  # a fixture


def test_a_push_leaves_nothing_of_the_release_before(folder: Path, hub: FakeHub) -> None:
    workspace = Workspace.open(folder)
    workspace.forget(owner="person-one")
    assert efface.push_to_hub(folder, "us/birds", api=hub) == "hub/us/birds"
    assert hub.private is True
    before = hub.commits[-1]["user.safetensors"]
    workspace.forget(owner=workspaces.OWNER)
    clf = ForgettingClassifier.load(folder)
    clf.push_to_hub("us/birds", api=hub)
    assert len(hub.commits) == 1
    kept = [*hub.commits[0].values(), *hub.large.values()]
    assert before not in kept
    assert hub.commits[0]["core.safetensors"] in hub.large.values()
    assert json.loads(hub.commits[0]["manifest.json"])["release"] == 3
    for data in kept:
        assert workspaces.OWNER.encode() not in data


def test_large_files_that_cannot_be_told_apart_are_left_alone(folder: Path, hub: FakeHub) -> None:
    hub.list_lfs_files = lambda repo_id: [Large("another kind of id")]  # type: ignore[method-assign]
    with pytest.raises(EffaceError, match="none of them by the digest"):
        efface.push_to_hub(folder, "us/birds", api=hub)
    assert len(hub.large) == 2


def test_a_push_that_ends_half_way_says_what_may_be_left(folder: Path, hub: FakeHub) -> None:
    def offline(repo_id: str, **_: Any) -> None:
        raise ConnectionError("no way there\nand more")

    hub.super_squash_history = offline  # type: ignore[method-assign]
    with pytest.raises(EffaceError, match=r"not completed \(no way there\)") as caught:
        efface.push_to_hub(folder, "us/birds", api=hub)
    assert "files of earlier releases may still be there" in str(caught.value)


def test_from_pretrained_predicts_the_same_and_cannot_forget(
    folder: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.root.mkdir()
    efface.push_to_hub(folder, "us/birds", api=hub)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.fetch)
    model = efface.from_pretrained("us/birds")
    expected = efface.load(folder).logits(workspaces.TEST)
    assert torch.equal(model.logits(workspaces.TEST), expected)

    clf = ForgettingClassifier.from_pretrained(hub.root / "us--birds")
    assert clf.predict(workspaces.TEST).tolist() == model.predict(workspaces.TEST).tolist()
    assert clf.classes_.tolist() == list(workspaces.CLASSES)
    with pytest.raises(EffaceError, match="is a copy"):
        clf.forget(owner=workspaces.OWNER)
    with pytest.raises(EffaceError, match="lives in memory only"):
        clf.push_to_hub("us/birds", api=hub)


def test_files_from_a_hub_are_data(folder: Path, hub: FakeHub) -> None:
    """Code that they name is not run, and changed weights are not believed."""
    hub.root.mkdir()
    efface.push_to_hub(folder, "us/birds", api=hub)
    there = Path(hub.fetch("us/birds"))
    values = json.loads((there / "core.json").read_text())
    (there / "core.json").write_text(json.dumps({**values, "backbone": "torch:os:getcwd"}))
    with pytest.raises(FormatError, match="do not get to run code"):
        efface.from_pretrained(there)


def test_a_name_that_cannot_be_fetched_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, **_: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(EffaceError, match="no route to host"):
        efface.from_pretrained("us/nothing")


def front_matter(hub: FakeHub) -> dict[str, Any]:
    text = hub.commits[-1]["README.md"].decode()
    return dict(yaml.safe_load(text.split("---\n", 2)[1]))


def test_the_card_makes_up_no_licence_and_no_origin(folder: Path, hub: FakeHub) -> None:
    efface.push_to_hub(folder, "us/birds", api=hub)
    assert not {"license", "base_model"} & set(front_matter(hub))
    efface.push_to_hub(folder, "us/birds", license="cc-by-4.0", api=hub)
    assert front_matter(hub)["license"] == "cc-by-4.0"
    with pytest.raises(EffaceError, match="no licence's identifier"):
        efface.push_to_hub(folder, "us/birds", license="mine: all\nof it", api=hub)


def test_the_card_says_which_network_on_a_hub_it_began_with(hub: FakeHub, tmp_path: Path) -> None:
    model = workspaces.fitted("compact", workspaces.people())
    core = copy.copy(model.core)
    core.backbone = replace(core.backbone, hub="microsoft/resnet-50")
    model.core = core
    path = Workspace.create(tmp_path / "model", model).path
    Workspace.open(path).forget(owner=workspaces.OWNER)
    efface.push_to_hub(path, "us/birds", api=hub)
    assert front_matter(hub)["base_model"] == "microsoft/resnet-50"
    settings = next(path.glob("core/*/model.json"))
    values = json.loads(settings.read_text())
    settings.write_text(json.dumps({**values, "base_model": "../weights"}))
    with pytest.raises(FormatError, match="no name of a hub"):
        efface.push_to_hub(path, "us/birds", api=hub)


def test_a_folder_is_no_name_on_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights/resnet50").mkdir(parents=True)
    named = ["hf:microsoft/resnet-50", "timm:hf-hub:timm/resnet18.a1_in1k"]
    assert [hub_id(spec) for spec in named] == ["microsoft/resnet-50", "timm/resnet18.a1_in1k"]
    others = ("hf:weights/resnet50", "hf:/weights/resnet50", "hf:../weights", "hf:saved", "cnn")
    assert {hub_id(spec) for spec in (*others, "timm:resnet18", "open_clip:a:b/c")} == {""}


def test_the_card_has_front_matter_and_says_what_it_is(folder: Path, hub: FakeHub) -> None:
    Workspace.open(folder).forget(owner=workspaces.OWNER)
    efface.push_to_hub(folder, "us/birds", api=hub)
    text = hub.commits[-1]["README.md"].decode()
    _, front, body = text.split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["library_name"] == "efface"
    assert values["pipeline_tag"] == "image-classification"
    certificate = json.loads(hub.commits[-1]["certificate.json"])
    assert values["efface"]["weights_digest"] == certificate["weights_digest"]
    assert values["efface"]["release"] == 2
    assert "a copy does not forget" in body
    assert "`a`, `b`, `c`" in body
    assert "releases made before the request" in body
