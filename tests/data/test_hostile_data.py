"""Data of other people: pipes, devices, links, files that are not what they say, names that look alike."""

from __future__ import annotations

import io
import os
import shutil
import struct
import unicodedata
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from tests import cases
from tests.shell import efface, values_of, write
from tests.workspaces import CORE, people

from efface import regular
from efface.commands.output import cell, plain
from efface.data import images
from efface.data.images import FileImage, decode
from efface.data.named.unpack import unpack
from efface.data.names import alike, tidy
from efface.data.readers import arrays
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError, RequestError

PNG = cases.encoded(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(PNG + name.encode())
    return tmp_path / "data"


# --- what is no file ------------------------------------------------------------------------------


@pytest.mark.needs("posix")
def test_a_pipe_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "a" / "pipe.png")
    records = Records.open(folder)
    assert len(records) == 3
    assert [(s.id, s.reason) for s in records.skipped] == [("a/pipe.png", "not a regular file")]
    with pytest.raises(ValueError, match="not a regular file"):
        FileImage(folder / "a" / "pipe.png").content()


@pytest.mark.needs("posix")
def test_a_device_is_not_read(folder: Path) -> None:
    (folder / "a" / "zero.png").symlink_to("/dev/zero")
    records = Records.open(folder)
    assert [s.id for s in records.skipped] == ["a/zero.png"]
    with pytest.raises(ValueError, match="not a regular file"):
        FileImage(folder / "a" / "zero.png").content()


