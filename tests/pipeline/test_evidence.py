"""``efface evidence``: one archive with all that a stranger needs, and nobody's name."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from tests.shell import efface, values_of
from tests.workspaces import OWNER, fitted, people

from efface.receipts import keys
from efface.workspace import Workspace


@pytest.fixture(scope="module", params=["compact", "tangent"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("evidence")
    keys.make(folder / "signing.key")
    workspace = Workspace.create(folder / "model", fitted(request.param, people()))
    workspace.protocol.signing.use(folder / "signing.key")
    workspace.forget(ids="image-1-0")
    workspace.forget(owner=OWNER)
    return workspace.path


def test_a_stranger_can_check_it(model: Path, tmp_path: Path) -> None:
    audit = tmp_path / "audit.json"
    audit.write_text("{}")
    out = tmp_path / "bundle.zip"
    values = values_of(efface("evidence", model, "--out", out, "--audit", audit, "--json"))
    with zipfile.ZipFile(out) as archive:
        archive.extractall(tmp_path / "b")
    found = sorted(
        p.relative_to(tmp_path / "b").as_posix() for p in (tmp_path / "b").rglob("*") if p.is_file()
    )
    assert found == values["files"]
    assert {"START.html", "CHECK.txt", "keys.pub", "ledger.jsonl", "audit/audit.json"} <= set(found)
    assert {"receipts/2.json", "receipts/3.json", "certificate-3.json"} <= set(found)
    command = next(
        line.split()[1:]
        for line in (tmp_path / "b/CHECK.txt").read_text().splitlines()
        if line.startswith("    efface verify")
    )
    places = {"keys.pub", "ledger.jsonl", "receipts/3.json"}
    words = [str(tmp_path / "b" / word) if word in places else word for word in command]
    assert efface(*words).exit_code == 0
    everything = b"".join(p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())
    assert OWNER.encode() not in everything
    assert b"image-1" not in everything


def test_the_page_is_whole_and_offline(model: Path, tmp_path: Path) -> None:
    assert efface("evidence", model, "--out", tmp_path / "b.zip").exit_code == 0
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        page = archive.read("START.html").decode()
    for words in ("What is claimed", "What happened to the data", "not covered", "efface verify"):
        assert words in page
    assert "<script" not in page
    assert "http://" not in page
    assert 'src="http' not in page


def test_the_same_model_gives_the_same_archive(model: Path, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        assert efface("evidence", model, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_bad_inputs(model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    assert efface("evidence", model, "--out", mine).exit_code == 2
    assert mine.read_text() == "mine"
    assert (
        efface("evidence", model, "--out", tmp_path / "c.zip", "--audit", "nowhere").exit_code == 2
    )
    assert efface("evidence", tmp_path, "--out", tmp_path / "d.zip").exit_code == 2
    assert efface("evidence", model, "--key", mine, "--out", tmp_path / "d.zip").exit_code == 2
    assert not (tmp_path / "d.zip").exists()


def test_a_model_without_a_key_says_what_to_do(tmp_path: Path) -> None:
    Workspace.create(tmp_path / "m", fitted("compact", people()))
    result = efface("evidence", tmp_path / "m", "--out", tmp_path / "e.zip")
    assert result.exit_code == 2
    assert "efface keys new" in result.stderr
    assert efface("keys", "new", tmp_path / "k").exit_code == 0
    assert efface("evidence", tmp_path / "m", "--key", tmp_path / "k", "--out", tmp_path / "e.zip")
    assert (tmp_path / "e.zip").exists()
