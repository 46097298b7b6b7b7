"""Partners: they send sums and never rows; the model is that of training on all records that are left."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.workspaces import CORE, NEW, OWNER, assert_checks, contents, core, fitted, people

from efface.data.records import Records
from efface.errors import EffaceError, FormatError, LedgerError, RecordError, RequestError
from efface.guarantee.certificates import PARTNERS
from efface.model.mixed_linear import MixedLinear
from efface.model.request import Request
from efface.receipts.keys import SigningKey
from efface.shards import Partner, Share, drop, invite, take
from efface.shards import partner as partner_module
from efface.shards.statement import Statement, sealed
from efface.workspace import Workspace, steps
from efface.workspace.partners import Invitation, partners
from efface.workspace.steps import Milestone

OURS, ONE, TWO = people()[:10], people()[10:20], people()[20:]
AWAY = Request.of(owner=OWNER)


def weights(records: Records) -> tuple[str, str]:
    """Digests of a model that was trained on these, all in one place."""
    user = fitted("compact", records).user
    return user.statistics_digest, user.weights_digest


def served(workspace: Workspace) -> tuple[str, str]:
    user = workspace.model().user
    return user.statistics_digest, user.weights_digest


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Workspace.create(tmp_path_factory.mktemp("base") / "w", fitted("compact", OURS)).path


@pytest.fixture
def workspace(base: Path, tmp_path: Path) -> Workspace:
    return Workspace.open(shutil.copytree(base, tmp_path / "w"))


def joined(workspace: Workspace, name: str, records: Records, place: Path) -> Partner:
    """A partner with its own folder, whose first message lies beside it."""
    invitation = invite(workspace, name)
    made = Partner.join(place / name, workspace.model(), records, invitation)
    made.send(place / f"{name}-1")
    return made


@pytest.fixture
def one(workspace: Workspace, tmp_path: Path) -> Partner:
    return joined(workspace, "one", ONE, tmp_path)


def test_two_partners_join_forget_and_leave(workspace: Workspace, tmp_path: Path) -> None:
    partner = joined(workspace, "one", ONE, tmp_path)
    joined(workspace, "two", TWO, tmp_path)
    for name in ("two", "one"):
        take(workspace, tmp_path / f"{name}-1")
    assert served(workspace) == weights(people())
    partner.forget(tmp_path / "one", AWAY).send(tmp_path / "one-2")
    result = take(workspace, tmp_path / "one-2")
    left = OURS + ONE.where(lambda record: record.owner != OWNER) + TWO
    assert served(workspace) == weights(left)
    certificate = result.certificate
    assert certificate is not None
    assert (result.num_records, certificate.num_forgotten) == (2, 2)
    assert certificate.num_retained == len(left) + len(CORE)
    assert certificate.public()["num_from_partners"] == 18
    assert PARTNERS in certificate.not_covered
    workspace.forget(owner=OWNER)
    own = OURS.where(lambda record: record.owner != OWNER)
    assert served(workspace) == weights(own + left[10:])
    drop(workspace, "two")
    assert served(workspace) == weights(own + ONE.where(lambda record: record.owner != OWNER))
    assert_checks(workspace.path)


def test_nothing_of_a_partners_people_is_in_its_message(one: Partner, tmp_path: Path) -> None:
    found = b"".join(contents(tmp_path / "one-1").values())
    rows = one.partial.data.rows
    assert rows is not None
    for record, row in zip(ONE, rows.whole().features, strict=True):
        for text in (record.id, record.owner, record.digest):
            assert text.encode() not in found
        assert row.tobytes() not in found
        assert bytes.fromhex(record.digest) not in found


def test_nothing_is_left_of_what_a_partner_forgot(
    one: Partner, workspace: Workspace, tmp_path: Path
) -> None:
    """Neither in its folder nor, once the message is taken, in the model's."""
    take(workspace, tmp_path / "one-1")
    before = contents(workspace.path)
    one.forget(tmp_path / "one", AWAY).send(tmp_path / "one-2")
    rows = one.partial.data.rows
    assert rows is not None
    kept = b"".join(contents(tmp_path / "one").values())
    for record, row in zip(ONE, rows.whole().features, strict=True):
        assert (row.tobytes() in kept) == (record.owner != OWNER)
        assert (record.id.encode() in kept) == (record.owner != OWNER)
    assert not list(tmp_path.glob(".one*"))
    take(workspace, tmp_path / "one-2")
    old = {name: data for name, data in before.items() if "guest" in name}
    assert len(old) == 3
    assert not set(old.values()) & set(contents(workspace.path).values())


