"""The workspace: what is published is the fitted model, and nothing of a forgotten record is left in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.workspaces import (
    CORE,
    NEW,
    OWNER,
    TEST,
    assert_checks,
    assert_forgotten,
    contents,
    core,
    fitted,
    people,
)

from efface.data.records import Records
from efface.errors import EffaceError, RecordError, RequestError
from efface.workspace import Workspace
from efface.workspace.published import load
from efface.workspace.verify import all_checks

# --- forgetting is what it says -------------------------------------------------------------------


def test_a_forgotten_owner_was_never_there(made: dict[str, Path], tmp_path: Path) -> None:
    """Compact: sums, weights and rows are those of a model fitted without the owner."""
    path = shutil.copytree(made["compact"], tmp_path / "w")
    result = Workspace.open(path).forget(owner=OWNER)
    without = people().where(lambda record: record.owner != OWNER)
    other = fitted("compact", without)
    assert result.certificate is not None
    private = result.certificate.private()
    assert private["statistics_digest"] == other.user.statistics_digest
    assert private["weights_digest"] == other.user.weights_digest
    Workspace.create(tmp_path / "other", other)
    for name in ("rows.json", "statistics.safetensors", "records.json", "state.json"):
        got, want = path / "private/2" / name, tmp_path / "other/private/1" / name
        assert got.read_bytes() == want.read_bytes()
    assert contents(path / "private/rows") == contents(tmp_path / "other/private/rows")
    served = load(path)
    assert torch.equal(served.logits(TEST), other.logits(TEST))


def test_a_request_leaves_the_rows_of_others_where_they_are(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """Their files are not even touched; what their digests say is still checked."""
    path = shutil.copytree(made["compact"], tmp_path / "w")
    before = {p.name: p.stat().st_ino for p in (path / "private/rows").iterdir()}
    one = people()[0]
    Workspace.open(path).forget(ids=one.id)
    after = {p.name: p.stat().st_ino for p in (path / "private/rows").iterdir()}
    assert len(before) == len(after) == 4
    kept = before.keys() & after.keys()
    assert len(kept) == 3
    assert all(before[name] == after[name] for name in kept)
    assert_checks(path)
    damaged = path / "private/rows" / min(kept)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    failed = [c for c in all_checks(Workspace.open(path, recover=False)) if not c.ok]
    assert [c.name for c in failed] == ["files"]
    assert damaged.name in failed[0].detail


def test_two_requests_and_a_restart_stay_forgotten(path: Path, kind: str) -> None:
    Workspace.open(path).forget(owner=OWNER)
    Workspace.open(path).forget(ids=["image-1-0", "image-1-1"])
    workspace = Workspace.open(path)
    gone = people().where(lambda r: r.owner == OWNER or r.id in ("image-1-0", "image-1-1"))
    assert set(workspace.records.ids) == set(people().ids) - set(gone.ids)
    assert_forgotten(workspace, gone)
    if kind == "compact":
        never = fitted(kind, people().without(gone.ids))
        assert workspace.model().user.statistics_digest == never.user.statistics_digest
    assert_checks(path)


def remains(path: Path, records: Records) -> set[str]:
    """What of the records is in some file: a plain search, independent of ``efface.workspace.scan``."""
    activations = core().activations(records)[slice(0, len(records))].numpy()
    model = load(path)
    needles: dict[str, list[bytes]] = {"activation": [row.tobytes() for row in activations]}
    if model.user.kind == "compact":
        rows = model.user.rows(model.activations(records), core().labels(records))
        needles["row"] = [row.tobytes() for row in rows.features]
    names = [(r.id, r.owner, f"dir/{r.id}") for r in records]
    needles["name"] = [json.dumps(text).encode() for all_ in names for text in all_]
    data = list(contents(path).items())
    found = {what for what, all_ in needles.items() for n in all_ for _, blob in data if n in blob}
    digests = [r.digest.encode() for r in records]
    if any(d in blob for d in digests for _, blob in data):
        found.add("digest")
    return found


def test_nothing_is_left_of_a_forgotten_owner(path: Path, kind: str) -> None:
    records = people().select(owner=OWNER)
    stored = "row" if kind == "compact" else "activation"
    assert remains(path, records) == {stored, "name", "digest"}
    weights = load(path).user.tensors["theta" if kind == "compact" else "weights"]
    old = weights.numpy().tobytes()[:512]
    assert any(old in data for data in contents(path).values())
    Workspace.open(path).forget(owner=OWNER)
    assert remains(path, records) == set()
    assert [p.name for p in (path / "releases").iterdir()] == ["2"]
    kept = ["2", "key.json", "rows"] if kind == "compact" else ["2", "key.json"]
    assert sorted(p.name for p in (path / "private").iterdir()) == kept
    assert not any(old in data for data in contents(path).values())


def test_the_core_never_changes(path: Path) -> None:
    before = {n: data for n, data in contents(path).items() if n.startswith("core/1/core")}
    Workspace.open(path).forget(owner=OWNER)
    Workspace.open(path).add(NEW)
    after = contents(path)
    assert before == {name: after[name] for name in before}
    assert len(before) == 3


def test_everything_forgotten_leaves_the_core_model(path: Path) -> None:
    Workspace.open(path).forget(everything=True)
    left = load(path)
    assert torch.equal(left.logits(TEST), left.core_logits(TEST))
    assert len(Workspace.open(path).records) == 0
    assert_checks(path)
    with pytest.raises(RequestError, match="nothing left to forget"):
        Workspace.open(path).forget(everything=True)


# --- beginnings -----------------------------------------------------------------------------------


def test_what_is_published_is_the_fitted_model(path: Path, kind: str) -> None:
    assert torch.equal(load(path).logits(TEST), fitted(kind, people()).logits(TEST))
    assert_checks(path)


def test_private_folders_are_the_owners_alone(path: Path) -> None:
    for name in ("private", "activations"):
        assert (path / name).stat().st_mode & 0o077 == 0


def test_no_images_and_no_core_owners_are_kept(path: Path) -> None:
    data = b"".join(contents(path).values())
    for record in people():
        assert record.image().tobytes() not in data
    assert b"core-record-3" in data
    assert b"core-record--owner3" not in data
    assert CORE[3].owner.encode() not in data


def test_a_workspace_is_not_overwritten_unasked(path: Path, kind: str) -> None:
    before = contents(path)
    with pytest.raises(EffaceError, match="already is a model"):
        Workspace.create(path, fitted(kind, people()))
    assert contents(path) == before


def test_overwriting_does_not_bring_forgotten_records_back(path: Path, kind: str) -> None:
    Workspace.open(path).forget(owner=OWNER)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(RecordError, match="was forgotten here"):
        Workspace.create(path, fitted(kind, people()), overwrite=True)
    assert Workspace.open(path).number == 2
    left = people().where(lambda record: record.owner != OWNER)
    workspace = Workspace.create(path, fitted(kind, left), overwrite=True)
    assert_forgotten(workspace, people().select(owner=OWNER))
    assert workspace.number == 3
    assert (path / "notes.txt").read_text() == "mine"
    assert_checks(path)
    Workspace.create(path, fitted(kind, people()), overwrite=True, allow_reingest=True)
    assert_forgotten(Workspace.open(path), people()[[]])
