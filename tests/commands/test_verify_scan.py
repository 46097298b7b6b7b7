"""``efface verify`` and ``efface scan``: what they find, and that they find nothing else."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.shell import efface, values_of
from tests.workspaces import OWNER, people

from efface.guarantee.certificates import ExactCertificate
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser
from efface.workspace import Workspace
from efface.workspace.verify import _other_givens


def test_train_makes_a_workspace_that_checks(path: Path, folder: Path) -> None:
    values = values_of(
        efface("verify", path, "--retrain", "--from-images", folder / "data.npz", "--json")
    )
    assert values["ok"]
    detail = {check["name"]: check["detail"] for check in values["checks"]}
    assert re.match("42 of 42 (agree|are equal)", detail["rows from images"])
    assert efface("evaluate", path, folder / "data.npz").exit_code == 0
    assert efface("predict", path, folder / "data.npz", "--split", "test").exit_code == 0


def test_a_row_that_differs_is_an_error_in_integers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One integer, by one: as another decoder might, or a backend that is not exact."""
    path, real = shutil.copytree(folder / "compact", tmp_path / "w"), CompactUser.rows

    def off_by_one(self: CompactUser, *args: object) -> Rows:
        rows = real(self, *args)  # type: ignore[arg-type]
        rows.features[5, 0] ^= 1
        return rows

    monkeypatch.setattr(CompactUser, "rows", off_by_one)
    words = ("verify", path, "--from-images", folder / "data.npz", "--json")
    result = efface(*words)
    assert result.exit_code == 4
    check = next(c for c in json.loads(result.stdout)["checks"] if c["name"] == "rows from images")
    assert check["ok"] is False
    assert "41 of 42 are equal" in check["detail"]
    assert f"differs: {people()[5].id}" in check["detail"]


def test_a_certificate_of_another_core_does_not_check(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    workspace = Workspace.open(path)
    certificate = workspace.certificate
    assert isinstance(certificate, ExactCertificate)
    assert certificate.given is not None
    assert certificate.given.arithmetic == "integer"
    other = replace(certificate, given=replace(certificate.given, classes_digest="0" * 64))
    assert _other_givens(other, workspace.model()) == ["it was given another classes digest"]
    assert _other_givens(certificate, workspace.model()) == []


def test_scan_finds_before_and_is_clean_after(path: Path, folder: Path) -> None:
    words = ("scan", path, folder / "data.npz", "--owner", OWNER)
    before = values_of(efface(*words, "--json"), code=3)
    assert not before["clean"]
    assert before["num_records"] == 6
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    after = values_of(efface(*words, "--json"))
    assert after["clean"]
    assert len(after["kept"]) == 6
    assert "ledger.sqlite" in after["files"]
    shown = efface(*words).stdout
    assert "nothing is left" in shown
    assert "ledger.sqlite" in shown


def test_scan_with_an_image_file(path: Path, tmp_path: Path) -> None:
    """A .png of a record: its pixels, and so its rows, are the record's, its bytes are not."""
    from PIL import Image

    record = people().select(owner=OWNER)[0]
    Image.fromarray(record.image()[:, :, 0]).save(tmp_path / "photo.png")
    words = ("scan", path, "--image", tmp_path / "photo.png")
    assert efface(*words).exit_code == 3
    assert efface("forget", path, "--id", record.id).exit_code == 0
    assert efface(*words).exit_code == 0


def test_verify_notices_changes(path: Path) -> None:
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    certificate = path / "certificates/2.private.json"
    values = json.loads(certificate.read_text())
    certificate.write_text(json.dumps({**values, "num_retained": 35}))
    result = efface("verify", path)
    assert result.exit_code == 4
    assert "fails" in result.stdout
    assert "36 records are retained, not 35" in result.stdout


def test_verify_retrains(folder: Path, tmp_path: Path) -> None:
    """Statistics that still hold a record are noticed, even if everything else was adapted to them."""
    path = shutil.copytree(folder / "compact", tmp_path / "w")
    old = (path / "private/1/statistics.safetensors").read_bytes()
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    (path / "private/2/statistics.safetensors").write_bytes(old)
    values = values_of(efface("verify", path, "--retrain", "--json"), code=4)
    failed = {check["name"] for check in values["checks"] if not check["ok"]}
    assert {"files", "certificate", "statistics from the retained rows"} <= failed


def test_verify_notices_missing_noise(folder: Path, tmp_path: Path) -> None:
    path = shutil.copytree(folder / "tangent", tmp_path / "w")
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    model = Workspace.open(path).model()
    model.user.weights = model.user.state
    model.save_user(path / "releases/2")
    values = values_of(efface("verify", path, "--retrain", "--json"), code=4)
    failed = {check["name"] for check in values["checks"] if not check["ok"]}
    assert "noise in the release" in failed


def test_a_changed_ledger_is_exit_code_4(path: Path) -> None:
    assert efface("forget", path, "--owner", OWNER).exit_code == 0
    ledger = path / "ledger.sqlite"
    ledger.write_bytes(ledger.read_bytes().replace(b'"train"', b'"treat"', 1))
    for words in (("verify", path), ("forget", path, "--owner", "person-one")):
        result = efface(*words)
        assert result.exit_code == 4
        assert re.search(r"row \d+ of the ledger was changed", result.stderr)
