"""``efface data``: from a server on this machine, with everything that can go wrong on the way."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.commands.downloads import Server, offer, sha256, tar_of
from tests.data.named import archives
from tests.shell import efface, values_of

from efface.data.named import catalog
from efface.data.named.catalog import CATALOG, Access, Archive, Dataset
from efface.data.named.install import Consent, install
from efface.data.named.layouts import NAMES
from efface.data.records import Records
from efface.errors import FormatError
from efface.files import locked


def test_the_catalog_and_the_layouts_name_the_same_data_sets() -> None:
    assert {entry.name for entry in CATALOG} == {"digits", *NAMES}


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.name)
def test_entries_are_complete(entry: Dataset) -> None:
    assert entry.terms
    assert entry.page.startswith("http")
    assert bool(entry.archives) == (entry.access is not Access.BUILT_IN)
    assert bool(entry.reason) == (entry.access is Access.BY_HAND)
    files = [archive.file for archive in entry.archives]
    assert len(set(files)) == len(files)
    for archive in entry.archives:
        if archive.checksum is not None:
            algorithm, _, digest = archive.checksum.partition(":")
            assert len(bytes.fromhex(digest)) == hashlib.new(algorithm).digest_size


def test_list(root: Path, tmp_path: Path) -> None:
    archives.cub200(root / "cub200")
    values = values_of(efface("data", "list", "--json"))
    entries = {entry["name"]: entry for entry in values["datasets"]}
    assert values["root"] == str(root)
    assert entries["cub200"]["folder"] == str(root / "cub200" / "CUB_200_2011")
    assert entries["cifar10"]["folder"] is None
    assert (entries["cub200"]["images"], entries["cub200"]["classes"]) == (11788, 200)
    shown = efface("data", "list").stdout
    for entry in CATALOG:
        assert entry.name in shown
        assert entry.page in shown
    other = values_of(efface("data", "list", "--root", tmp_path, "--json"))
    assert all(entry["folder"] is None for entry in other["datasets"])


def test_nothing_but_get_opens_a_connection(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    archives.cifar10(root / "cifar10")
    assert efface("data", "list").exit_code == 0
    assert len(Records.open("cifar10")) == 18
    with pytest.raises(FormatError, match="not found"):
        Records.open("cub200")
    assert "a connection" in efface("data", "get", "fashion-mnist").stderr  # it would


def test_get_then_open_by_name(server: Server, cifar: bytes, root: Path) -> None:
    values = values_of(efface("data", "get", "cifar10", "--json"))
    assert values["fetched"]
    assert values["spec"] == "cifar10"
    assert values["archives"][0]["sha256"] == hashlib.sha256(cifar).hexdigest()
    assert values["archives"][0]["verified"]
    assert len(Records.open("cifar10")) == 18
    receipt = json.loads((root / "cifar10" / "efface-source.json").read_text())
    assert receipt["archives"] == values["archives"]
    assert sorted(path.name for path in root.iterdir()) == ["cifar10"]  # nothing else is left
    assert stat.S_IMODE((root / "cifar10").stat().st_mode) & 0o500 == 0o500
    again = values_of(efface("data", "get", "cifar10", "--json"))
    assert not again["fetched"]
    assert len(server.asked) == 1


def test_get_into_another_root(cifar: bytes, root: Path, tmp_path: Path) -> None:
    result = efface("data", "get", "cifar10", "--root", tmp_path / "other")
    assert f"efface train cifar10:{tmp_path / 'other' / 'cifar10'}" in result.stdout
    assert len(Records.open(f"cifar10:{tmp_path / 'other' / 'cifar10'}")) == 18
    assert not root.exists()


def test_a_download_is_resumed(
    server: Server, cifar: bytes, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cut = 1000
    result = efface("data", "get", "cifar10")
    assert result.exit_code == 2
    assert f"ended after 1000 of {len(cifar)} bytes" in result.stderr
    assert "goes on where it stopped" in result.stderr
    assert not (root / "cifar10").exists()
    server.cut = None
    values_of(efface("data", "get", "cifar10", "--json"))
    assert [wanted for _, wanted in server.asked] == [None, "bytes=1000-"]
    assert len(Records.open("cifar10")) == 18


def test_two_at_once_fetch_it_once(server: Server, cifar: bytes, root: Path) -> None:
    """Whoever comes second says that it waits, and takes what the first has fetched."""
    told: list[str] = []
    waits = threading.Event()

    def progress(_: float, message: str) -> None:
        told.append(message)
        if "waiting" in message:
            waits.set()

    entry, agreed = catalog.dataset("cifar10"), Consent()
    run = lambda: install(entry, root, consent=agreed, archives=None, progress=progress)  # noqa: E731
    with ThreadPoolExecutor() as pool:
        with locked(root / ".downloads" / "cifar10" / "lock"):
            second = pool.submit(run)
            assert waits.wait(30)
        first = second.result(30)  # whoever held the lock had fetched nothing
    assert first.receipt
    assert len(server.asked) == 1
    with ThreadPoolExecutor() as pool:
        with locked(root / ".downloads" / "cifar10" / "lock"):
            (root / "cifar10").rename(root / "aside")
            waits.clear()
            late = pool.submit(run)
            assert waits.wait(30)
            (root / "aside").rename(root / "cifar10")
        assert late.result(30).receipt == ()
    assert len(server.asked) == 1


def test_a_server_that_does_not_resume(server: Server, cifar: bytes, root: Path) -> None:
    server.cut, server.ranges = 1000, False
    assert efface("data", "get", "cifar10").exit_code == 2
    server.cut = None
    values_of(efface("data", "get", "cifar10", "--json"))
    assert len(Records.open("cifar10")) == 18


@pytest.mark.parametrize("known", [True, False])
def test_a_download_that_was_killed_before_it_was_renamed(
    known: bool, server: Server, cifar: bytes, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive,) = catalog.dataset("cifar10").archives
    if not known:
        offer(monkeypatch, "cifar10", archives=(dataclasses.replace(archive, num_bytes=None),))
    part = root / ".downloads" / "cifar10" / f"{archive.file}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(cifar)
    values_of(efface("data", "get", "cifar10", "--json"))
    assert server.asked == ([] if known else [(archive.file, f"bytes={len(cifar)}-")])


def test_a_part_of_another_archive_is_noticed(server: Server, cifar: bytes, root: Path) -> None:
    (archive,) = catalog.dataset("cifar10").archives
    part = root / ".downloads" / "cifar10" / f"{archive.file}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 100)
    assert "not unpacked" in efface("data", "get", "cifar10").stderr
    assert not part.exists()
    part.write_bytes(b"x" * (len(cifar) + 1))
    assert "changed while it was fetched" in efface("data", "get", "cifar10").stderr
    values_of(efface("data", "get", "cifar10", "--json"))


@pytest.mark.parametrize("changed", ["checksum", "num_bytes", "content"])
def test_what_does_not_agree_is_not_unpacked(
    changed: str, server: Server, cifar: bytes, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive,) = catalog.dataset("cifar10").archives
    if changed == "content":
        server.files[archive.file] = cifar[:-1] + b"!"
    else:
        other = {"checksum": sha256(b""), "num_bytes": len(cifar) - 1}[changed]
        offer(monkeypatch, "cifar10", archives=(dataclasses.replace(archive, **{changed: other}),))
    result = efface("data", "get", "cifar10")
    assert result.exit_code == 2
    expected = {
        "checksum": "it was not unpacked",
        "num_bytes": f"{len(cifar) - 1} are expected",
        "content": "it was not unpacked",
    }
    assert expected[changed] in result.stderr
    assert not (root / "cifar10").exists()
    assert not list(root.rglob("*.gz"))  # what failed is not kept to fail again


def test_an_archive_of_something_else(
    server: Server, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    content = tar_of(tmp_path / "other")
    offer(
        monkeypatch, "cifar10", archives=(Archive(server.url("a.tgz", content), sha256(content)),)
    )
    assert "looked for data_batch_1.bin" in efface("data", "get", "cifar10").stderr
    assert not (root / "cifar10").exists()
    assert not list(root.glob(".cifar10-*"))


def test_no_such_file_and_no_such_server(
    server: Server, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = Archive(f"http://127.0.0.1:{server.server_port}/gone.tar", sha256(b""))
    offer(monkeypatch, "cifar10", archives=(gone,))
    assert "answers 404" in efface("data", "get", "cifar10").stderr
    server.shutdown()
    server.server_close()
    result = efface("data", "get", "cifar10")
    assert result.exit_code == 2
    assert "cannot be fetched" in result.stderr


def test_only_web_addresses(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret.tar"
    secret.write_bytes(b"")
    offer(monkeypatch, "cifar10", archives=(Archive(secret.as_uri(), sha256(b"")),))
    assert "not a web address" in efface("data", "get", "cifar10").stderr


def test_an_incomplete_folder_is_not_overwritten(cifar: bytes, root: Path) -> None:
    (root / "cifar10").mkdir(parents=True)
    (root / "cifar10" / "mine.txt").write_text("mine")
    result = efface("data", "get", "cifar10")
    assert result.exit_code == 2
    assert "remove the folder" in result.stderr
    assert (root / "cifar10" / "mine.txt").is_file()


def test_a_full_disk_is_noticed_before(
    server: Server, cifar: bytes, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (archive,) = catalog.dataset("cifar10").archives
    huge = dataclasses.replace(archive, num_bytes=1 << 60)
    offer(monkeypatch, "cifar10", archives=(huge,))
    assert "make room" in efface("data", "get", "cifar10").stderr
    assert server.asked == []


def test_unknown_and_built_in_names(root: Path) -> None:
    unknown = efface("data", "get", "imagenet")
    assert unknown.exit_code == 2
    assert "use one of digits, cifar10" in unknown.stderr
    assert "comes with efface" in efface("data", "get", "digits").stderr


def test_train_and_evaluate_by_name(root: Path, tmp_path: Path) -> None:
    archives.mnist(root)
    options = ("--core-fraction", "0.5", "--features", "32", "--out", tmp_path / "model", "--json")
    values = values_of(efface("train", "mnist", *options))
    assert values["records"] == {"core": 10, "user": 10, "test": 10}
    found = values_of(efface("evaluate", tmp_path / "model", "mnist", "--json"))
    assert found["num_records"] == 10
    for item in ("mnist", root / "mnist"):
        assert efface("predict", tmp_path / "model", item, "--json").exit_code == 0
    assert values_of(efface("train", f"mnist:{root}", "--dry-run", "--json"))["classes"] == 10
