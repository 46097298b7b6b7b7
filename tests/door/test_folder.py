"""A classifier in a folder: it comes back as it was, and what is asked of it is done on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.door.places import (
    CORE,
    IMAGES,
    LABELS,
    NUMBERS,
    OWNERS,
    SMALL,
    TEST_IMAGES,
    TEST_LABELS,
    classifier,
    digests,
    fitted,
    network,
    without_core,
)
from typer.testing import CliRunner

from efface import ForgettingClassifier, Workspace
from efface.cli import app
from efface.data.records import Records
from efface.door import homes
from efface.door.homes import without_empty
from efface.errors import EffaceError, FormatError


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def values_of(result: Any) -> dict[str, Any]:
    return json.loads(result.stdout)


@pytest.mark.parametrize("user", ["compact", "tangent"])
def test_it_comes_back_as_it_was(user: str, tmp_path: Path) -> None:
    clf = fitted(user=user, mu=0.05, seed=4)
    want = clf.decision_function(TEST_IMAGES)
    assert clf.save(tmp_path / "model") is clf
    back = ForgettingClassifier.load(tmp_path / "model")
    for one in (clf, back):
        np.testing.assert_array_equal(one.decision_function(TEST_IMAGES), want)
        assert one.records_.owners == tuple(OWNERS)
    assert back.get_params() == {**clf.get_params(), "classes": ["ape", "bee", "cat"]}
    again = back.fit(IMAGES, LABELS, core=CORE)  # in memory anew; the folder stays as it is
    np.testing.assert_array_equal(again.decision_function(TEST_IMAGES), want)
    assert ForgettingClassifier.load(tmp_path / "model").records_.owners == tuple(OWNERS)


def test_a_request_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    clf, path = fitted(), tmp_path / "model"
    clf.save(path)
    receipt = clf.forget(owner="u3")
    assert receipt == Workspace.open(path).certificate
    other = ForgettingClassifier.load(path)
    assert digests(other) == digests(fitted(OWNERS != "u3"))
    other.forget(owner="u4")
    assert digests(clf) == digests(fitted(~np.isin(OWNERS, ["u3", "u4"])))  # sees what others do
    assert command("verify", path, "--retrain").exit_code == 0
    assert command("forget", path, "--owner", "u5").exit_code == 0
    assert "u5" not in clf.records_.owners
    with pytest.raises(EffaceError, match=r"lives in .*model already"):
        clf.save(tmp_path / "other")


def test_a_folder_that_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a workspace"):
        ForgettingClassifier.load(tmp_path)
    fitted().save(tmp_path / "model")
    clf = fitted()
    with pytest.raises(EffaceError):
        clf.save(tmp_path / "model")
    assert clf.save(tmp_path / "model", overwrite=True).verify()["ok"]


def test_a_module_comes_back_with_its_code(tmp_path: Path) -> None:
    clf = without_core().fit(IMAGES, LABELS)
    want = clf.decision_function(TEST_IMAGES)
    clf.save(tmp_path / "model")
    back = ForgettingClassifier.load(tmp_path / "model", module=network())
    np.testing.assert_array_equal(back.decision_function(TEST_IMAGES), want)
    with pytest.raises(EffaceError, match="module"):
        ForgettingClassifier.load(tmp_path / "model")


def test_what_the_command_line_trained(tmp_path: Path) -> None:
    path = tmp_path / "model"
    assert command("train", "digits", "--features", 100, "--out", path).exit_code == 0
    clf, data = ForgettingClassifier.load(path), Records.digits()
    assert clf.features == 100
    assert (
        clf.score(data.test) == values_of(command("evaluate", path, "digits", "--json"))["accuracy"]
    )
    assert clf.forget(owner="u07").num_forgotten == 15
    assert command("verify", path).exit_code == 0


# --- questions ------------------------------------------------------------------------------------


def test_the_answers_are_those_of_the_commands(tmp_path: Path) -> None:
    path, listed = tmp_path / "model", tmp_path / "data.npz"
    np.savez(listed, images=IMAGES, labels=LABELS, owners=OWNERS)
    clf = fitted()
    with pytest.raises(EffaceError, match="lives in memory only"):
        clf.verify()
    clf.save(path)
    mine = IMAGES[OWNERS == "u3"]
    assert not clf.scan(mine, owner="u3")["clean"]
    clf.forget(owner="u3")
    words = ("--retrain", "--from-images", listed, "--json")
    said = values_of(command("verify", path, *words))
    found = clf.verify(retrain=True, images=str(listed))
    assert found["ok"]
    assert {c["name"]: c["ok"] for c in found["checks"]} == {
        c["name"]: c["ok"] for c in said["checks"]
    }
    assert clf.verify(images=IMAGES)["checks"][-1]["ok"]
    assert not clf.verify(images=TEST_IMAGES)["ok"]
    digests_ = Records.from_arrays(mine, LABELS[OWNERS == "u3"]).digests
    scanned = clf.scan(owner="u3", digests=digests_)
    options = [word for digest in digests_ for word in ("--digest", digest)]
    assert scanned == values_of(command("scan", path, "--owner", "u3", *options, "--json"))
    assert clf.scan(mine, owner="u3")["clean"]
    assert len(scanned["kept"]) == len(mine)


def test_audit_and_compare(tmp_path: Path) -> None:
    data = Records.from_arrays(IMAGES, LABELS, owners=OWNERS)
    data = data + Records.from_arrays(*CORE, split="core")
    data = data + Records.from_arrays(TEST_IMAGES, TEST_LABELS, split="test")
    clf = classifier().fit(data).save(tmp_path / "model")
    clf.forget(owner="u3")
    quick: dict[str, Any] = {"worlds": 0, "canaries": 0}
    good = clf.audit(data, owner="u3", **quick, out=tmp_path / "audit")
    assert good["ok"]
    assert not clf.audit(data, owner="u4", **quick, out=tmp_path / "still")["ok"]
    assert (tmp_path / "audit" / "report.html").is_file()
    values = clf.compare(
        data,
        methods=("original", "retrain", "exact"),
        owner="u3",
        seeds=1,
        **quick,
        out=tmp_path / "compare",
    )
    assert set(values["methods"]) == {"original", "retrain", "exact"}
    assert values["contradictions"] == []


# --- a class that nobody has any more -------------------------------------------------------------

RARE = np.where(OWNERS == "u8", "iguana", LABELS)  # only u8 has them
OTHERS = OWNERS != "u8"


@pytest.fixture(params=["memory", "folder"])
def settle(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def move(clf: ForgettingClassifier) -> ForgettingClassifier:
        if request.param == "folder":
            clf.save(tmp_path / "model")
            return ForgettingClassifier.load(tmp_path / "model", module=network())
        return clf

    return move


@pytest.mark.parametrize("kind", ["names", "numbers"])
def test_a_class_leaves_with_the_last_of_its_records(kind: str, settle: Any) -> None:
    labels = RARE if kind == "names" else np.where(OWNERS == "u8", 7, NUMBERS)
    clf = settle(without_core().fit(IMAGES, labels, owners=OWNERS))
    never = without_core().fit(IMAGES[OTHERS], labels[OTHERS], owners=OWNERS[OTHERS])
    assert len(clf.classes_) == 4
    receipt = clf.forget(owner="u8")
    assert clf.classes_.tolist() == never.classes_.tolist() == sorted(set(labels[OTHERS].tolist()))
    assert digests(clf) == digests(never)
    assert (receipt.weights_digest, receipt.num_forgotten) == (digests(never)[0], 5)
    stored = getattr(clf._home, "workspace", None)
    assert stored is None or stored.certificate == receipt  # where there is a folder
    assert receipt.statistics_digest == never._home.model.user.statistics_digest
    np.testing.assert_array_equal(
        clf.decision_function(TEST_IMAGES), never.decision_function(TEST_IMAGES)
    )
    clf.forget(owner="u1")  # and goes on
    keep = ~np.isin(OWNERS, ["u1", "u8"])
    assert digests(clf) == digests(without_core().fit(IMAGES[keep], labels[keep]))


def test_what_was_forgotten_in_memory_is_refused_in_the_folder(tmp_path: Path) -> None:
    gone, path = OWNERS == "u3", tmp_path / "model"
    clf = without_core().fit(IMAGES, LABELS, owners=OWNERS)
    clf.forget(owner="u3")
    clf.save(path)
    for one in (clf, ForgettingClassifier.load(path, module=network())):
        with pytest.raises(EffaceError, match="was forgotten here"):
            one.add(IMAGES[gone], LABELS[gone])
    assert clf.verify(retrain=True)["ok"]
    assert not any(
        digest.encode() in file.read_bytes()
        for digest in Records.from_arrays(IMAGES[gone], LABELS[gone]).digests
        for file in path.rglob("*")
        if file.is_file()
    )


def test_nothing_is_left_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "model"
    clf = without_core().fit(IMAGES, RARE, owners=OWNERS).save(path)
    assert any(b"iguana" in file.read_bytes() for file in path.rglob("*") if file.is_file())
    clf.forget(owner="u8")
    assert not any(b"iguana" in file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert clf.verify(retrain=True, images=IMAGES)["ok"]
    assert clf.scan(IMAGES[~OTHERS], owner="u8")["clean"]
    with pytest.raises(EffaceError, match="was forgotten here"):
        clf.add(IMAGES[~OTHERS], LABELS[~OTHERS])


def test_it_leaves_when_the_folder_is_opened_if_it_could_not_before(tmp_path: Path) -> None:
    """As after a crash between the request and the smaller model, or a request by the command line."""
    path = tmp_path / "model"
    without_core().fit(IMAGES, RARE, owners=OWNERS).save(path)
    Workspace.open(path, module=network()).forget(owner="u8")
    assert b"iguana" in (Workspace(path).inventory.base / "core.json").read_bytes()
    clf = ForgettingClassifier.load(path, module=network())
    assert digests(clf) == digests(without_core().fit(IMAGES[OTHERS], RARE[OTHERS]))
    assert clf.verify()["ok"]


def test_somebody_else_may_change_the_folder_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the request and the smaller model another process forgets u1: both are gone."""
    path, done = tmp_path / "model", []
    clf = without_core().fit(IMAGES, RARE, owners=OWNERS).save(path)

    def other(model: Any) -> Any:
        if not done:
            done.append(Workspace.open(path, module=network()).forget(owner="u1"))
        return without_empty(model)

    monkeypatch.setattr(homes, "without_empty", other)
    clf.forget(owner="u8")
    keep = ~np.isin(OWNERS, ["u1", "u8"])
    assert len(done) == 1
    assert digests(clf) == digests(without_core().fit(IMAGES[keep], RARE[keep]))
    assert clf.verify(retrain=True)["ok"]


