"""A request without the network: the same files, byte for byte, and nothing loaded that is not needed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.shell import light
from tests.workspaces import CLASSES, OWNER, contents, core, made, without_ledger

from efface import files
from efface.arithmetic.choice import FORMS
from efface.arithmetic.exact.form import ExactForm
from efface.arithmetic.form import FloatForm
from efface.arithmetic.integer.form import IntegerForm
from efface.arithmetic.kinds import ARITHMETIC
from efface.digests import tensors_digest
from efface.errors import FormatError
from efface.model.kept import KeptModel
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.parts import table
from efface.receipts import keys
from efface.workspace import Workspace

__all__ = ["made"]


@pytest.fixture
def path(made: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(made["compact"], tmp_path / "workspace")


@pytest.mark.parametrize("whom", [{"owner": OWNER}, {"label": "b"}, {"everything": True}])
def test_with_and_without_the_network_a_request_writes_the_same_files(
    path: Path, tmp_path: Path, whom: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = shutil.copytree(path, tmp_path / "twin")
    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "load", None)  # would be an error
        quick = Workspace.open(path).forget(**whom)
    monkeypatch.delitem(table.STORED, "compact")
    slow = Workspace.open(twin).forget(**whom)
    assert quick.certificate == slow.certificate
    assert without_ledger(contents(path)) == without_ledger(contents(twin))


WAYS = {  # a picture: tests/workspace/test_finding.py
    "a person": ["--owner", OWNER],
    "everybody": ["--everything", "--json"],
    "ids": ["--ids", "image-1-0,image-1-7"],
    "an id": ["--id", "image-1-0"],
    "a class": ["--label", "b"],
    "a cohort": ["--cohort", "cohort-1"],
    "a file": ["--from", "requests.jsonl"],
    "noise": ["--owner", OWNER, "--sigma", "200"],
    "a receipt": ["--owner", OWNER, "--key", "signing.key"],
    "another language": ["--owner", OWNER, "--key", "signing.key", "--language", "fr"],
    "a look": ["--owner", OWNER, "--dry-run"],
}


NEEDED = {
    "an id": frozenset({"importlib.metadata"}),  # of the library that checks lists
    "noise": frozenset({"scipy", "importlib.metadata"}),
    "a receipt": frozenset({"cryptography"}),
    "another language": frozenset({"cryptography"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_command_loads_no_torch(
    way: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However somebody is named, and whatever is written besides: receipt and page."""
    monkeypatch.chdir(tmp_path)
    lines = [{"owner": OWNER}, {"ids": ["image-1-0"]}]
    (tmp_path / "requests.jsonl").write_text("\n".join(map(json.dumps, lines)))
    keys.make(tmp_path / "signing.key")
    light("forget", path, *WAYS[way], needs=NEEDED.get(way, frozenset()))
    looked = "--dry-run" in WAYS[way]
    assert Workspace.open(path, recover=False).number == (1 if looked else 2)
    assert (path / "receipts/2.html").is_file() != looked


def test_changed_user_weights_and_another_core_are_refused(path: Path) -> None:
    release, base = path / "releases/1", path / "core/1"
    values = files.read_json(base / "core.json", "efface.core/1")
    files.write_json(base / "core.json", {**values, "digest": "0" * 64})
    with pytest.raises(FormatError, match="another core"):
        KeptModel.load(release, base)
    files.write_json(base / "core.json", values)
    arrays = files.read_arrays(release / "user.safetensors")
    arrays["theta"][0, 0] += 1
    files.write_arrays(release / "user.safetensors", arrays)
    with pytest.raises(FormatError, match="not those that were saved"):
        KeptModel.load(release, base)


def test_arrays_are_tensors_in_files_and_digests(tmp_path: Path) -> None:
    tensors = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": torch.tensor(3, dtype=torch.int64),
        "c": torch.arange(5, dtype=torch.int8),
        "d": torch.tensor([True, False]),
        "e": torch.ones(2, 2, dtype=torch.float64).T,
    }
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    files.write_tensors(tmp_path / "tensors", tensors)
    files.write_arrays(tmp_path / "arrays", arrays)
    assert (tmp_path / "tensors").read_bytes() == (tmp_path / "arrays").read_bytes()
    again = files.read_arrays(tmp_path / "arrays")
    assert all(np.array_equal(again[name], array) for name, array in arrays.items())
    assert {n: a.shape for n, a in again.items()} == {n: a.shape for n, a in arrays.items()}
    assert tensors_digest(arrays, {"x": 1}) == tensors_digest(tensors, {"x": 1})
    assert tensors_digest(arrays) != tensors_digest({**arrays, "b": np.array(4)})


def test_a_cores_digest_is_remembered_until_a_weight_is_written() -> None:
    made = Core("cnn", classes=CLASSES)
    before = made.digest
    head = made.tail.head
    with torch.no_grad():
        head.weight[0, 0] += 1
    moved = made.digest
    assert moved != before
    with torch.no_grad():
        head.weight[0, 0] -= 1
    assert made.digest == before
    head.weight = torch.nn.Parameter(head.weight.detach() + 1)
    assert made.digest not in (before, moved)
    assert made.digest == tensors_digest(made.tensors, made.settings)


def test_what_certificates_claim_of_a_form_is_what_the_forms_say() -> None:
    forms = (IntegerForm, ExactForm, FloatForm)
    assert {form.kind: form.arithmetic for form in forms} == ARITHMETIC
    assert set(FORMS) == set(ARITHMETIC)


def test_a_model_that_only_forgets_knows_what_its_certificates_are_relative_to(path: Path) -> None:
    workspace = Workspace.open(path)
    kept, whole = workspace.store.kept_model(), workspace.model()
    assert kept.user.given == whole.user.given
    assert kept.user.num_weights == whole.user.num_weights
    assert isinstance(kept, KeptModel)
    assert core().digest == kept.user.given.core_digest
