"""``efface evidence``: one archive with all that a stranger needs, and nobody's name."""

from __future__ import annotations

import base64
import html
import json
import re
import zipfile
from pathlib import Path

import pytest
from tests.shell import efface, values_of
from tests.workspaces import OWNER, contents, fitted, people

from efface.receipts import keys
from efface.report.language import Language, words
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
    listed = (tmp_path / "b/CHECK.txt").read_text().splitlines()
    commands = [line.strip() for line in listed if line.startswith("    efface verify")][:1]
    commands += re.findall("<pre>([^<]*)</pre>", (tmp_path / "b/START.html").read_text())[:2]
    commands += re.findall("<pre>([^<]*)</pre>", (tmp_path / "b/pages/2.html").read_text())[:2]
    places = {"keys.pub", "ledger.jsonl", "receipts/2.json", "receipts/3.json"}
    assert len(commands) == 5
    for command in commands:
        words = [str(tmp_path / "b" / w) if w in places else w for w in command.split()[1:]]
        assert efface(*words).exit_code == 0
    everything = b"".join(p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file())
    assert OWNER.encode() not in everything
    assert b"image-1" not in everything


@pytest.mark.parametrize("language", Language)
def test_a_page_in_every_language(model: Path, tmp_path: Path, language: Language) -> None:
    """Whole, offline, without names, and with what anybody can compare."""
    out = tmp_path / "page.html"
    values = values_of(
        efface(*("evidence", model, "--request", 3, "--language", language, "--out", out), "--json")
    )
    assert (values["release"], values["language"]) == (3, language)
    page = out.read_text()
    assert f'<html lang="{language}">' in page
    texts, written = words(language).texts, html.unescape(page)
    for key in ("title.forget", "limits.heading", "stranger.heading", "sign.signature"):
        assert texts[key] in written
    receipt = json.loads((model / "receipts/3.json").read_bytes())
    said = json.loads(base64.b64decode(receipt["payload"]))["predicate"]
    assert receipt["signatures"][0]["keyid"] in page
    assert all(reference in page for reference in said["request"])
    assert not any(f"<li>{text}</li>" in written for text in said["not_covered"])  # in other words
    for foreign in (OWNER, "image-1", "{", "<script", "http://", "src=", "@import", "url("):
        assert foreign not in re.sub("<style>.*</style>", "", page, flags=re.DOTALL)
    assert "size: A4" in page


def test_a_page_needs_no_key_and_says_so(tmp_path: Path) -> None:
    Workspace.create(tmp_path / "m", fitted("compact", people())).forget(owner=OWNER)
    before = contents(tmp_path / "m")
    for number, title in ((2, "Record of an erasure"), (1, "Record of a model release")):
        out = tmp_path / f"{number}.html"
        assert efface("evidence", tmp_path / "m", "--request", number, "--out", out).exit_code == 0
        assert title in out.read_text()
        assert "This request has no signed receipt" in out.read_text()
        assert OWNER not in out.read_text()
    assert contents(tmp_path / "m") == before
    unknown = efface("evidence", tmp_path / "m", "--request", 3, "--out", tmp_path / "3.html")
    assert unknown.exit_code == 2
    assert "there is no request 3" in unknown.stderr
    foreign = efface("evidence", tmp_path / "m", "--request", 2, "--language", "tlh")
    assert foreign.exit_code == 2
    assert "en, de, fr, es" in foreign.stderr


def test_the_same_model_gives_the_same_archive(model: Path, tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        assert efface("evidence", model, "--out", tmp_path / name).exit_code == 0
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_bad_inputs(model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    assert efface("evidence", model, "--out", mine).exit_code == 2
    assert efface("evidence", model, "--request", 3, "--out", mine).exit_code == 2
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
