"""A person is forgotten whole, or the request says what stays: core is drawn by owners."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import cases
from tests.photos import write_photos
from tests.workspaces import CLASSES, contents, core, people
from typer.testing import CliRunner, Result

from efface.cli import app
from efface.data.promises import is_core_owner
from efface.data.record import Record, Split
from efface.data.records import Records
from efface.errors import GuaranteeError, RecordError, RequestError
from efface.guarantee.certificates import in_core
from efface.model.core_index import CoreIndex, tag
from efface.model.mixed_linear import MixedLinear
from efface.model.request import Request
from efface.pipeline.sections import DataConfig
from efface.workspace import Workspace
from efface.workspace.scan import scan

OWNER = "person-both"


def efface(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def half_core() -> tuple[Records, Records]:
    """User and core records of which ``OWNER`` has 4 and 3."""
    users = [replace(r, owner=OWNER) if i < 4 else r for i, r in enumerate(people())]
    made = cases.tiny_records(12, 0, split=Split.CORE, name="core-record-")
    cores = [replace(r, owner=OWNER) if i < 3 else r for i, r in enumerate(made)]
    return Records(users, CLASSES), Records(cores, CLASSES)


def fitted(kind: str = "compact") -> MixedLinear:
    users, cores = half_core()
    options = {"compact": {"features": 100}, "tangent": {"mu": 0.1}}[kind]
    return MixedLinear(core(), kind, **options).fit(users, replay=cores)


@pytest.fixture(params=["compact", "tangent"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Workspace:
    return Workspace.create(tmp_path / "w", fitted(request.param))


# --- the draw -------------------------------------------------------------------------------------


def some(owners: list[int]) -> Records:
    made = cases.tiny_records(len(owners), 3)
    return Records([replace(r, owner=f"o{o}") for r, o in zip(made, owners, strict=True)], CLASSES)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.floats(0, 1), st.integers(0, 5))
def test_owners_are_drawn_whole_and_by_their_names_alone(
    owners: list[int], fraction: float, seed: int
) -> None:
    records = some(owners)
    drawn = records.with_core_fraction(fraction, seed)
    assert not set(drawn.core.owners) & set(drawn.user.owners)
    assert set(drawn.core.owners) == {o for o in records.owners if is_core_owner(o, fraction, seed)}
    gone = records[0].owner  # whoever leaves, the others are where they were
    fewer = records.where(lambda r: r.owner != gone).with_core_fraction(fraction, seed)
    assert fewer.core.ids == drawn.core.where(lambda r: r.owner != gone).ids
    assert fewer.user.ids == drawn.user.where(lambda r: r.owner != gone).ids


def test_a_config_and_a_reader_draw_owners_too(tmp_path: Path) -> None:
    folder = write_photos(tmp_path, num_owners=20, each=3)
    for records in (
        DataConfig(spec=str(folder), core_fraction=0.4).build(),
        Records.open(folder, core_fraction=0.4),
    ):
        assert len(records.core)
        assert len(records.user)
        assert not set(records.core.owners) & set(records.user.owners)


def test_a_share_of_many_owners_is_about_the_fraction() -> None:
    owners = [f"owner {i}" for i in range(20_000)]
    share = np.mean([is_core_owner(owner, 0.3) for owner in owners])
    assert abs(share - 0.3) < 0.02  # six standard deviations; the draw is fixed


def test_copies_of_core_images_are_set_aside_not_drawn_into_core() -> None:
    names = [f"o{i}" for i in range(50)]
    inside = next(n for n in names if is_core_owner(n, 0.5))
    outside = next(n for n in names if not is_core_owner(n, 0.5))
    made = cases.tiny_records(2, 3)
    twins = [
        replace(made[0], owner=inside),
        replace(made[0], id="again", owner=outside),
        replace(made[1], owner=outside),
    ]
    drawn = Records(twins, CLASSES).with_core_fraction(0.5)
    assert drawn.core.owners == (inside,)
    assert drawn.user.ids == (made[1].id,)
    assert [s.id for s in drawn.skipped] == ["again"]
    assert "core data" in drawn.skipped[0].reason


def test_owners_on_both_sides_are_noted() -> None:
    users, cores = half_core()
    both = Records([*users, *cores], CLASSES)
    assert any(OWNER in note and "never forgotten" in note for note in both.notes)


# --- the index ------------------------------------------------------------------------------------


def test_the_index_knows_names_only_with_its_key() -> None:
    _, cores = half_core()
    index = CoreIndex.of([cores])
    assert len(index.matching(Request.of(owner=OWNER))) == 3
    assert OWNER not in json.dumps(index.to_dict())
    other = CoreIndex.from_dict(index.to_dict(), b"another key")
    assert not other.matching(Request.of(owner=OWNER))
    assert CoreIndex.from_dict(index.to_dict(), index.key) == index
    assert tag(index.key, "owner", OWNER) != tag(index.key, "cohort", OWNER)


def test_a_path_of_a_calibration_folder_is_nobodys_name() -> None:
    record: Record = cases.tiny_records(1, 8)[0]
    alone = Records([replace(record, owner=record.id)], CLASSES)
    assert not CoreIndex.of([], alone).matching(Request.of(owner=record.id))
    named = Records([replace(record, owner="anna")], CLASSES)
    assert len(CoreIndex.of([], named).matching(Request.of(owner="anna"))) == 1


# --- requests -------------------------------------------------------------------------------------


def test_a_request_of_somebody_in_core_changes_nothing_and_says_which(workspace: Workspace) -> None:
    before = contents(workspace.path)
    for ask in (workspace.forget, workspace.preview):
        with pytest.raises(GuaranteeError, match="3 images of this owner are core data") as caught:
            ask(owner=OWNER)
        assert "core-record-0" in caught.value.message
        assert "--user-part-only" in caught.value.fix
        assert caught.value.exit_code == 3
    assert contents(workspace.path) == before


def test_the_user_part_alone_goes_and_the_certificate_says_what_stays(workspace: Workspace) -> None:
    certificate = workspace.forget(owner=OWNER, user_part_only=True).certificate
    assert certificate is not None
    assert OWNER not in workspace.records.owners
    assert certificate.num_in_core == 3
    for form in ("private", "public"):
        path = workspace.path / "certificates" / f"{workspace.number}.{form}.json"
        stored = json.loads(path.read_text())
        assert stored["num_in_core"] == 3
        assert stored["not_covered"][0] == in_core(3)[0]
    assert "3 images" in in_core(3)[0]
    assert "stay in the core weights" in in_core(3)[0]


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_a_model_in_memory_refuses_too(kind: str) -> None:
    model = fitted(kind)
    with pytest.raises(GuaranteeError, match="core data"):
        model.forget(owner=OWNER)
    assert model.data is not None
    assert OWNER in model.data.records.owners
    assert model.forget(owner=OWNER, user_part_only=True).num_in_core == 3


def test_somebody_with_core_records_alone_is_refused_whatever_is_asked(
    workspace: Workspace,
) -> None:
    name = "core-record--owner7"
    with pytest.raises(GuaranteeError, match="1 images of this owner are core"):
        workspace.forget(owner=name)
    with pytest.raises(RequestError, match="no user record"):
        workspace.forget(owner=name, user_part_only=True)


def test_a_cohort_that_reaches_into_core_is_refused_a_class_is_counted(
    workspace: Workspace,
) -> None:
    with pytest.raises(GuaranteeError, match="12 images of this cohort"):
        workspace.forget(cohort="default")
    certificate = workspace.forget(label="a").certificate
    assert certificate is not None
    assert certificate.num_in_core == 4


def test_scan_looks_into_core(workspace: Workspace) -> None:
    workspace.forget(owner=OWNER, user_part_only=True)
    found = scan(workspace.path, owners=[OWNER])
    assert not found.clean
    assert [(f.file, f.how) for f in found.findings] == [("core/1/core-records.json", "in core")]
    assert "3 images" in found.findings[0].what


@pytest.mark.needs("posix")
def test_the_key_is_private_and_survives_requests(workspace: Workspace) -> None:
    key = workspace.path / "private" / "key.json"
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    workspace.forget(owner="person-two")
    assert key.read_bytes() == before
    with pytest.raises(GuaranteeError):
        workspace.forget(owner=OWNER)


def test_core_images_cannot_be_added_to_a_model_in_memory() -> None:
    model, (_, cores) = fitted(), half_core()
    again = Records([replace(cores[0], id="again", split=Split.USER)], CLASSES)
    with pytest.raises(RecordError, match="core data"):
        model.add(again)


# --- the command line -----------------------------------------------------------------------------


def test_photos_with_owners_from_train_to_audit(tmp_path: Path) -> None:
    """The README's own commands: nobody is on both sides, so everybody can be forgotten whole."""
    folder, model = write_photos(tmp_path / "photos", num_owners=20), tmp_path / "model"
    options = ("--core-fraction", 0.4, "--features", 60, "--out", model)
    assert efface("train", folder, *options).exit_code == 0
    records = Records.open(folder, core_fraction=0.4)
    opened = Workspace.open(model)
    assert set(opened.records.owners) == set(records.user.owners)
    owner = records.user[0].owner
    assert efface("forget", model, "--owner", owner).exit_code == 0
    assert efface("scan", model, folder, "--owner", owner).exit_code == 0
    inside = records.core[0].owner
    refused = efface("forget", model, "--owner", inside)
    assert refused.exit_code == 3
    assert "core data" in refused.stderr
    assert efface("scan", model, folder, "--owner", inside).exit_code == 3