def test_into_a_model_of_the_core_alone_and_out_again(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "w", fitted("compact", people()[:0]))
    empty = served(workspace)
    partner = joined(workspace, "one", ONE, tmp_path)
    take(workspace, tmp_path / "one-1")
    assert served(workspace) == weights(ONE)
    assert_checks(workspace.path)
    partner.forget(tmp_path / "one", Request.of(everything=True)).send(tmp_path / "one-2")
    take(workspace, tmp_path / "one-2")
    assert served(workspace) == empty
    assert_checks(workspace.path)
    with pytest.raises(EffaceError, match="does not follow"):
        take(workspace, tmp_path / "one-1")


def test_everything_of_ones_own_is_forgotten_and_partners_stay(
    one: Partner, workspace: Workspace, tmp_path: Path
) -> None:
    take(workspace, tmp_path / "one-1")
    result = workspace.forget(everything=True)
    assert served(workspace) == weights(ONE)
    assert any("only they can tell" in note for note in result.notes)
    workspace.add(NEW)
    assert served(workspace) == weights(NEW + ONE)
    assert_checks(workspace.path)


# --- what is refused ------------------------------------------------------------------------------


def refused(workspace: Workspace, message: Path, match: str) -> None:
    before = contents(workspace.path)
    with pytest.raises(EffaceError, match=match):
        take(workspace, message)
    assert contents(workspace.path).keys() == before.keys()


def test_a_message_twice_or_from_before_is_refused(
    one: Partner, workspace: Workspace, tmp_path: Path
) -> None:
    take(workspace, tmp_path / "one-1")
    refused(workspace, tmp_path / "one-1", "taken in already")
    one.forget(tmp_path / "one", AWAY).send(tmp_path / "one-2")
    take(workspace, tmp_path / "one-2")
    refused(workspace, tmp_path / "one-1", "does not follow")


def test_a_lost_message_is_no_harm(one: Partner, workspace: Workspace, tmp_path: Path) -> None:
    take(workspace, tmp_path / "one-1")
    second = one.forget(tmp_path / "one", AWAY)
    second.forget(tmp_path / "one", Request.of(owner="person-one")).send(tmp_path / "one-3")
    take(workspace, tmp_path / "one-3")
    gone = (OWNER, "person-one")
    assert served(workspace) == weights(OURS + ONE.where(lambda record: record.owner not in gone))


def test_who_was_not_admitted_is_refused(
    one: Partner, workspace: Workspace, base: Path, tmp_path: Path
) -> None:
    other = Workspace.open(shutil.copytree(base, tmp_path / "other"))
    refused(other, tmp_path / "one-1", "no partner of this model")
    invite(other, "one")
    refused(other, tmp_path / "one-1", "from before one was admitted")


def test_who_was_dropped_joins_anew_or_not_at_all(
    one: Partner, workspace: Workspace, tmp_path: Path
) -> None:
    take(workspace, tmp_path / "one-1")
    drop(workspace, "one")
    refused(workspace, tmp_path / "one-1", "no partner of this model")
    (tmp_path / "again").mkdir()
    joined(workspace, "one", ONE, tmp_path / "again")
    refused(workspace, tmp_path / "one-1", "from before one was admitted")
    refused(workspace, tmp_path / "again/one-1", "10 of one's images were forgotten here")
    take(workspace, tmp_path / "again/one-1", allow_reingest=True)
    assert served(workspace) == weights(OURS + ONE)
    assert not workspace.inventory.forgotten.tags


def test_images_do_not_count_twice(one: Partner, workspace: Workspace, tmp_path: Path) -> None:
    take(workspace, tmp_path / "one-1")
    for name, records, match in (
        ("two", ONE[9:] + TWO, "1 of two's images are one's, too"),
        ("three", OURS[8:] + TWO, "2 of three's images are kept here, too"),
        ("four", replaced_core() + TWO, "12 of four's images are core data"),
    ):
        made = joined(workspace, name, records, tmp_path)
        refused(workspace, tmp_path / f"{name}-1", match)
        assert made.find(list(made.tags)[:1])
    with pytest.raises(RecordError, match="among those of one"):
        workspace.add(ONE[:1])


def replaced_core() -> Records:
    """The core's images, as somebody else has them."""
    from efface.data.record import Split

    return Records([replace(r, split=Split.USER, id=f"x{r.id}") for r in CORE], CORE.classes)


