"""The workspace: whatever is killed, filled up or run at the same time, it ends where it should, and
nothing of a forgotten record is left in it."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import cases

from efface import files
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, GuaranteeError, RecordError, RequestError
from efface.guarantee import noise
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import ExactCertificate, ShiftCertificate
from efface.guarantee.promise import Guarantee
from efface.model.mixed_linear import MixedLinear
from efface.network.activations import ActivationCache
from efface.network.core import Core
from efface.network.training import Stage
from efface.parts.compact import stored_rows
from efface.workspace import Workspace
from efface.workspace.ledger import KILL_AT, Journal, Milestone
from efface.workspace.published import load
from efface.workspace.verify import all_checks

CLASSES = ("a", "b", "c")
OWNER = "person-three"
KINDS = ("compact", "tangent")
OPTIONS: dict[str, dict[str, Any]] = {"compact": {"features": 120}, "tangent": {"mu": 0.1}}
PROCESSES = multiprocessing.get_context("forkserver")  # clean children, torch loaded once
PROCESSES.set_forkserver_preload(["tests.workspace.test_workspace"])

CORE = cases.tiny_records(12, 0, split=Split.CORE, name="core-record-")
TEST = cases.tiny_records(30, 9, split=Split.TEST)


def people(n: int = 30, seed: int = 1) -> Records:
    """User records of five people in two cohorts, with names that can be searched for."""
    names = ("person-one", "person-two", OWNER, "person-four", "person-five")
    records = cases.tiny_records(n, seed, name=f"image-{seed}-")
    return Records(
        [
            replace(r, owner=names[i % 5], cohort=f"cohort-{i % 2}", extra={"path": f"dir/{r.id}"})
            for i, r in enumerate(records)
        ],
        CLASSES,
    )


NEW = people(6, seed=5)


@cache
def core() -> Core:
    return Core("cnn", classes=CLASSES).fit(CORE, [Stage("all", epochs=2, batch_size=4)])


def fitted(kind: str, records: Records) -> MixedLinear:
    return MixedLinear(core(), kind, **OPTIONS[kind]).fit(records, replay=CORE)


PER_BUCKET = 8  # four buckets of rows, two once there are less than 32


def quick() -> None:
    """For processes of a test: one thread, and no waiting for the disk, which a kill does not need."""
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # type: ignore[assignment]
    stored_rows.PER_BUCKET = PER_BUCKET


@pytest.fixture(autouse=True)
def as_in_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(stored_rows, "PER_BUCKET", PER_BUCKET)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A workspace of each kind, made once; tests work on copies."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_rows, "PER_BUCKET", PER_BUCKET)
        for kind in KINDS:
            Workspace.create(folder / kind, fitted(kind, people()))
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def path(made: dict[str, Path], kind: str, tmp_path: Path) -> Path:
    return shutil.copytree(made[kind], tmp_path / "workspace")


ACTIONS: dict[str, Callable[[Workspace], Any]] = {
    "forget": lambda workspace: workspace.forget(owner=OWNER),
    "add": lambda workspace: workspace.add(NEW),
}


def contents(path: Path) -> dict[str, bytes]:
    found = (p for p in path.rglob("*") if p.is_file() and p.name != "lock")
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in found}


def without_journal(found: dict[str, bytes]) -> dict[str, bytes]:
    """It tells of requests that were called off, too."""
    return {name: data for name, data in found.items() if not name.startswith("journal.")}


def assert_forgotten(workspace: Workspace, records: Records) -> None:
    """These are refused when they come again, and no others."""
    forgotten = workspace.inventory.forgotten
    assert len(forgotten) == len(set(records.digests))
    assert all(digest in forgotten for digest in records.digests)


def fingerprint(path: Path) -> dict[str, Any]:
    """All that must not depend on how often the work was interrupted."""
    workspace = Workspace.open(path, recover=False)
    model, cached = workspace.model(), workspace.inventory.cache
    result = {
        "files": sorted(contents(path)),
        "release": workspace.number,
        "records": list(workspace.records),
        "forgotten": workspace.inventory.forgotten,
        "activations": None if cached is None else cached.digests,
        "settled": workspace.inventory.settled(),
    }
    if model.user.kind == "compact":
        result["digests"] = (model.user.statistics_digest, model.user.weights_digest)
        result["rows"] = {p.name: p.read_bytes() for p in (path / "private/rows").iterdir()}
    return result


def assert_checks(path: Path) -> None:
    failed = [c for c in all_checks(Workspace.open(path, recover=False), retrain=True) if not c.ok]
    assert not failed


# --- a kill at every step -------------------------------------------------------------------------


def killed_child(path: Path, action: str, step: str) -> None:
    quick()
    os.environ[KILL_AT] = step
    if action == "resume":
        Workspace.open(path)
    else:
        ACTIONS[action](Workspace.open(path))


def kill(path: Path, action: str, step: Milestone) -> None:
    """Run the action in a process of its own, which is killed at the step."""
    child = PROCESSES.Process(target=killed_child, args=(path, action, str(step)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "the step was not reached"


@pytest.fixture(scope="session")
def undisturbed(
    made: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Path, dict[str, Any]]]:
    @cache
    def run(kind: str, action: str) -> tuple[Path, dict[str, Any]]:
        path = shutil.copytree(made[kind], tmp_path_factory.mktemp("undisturbed") / "w")
        ACTIONS[action](Workspace.open(path))
        return path, fingerprint(path)

    return run


STEPS = {
    "forget": [s for s in Milestone if s not in (Milestone.STAGED, Milestone.ABORTED)],
    "add": [s for s in Milestone if s is not Milestone.ABORTED],
}
BEFORE_THE_INTENT = (Milestone.LOCKED, Milestone.STAGED)


@pytest.mark.parametrize(
    ("action", "step"), [(action, step) for action in STEPS for step in STEPS[action]]
)
def test_a_kill_at_any_step_ends_in_the_same_state(
    path: Path,
    kind: str,
    action: str,
    step: Milestone,
    made: dict[str, Path],
    undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]],
) -> None:
    reference, expected = undisturbed(kind, action)
    kill(path, action, step)
    Workspace.open(path)
    if step in BEFORE_THE_INTENT:
        assert contents(path) == contents(made[kind])  # it was never asked for
        ACTIONS[action](Workspace.open(path))
    assert fingerprint(path) == expected
    done = [e for e in Journal(path / "journal.jsonl").entries() if e.step is Milestone.DONE]
    assert [entry.number for entry in done] == [1, 2]
    assert_checks(path)
    assert_same_solution(path, reference)


def assert_same_solution(path: Path, reference: Path) -> None:
    """Both noiseless states are within their proved distance of the one minimiser (tangent)."""
    one, two = Workspace.open(path), Workspace.open(reference)
    a, b = one.certificate, two.certificate
    if isinstance(a, ShiftCertificate) and isinstance(b, ShiftCertificate):
        distance = float((one.model().user.state - two.model().user.state).norm())
        assert distance <= a.distance_bound + b.distance_bound


@pytest.mark.needs("linux")
def test_all_is_on_disk_before_it_is_published(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a power cut needs and a kill does not: files and folders are synced, CURRENT after them."""
    synced: list[str] = []
    link = "/proc/self/fd/{}"
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(link.format(fd))))
    Workspace.open(path).forget(owner=OWNER)
    names = [Path(name).relative_to(path.resolve()).as_posix() for name in synced]
    published = names.index("CURRENT.tmp")
    made_now = [p for f in ("releases/2", "private/2") for p in (path / f).iterdir()]
    made_now += (path / "certificates").glob("2.*")
    for file in made_now:
        # files are synced under their temporary names, or (tensors) after being written to them
        assert names.index(f"{file.relative_to(path).as_posix()}.tmp") < published
    for folder in ("releases/2", "releases", "private/2", "private", "certificates"):
        assert folder in names[:published]
    assert names[published + 1] == "."
    assert "releases" in names[published:]