def test_audit_looks_into_core(tmp_path: Path) -> None:
    folder, model = write_photos(tmp_path / "photos", num_owners=12), tmp_path / "model"
    lines = (folder / "metadata.csv").read_text().splitlines()
    mine = [i for i, line in enumerate(lines) if ",person-00," in line]
    for i in mine[:2]:  # the data's own split puts two of this person's six images into core
        lines[i] = lines[i].removesuffix("train") + "core"
    for i, line in enumerate(lines):
        if ",person-01," in line or ",person-02," in line:
            lines[i] = line.removesuffix("train") + "core"
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    assert efface("train", folder, "--features", 60, "--out", model).exit_code == 0
    words = ("forget", model, "--owner", "person-00")
    assert efface(*words).exit_code == 3
    done = efface(*words, "--user-part-only")
    assert done.exit_code == 0
    assert "2 images" in done.stdout
    quick = ("--worlds", 0, "--canaries", 0, "--out", tmp_path / "out", "--json")
    result = efface("audit", model, folder, "--owner", "person-00", *quick)
    assert result.exit_code == 3, result.stderr
    assert json.loads(result.stdout)["served"]["num_in_core"] == 2


# --- calibration ----------------------------------------------------------------------------------


def test_calibration_images_are_remembered_and_refused(tmp_path: Path) -> None:
    public = cases.tiny_records(20, 31, name="public-")
    model = MixedLinear(core(), features=60).fit(people(), calibration=public)
    again = Records([replace(public[3], id="again", owner="anna")], CLASSES)
    with pytest.raises(RecordError, match="calibrated on this image"):
        model.add(again)
    made = Workspace.create(tmp_path / "w", model)
    before = contents(made.path)
    with pytest.raises(RecordError, match="calibrated on this image"):
        made.add(again)
    after = contents(made.path)
    assert {n: d for n, d in after.items() if "ledger" not in n} == {
        n: d for n, d in before.items() if "ledger" not in n
    }
    other = cases.tiny_records(
        2, 32, name="public-"
    )  # same ids as calibration records, other images
    made.add(other)
    assert set(other.ids) <= set(made.records.ids)
