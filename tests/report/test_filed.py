"""Every request that forgets leaves its page beside the receipt: in plain words, without a name."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.shell import efface, values_of
from tests.workspaces import NEW, OWNER, assert_checks, contents, kind, made, path

from efface import files
from efface.receipts import keys
from efface.report.accounts import account_of
from efface.report.evidence import Beside, page
from efface.report.filed import file_page
from efface.report.language import Language, words
from efface.workspace import Workspace
from efface.workspace.scan import OF_EVERY_PAGE, scan

__all__ = ["kind", "made", "path"]

TELLING = ("statistics", "weights", "releases/2/user.safetensors")


@pytest.fixture(params=["signed", "unsigned"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """The option, where somebody signs."""
    if request.param == "unsigned":
        return []
    keys.make(tmp_path / "signing.key")
    return ["--key", str(tmp_path / "signing.key")]


def listed(path: Path) -> list[str]:
    return sorted(entry.name for entry in (path / "receipts").iterdir())


def test_the_command_writes_the_page_and_says_where(path: Path, key: list[str]) -> None:
    values = values_of(efface("forget", path, "--owner", OWNER, *key, "--json"))
    assert values["page"] == str(path / "receipts/2.html")
    text = (path / "receipts/2.html").read_text()
    assert "Record of an erasure" in text
    assert ("has no signed receipt" in text) == (not key)
    expected = ["2.html", "2.json", "2.kept.html", "2.kept.json"]
    assert listed(path) == (expected if key else ["2.html", "2.kept.html"])
    printed = efface("forget", path, "--ids", "image-1-0")
    assert str(path / "receipts/3.html") in printed.stdout
    assert_checks(path)


def test_a_page_names_nobody_and_nothing_of_them(path: Path, key: list[str]) -> None:
    efface("forget", path, "--owner", OWNER, *key)
    found = {name: data for name, data in contents(path).items() if name.endswith(".html")}
    assert sorted(found) == ["receipts/2.html", "receipts/2.kept.html"]
    for data in found.values():
        assert OWNER.encode() not in data
        assert b"image-1" not in data
        assert b"cohort-" not in data
        assert str(path).encode() not in data
    assert scan(path, owners=[OWNER]).clean


def test_it_is_the_page_that_evidence_writes(path: Path, key: list[str], tmp_path: Path) -> None:
    efface("forget", path, "--owner", OWNER, *key, "--language", "de")
    out = tmp_path / "page.html"
    efface("evidence", path, "--request", 2, "--language", "de", "--out", out)
    assert (path / "receipts/2.html").read_bytes() == out.read_bytes()
    assert words(Language.GERMAN)("title.forget") in out.read_text()


def test_once_another_release_is_published_it_tells_less(path: Path, key: list[str]) -> None:
    """As its receipt: no digest of sums, weights or files that somebody who leaves later went into."""
    efface("forget", path, "--owner", OWNER, *key)
    workspace = Workspace.open(path)
    digests = workspace.protocol.signing.subjects()
    telling = [digests[name] for name in TELLING if name in digests]
    assert all(digest in (path / "receipts/2.html").read_text() for digest in telling)
    told = len(workspace.inventory.ledger.rows())
    workspace.add(NEW)
    expected = (["2.json", "3.json", "3.kept.json"] if key else []) + ["2.html"]
    assert listed(path) == sorted(expected)
    text = (path / "receipts/2.html").read_text()
    assert not any(digest in text for digest in telling)
    later = account_of(Workspace.open(path), 2, Beside("receipts/2.json"))
    assert text == page(replace(later, num_rows=told)).render()
    assert_checks(path)


def test_a_page_of_an_earlier_request_is_written_as_it_stays(path: Path) -> None:
    workspace = Workspace.open(path)
    workspace.forget(owner=OWNER)
    workspace.add(NEW)
    assert file_page(workspace, 2) == path / "receipts/2.html"
    assert listed(path) == ["2.html"]
    assert "statistics" not in (path / "receipts/2.html").read_text()


def test_a_page_that_was_not_signed_is_made_anew_when_somebody_signs(
    path: Path, tmp_path: Path
) -> None:
    efface("forget", path, "--owner", OWNER)
    keys.make(tmp_path / "k")
    efface("evidence", path, "--key", tmp_path / "k", "--out", tmp_path / "e.zip")
    assert "has no signed receipt" not in (path / "receipts/2.html").read_text()
    assert listed(path) == ["2.html", "2.json", "2.kept.html", "2.kept.json"]


def test_an_unknown_language_is_refused_before_anything_is_done(path: Path) -> None:
    before = contents(path)
    refused = efface("forget", path, "--owner", OWNER, "--language", "tlh")
    assert refused.exit_code == 2
    assert "en, de, fr, es" in refused.stderr
    assert contents(path) == before


def test_half_a_page_does_not_stay(path: Path) -> None:
    efface("forget", path, "--owner", OWNER)
    (path / "receipts/2.html.tmp").write_text("half")
    (path / "receipts/7.html").write_text("of no release")
    assert not Workspace.open(path, recover=False).inventory.settled()
    Workspace.open(path)
    assert listed(path) == ["2.html", "2.kept.html"]


def test_a_request_is_done_even_if_its_page_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files.write_bytes

    def full(out: Path, *rest: object) -> None:
        if out.suffix == ".html":
            raise OSError(28, os.strerror(28))
        whole(out, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(files, "write_bytes", full)
    done = efface("forget", path, "--owner", OWNER)
    assert done.exit_code == 0
    assert re.search(r"efface evidence \S+ --request 2", done.stderr.replace("\n", " "))
    assert Workspace.open(path, recover=False).number == 2


def test_a_person_may_be_called_like_a_day_or_a_length(path: Path) -> None:
    """Times and style of our own pages are no names; in anybody else's files they are."""
    efface("forget", path, "--owner", OWNER)
    text = (path / "receipts/2.html").read_text()
    assert re.search(r"\d{4}-\d\d", text)
    assert not re.search(r"\d{4}-\d\d", OF_EVERY_PAGE.sub(" ", text))
    pages = [f for f in scan(path, owners=["2rem", "hyphens"]).findings if ".html" in f.file]
    assert pages == []
    (path / "note.html").write_text("<style>hyphens</style>")
    assert any("note.html" in f.file for f in scan(path, owners=["hyphens"]).findings)
