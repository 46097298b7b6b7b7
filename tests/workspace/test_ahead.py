"""Large sums go to the disk while the weights are solved for: the same files, whatever happens meanwhile."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest
from tests.workspaces import OWNER, assert_checks, contents, fingerprint, made, without_ledger

from efface import files
from efface.errors import GuaranteeError
from efface.parts.compact import summed, sums_file
from efface.parts.compact.statistics import Statistics
from efface.parts.training_set import TrainingSet
from efface.workspace import Workspace, manifest, protocol
from efface.workspace.steps import Milestone

__all__ = ["made"]


@pytest.fixture
def kind() -> str:
    return "compact"


@pytest.fixture
def after(made: dict[str, Path], tmp_path: Path) -> Path:
    """The workspace after a request that wrote its sums last."""
    path = shutil.copytree(made["compact"], tmp_path / "after")
    Workspace.open(path).forget(owner=OWNER)
    return path


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened when: sums written, weights solved for, files of the release begun."""
    seen: list[str] = []
    write, solve = sums_file.write_sums, summed.solve

    def writing(path: Path, sums: Statistics) -> None:
        write(path, sums)
        seen.append("written")

    def solving(*given: object, **options: object) -> object:
        found = solve(*given, **options)  # type: ignore[arg-type]
        seen.append("solved")
        return found

    monkeypatch.setattr(sums_file, "write_sums", writing)
    monkeypatch.setattr(summed, "solve", solving)
    monkeypatch.setattr(protocol, "reach", lambda step: seen.append(str(step)))
    return seen


@pytest.mark.parametrize(("large", "ahead"), [(0, True), (sums_file.LARGE, False)])
def test_large_sums_are_written_before_the_release_is_begun(
    path: Path,
    after: Path,
    order: list[str],
    large: int,
    ahead: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums_file, "LARGE", large)
    monkeypatch.setattr(files, "LARGE", 0)  # all that is written is hashed meanwhile
    read, digest = [], manifest.file_digest
    monkeypatch.setattr(manifest, "file_digest", lambda p: read.append(p.name) or digest(p))
    Workspace.open(path).forget(owner=OWNER)
    assert order.count("written") == order.count("solved") == 1
    assert (order.index("written") < order.index(Milestone.COMPUTED)) == ahead
    assert fingerprint(path) == fingerprint(after)
    mine, plain = (without_ledger(contents(folder)) for folder in (path, after))
    sums = f"private/2/{sums_file.NAME}"
    assert mine[sums] == plain[sums]
    assert sums_file.NAME not in read  # the manifest has the sums' digest: nobody read it again
    kept = Workspace.open(path)
    assert kept.certificate is not None
    stated = kept.certificate.private()["statistics_digest"]
    assert kept.inventory.manifest.files[sums] == sums_file.SUMS + stated
    assert_checks(path)


def test_the_manifest_of_an_earlier_version_has_the_file_s_own_digest(path: Path) -> None:
    """It is taken as it is, until the next release."""
    kept = Workspace.open(path)
    listed, name = kept.inventory.manifest, f"private/1/{sums_file.NAME}"
    assert listed.files[name].startswith(sums_file.SUMS)
    plain = {**listed.files, name: manifest.file_digest(path / name)}
    earlier = manifest.Manifest(plain, listed.activations, listed.ledger)
    assert not list(earlier.wrong(path))
    whole = (path / name).read_bytes()
    (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert list(earlier.wrong(path)) == list(listed.wrong(path)) == [name]


def test_records_that_stay_are_written_once_and_before_the_sums(
    path: Path, after: Path, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_file, "LARGE", 0)
    save = TrainingSet.save

    def saving(self: TrainingSet, *to: Path) -> None:
        order.append("records")
        save(self, *to)

    monkeypatch.setattr(TrainingSet, "save", saving)
    Workspace.open(path).forget(owner=OWNER)
    assert order.count("records") == 1
    assert order.index("records") < order.index("written") < order.index(Milestone.COMPUTED)
    assert fingerprint(path) == fingerprint(after)
    assert_checks(path)


def test_records_that_a_failing_disk_did_not_take_are_written_again(
    path: Path, after: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_file, "LARGE", 0)
    save, failed = TrainingSet.save, []

    def failing(self: TrainingSet, *to: Path) -> None:
        save(self, *to)
        if not failed:
            failed.append(to)
            raise OSError(errno.EIO, "for once")

    monkeypatch.setattr(TrainingSet, "save", failing)
    Workspace.open(path).forget(owner=OWNER)
    assert failed
    assert fingerprint(path) == fingerprint(after)
    assert_checks(path)


def test_a_disk_that_fails_meanwhile_is_asked_again(
    path: Path, after: Path, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_file, "LARGE", 0)
    write, failed = sums_file.write_sums, []

    def failing(where: Path, sums: Statistics) -> None:
        if not failed:
            failed.append(where)
            raise OSError(errno.EIO, "for once")
        write(where, sums)

    monkeypatch.setattr(sums_file, "write_sums", failing)
    Workspace.open(path).forget(owner=OWNER)
    assert len(failed) == order.count("written") == 1
    assert order.index("written") > order.index(Milestone.COMPUTED)
    assert fingerprint(path) == fingerprint(after)


@pytest.mark.parametrize("step", [Milestone.COMPUTED, Milestone.PREPARED, Milestone.SWITCHED])
def test_whoever_dies_with_sums_on_disk_is_finished_by_the_next(
    step: Milestone, path: Path, after: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_file, "LARGE", 0)

    def dying(at: Milestone) -> None:
        if at is step:
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(protocol, "reach", dying)
        with pytest.raises(SystemExit):
            Workspace.open(path).forget(owner=OWNER)
    assert (path / "private" / "2" / sums_file.NAME).is_file()
    Workspace.open(path)
    assert fingerprint(path) == fingerprint(after)


def test_sums_of_a_request_that_is_refused_do_not_stay(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums_file, "LARGE", 0)
    before, workspace = fingerprint(path), Workspace.open(path)
    too_little = workspace.guarantee_with(epsilon=0.1, delta=1e-5, sigma=1e-9)
    with pytest.raises(GuaranteeError):
        workspace.forget(owner=OWNER, guarantee=too_little)
    assert fingerprint(path) == before
    assert not (path / "private" / "2").exists()


def test_a_new_factor_is_made_from_the_sums_at_hand(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request reads the sums once, and not again for the factor of the next one."""
    workspace, read = Workspace.open(path), []
    assert workspace.warm()
    real = summed.read_sums
    monkeypatch.setattr(summed, "read_sums", lambda where: read.append(where) or real(where))
    workspace.forget(owner=OWNER)
    assert len(read) == 1
    assert (path / "private" / "2" / "factor.safetensors").is_file()
