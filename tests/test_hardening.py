"""Clumsy hands and dying machines: what a workspace does when it is treated badly."""

# ruff: noqa: F811 (fixtures of test_workspace)
from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.commands.test_commands_forget import efface, values_of, write
from tests.workspace.test_workspace import (  # noqa: F401
    CORE,
    KINDS,
    NEW,
    OWNER,
    PROCESSES,
    TEST,
    as_in_other_processes,
    assert_checks,
    assert_forgotten,
    contents,
    fitted,
    kill,
    kind,
    made,
    path,
    people,
    quick,
    without_journal,
)

from efface import files
from efface.errors import EffaceError, FormatError, Interrupted, LedgerError, RecordError
from efface.model.mixed_linear import MixedLinear
from efface.workspace import Workspace
from efface.workspace.ledger import KILL_AT, Milestone
from efface.workspace.published import CURRENT, load
from efface.workspace.store import Store
from efface.workspace.verify import all_checks

LEFT = people().where(lambda record: record.owner != OWNER)


# --- an accepted request survives training anew ---------------------------------------------------


@pytest.mark.parametrize(
    "step", [Milestone.INTENT, Milestone.ACCEPTED, Milestone.SWITCHED, Milestone.PUBLISHED]
)
def test_an_accepted_request_is_not_lost_by_overwriting(
    path: Path, kind: str, step: Milestone
) -> None:
    kill(path, "forget", step)
    with pytest.raises(RecordError, match="was forgotten here"):
        Workspace.create(path, fitted(kind, people()), overwrite=True)
    assert OWNER not in Workspace.open(path).records.owners
    workspace = Workspace.create(path, fitted(kind, LEFT), overwrite=True)
    assert_forgotten(workspace, people().select(owner=OWNER))
    assert_checks(path)