def test_the_next_request_finishes_the_one_that_was_cut_short(path: Path) -> None:
    kill(path, "forget", Milestone.COMPUTED)
    Workspace.open(path, recover=False).forget(owner="person-one")
    workspace = Workspace.open(path)
    assert workspace.number == 3
    assert {OWNER, "person-one"}.isdisjoint(workspace.records.owners)


def test_a_kill_during_recovery_is_recovered_from(
    path: Path, kind: str, undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]]
) -> None:
    kill(path, "forget", Milestone.CERTIFICATE)
    kill(path, "resume", Milestone.PRIVATE)
    kill(path, "resume", Milestone.OLD_RELEASES_GONE)
    result = Workspace.open(path, recover=False).resume()
    assert result is not None
    assert result.num_records == 6
    assert fingerprint(path) == undisturbed(kind, "forget")[1]


def test_without_the_variable_nothing_is_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KILL_AT, "")
    assert Workspace.open(path).forget(owner=OWNER).release == 2
    assert Workspace.open(path).resume() is None


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


def test_a_tangent_release_has_noise_that_its_state_lacks(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    Workspace.open(path).forget(owner=OWNER)
    user = Workspace.open(path).model().user
    guarantee = Workspace.open(path).guarantee
    assert guarantee is not None
    spread = float((user.weights - user.state).std())
    assert spread == pytest.approx(guarantee.sigma, rel=0.05)  # d = 9,347: 1/√(2d) is 0.7 %


@pytest.mark.parametrize("policy", StatePolicy)
def test_where_weights_without_noise_are(
    made: dict[str, Path], tmp_path: Path, policy: StatePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is searched for the weights as they were before the noise, of all requests."""
    solved: list[bytes] = []
    release_on_grid = noise.release_on_grid

    def listen(w: np.ndarray, *values: Any, **options: Any) -> noise.Released:
        solved.append(np.array(w, dtype="<f8").tobytes()[:512])
        return release_on_grid(w, *values, **options)

    monkeypatch.setattr(noise, "release_on_grid", listen)
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    first = load(path).user.weights.numpy().tobytes()[:512]
    Workspace.open(path).plan(state=policy)
    Workspace.open(path).forget(owner=OWNER)
    Workspace.open(path).forget(owner="person-one")
    Workspace.open(path).add(NEW)
    assert len(solved) == 3
    found = [any(w in data for data in contents(path).values()) for w in (first, *solved)]
    assert found == [False, False, False, policy is StatePolicy.SECRET]
    assert (path / "private/4/state.safetensors").exists() == (policy is StatePolicy.SECRET)
    assert Workspace.open(path).model().user.history.num_requests == 3
    checks = list(all_checks(Workspace.open(path), retrain=True))
    assert [c.name for c in checks if c.ok is False] == []
    unchecked = [c.name for c in checks if c.ok is None]
    assert unchecked == (["epsilon from the gradient"] if policy is StatePolicy.NOISY else [])


@pytest.mark.parametrize("step", [Milestone.COMPUTED, Milestone.PRIVATE, Milestone.SWITCHED])
def test_a_request_that_was_cut_short_keeps_its_policy(
    made: dict[str, Path], tmp_path: Path, step: Milestone
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    Workspace.open(path).plan(state="noisy")
    kill(path, "forget", step)
    certificate = Workspace.open(path).certificate
    assert isinstance(certificate, ShiftCertificate)
    assert certificate.keeps_no_secret
    assert not list(path.rglob("state.safetensors"))
    assert not [c for c in all_checks(Workspace.open(path), retrain=True) if c.ok is False]


# --- adding ---------------------------------------------------------------------------------------


def test_adding_is_fitting_on_all(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).add(NEW)
    together = fitted("compact", people() + NEW)
    user = Workspace.open(path).model().user
    assert user.statistics_digest == together.user.statistics_digest
    assert user.weights_digest == together.user.weights_digest


def test_adding_after_everything_was_forgotten_is_fitting_anew(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).forget(everything=True)
    Workspace.open(path).add(NEW)
    user = Workspace.open(path).model().user
    assert user.statistics_digest == fitted("compact", NEW).user.statistics_digest


def test_a_workspace_may_begin_without_user_records(kind: str, tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path / "w", fitted(kind, people()[[]]))
    workspace.add(NEW)
    assert_checks(workspace.path)
    if kind == "compact":
        digest = fitted(kind, NEW).user.statistics_digest
        assert workspace.model().user.statistics_digest == digest


def test_a_release_after_forgetting_is_certified_even_if_it_only_adds(path: Path) -> None:
    assert Workspace.open(path).forget(owner=OWNER).certificate is not None
    result = Workspace.open(path).add(NEW)
    assert result.certificate is not None
    assert result.certificate.num_forgotten == 0
    assert len(Workspace.open(path).records) == 30
    assert_checks(path)


def test_a_forgotten_record_is_refused_under_any_name(path: Path) -> None:
    Workspace.open(path).forget(owner=OWNER)
    again = people().select(owner=OWNER)
    renamed = Records([replace(r, id=f"new-{r.id}", owner="x") for r in again], CLASSES)
    before = contents(path)
    with pytest.raises(RecordError, match="was forgotten here"):
        Workspace.open(path).add(renamed)
    assert contents(path) == before
    Workspace.open(path).add(renamed, allow_reingest=True)
    workspace = Workspace.open(path)
    assert_forgotten(workspace, people()[[]])
    assert set(renamed.ids) <= set(workspace.records.ids)
    workspace.forget(owner="x")
    assert_forgotten(workspace, again)


# --- errors change nothing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"owner": "nobody"}, "nobody"),
        ({"ids": ["image-1-0", "no-such-id"]}, "no-such-id"),
        ({"ids": ["core-record-3"]}, "core record"),
        ({"ids": []}, "names no record"),
        ({}, "exactly one"),
        ({"owner": OWNER, "label": "a"}, "exactly one"),
    ],
)
def test_a_bad_request_changes_nothing(path: Path, request_: dict[str, Any], named: str) -> None:
    before = contents(path)
    with pytest.raises(RequestError, match=named):
        Workspace.open(path).forget(**request_)
    assert contents(path) == before


def test_asking_again_for_a_forgotten_id_says_so(path: Path) -> None:
    Workspace.open(path).forget(ids="image-1-2")
    before = contents(path)
    with pytest.raises(RequestError, match="if it was forgotten, nothing is left to do"):
        Workspace.open(path).forget(ids="image-1-2")
    assert contents(path) == before


@pytest.mark.parametrize(
    ("records", "named"),
    [
        (people()[:1], "in the workspace already"),
        (people()[[]], "no records to add"),
        (CORE[:1], "is a core record"),
        (Records([replace(CORE[0], id="x", split=Split.USER)], CLASSES), "same image is core data"),
        (Records([replace(NEW[0], label="d")], ("a", "b", "c", "d")), "'d' is none of the core's"),
    ],
)
def test_what_cannot_be_added_changes_nothing(path: Path, records: Records, named: str) -> None:
    before = contents(path)
    with pytest.raises(EffaceError, match=named):
        Workspace.open(path).add(records)
    assert contents(path) == before


def test_a_guarantee_that_is_not_reached_publishes_nothing(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    before = contents(path)
    workspace = Workspace.open(path)
    impossible = Guarantee.plan(1.0, 1e-5, 1e-15, workspace.settings["num_weights"])
    with pytest.raises(GuaranteeError):
        workspace.forget(owner=OWNER, guarantee=impossible)
    after = contents(path)
    assert workspace.inventory.settled()
    assert workspace.inventory.journal.entries()[-1].step is Milestone.ABORTED
    assert_forgotten(workspace, people()[[]])
    assert without_journal(before) == without_journal(after)
    assert workspace.forget(owner=OWNER).release == 2


def test_an_unexpected_error_while_computing_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "save_user", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            Workspace.open(path).forget(owner=OWNER)
    workspace = Workspace.open(path)
    assert workspace.number == 1
    assert OWNER in workspace.records.owners
    assert workspace.inventory.settled()


def test_a_folder_that_is_no_workspace(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="not a workspace"):
        Workspace.open(tmp_path)
    fitted("compact", people()).save(tmp_path)
    with pytest.raises(FormatError, match="not a workspace"):
        Workspace.open(tmp_path)


# --- a full disk ----------------------------------------------------------------------------------


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("function", ["write_tensors", "write_json"])
def test_a_full_disk_keeps_the_request_and_the_old_release(
    path: Path,
    kind: str,
    function: str,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]],
) -> None:
    old = load(path).logits(TEST)
    real = files.write_json
    with monkeypatch.context() as patch:
        # pending.json still finds room, what comes after it does not
        def small(p: Path, values: Any, **options: Any) -> None:
            return real(p, values, **options) if p.name == "pending.json" else full()

        patch.setattr(files, function, full if function == "write_tensors" else small)
        with pytest.raises(EffaceError, match=r"disk is full; the old release .*efface resume"):
            Workspace.open(path).forget(owner=OWNER)
        assert torch.equal(load(path).logits(TEST), old)
        assert not (path / "releases/2").exists()
    Workspace.open(path)
    assert fingerprint(path) == undisturbed(kind, "forget")[1]


def test_no_room_for_the_intent_is_no_request(
    path: Path, monkeypatch: pytest.MonkeyPatch, made: dict[str, Path], kind: str
) -> None:
    for target, name in ((files, "write_json"), (Journal, "append")):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, full)
            with pytest.raises(EffaceError, match="disk is full; nothing was changed"):
                Workspace.open(path).forget(owner=OWNER)
    assert contents(path) == contents(made[kind])


def test_no_room_while_purging_is_said_and_made_up_for(
    made: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]],
) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    with monkeypatch.context() as patch:
        patch.setattr(ActivationCache, "purge", full)
        with pytest.raises(EffaceError, match=r"new release is served.*efface resume"):
            Workspace.open(path).forget(owner=OWNER)
    assert not Workspace.open(path, recover=False).inventory.settled()
    Workspace.open(path)
    assert fingerprint(path) == undisturbed("tangent", "forget")[1]


def test_a_full_disk_while_training_leaves_no_workspace(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fitted(kind, people())
    with monkeypatch.context() as patch:
        patch.setattr(MixedLinear, "save_user", full)
        with pytest.raises(EffaceError, match="disk is full; the folder is as it was"):
            Workspace.create(tmp_path / "w", model)
    with pytest.raises(FormatError, match="not a workspace"):
        Workspace.open(tmp_path / "w")
    Workspace.create(tmp_path / "w", model)
    assert_checks(tmp_path / "w")


def limited_child(path: Path, limit: int, result: Any) -> None:
    quick()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        Workspace.open(path).forget(owner=OWNER)
    except EffaceError as error:
        result.put(str(error))


def test_a_real_limit_on_files(
    path: Path, kind: str, undisturbed: Callable[[str, str], tuple[Path, dict[str, Any]]]
) -> None:
    """The system refuses to write more than 8 kB into a file: safetensors' own way of failing."""
    result = PROCESSES.SimpleQueue()
    child = PROCESSES.Process(target=limited_child, args=(path, 8192, result))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert "the disk is full; the old release is still served" in result.get()
    assert Workspace(path).number == 1
    Workspace.open(path)
    assert fingerprint(path) == undisturbed(kind, "forget")[1]


# --- at the same time -----------------------------------------------------------------------------


def forgetting_child(path: Path, owner: str) -> None:
    quick()
    Workspace.open(path).forget(owner=owner)


def test_two_processes_queue_up(path: Path, kind: str) -> None:
    owners = (OWNER, "person-one")
    children = [PROCESSES.Process(target=forgetting_child, args=(path, o)) for o in owners]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    workspace = Workspace.open(path)
    left = people().where(lambda record: record.owner not in owners)
    assert workspace.records == left
    assert workspace.number == 3
    if kind == "compact":
        digest = fitted(kind, left).user.statistics_digest
        assert workspace.model().user.statistics_digest == digest
    assert_checks(path)


def reading_child(path: Path, ready: Any, result: Any) -> None:
    """Load and predict until the third release is there, and once more."""
    quick()
    seen, last = [], False
    while True:
        model = load(path)
        seen.append((model._user_digest, tuple(model.predict(TEST))))
        ready.set()
        if last:
            break
        last = Workspace(path).number >= 3
    result.put(seen)


def test_readers_see_one_release_or_the_other(path: Path) -> None:
    def served() -> tuple[str, tuple[str, ...]]:
        model = load(path)
        return model._user_digest, tuple(model.predict(TEST))

    ready, result = PROCESSES.Event(), PROCESSES.SimpleQueue()
    child = PROCESSES.Process(target=reading_child, args=(path, ready, result))
    child.start()
    assert ready.wait(60)
    known = [served()]
    for owner in (OWNER, "person-one"):
        Workspace.open(path).forget(owner=owner)
        known.append(served())
    seen = result.get()
    child.join()
    assert set(seen) <= set(known)
    assert seen[0] == known[0]
    assert seen[-1] == known[-1]
    assert len(set(known)) == 3


def test_a_reader_that_comes_too_late_reads_the_new_release(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is deleted between reading CURRENT and reading the release."""
    real, calls = MixedLinear.load.__func__, []  # type: ignore[attr-defined]

    def late(cls: type[MixedLinear], folder: Path, **options: Any) -> MixedLinear:
        calls.append(folder.name)
        if len(calls) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(MixedLinear, "load", classmethod(real))
                Workspace.open(path).forget(owner=OWNER)
        return real(cls, folder, **options)

    monkeypatch.setattr(MixedLinear, "load", classmethod(late))
    load(path)
    assert calls == ["1", "2"]


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


def test_planning_needs_core_data_or_sigma(made: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(made["tangent"], tmp_path / "w")
    workspace = Workspace.open(path)
    planned = workspace.guarantee
    assert planned is not None
    assert planned.epsilon == 1.0
    assert workspace.plan(0.5, 1e-6).sigma == planned.sigma
    assert Workspace.open(path).guarantee == workspace.plan(0.5, 1e-6)
    result = Workspace.open(path).forget(owner=OWNER)
    assert isinstance(result.certificate, ShiftCertificate)
    assert result.certificate.guarantee.epsilon == 0.5
    settings = json.loads((path / "core/1/model.json").read_text())
    (path / "core/1/model.json").write_text(json.dumps({**settings, "sigma": None}))
    with pytest.raises(EffaceError, match="give sigma"):
        Workspace.open(path).plan()
    assert Workspace.open(path).plan(sigma=0.5).sigma == 0.5


def test_compact_needs_no_plan(made: dict[str, Path]) -> None:
    with pytest.raises(EffaceError, match="no plan is needed"):
        Workspace.open(made["compact"]).plan()


def test_compact_releases_with_noise(made: dict[str, Path], tmp_path: Path) -> None:
    """The sums are exact and private, the noise is in the release alone, and a resume draws it anew."""
    path = shutil.copytree(made["compact"], tmp_path / "w")
    planned = Workspace.open(path).plan(sigma=1e5)
    assert Workspace.open(path).guarantee == planned
    kill(path, "forget", Milestone.PRIVATE)
    workspace = Workspace.open(path)
    never = fitted("compact", people().where(lambda record: record.owner != OWNER))
    certificate = workspace.certificate
    assert isinstance(certificate, ExactCertificate)
    assert certificate.difference is not None
    assert certificate.difference.guarantee == planned
    assert certificate.statistics_digest == never.user.statistics_digest
    assert workspace.model().user.statistics_digest == never.user.statistics_digest
    solved = np.ascontiguousarray(never.user.theta).tobytes()[:512]
    assert not any(solved in data for data in contents(path).values())
    workspace.add(NEW)
    checks = {c.name: c for c in all_checks(Workspace.open(path), retrain=True)}
    assert [c.name for c in checks.values() if c.ok is False] == []
    assert checks["statistics from the retained rows"].ok is True
    assert checks["noise in the release"].ok is True
    assert checks["epsilon between the releases"].ok is None
    assert checks["certificate"].detail == "exact, consistent"
    assert "weights from the statistics" not in checks


def test_compact_noise_that_hides_too_little_publishes_nothing(
    made: dict[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(made["compact"], tmp_path / "w")
    Workspace.open(path).plan(sigma=1e-9)
    before = contents(path)
    with pytest.raises(GuaranteeError, match="between the two releases"):
        Workspace.open(path).forget(owner=OWNER)
    after = contents(path)
    assert without_journal(before) == without_journal(after)
    Workspace.open(path).forget(everything=True)  # the weights are 0: nothing to hide them in
    assert_checks(path)


def test_a_plan_made_before_the_workspace_is_kept(tmp_path: Path) -> None:
    model = fitted("compact", people())
    planned = model.plan(sigma=3.0)
    assert Workspace.create(tmp_path / "w", model).guarantee == planned


def test_adding_in_memory_is_fitting_on_all(kind: str) -> None:
    """The model's own ``add``: compact to the bit, tangent to the solver's tolerance."""
    model = fitted(kind, people())
    model.add(NEW)
    together = fitted(kind, people() + NEW)
    assert model.data is not None
    assert together.data is not None
    assert model.data.records == together.data.records
    np.testing.assert_array_equal(model.data.labels, together.data.labels)
    if kind == "compact":
        assert model.user.statistics_digest == together.user.statistics_digest
    else:
        assert model.solution is not None
        assert together.solution is not None
        far = (model.solution.residual_norm + together.solution.residual_norm) / 0.1  # ‖g‖/μ
        assert float((model.user.state - together.user.state).norm()) <= far
