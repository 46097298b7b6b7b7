"""Terms, checksums, and archives that are not what they say."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.commands.downloads import Server, offer, sha256, tar_of
from tests.data.named import archives
from tests.shell import efface, values_of

from efface.data.named import catalog, download
from efface.data.named.catalog import Archive
from efface.data.named.unpack import unpack
from efface.data.records import Records
from efface.errors import FormatError


def test_terms_have_to_be_accepted(
    server: Server, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = tar_of(archives.cub200(tmp_path / "packed"))
    url = server.url("CUB_200_2011.tgz", content)
    offer(monkeypatch, "cub200", archives=(Archive(url, sha256(content)),))
    refused = efface("data", "get", "cub200")
    assert refused.exit_code == 2
    assert "non-commercial" in refused.stderr
    assert catalog.dataset("cub200").page in refused.stderr
    assert server.asked == []
    values_of(efface("data", "get", "cub200", "--accept-terms", "--json"))
    assert len(Records.open("cub200")) == 9


def test_without_a_checksum_it_has_to_be_asked_for(
    server: Server, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = archives.mit67(tmp_path / "packed")
    tar = tar_of(top / "Images", "w")
    listed = {name: (top / name).read_bytes() for name in ("TrainImages.txt", "TestImages.txt")}
    sha1 = f"sha1:{hashlib.sha1(tar).hexdigest()}"
    images = Archive(server.url("indoorCVPR_09.tar", tar), sha1)
    lists = tuple(Archive(server.url(name, content)) for name, content in listed.items())
    offer(monkeypatch, "mit67", archives=(images, *lists))
    refused = efface("data", "get", "mit67", "--accept-terms")
    assert "no official checksum is known for TrainImages.txt, TestImages.txt" in refused.stderr
    assert server.asked == []
    result = efface("data", "get", "mit67", "--accept-terms", "--unverified", "--json")
    entries = values_of(result)["archives"]
    assert [entry["verified"] for entry in entries] == [True, False, False]
    seen = hashlib.sha256(listed["TrainImages.txt"]).hexdigest()
    assert entries[1]["sha256"] == seen
    assert seen in result.stderr
    assert Records.open("mit67") == Records.open(top)


def test_an_unverified_download_starts_afresh(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = Archive(server.url("list.txt", b"the new list"))
    (tmp_path / "list.txt.part").write_bytes(b"the old")
    path = download.fetch(archive, tmp_path, lambda fraction, message: None)
    assert path.read_bytes() == b"the new list"


def test_by_hand(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = efface("data", "get", "stanford-dogs")
    assert told.exit_code == 2
    entry = catalog.dataset("stanford-dogs")
    for part in (entry.page, *(a.url for a in entry.archives), "--from FOLDER"):
        assert part in told.stderr
    top = archives.stanford_dogs(tmp_path / "packed")
    mine = tmp_path / "mine"
    mine.mkdir()
    packed = {"images.tar": tar_of(top / "Images", "w"), "lists.tar": tar_of(top / "lists", "w")}
    for name, content in packed.items():
        (mine / name).write_bytes(content)
    local = [
        dataclasses.replace(a, checksum=sha256(packed[a.file]), num_bytes=None)
        for a in entry.archives
    ]
    assert "not 793579520" in efface("data", "get", "stanford-dogs", "--from", mine).stderr
    offer(monkeypatch, "stanford-dogs", archives=tuple(local))
    values_of(efface("data", "get", "stanford-dogs", "--from", mine, "--json"))
    assert Records.open("stanford-dogs") == Records.open(top)
    assert (mine / "images.tar").is_file()  # it is theirs
    (mine / "lists.tar").unlink()
    missing = efface("data", "get", "stanford-dogs", "--from", mine, "--root", tmp_path / "b")
    assert "there is no lists.tar" in missing.stderr


def test_an_archive_inside_of_an_archive(
    server: Server, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tar_of(archives.caltech101(tmp_path / "packed"))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr("caltech-101/101_ObjectCategories.tar.gz", inner)
        packed.writestr("__MACOSX/x", b"")
    content = buffer.getvalue()
    (archive,) = catalog.dataset("caltech101").archives
    url = server.url("caltech-101.zip", content)
    local = dataclasses.replace(archive, url=url, checksum=sha256(content), num_bytes=None)
    offer(monkeypatch, "caltech101", archives=(local,))
    values_of(efface("data", "get", "caltech101", "--json"))
    assert len(Records.open("caltech101").user) == 60


def hostile_tar(path: Path, member: tarfile.TarInfo, data: bytes = b"") -> Path:
    with tarfile.open(path, "w") as tar:
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("name", ["../out.txt", "a/../../out.txt"])
def test_tar_members_outside_are_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    archive = hostile_tar(tmp_path / "a.tar", tarfile.TarInfo(name), b"x")
    with pytest.raises(FormatError, match="unsafe member"):
        unpack(archive, folder)
    assert not (tmp_path / "out.txt").exists()


def test_tar_links_outside_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    link = tarfile.TarInfo("link")
    link.type, link.linkname = tarfile.SYMTYPE, "../.."
    with pytest.raises(FormatError, match="unsafe member"):
        unpack(hostile_tar(tmp_path / "a.tar", link), folder)


@pytest.mark.parametrize(
    "name", ["../out.txt", "/out.txt", "a\\..\\..\\out.txt", "C:/out.txt", "link"]
)
def test_zip_members_outside_are_refused(name: str, tmp_path: Path) -> None:
    member = zipfile.ZipInfo(name)
    if name == "link":
        member.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        packed.writestr("good.txt", b"")
        packed.writestr(member, b"/etc")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(FormatError, match="unsafe member"):
        unpack(tmp_path / "a.zip", folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.zip"])
def test_damaged_archives(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind" * 100)
    with pytest.raises(FormatError, match="is damaged"):
        unpack(tmp_path / name, tmp_path)
