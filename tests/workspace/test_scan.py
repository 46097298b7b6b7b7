"""The scan: it finds what is there, in whatever file and form, and says clean when nothing is."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests import cases
from tests.workspaces import KINDS, OWNER, core, fitted, people

from efface import containers, files
from efface.data.records import Records
from efface.errors import RequestError
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.workspace import Workspace
from efface.workspace.patterns import DISTINCT, PIECE, holds, pieces_of
from efface.workspace.scan import FOREIGN, Finding, scan

GONE = people().select(owner=OWNER)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A workspace of each kind, and one of each after the owner was forgotten."""
    folder = tmp_path_factory.mktemp("scan")
    for kind in KINDS:
        Workspace.create(folder / kind, fitted(kind, people()))
        shutil.copytree(folder / kind, folder / f"{kind} after")
        Workspace.open(folder / f"{kind} after").forget(owner=OWNER)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture
def after(made: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(made["compact after"], tmp_path / "w")


@pytest.mark.parametrize("kind", KINDS)
def test_all_is_found_before_and_nothing_after(made: dict[str, Path], kind: str) -> None:
    found = scan(made[kind], records=GONE, owners=[OWNER])
    stored = "the ψ row" if kind == "compact" else "the boundary activation"
    whats = {finding.what for finding in found.findings}
    for record in GONE:
        assert f"{stored} of {record.id!r}" in whats
        assert {repr(record.id), record.digest} <= whats
    assert repr(OWNER) in whats
    clean = scan(made[f"{kind} after"], records=GONE, owners=[OWNER])
    assert clean.findings == ()
    assert clean.clean
    assert {finding.what for finding in clean.kept} == set(GONE.digests)


def test_what_everybody_of_a_class_has_is_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a core weight a target row is that of its class."""
    monkeypatch.setattr("efface.workspace.patterns.SHORT_ROW", 2)
    model = MixedLinear(Core("cnn", classes=core().classes), features=60)
    workspace = Workspace.create(tmp_path / "w", model.fit(people()))
    assert not scan(tmp_path / "w", records=GONE, owners=[OWNER]).clean
    workspace.forget(owner=OWNER)
    assert scan(tmp_path / "w", records=GONE, owners=[OWNER]).findings == ()


def test_a_target_row_that_is_one_persons_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a core weight the core's answer to the image is in it."""
    monkeypatch.setattr("efface.workspace.patterns.SHORT_ROW", 2)
    model = MixedLinear(core(), features=60, core_weight=1.0).fit(people())
    Workspace.create(tmp_path / "w", model)
    whats = {finding.what for finding in scan(tmp_path / "w", records=GONE).findings}
    assert {f"the target row of {record.id!r}" for record in GONE} <= whats


def test_retained_records_are_found_afterwards_too(made: dict[str, Path]) -> None:
    retained = people().select(owner="person-one")[:1]
    assert not scan(made["compact after"], records=retained).clean


def test_every_file_is_looked_at(made: dict[str, Path]) -> None:
    root = made["tangent after"]
    looked = scan(root, digests=GONE.digests).files
    assert set(looked) == {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}


def test_without_images_it_says_what_was_not_searched(made: dict[str, Path]) -> None:
    assert scan(made["compact after"], owners=[OWNER]).not_searched
    assert not scan(made["compact after"], records=GONE).not_searched


# --- where things hide ----------------------------------------------------------------------------


def found_in(path: Path, **options: object) -> set[str]:
    """Files in which something is found; that a file is not the workspace's does not count here."""
    found = scan(path, **options).findings  # type: ignore[arg-type]
    return {finding.file for finding in found if finding.what != FOREIGN}


def test_an_activation_in_a_file_of_any_kind(after: Path) -> None:
    row = core().activations(GONE)[slice(0, 1)].numpy()
    for name, data in (("a.bin", row), ("b.dat", row.astype(np.float16))):
        (after / name).write_bytes(b"odd" + data.tobytes())
    assert found_in(after, records=GONE) == {"a.bin", "b.dat"}


def test_part_of_a_row_is_enough(after: Path) -> None:
    row = core().activations(GONE)[slice(0, 1)].numpy().tobytes()
    (after / "half.bin").write_bytes(row[: len(row) // 2])
    assert found_in(after, records=GONE) == {"half.bin"}


def test_a_row_that_was_rounded_differently(after: Path) -> None:
    row = core().activations(GONE)[slice(0, 1)].reshape(1, -1)
    files.write_tensors(after / "rounded.safetensors", {"x": row * (1 + 1e-6)})
    findings = [f for f in scan(after, records=GONE).findings if f.what != FOREIGN]
    expected = f"the boundary activation of {GONE[0].id!r}"
    assert findings == [Finding("rounded.safetensors", expected, "up to rounding")]


def test_pixels(after: Path) -> None:
    (after / "photo.raw").write_bytes(GONE[1].image().tobytes())
    assert found_in(after, records=GONE) == {"photo.raw"}


@pytest.mark.parametrize("name", ["jürgen", 'quo"ted', "日本", "person-three"])
def test_a_name_whatever_its_escapes(after: Path, name: str) -> None:
    (after / "x.json").write_text(json.dumps({"deep": [{"owner": name}]}))
    (after / "y.json").write_text(json.dumps({name: 1}, ensure_ascii=False))
    (after / "z.txt").write_text(f"from {name}.")
    (after / "longer.txt").write_text(f"{name}x")
    assert found_in(after, owners=[name]) == {"x.json", "y.json", "z.txt"}


def test_a_long_name_in_binary_data(after: Path) -> None:
    (after / "x.bin").write_bytes(b"\xff\xfe" + OWNER.encode() + b"\x80")
    text = torch.frombuffer(bytearray(OWNER.encode()), dtype=torch.uint8)
    files.write_tensors(after / "x.safetensors", {"x": text})
    assert found_in(after, owners=[OWNER]) == {"x.bin", "x.safetensors"}


def test_a_digest_in_any_form(after: Path) -> None:
    digest = GONE[0].digest
    (after / "hex.txt").write_text(digest)
    (after / "upper.txt").write_text(digest.upper())
    (after / "raw.bin").write_bytes(b"\xff" + bytes.fromhex(digest))
    (after / digest[:64]).write_text("x")
    for written in (digest, digest.upper()):
        found = scan(after, digests=[written])
        files = {f.file for f in found.findings if f.what != FOREIGN}
        assert files == {"hex.txt", "upper.txt", "raw.bin", digest}
        assert [f.file for f in found.kept] == ["private/2/forgotten.json"]


# --- what does not belong here --------------------------------------------------------------------


@pytest.mark.needs("posix")
def test_a_file_of_somebody_else_is_a_finding(after: Path) -> None:
    """Old weights under another name, for one: nothing in them can be searched for."""
    (after / "backup").mkdir()
    (after / "backup" / "weights.old").write_bytes(b"0" * 100)
    os.mkfifo(after / "pipe")
    (after / "link").symlink_to("/dev/zero")
    found = scan(after, owners=[OWNER])
    assert not found.clean
    assert {(f.file, f.what) for f in found.findings} == {
        ("backup/weights.old", FOREIGN),
        ("pipe", "a link or a device"),
        ("link", "a link or a device"),
    }


@pytest.mark.parametrize("name", [f"{OWNER}.txt", f"of {OWNER}/x.txt", f"{OWNER}/empty"])
def test_names_of_files_and_folders(after: Path, name: str) -> None:
    (after / name).parent.mkdir(exist_ok=True)
    (after / name).write_text("x")
    found = scan(after, owners=[OWNER]).findings
    assert any(f.what == repr(OWNER) and f.how == "in its name" for f in found)


def test_accents_in_two_spellings(after: Path) -> None:
    """José with one character and with two."""
    (after / "x.txt").write_text("Jos\u00e9 was here")
    (after / "y.txt").write_text("Jose\u0301 was here")
    for name in ("Jos\u00e9", "Jose\u0301"):
        assert found_in(after, owners=[name]) == {"x.txt", "y.txt"}


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "gz", "bz2", "xz", "zip in tar.xz"])
def test_archives_are_opened(after: Path, kind: str) -> None:
    row = core().activations(GONE)[slice(0, 1)].numpy().tobytes()
    content = b"from " + OWNER.encode() + b" with " + row
    (after / "x.dat").write_bytes(packed(content, kind))
    found = scan(after, records=GONE, owners=[OWNER]).findings
    whats = {f.what for f in found if f.file.startswith("x.dat/")}
    assert {repr(OWNER), f"the boundary activation of {GONE[0].id!r}"} <= whats


def packed(content: bytes, kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("inner/notes", content)
    elif kind.startswith("tar"):
        with tarfile.open(fileobj=buffer, mode="w:gz" if kind == "tar.gz" else "w") as tar:
            member = tarfile.TarInfo("notes")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    elif kind == "zip in tar.xz":
        return lzma.compress(packed(packed(content, "zip"), "tar"))
    else:
        return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](content)
    return buffer.getvalue()


def test_an_archive_is_not_unpacked_without_end(
    after: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(containers, "LARGEST", 1000)
    (after / "bomb.gz").write_bytes(gzip.compress(bytes(100_000)))
    found = {f.what for f in scan(after, owners=[OWNER]).findings}
    assert found == {FOREIGN, "an archive that cannot be opened to its end"}


@pytest.mark.parametrize(("kind", "size"), [("PNG", 8), ("JPEG", 8), ("BMP", 32)])
def test_a_picture_in_another_format_or_size(after: Path, kind: str, size: int) -> None:
    pixels = GONE[2].image()[:, :, 0]
    image = Image.fromarray(pixels).resize((size, size), Image.Resampling.BOX)
    options = {"quality": 95} if kind == "JPEG" else {}
    (after / "photo.x").write_bytes(cases.encoded(image, kind, **options))
    found = scan(after, records=GONE).findings
    assert f"the picture of {GONE[2].id!r}" in {f.what for f in found if f.how == "as a picture"}


@pytest.mark.parametrize(
    "data",
    [b"\x00", b"\xff" * 8, (40 << 30).to_bytes(8, "little") + b"{", b"\x08" + bytes(7) + b"{]"],
)
def test_a_broken_file_does_not_stop_it(after: Path, data: bytes) -> None:
    (after / "broken.safetensors").write_bytes(data)
    (after / "z.txt").write_text(f"from {OWNER}.")
    found = scan(after, records=GONE, owners=[OWNER]).findings
    assert any(f.file == "broken.safetensors" and "cannot be read" in f.what for f in found)
    assert Finding("z.txt", repr(OWNER), "by name") in found


def test_a_broken_manifest_does_not_stop_it_either(after: Path) -> None:
    (after / "private/2/manifest.json").write_text("{")
    assert not scan(after, owners=[OWNER]).clean


def test_old_releases_and_unfinished_requests(after: Path) -> None:
    (after / "releases" / "1").mkdir()
    (after / "private" / "staging").mkdir()
    (after / "CURRENT.tmp").write_text("{}")
    found = found_in(after, digests=GONE.digests)
    assert found == {"releases/1", "private/staging", "CURRENT.tmp"}


def test_the_scan_changes_nothing(after: Path) -> None:
    (after / "releases" / "1").mkdir()
    before = {p: p.stat().st_mtime_ns for p in after.rglob("*")}
    scan(after, records=GONE)
    assert {p: p.stat().st_mtime_ns for p in after.rglob("*")} == before


@pytest.mark.parametrize(
    ("options", "named"),
    [({}, "nothing to look for"), ({"digests": ["abc"]}, "'abc' is not a content digest")],
)
def test_mistakes(after: Path, options: dict[str, list[str]], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        scan(after, **options)  # type: ignore[arg-type]


def test_no_records_is_no_pattern(after: Path) -> None:
    assert scan(after, records=Records([]), ids=["x1"]).num_patterns == 1


# --- parts ----------------------------------------------------------------------------------------


@given(data=st.binary(max_size=600))
def test_pieces_are_pieces_and_varied(data: bytes) -> None:
    for piece in pieces_of(data):
        assert piece in data
        assert len(piece) <= PIECE
        assert len(set(piece)) >= DISTINCT


def test_monotonous_data_has_no_pieces() -> None:
    assert pieces_of(bytes(1000)) == ()
    assert pieces_of(b"ab" * 500) == ()
    assert len(pieces_of(np.random.default_rng(0).bytes(900))) == 3


def test_rows_are_recognised_up_to_rounding() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-100, 100, (50, 200)).astype(np.int8)
    near = rows[7].copy()
    near[:3] += 1
    assert holds(rows, near)
    near[:10] += 1  # too many, or too far
    assert not holds(rows, near)
    assert not holds(rows, rows[7].astype(np.int16))
    floats = rng.normal(size=(50, 40)).astype(np.float32)
    assert holds(floats, floats[3] * np.float32(1.0001))
    assert not holds(floats, floats[3] * np.float32(1.01))
    assert not holds(floats, floats[3, :20])
    assert not holds(floats, None)