def test_a_list_that_was_given_stays(settle: Any) -> None:
    names = ["ape", "bee", "cat", "iguana"]
    clf = settle(without_core(classes=names).fit(IMAGES, RARE, owners=OWNERS))
    clf.forget(owner="u8")
    assert clf.classes_.tolist() == names
    never = without_core(classes=names).fit(IMAGES[OTHERS], RARE[OTHERS])
    assert digests(clf) == digests(never)


def test_two_classes_are_kept_and_it_says_so(settle: Any) -> None:
    clf = settle(without_core().fit(IMAGES[:9], ["a"] * 4 + ["b"] * 5, owners=OWNERS[:9]))
    with pytest.warns(UserWarning, match="no record is left of 'b', but the name stays"):
        assert clf.forget(label="b").num_forgotten == 5
    assert clf.classes_.tolist() == ["a", "b"]
    assert clf.records_.column("label") == ["a"] * 4


def test_the_tangent_part_wants_a_list() -> None:
    clf = without_core(user="tangent")
    with pytest.raises(EffaceError, match=r"classes=\['ape', 'bee', 'cat'\]"):
        clf.fit(IMAGES, LABELS)
    clf = ForgettingClassifier(network(), user="tangent", linearize="block", preprocess=SMALL)
    assert (
        clf.set_params(classes=["ape", "bee", "cat"]).fit(IMAGES, LABELS).score(IMAGES, LABELS)
        > 0.5
    )