# --- other people's files -------------------------------------------------------------------------


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "private/diary",
        "certificates/1.public.json",
        "releases/1/notes",
        "activations/x",
        "core/1/x",
        "config.toml",
        "model.json",
        "journal.jsonl",
        "pending.json",
        "core.safetensors",
    ],
)
def test_a_folder_of_somebody_else_is_left_alone(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    file = tmp_path / "w" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(EffaceError, match="not empty, and no workspace"):
        Workspace.create(tmp_path / "w", fitted("compact", people()), overwrite=overwrite)
    assert contents(tmp_path / "w") == {name: b"mine"}


def test_strangers_files_in_a_workspace_survive_everything(path: Path, kind: str) -> None:
    mine = ["notes.txt", "private/diary", "certificates/me.txt", "releases/x/y", "core/z", "a.tmp"]
    for name in mine:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text("mine")
    efface("verify", path)
    kill(path, "forget", Milestone.PRIVATE)
    Workspace.open(path)
    Workspace.open(path).add(NEW)
    Workspace.create(path, fitted(kind, LEFT), overwrite=True)
    assert {(path / name).read_text() for name in mine} == {"mine"}


def test_a_workspace_that_lost_its_current_is_not_cleared(path: Path, kind: str) -> None:
    (path / CURRENT).unlink()
    before = contents(path)
    with pytest.raises(EffaceError, match="not empty, and no workspace"):
        Workspace.create(path, fitted(kind, people()))
    assert contents(path) == before


# --- replacing a model ----------------------------------------------------------------------------


def overwriting_child(path: Path, kind: str, step: str) -> None:
    quick()
    model = fitted(kind, LEFT)
    os.environ[KILL_AT] = step
    Workspace.create(path, model, overwrite=True)


@pytest.mark.parametrize(
    "step",
    [
        Milestone.ACCEPTED,
        Milestone.RELEASE,
        Milestone.PRIVATE,
        Milestone.CERTIFICATE,
        Milestone.PREPARED,
        Milestone.SWITCHED,
        Milestone.OLD_RELEASES_GONE,
        Milestone.OLD_CORE_GONE,
        Milestone.OLD_STATE_GONE,
        Milestone.OLD_CERTIFICATES_GONE,
        Milestone.OLD_ROWS_GONE,
        Milestone.DONE,
    ],
)
def test_a_kill_while_overwriting_leaves_the_old_model_or_the_new(
    path: Path, kind: str, step: Milestone, made: dict[str, Path]
) -> None:
    old = load(path).logits(TEST)
    child = PROCESSES.Process(target=overwriting_child, args=(path, kind, str(step)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    served = load(path).logits(TEST)  # before anybody has repaired anything
    switched = list(Milestone).index(step) >= list(Milestone).index(Milestone.SWITCHED)
    assert torch.equal(served, fitted(kind, LEFT).logits(TEST) if switched else old)
    workspace = Workspace.open(path)
    assert set(workspace.records.ids) == set((LEFT if switched else people()).ids)
    assert workspace.number == (2 if switched else 1)
    if not switched:
        assert without_journal(contents(path)) == without_journal(contents(made[kind]))
    assert_checks(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_while_overwriting_keeps_the_old_model(
    path: Path, kind: str, made: dict[str, Path], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "save_user", broken)
        with pytest.raises(EffaceError, match="the folder is as it was"):
            Workspace.create(path, fitted(kind, LEFT), overwrite=True)
    assert without_journal(contents(path)) == without_journal(contents(made[kind]))
    assert_checks(path)


def test_a_workspace_held_across_a_retrain_sees_the_new_settings(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    held = Workspace.open(path)
    assert held.settings["user"] == "tangent"
    Workspace.create(path, fitted("compact", people()), overwrite=True)
    assert held.settings["user"] == "compact"
    held.forget(owner=OWNER)
    assert_checks(path)


def test_readers_read_on_while_a_model_is_replaced(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the loader says when its files vanish under its hands: it reads the new release."""
    real, calls = files.read_tensors, []

    def vanishing(file: Path) -> Any:
        calls.append(file)
        if len(calls) == 1:
            monkeypatch.setattr(files, "read_tensors", real)
            Workspace.create(path, fitted(kind, LEFT), overwrite=True)
            raise RuntimeError("unable to open file in read-only mode: No such file or directory")
        return real(file)

    monkeypatch.setattr(files, "read_tensors", vanishing)
    served = load(path)
    assert torch.equal(served.logits(TEST), fitted(kind, LEFT).logits(TEST))


def test_an_error_that_is_not_the_readers_is_raised(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "read_tensors", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(path)


# --- Ctrl-C ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [("verify",), ("forget", "--owner", OWNER, "--dry-run")])
def test_only_looking_does_not_carry_out_a_request(path: Path, command: tuple[str, ...]) -> None:
    kill(path, "forget", Milestone.ACCEPTED)
    before = contents(path)
    result = efface(command[0], path, *command[1:])
    assert contents(path) == before
    if command[0] == "verify":
        assert result.exit_code == 4
        assert "efface cancel" in " ".join(result.stdout.split())


def test_an_interrupted_request_says_what_will_happen(
    path: Path, made: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "save_user", stop)
        with pytest.raises(Interrupted, match="is kept"):
            Workspace.open(path).forget(owner=OWNER)
        assert (path / "pending.json").exists()
        result = efface("forget", path, "--owner", OWNER)
    assert result.exit_code == 130
    assert "efface resume" in result.stderr
    assert "efface cancel" in result.stderr
    values = values_of(efface("cancel", path, "--json"))
    assert (values["action"], values["num_records"], values["release"]) == ("forget", 6, 1)
    assert without_journal(contents(path)) == without_journal(contents(made[kind]))
    assert "nothing to cancel" in efface("cancel", path).stdout
    assert efface("verify", path).exit_code == 0


def test_an_interrupt_before_the_intent_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = contents(path)
    with monkeypatch.context() as patch:
        patch.setattr("efface.workspace.ledger.Intent.save", stop)
        with pytest.raises(Interrupted, match="nothing was changed"):
            Workspace.open(path).forget(owner=OWNER)
    assert contents(path) == before


@pytest.mark.parametrize("action", ["forget", "add"])
@pytest.mark.parametrize("step", [Milestone.ACCEPTED, Milestone.PRIVATE, Milestone.PREPARED])
def test_a_request_can_be_called_off_until_it_is_published(
    path: Path, kind: str, made: dict[str, Path], action: str, step: Milestone
) -> None:
    kill(path, action, step)
    assert efface("cancel", path).exit_code == 0
    assert_checks(path)
    found = without_journal(contents(path))
    index = {name for name in found if name.startswith("activations/")}
    expected = without_journal(contents(made[kind]))
    assert found.keys() == expected.keys()
    assert {n for n in found if found[n] != expected[n]} <= index  # places that were used are free


def test_a_published_request_is_not_called_off(path: Path) -> None:
    kill(path, "forget", Milestone.SWITCHED)
    result = efface("cancel", path)
    assert result.exit_code == 2
    assert "efface resume" in result.stderr
    assert OWNER not in Workspace.open(path).records.owners


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--epsilon", "--sigma", "--delta"])
def test_zero_is_not_the_same_as_nothing(path: Path, option: str) -> None:
    before = contents(path)
    more = () if option == "--sigma" else ("--sigma", 1e5)
    for words in (("forget", "--owner", OWNER), ("plan",)):
        result = efface(words[0], path, *words[1:], option, 0, *more)
        assert result.exit_code == 2
        assert "no guarantee with" in result.stderr
    assert contents(path) == before


# --- files that were changed ----------------------------------------------------------------------


@pytest.mark.parametrize("lines", [None, 0, 1, 4])
def test_a_missing_or_shortened_journal_is_an_error(
    made: dict[str, Path], tmp_path: Path, lines: int | None
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    journal = path / "journal.jsonl"
    kept = b"".join(journal.read_bytes().splitlines(keepends=True)[:lines])
    journal.unlink() if lines is None else journal.write_bytes(kept)
    for words in (("verify",), ("forget", "--owner", "person-one"), ("resume",)):
        assert efface(words[0], path, *words[1:]).exit_code == 4
    again = people().select(owner=OWNER)
    with pytest.raises((RecordError, LedgerError)):
        Workspace.open(path).add(again)


def test_without_journal_and_head_it_is_an_error_too(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    for name in ("journal.jsonl", "journal.head"):
        (path / name).unlink()
    with pytest.raises(LedgerError, match="says nothing of release 1"):
        Workspace.open(path)
    assert efface("verify", path).exit_code == 4


def checks_fail(path: Path) -> bool:
    try:
        return any(check.ok is False for check in all_checks(Workspace.open(path, recover=False)))
    except EffaceError:
        return True


def test_a_change_of_any_file_is_noticed(path: Path) -> None:
    """One byte of every file, at places drawn once; the lock has none."""
    Workspace.open(path).plan(sigma=1e5)
    Workspace.open(path).forget(ids="image-1-0")
    Workspace.open(path).forget(owner=OWNER)
    assert not checks_fail(path)
    dice = random.Random(5)
    for name, data in contents(path).items():
        if name.startswith("activations/"):
            continue
        for position in {0, len(data) - 1, *(dice.randrange(len(data)) for _ in range(6))}:
            changed = bytearray(data)
            changed[position] ^= 1 << dice.randrange(7)
            (path / name).write_bytes(changed)
            assert checks_fail(path), (name, position)
        (path / name).unlink()
        assert checks_fail(path), name
        (path / name).write_bytes(data)
    assert not checks_fail(path)


def test_a_change_of_the_activations_is_noticed(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    (rows,) = path.glob("activations/*/rows.bin")
    cache = Workspace.open(path).inventory.cache
    assert cache is not None
    data, size = rows.read_bytes(), cache._row_bytes
    for slot in (min(cache._slots.values()), min(cache._free), max(cache._free)):
        changed = bytearray(data)
        changed[slot * size + 5] ^= 1
        rows.write_bytes(changed)
        assert checks_fail(path), slot
    rows.write_bytes(data[: len(data) // 2])
    assert checks_fail(path)
    rows.write_bytes(data)
    index = rows.with_name("index.json")
    values = json.loads(index.read_text())
    for change in ({"capacity": 10**15}, {"free": values["free"][1:]}, {"slots": {}}, {"shape": 1}):
        index.write_text(json.dumps(values | change))
        assert checks_fail(path), change
    index.write_text(json.dumps(values))
    assert not checks_fail(path)


def test_a_plan_is_covered_and_survives_a_kill(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    planned = Workspace.open(path).plan(0.5, 1e-6)
    assert_checks(path)
    before = contents(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "save_guarantee", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Workspace.open(path).plan(0.25)
    assert (path / "pending.json").exists()
    assert Workspace.open(path, recover=False).guarantee == planned
    efface("cancel", path)
    assert without_journal(contents(path)) == without_journal(before)
    (path / "core/1/guarantee.json").unlink()
    assert checks_fail(path)


@pytest.mark.parametrize("value", ["../../etc", "1/../1", 0, -1, True, None, [1], 1.0])
@pytest.mark.parametrize("name", ["release", "core"])
def test_current_names_numbers(path: Path, name: str, value: Any) -> None:
    values = json.loads((path / CURRENT).read_text())
    (path / CURRENT).write_text(json.dumps({**values, name: value}))
    with pytest.raises(FormatError, match="both are numbers"):
        load(path)
    with pytest.raises(FormatError, match="both are numbers"):
        Workspace.open(path)


def test_a_prefix_digest_does_not_lead_out(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    settings = json.loads((path / "core/1/model.json").read_text())
    settings["activations"]["prefix_digest"] = "../../../" + "a" * 55
    (path / "core/1/model.json").write_text(json.dumps(settings))
    with pytest.raises(FormatError, match="not as it was saved"):
        Workspace.open(path).model()
    assert [p.name for p in tmp_path.iterdir()] == ["w"]


def test_an_older_workspace_is_named_as_such(path: Path) -> None:
    (path / CURRENT).write_text(json.dumps({"schema": "efface.current/1", "release": 1}))
    with pytest.raises(FormatError, match=r"efface\.current/1.*train again"):
        Workspace.open(path)


# --- what is kept ---------------------------------------------------------------------------------


def test_digests_of_superseded_releases_are_removed(path: Path, kind: str) -> None:
    """Whoever has the image could find its label by trying which sums have the old digest."""
    before = Workspace.open(path).forget(ids="image-1-0").certificate
    assert before is not None
    telling = [str(v) for k, v in before.private().items() if k.endswith(("digest", "residual"))]
    Workspace.open(path).forget(owner=OWNER)
    text = b"".join(d for n, d in contents(path).items() if n.startswith("certificates/")).decode()
    assert not [value for value in telling if value in text]
    old = json.loads((path / "certificates/2.public.json").read_text())
    assert old["superseded"] is True
    assert old["passed"] is True
    assert not (path / "certificates/2.private.json").exists()
    assert_checks(path)


def test_what_was_forgotten_is_kept_as_hmacs_alone(path: Path) -> None:
    gone = people().select(owner=OWNER)
    Workspace.open(path).forget(owner=OWNER)
    Workspace.open(path).forget(ids="image-1-0")
    everything = b"".join(contents(path).values())
    for record in (*gone, people()[0]):
        assert record.digest.encode() not in everything
        assert bytes.fromhex(record.digest) not in everything
    kept = json.loads((path / "private/3/forgotten.json").read_text())["hmac_sha256"]
    assert len(kept) == 7
    assert kept == sorted(kept)  # not in the order of requests
    (path / "private/key.json").write_text(json.dumps({"schema": "efface.key/1", "key": "00" * 32}))
    assert gone[0].digest not in Workspace.open(path, recover=False).inventory.forgotten


PUBLIC = ("CURRENT", "core/", "releases/", "certificates/")


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(kind: str, tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        workspace = Workspace.create(tmp_path / "w", fitted(kind, people()), config="# nothing")
        workspace.forget(ids="image-1-0")
        workspace.add(NEW)
        workspace.forget(owner=OWNER)
        workspace.plan(sigma=1e5)
    finally:
        os.umask(before)
    for file in (workspace.path, *workspace.path.rglob("*")):
        name = file.relative_to(workspace.path).as_posix()
        secret = name.endswith(".private.json") or name.endswith("core-records.json")
        public = name == "." or (f"{name}/".startswith(PUBLIC) and not secret)
        public = public or name == CURRENT
        folder = file.is_dir()
        wanted = (0o755 if folder else 0o644) if public else (0o700 if folder else 0o600)
        assert file.stat().st_mode & 0o777 == wanted, name


def test_a_request_in_flight_is_its_owners_alone(path: Path) -> None:
    kill(path, "add", Milestone.PRIVATE)
    assert (path / "pending.json").stat().st_mode & 0o777 == 0o600
    for file in (path / "private").rglob("*"):
        assert file.stat().st_mode & 0o077 == 0


# --- messages -------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_no_permission_is_no_bug(path: Path) -> None:
    (path / "private").chmod(0)
    result = efface("forget", path, "--owner", OWNER)
    (path / "private").chmod(0o700)
    assert result.exit_code == 2
    assert "Permission denied" in result.stderr


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EIO, errno.ENOSPC])
def test_what_the_machine_says_is_no_bug_of_ours(
    path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "some/file")

    monkeypatch.setattr(MixedLinear, "load", refuse)
    result = efface("predict", path, "x.png")
    assert result.exit_code == 2
    assert "some/file" in result.stderr
    assert "bug" not in result.stderr


def test_errors_are_json_where_json_is_asked_for(path: Path) -> None:
    values = values_of(efface("forget", path, "--owner", "nobody", "--json"), code=2)
    assert "nobody" in values["error"]
    assert values["fix"]
    assert values["exit_code"] == 2


def test_a_folder_that_cannot_be_written_is_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data.npz", CORE, people())
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr(
        "efface.pipeline.sections.DataConfig.build", lambda *_: pytest.fail("it went on")
    )
    for out in (tmp_path / "file", tmp_path / "file" / "w"):
        result = efface("train", tmp_path / "data.npz", "--out", out)
        assert result.exit_code == 2
        assert "bug" not in result.stderr
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", raising(errno.EROFS))
        result = efface("train", tmp_path / "data.npz", "--out", tmp_path / "w")
    assert "nothing can be written" in result.stderr


def test_a_model_that_will_not_fit_is_not_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "data.npz", CORE, people())
    monkeypatch.setattr("efface.network.core.Core.fit", lambda *_, **__: pytest.fail("it went on"))
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 10_000))
    result = efface("train", tmp_path / "data.npz", "--out", tmp_path / "w")
    assert result.exit_code == 2
    assert "GB free" in result.stderr


def raising(number: int) -> Any:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse
