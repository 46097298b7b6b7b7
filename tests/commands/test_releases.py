"""``efface releases``: what a workspace still knows of two releases, and nothing that it should not."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.shell import efface, values_of
from tests.workspaces import NEW, OWNER, contents, fitted, people

from efface.receipts.keys import make
from efface.workspace import Workspace


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with four releases, its key, and the whole receipt of release 2, kept by whoever asked."""
    folder = tmp_path_factory.mktemp("releases")
    make(folder / "signing.key")
    workspace = Workspace.create(folder / "model", fitted("compact", people()))
    workspace.protocol.sign(folder / "signing.key")
    workspace.forget(owner=OWNER)
    shutil.copy(folder / "model/receipts/2.json", folder / "asked.json")
    workspace.add(NEW)
    workspace.forget(owner="person-one")
    return folder


def compared(place: Path, *words: object) -> dict[str, Any]:
    out = place / "page.html"
    return values_of(efface("releases", place / "model", "--out", out, *words, "--json"))


def facts(values: dict[str, Any]) -> dict[str, tuple[Any, Any, bool | None]]:
    return {f["name"]: (f["before"], f["after"], f["changed"]) for f in values["facts"]}


def test_the_first_and_the_served_release_by_default(place: Path) -> None:
    before = contents(place / "model")
    values = compared(place)
    assert (values["from"]["number"], values["to"]["number"]) == (1, 4)
    assert [r["action"] for r in values["between"]] == ["forget", "add", "forget"]
    found = facts(values)
    assert found["core"][2] is found["class list"][2] is False
    served = Workspace.open(place / "model").model()
    assert found["weights (SHA-256)"] == (None, served.user.weights_digest, None)
    assert found["records it was computed from"][0] is None
    assert contents(place / "model") == before


def test_the_page_says_it_and_names_nobody(place: Path) -> None:
    compared(place, "--from", 2)
    text = (place / "page.html").read_text(encoding="utf-8")
    for said in (
        "Release 4 beside release 2",
        "2 requests",
        "not kept",
        "come from",
        "releases 2 to 4",
    ):
        assert said in text.replace("comes from", "come from")
    assert "person-" not in text
    assert "releases were measured" in text  # instead of an empty chart


def test_a_whole_receipt_brings_what_is_not_kept(place: Path) -> None:
    words = ("--from", 2, "--receipt", place / "asked.json", "--key", place / "signing.key.pub")
    before, after, changed = facts(compared(place, *words))["weights (SHA-256)"]
    assert len(before) == len(after) == 64
    assert changed is True
    assert before in (place / "page.html").read_text(encoding="utf-8")


def test_evaluations_are_drawn(place: Path) -> None:
    words: list[object] = []
    for release, accuracy in ((1, 0.9), (4, 0.8)):
        path = place / f"evaluation-{release}.json"
        path.write_text(json.dumps({"release": release, "accuracy": accuracy, "num_records": 30}))
        words += ["--evaluation", path]
    assert facts(compared(place, *words))["accuracy"] == (0.9, 0.8, True)
    text = (place / "page.html").read_text(encoding="utf-8")
    assert "90.0 % → 80.0 %" in text
    assert "accuracy over releases" in text  # the drawing's name
    assert "From 90.0 % to 80.0 %." in text
    words[-1].write_text(json.dumps({"release": 4, "accuracy": 0.9, "num_records": 30}))  # type: ignore[attr-defined]
    compared(place, *words)
    level = (place / "page.html").read_text(encoding="utf-8")
    assert "90.0 % in each of the 2 releases that were measured." in level
    assert "accuracy over releases" not in level  # a level line shows nothing


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--from", "9"), "there is no release 9. Fix: choose one of 1, 2, 3, 4"),
        (("--from", "3", "--to", "2"), "does not come after"),
        (("--receipt", "asked.json"), "give --key"),
        (("--evaluation", "asked.json"), "no evaluation of a release"),
        (("--evaluation", "other.json"), "release 7 is none of this model's"),
    ],
)
def test_mistakes_are_explained(
    place: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(place)
    Path("other.json").write_text('{"release": 7, "accuracy": 0.5, "num_records": 3}')
    result = efface("releases", "model", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())


def test_a_receipt_of_another_model_is_refused(place: Path, tmp_path: Path) -> None:
    other = Workspace.create(tmp_path / "other", fitted("compact", people()))
    other.protocol.sign(place / "signing.key")
    words = ("--receipt", tmp_path / "other/receipts/1.json", "--key", place / "signing.key.pub")
    result = efface("releases", place / "model", *words)
    assert result.exit_code == 2
    assert "none of this model's" in result.stderr


def test_a_changed_ledger_is_exit_code_4(place: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(place / "model", tmp_path / "model")
    connection = sqlite3.connect(copy / "ledger.sqlite")
    connection.execute("DROP TRIGGER ledger_rows_update")
    connection.execute("UPDATE ledger_rows SET time = 'never' WHERE seq = 2")
    connection.commit()
    connection.close()
    assert efface("releases", copy, "--out", tmp_path / "page.html").exit_code == 4
    assert not (tmp_path / "page.html").exists()