@pytest.mark.parametrize("link", ["a/out.png", "c"])
def test_links_do_not_lead_out(folder: Path, tmp_path: Path, link: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x.png").write_bytes(PNG)
    target = tmp_path / "secret" if link == "c" else tmp_path / "secret" / "x.png"
    (folder / link).symlink_to(target)
    records = Records.open(folder)
    assert records.ids == ("a/1.png", "a/2.png", "b/1.png")
    assert [(s.id, s.reason) for s in records.skipped] == [
        (link, "a link that leads out of the folder")
    ]


def test_links_inside_the_folder_are_followed(folder: Path) -> None:
    (folder / "b" / "2.png").symlink_to(folder / "a" / "1.png")
    assert "b/2.png" in Records.open(folder).ids


@pytest.mark.needs("linux")
def test_a_name_that_is_not_utf8_is_set_aside(folder: Path) -> None:
    odd = os.path.join(os.fsencode(folder / "a"), b"\xff.png")
    with open(odd, "wb") as file:
        file.write(PNG)
    records = Records.open(folder)
    assert [s.reason for s in records.skipped] == ["its name is not UTF-8"]
    assert plain(records.skipped[0].id) == "a/\\xdcff.png"


# --- what is too much -----------------------------------------------------------------------------


def test_a_file_that_is_too_large_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (folder / "a" / "3.png").open("wb") as file:
        file.truncate(regular.LARGEST_IMAGE + 1)  # sparse: it takes no room
    with pytest.raises(RecordError, match=r"a/3\.png.*MB, more than 256"):
        Records.open(folder)
    assert "a/3.png" in {s.id for s in Records.open(folder, skip_bad=True).skipped}


def test_an_image_of_too_many_pixels_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = cases.encoded(Image.new("1", (20_000, 6_000)))  # a few kB, 360 MB as colours
    assert len(bomb) < 100_000
    with pytest.raises(ValueError, match="20000 × 6000 pixels"):
        decode(bomb)
    monkeypatch.setattr(images, "LARGEST_PIXELS", 63)
    with pytest.raises(ValueError, match="8 × 8 pixels, more than 63"):
        decode(PNG)


@pytest.mark.parametrize("kind", ["EPS", "PCX", "TGA", "ICO", "PDF"])
def test_formats_that_are_not_on_the_list_are_not_opened(folder: Path, kind: str) -> None:
    """EPS above all: Pillow would start Ghostscript on it."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, kind)
    (folder / "a" / "1.png").write_bytes(buffer.getvalue())
    with (
        mock.patch("subprocess.Popen", side_effect=AssertionError("a program was started")),
        pytest.raises(RecordError, match="not an image"),
    ):
        Records.open(folder)


def npy(header: bytes, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "member",
    [
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (5000000000,), }\n", b"12345678"),
        npy(b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", b"\x80\x04."),
        npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': ("),
        npy(b"[" * 9000),
        b"nothing",
        b"",
    ],
)
def test_an_array_that_lies_is_no_bug(tmp_path: Path, member: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("images.npy", member)
        archive.writestr("labels.npy", member)
    with pytest.raises(FormatError, match=r"d\.npz"):
        Records.open(tmp_path / "d.npz")


def test_an_npz_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "d.npz", images=np.zeros((100, 100, 100), np.uint8))
    monkeypatch.setattr(arrays, "LARGEST_TABLE", 100_000)
    with pytest.raises(FormatError, match="unpacked, more than"):
        Records.open(tmp_path / "d.npz")


# --- archives -------------------------------------------------------------------------------------


def evil_tar(path: Path) -> None:
    """CVE-2025-4517: links whose resolved path is longer than PATH_MAX lead the filter astray."""
    import tarfile

    deep = "d" * 247
    with tarfile.open(path, "w") as tar:
        inner = ""
        for letter in "abcdefghijklmnop":
            folder = tarfile.TarInfo(os.path.join(inner, deep))
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            link = tarfile.TarInfo(os.path.join(inner, letter))
            link.type, link.linkname = tarfile.SYMTYPE, deep
            tar.addfile(link)
            inner = os.path.join(inner, deep)
        long = os.path.join("/".join("abcdefghijklmnop"), "l" * 254)
        up = tarfile.TarInfo(long)
        up.type, up.linkname = tarfile.SYMTYPE, "../" * 16
        tar.addfile(up)
        escape = tarfile.TarInfo("escape")
        escape.type, escape.linkname = tarfile.SYMTYPE, f"{long}/../../outside"
        tar.addfile(escape)
        file = tarfile.TarInfo("escape/written.txt")
        file.size = 4
        tar.addfile(file, io.BytesIO(b"evil"))


def test_a_tar_does_not_write_outside(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "target").mkdir(parents=True)
    evil_tar(tmp_path / "evil.tar")
    with pytest.raises(FormatError, match="unsafe member"):
        unpack(tmp_path / "evil.tar", tmp_path / "a" / "b" / "target")
    written = [p for p in tmp_path.rglob("*") if p.name == "written.txt"]
    assert written == []


@pytest.mark.parametrize("kind", ["link", "hard", "device", "up", "absolute"])
def test_only_files_and_folders_are_unpacked(tmp_path: Path, kind: str) -> None:
    import tarfile

    member = tarfile.TarInfo({"up": "../x", "absolute": "/tmp/x"}.get(kind, "x"))
    types = {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}
    member.type, member.linkname = types.get(kind, tarfile.REGTYPE), "y"
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        tar.addfile(member)
    (tmp_path / "out").mkdir()
    with pytest.raises(FormatError, match="unsafe member"):
        unpack(tmp_path / "x.tar", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


# --- names ----------------------------------------------------------------------------------------

NFC, NFD = "Jos\u00e9", unicodedata.normalize("NFD", "Jos\u00e9")


def listing(folder: Path, owners: list[str], header: str = "owner") -> Path:
    lines = [f"file_name,label,{header}"]
    for i, owner in enumerate(owners):
        image = Image.fromarray(np.full((8, 8), i, np.uint8))
        (folder / f"{i}.png").write_bytes(cases.encoded(image))
        lines.append(f"{i}.png,{'ab'[i % 2]},{owner}")
    (folder / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_spellings_of_one_name_are_one_person(tmp_path: Path) -> None:
    assert NFC != NFD
    records = Records.open(listing(tmp_path, [NFC, NFD, f" {NFC} ", "x"]))
    assert records.owners == (NFC, NFC, NFC, "x")
    assert records.notes == ()


def test_people_who_look_alike_are_pointed_out(tmp_path: Path) -> None:
    names = ["anna", "Anna", "an\u200bna", "jose", NFC, "bob"]
    (first, second) = Records.open(listing(tmp_path, names)).notes
    assert "'Anna'" in first
    assert "'anna'" in first
    assert "look alike" in first
    assert "'jose'" in second
    assert alike(["a", "b", "a"]) == []
    assert tidy("\t x ") == "x"


@pytest.mark.parametrize(("header", "hint"), [("order", "'owner'"), ("q", "")])
def test_unknown_columns_are_named(tmp_path: Path, header: str, hint: str) -> None:
    records = Records.open(listing(tmp_path, ["a", "b"], header))
    (note,) = records.notes
    assert repr(header) in note
    assert hint in note
    assert records.owners == records.ids


@pytest.mark.parametrize("header", ["ownr", "Owner", "owners", "onwer", "user_id", "Photographer"])
def test_columns_that_surely_mean_another_are_refused(tmp_path: Path, header: str) -> None:
    """Passed over, every image would be its own owner, and a request would reach one image."""
    where = r"metadata\.csv: the column"
    with pytest.raises(
        FormatError, match=f"{where} '{header}' looks like 'owner', which is missing"
    ):
        Records.open(listing(tmp_path, ["a", "b"], header))


def relabelled(*owners: str) -> Records:
    from dataclasses import replace

    found = people()
    return Records(
        [replace(r, owner=owners[i % len(owners)]) for i, r in enumerate(found)], found.classes
    )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    write(folder / "data.npz", CORE, relabelled("Anna", "anna", NFC, "[/x]\x1b[31mred"))
    words = ("--features", 60, "--out", folder / "w")
    result = efface("train", folder / "data.npz", *words)
    assert result.exit_code == 0, result.stderr
    assert "look alike" in result.stderr
    return folder / "w"


@pytest.fixture
def path(workspace: Path, tmp_path: Path) -> Path:
    return shutil.copytree(workspace, tmp_path / "w")


def test_a_request_says_who_else_might_be_meant(path: Path) -> None:
    for more in (("--dry-run",), ()):
        result = efface("forget", path, "--owner", "anna ", *more)
        assert result.exit_code == 0
        assert "there is also an owner 'Anna'" in result.stderr
    refused = efface("forget", path, "--owner", "ANNA")
    assert refused.exit_code == 2
    assert "there is also an owner 'Anna'" in refused.stderr


def test_a_request_in_another_spelling_is_the_same(path: Path) -> None:
    values = values_of(efface("forget", path, "--owner", NFD, "--dry-run", "--json"))
    assert (
        values["num_forgotten"]
        == values_of(efface("forget", path, "--owner", NFC, "--json"))["num_records"]
    )


def test_names_do_not_reach_the_terminal_as_commands(path: Path) -> None:
    name = "[/x]\x1b[31mred"
    for words in (
        ("forget", path, "--owner", name, "--dry-run"),
        ("forget", path, "--owner", f"{name}!"),
        ("scan", path, "--owner", name),
        ("scan", path, path.parent / "nothing", "--owner", name),
    ):
        result = efface(*words)
        assert "\x1b[31mred" not in result.stdout + result.stderr
        assert "bug" not in result.stderr
    assert cell("[b]\x1b") == "\\[b]\\x1b"


def test_a_mistyped_owner_is_an_error_for_the_scan(path: Path, workspace: Path) -> None:
    data = workspace.parent / "data.npz"
    result = efface("scan", path, data, "--owner", "nobody")
    assert result.exit_code == 2
    assert "'nobody'" in result.stderr
    with pytest.raises(RequestError):
        Records.open(data).select(owner="nobody")


def test_a_missing_folder_is_no_bug(tmp_path: Path) -> None:
    with pytest.raises(EffaceError):
        Records.open(tmp_path / "nothing")


def test_a_config_can_be_printed_as_json(tmp_path: Path) -> None:
    values = values_of(efface("train", "digits", "--mu", 0.5, "--print-config", "--json"))
    assert values["user"]["mu"] == 0.5