def test_what_was_forgotten_here_does_not_come_back_as_a_partners(
    workspace: Workspace, tmp_path: Path
) -> None:
    workspace.forget(owner=OWNER)
    joined(workspace, "one", OURS.where(lambda record: record.owner == OWNER), tmp_path)
    refused(workspace, tmp_path / "one-1", "2 of one's images were forgotten here")


def test_another_models_sums_are_refused(workspace: Workspace, tmp_path: Path) -> None:
    other = MixedLinear(core(), "compact", features=100)
    other.fit(people()[:0])
    made = Partner.join(tmp_path / "one", other, ONE, invite(workspace, "one"))
    made.send(tmp_path / "one-1")
    refused(workspace, tmp_path / "one-1", "calibration_digest")


def resealed(folder: Path, **changes: Any) -> None:
    """The statement with other contents, and no signature: a partner may say what it likes."""
    found = Statement.parse((folder / "share.json").read_bytes())
    (folder / "share.json").write_bytes(sealed(replace(found, **changes), None))


def lie(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Other sums, consistently."""
    arrays = load_file(folder / "sums.safetensors")
    change(arrays)
    save_file(arrays, folder / "sums.safetensors")
    from efface.parts.compact.sums_file import read_sums

    resealed(folder, sums=read_sums(folder / "sums.safetensors").digest())


def _too_many(arrays: dict[str, np.ndarray]) -> None:
    arrays["gram"][0, 0] = 127 * 127 * 10 + 1


def _off_diagonal(arrays: dict[str, np.ndarray]) -> None:
    arrays["gram"][0, 1] = 127 * 127 * 10 + 1


def _cross(arrays: dict[str, np.ndarray]) -> None:
    arrays["cross"][0, 0, 0] = 127 * 32767 * 10 + 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_too_many, "larger than 10 rows can have"),
        (_off_diagonal, "product of two features"),
        (_cross, "product with a target"),
    ],
)
def test_sums_that_no_rows_can_have_are_refused(
    one: Partner,
    workspace: Workspace,
    tmp_path: Path,
    change: Callable[[dict[str, np.ndarray]], None],
    match: str,
) -> None:
    lie(tmp_path / "one-1", change)
    refused(workspace, tmp_path / "one-1", match)


def _negative(arrays: dict[str, np.ndarray]) -> None:
    arrays["gram"][0, 0] = -1


def test_a_negative_sum_of_squares_is_no_sum(
    one: Partner, workspace: Workspace, tmp_path: Path
) -> None:
    arrays = load_file(tmp_path / "one-1/sums.safetensors")
    _negative(arrays)
    save_file(arrays, tmp_path / "one-1/sums.safetensors")
    refused(workspace, tmp_path / "one-1", "no sums of squares")


def test_a_subtraction_that_is_none_is_refused(
    one: Partner, workspace: Workspace, tmp_path: Path
) -> None:
    take(workspace, tmp_path / "one-1")
    less = one.forget(tmp_path / "one", AWAY)
    less.send(tmp_path / "grown")

    def grow(arrays: dict[str, np.ndarray]) -> None:
        arrays["gram"][0, -1] += 127 * 127 * 2

    lie(tmp_path / "grown", grow)
    with pytest.raises((RequestError, FormatError)):
        take(workspace, tmp_path / "grown")
    less.send(tmp_path / "more")
    tags = load_file(tmp_path / "more/tags.safetensors")
    tags["tags"][0] ^= 1
    save_file(tags, tmp_path / "more/tags.safetensors")
    refused(workspace, tmp_path / "more", "not those of its statement")
    assert served(workspace) == weights(OURS + ONE)


def test_a_changed_message_is_refused(one: Partner, workspace: Workspace, tmp_path: Path) -> None:
    for changes in ({"num_rows": 9}, {"sums": "0" * 64}, {"tags": "0" * 64}):
        folder = shutil.copytree(tmp_path / "one-1", tmp_path / "changed")
        resealed(folder, **changes)
        refused(workspace, folder, "not those of its statement")
        shutil.rmtree(folder)
    for text in (b"", b"[]", b'{"payload":1}', b"\xff", b'{"_type":"x"}'):
        folder = shutil.copytree(tmp_path / "one-1", tmp_path / "changed")
        (folder / "share.json").write_bytes(text)
        with pytest.raises(LedgerError):
            take(workspace, folder)
        shutil.rmtree(folder)


def test_a_partner_with_keys_has_to_sign(workspace: Workspace, tmp_path: Path) -> None:
    key, other = SigningKey.new(), SigningKey.new()
    invitation = invite(workspace, "one", key.ring)
    model = workspace.model()
    for signed_by, match in ((None, "is not signed"), (other, "unknown")):
        made = Partner.join(tmp_path / "one", model, ONE, invitation, key=signed_by)
        made.send(tmp_path / "bad")
        refused(workspace, tmp_path / "bad", match)
        shutil.rmtree(tmp_path / "one")
        shutil.rmtree(tmp_path / "bad")
    made = Partner.join(tmp_path / "one", model, ONE, invitation, key=key)
    made.send(tmp_path / "good")
    assert Share.load(tmp_path / "good", key.ring).keyid == key.keyid
    take(workspace, tmp_path / "good")
    assert workspace.data.guests[0].keyid == key.keyid


def test_few_people_and_copies_are_not_sent(workspace: Workspace, tmp_path: Path) -> None:
    model, invitation = workspace.model(), invite(workspace, "one")
    with pytest.raises(RequestError, match="5 people"):
        Partner.join(tmp_path / "one", model, ONE, invitation, minimum_people=6)
    twice = Records([*ONE, replace(ONE[0], id="copy")], ONE.classes)
    with pytest.raises(EffaceError, match="the same image"):
        Partner.join(tmp_path / "one", model, twice, invitation)
    assert not (tmp_path / "one").exists()


def test_names_and_second_invitations(workspace: Workspace) -> None:
    invite(workspace, "one")
    with pytest.raises(EffaceError, match="admitted already"):
        invite(workspace, "one")
    for name in ("", "../x", "a b", "x" * 65):
        with pytest.raises(FormatError, match="no name"):
            invite(workspace, name)
    assert [partner.name for partner in partners(workspace.inventory)] == ["one"]


def test_a_tangent_model_has_no_partners(made: dict[str, Path], tmp_path: Path) -> None:
    opened = Workspace.open(shutil.copytree(made["tangent"], tmp_path / "w"))
    with pytest.raises(EffaceError, match="tangent part cannot"):
        invite(opened, "one")


# --- kills ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("renames", [0, 1])
def test_a_partner_killed_while_forgetting_has_the_old_folder_or_the_new(
    one: Partner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    folder, rename, done = tmp_path / "one", os.rename, []

    def dying(source: Path, target: Path) -> None:
        if folder in (source, target):
            if len(done) == renames:
                raise KeyboardInterrupt
            done.append(source)
        rename(source, target)

    monkeypatch.setattr(partner_module.os, "rename", dying)
    with pytest.raises(KeyboardInterrupt):
        one.forget(folder, AWAY)
    monkeypatch.setattr(partner_module.os, "rename", rename)
    again = Partner.open(folder)
    assert again.statement.num_rows == (8 if renames else 10)
    assert not list(tmp_path.glob(".one*"))


def test_invitations_are_files_that_are_not_believed(tmp_path: Path, workspace: Workspace) -> None:
    invitation = invite(workspace, "one")
    invitation.save(tmp_path / "i.json")
    assert (tmp_path / "i.json").stat().st_mode & 0o077 == 0
    assert Invitation.load(tmp_path / "i.json") == invitation
    values = json.loads((tmp_path / "i.json").read_text())
    for name, value in (("admission", "../.."), ("tag_key", "xyz"), ("name", 3)):
        (tmp_path / "i.json").write_text(json.dumps({**values, name: value}))
        with pytest.raises(FormatError):
            Invitation.load(tmp_path / "i.json")


@pytest.mark.parametrize("step", [Milestone.ACCEPTED, Milestone.PRIVATE, Milestone.OLD_STATE_GONE])
def test_a_model_killed_while_taking_a_message_takes_it_later(
    one: Partner, workspace: Workspace, tmp_path: Path, step: Milestone
) -> None:
    take(workspace, tmp_path / "one-1")
    one.forget(tmp_path / "one", AWAY).send(tmp_path / "one-2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps.os, "kill", _interrupt)
        patch.setenv(steps.KILL_AT, str(step))
        with pytest.raises(KeyboardInterrupt):
            take(workspace, tmp_path / "one-2")
    shutil.rmtree(tmp_path / "one-2")  # what was accepted is staged
    again = Workspace.open(workspace.path)
    left = ONE.where(lambda record: record.owner != OWNER)
    assert served(again) == weights(OURS + left)
    assert again.inventory.settled()
    assert_checks(again.path)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
