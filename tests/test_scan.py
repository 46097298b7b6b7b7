"""The scan: it finds what is there, in whatever file and form, and says clean when nothing is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.test_workspace import KINDS, OWNER, as_in_other_processes, core, fitted, people  # noqa: F401

from efface import files
from efface.errors import RequestError
from efface.records import Records
from efface.scan import DISTINCT, PIECE, Finding, holds, pieces_of, scan
from efface.workspace import Workspace

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
    return {f.file for f in scan(path, **options).findings}  # type: ignore[arg-type]


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
    findings = scan(after, records=GONE).findings
    expected = f"the boundary activation of {GONE[0].id!r}"
    assert findings == (Finding("rounded.safetensors", expected, "up to rounding"),)


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


def test_a_digest_outside_of_the_journal(after: Path) -> None:
    digest = GONE[0].digest
    (after / "hex.txt").write_text(digest)
    (after / "raw.bin").write_bytes(b"\xff" + bytes.fromhex(digest))
    found = scan(after, digests=[digest])
    assert {f.file for f in found.findings} == {"hex.txt", "raw.bin"}
    assert [f.file for f in found.kept] == ["journal.jsonl"]


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
