"""Rows of whole numbers in the place of images: the same numbers are one record, whatever carries them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from efface.data.images import digest_of
from efface.data.looks import UNKNOWN, both_looks, looks_of
from efface.data.numbers import Numbers, Tokens, Vectors, numbers_of, row_source
from efface.data.pictures import Pictures
from efface.data.preparation import Unfit
from efface.data.preprocess import Preprocess, preparation_of
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError

IDS = np.array([[5, 7, 0, 0], [9, 9, 2, 0], [5, 7, 0, 1], [3, 0, 0, 0]], np.int64)
LABELS = ["a", "b", "a", "b"]
OWNERS = ["anna", "anna", "ben", "ben"]
TOKENS = Tokens(4, 10)


def in_memory(path: Path) -> Records:
    return Records.from_images(IDS, LABELS, owners=OWNERS)


def as_lists(path: Path) -> Records:
    return Records.from_images(IDS.tolist(), LABELS, owners=OWNERS)


def as_rows(path: Path) -> Records:
    rows = [IDS[0].astype(np.int8), IDS[1].astype(">i2"), torch.from_numpy(IDS[2]), (3, 0, 0, 0)]
    return Records.from_images(rows, LABELS, owners=OWNERS)


def as_frame(path: Path) -> Records:
    frame = pd.DataFrame({"tokens": IDS.tolist(), "label": LABELS, "owner": OWNERS})
    return Records.from_dataframe(frame)


def as_npz(path: Path) -> Records:
    np.savez(path / "x.npz", tokens=IDS.astype(np.uint16), labels=LABELS, owners=OWNERS)
    return Records.open(path / "x.npz")


def as_parts(path: Path) -> Records:
    np.savez(path / "x.npz", x_train=IDS, y_train=LABELS, owner_train=OWNERS)
    return Records.open(path / "x.npz")


def as_json_lines(path: Path) -> Records:
    columns = zip(IDS.tolist(), LABELS, OWNERS, strict=True)
    lines = [json.dumps({"tokens": t, "label": y, "owner": o}) for t, y, o in columns]
    (path / "texts.jsonl").write_text("\n".join(lines))
    return Records.open(path / "texts.jsonl")


def as_parquet(path: Path) -> Records:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"tokens": IDS.tolist(), "label": LABELS, "owner": OWNERS})
    frame.to_parquet(path / "texts.parquet")
    return Records.open(path / "texts.parquet")


WAYS: list[Callable[[Path], Records]] = [
    *(in_memory, as_lists, as_rows, as_frame, as_npz, as_parts, as_json_lines, as_parquet)
]


@pytest.mark.parametrize("way", WAYS)
def test_the_same_numbers_are_the_same_records(
    way: Callable[[Path], Records], tmp_path: Path
) -> None:
    records = way(tmp_path)
    want = [digest_of(row) for row in IDS.astype("<i4")]
    assert list(records.digests) == want
    assert list(records.owners) == OWNERS
    assert records.column("label") == LABELS
    assert [record.image().tolist() for record in records] == IDS.tolist()
    assert {record.channels for record in records} == {None}
    assert looks_of(records) == (UNKNOWN,) * 4  # copies are found by their content only


def test_long_rows_have_no_looks_either() -> None:
    row = np.arange(64, dtype=np.int32)
    assert both_looks(row) == (UNKNOWN, UNKNOWN)


def test_one_text_twice_is_said_and_is_not_core_and_user_at_once() -> None:
    records = Records.from_images(IDS[[0, 1, 0]], ["a", "b", "a"])
    assert any("same" in note for note in records.notes)
    core = Records.from_images(IDS[:1], ["a"], split="core", ids=["c"], classes=["a", "b"])
    with pytest.raises(RecordError, match="core"):
        _ = core + Records.from_images(IDS, LABELS)


def test_what_the_caller_does_to_the_array_later_changes_nothing() -> None:
    mine = IDS.copy()
    records = Records.from_images(mine, LABELS)
    mine[:] = 0
    assert [record.image().tolist() for record in records] == IDS.tolist()


def test_names_of_lines_are_their_places(tmp_path: Path) -> None:
    assert as_json_lines(tmp_path).ids == tuple(f"texts/{i:06d}" for i in (1, 2, 3, 4))


BAD: dict[str, tuple[Any, str]] = {
    "floats": (IDS.astype(float), "float64, not whole"),
    "floats in a list": ([[0.5, 1.0], [2, 3]], "float64, not whole"),
    "truth values": ([[True, False], [True, True]], "bool, not whole"),
    "ragged": ([[1, 2], [1, 2], [1, 2], [3]], "1 numbers where most records have 2"),
    "empty": (np.zeros((4, 0), np.int64), "no row of numbers"),
    "too wide": (np.array([[2**40, 1]] * 4), "beyond 2,147,483,647"),
    "nested": ([np.zeros((2, 2), np.int32)] * 4, "int32"),
    "unsigned": (IDS.astype(np.uint8), r"shape \(4, 4\) holds no images"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_numbers_are_refused_with_a_fix(case: str) -> None:
    given, message = BAD[case]
    with pytest.raises(EffaceError, match=message) as problem:
        Records.from_images(given, LABELS[: len(given)])
    assert problem.value.fix


def test_ragged_lines_and_floats_in_files_are_refused(tmp_path: Path) -> None:
    lines = [{"tokens": [1, 2], "label": "a"}, {"tokens": [1], "label": "b"}]
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(RecordError, match="where most records have"):
        Records.open(path)
    path.write_text(json.dumps({"tokens": [1, 0.5], "label": "a"}))
    with pytest.raises(RecordError, match=r"line 1 of x\.jsonl.*not whole"):
        Records.open(path)
    np.savez(tmp_path / "x.npz", tokens=IDS / 2, labels=LABELS)
    with pytest.raises(RecordError, match=r"'tokens'.*not whole"):
        Records.open(tmp_path / "x.npz")
    np.savez(tmp_path / "x.npz", tokens=IDS, images=np.zeros((4, 8, 8), np.uint8), labels=LABELS)
    with pytest.raises(FormatError, match="'images' and 'tokens'"):
        Records.open(tmp_path / "x.npz")


def test_images_and_numbers_do_not_mix() -> None:
    mixed = [np.zeros((8, 8), np.uint8), *IDS[:3]]
    with pytest.raises(RecordError, match="an image where most are rows of numbers"):
        Records.from_images(mixed, LABELS)
    with pytest.raises(RecordError, match="a row of 4 numbers is no image"):
        Records.from_images(IDS, LABELS, channels="gray")


# --- preparations ---------------------------------------------------------------------------------


def test_token_ids_go_in_as_they_are() -> None:
    for row in IDS.astype("<i4"):
        got = TOKENS(row)
        assert got.dtype == np.int64
        assert got.tolist() == row.tolist()


def test_vectors_are_fractions_of_their_range() -> None:
    row = np.array([-128, -1, 0, 64, 127], np.int32)
    got = Vectors(5)(row)
    assert got.dtype == np.float32
    assert got.tolist() == [-1.0, -1 / 128, 0.0, 0.5, 127 / 128]
    assert Vectors(2, bits=16)(np.array([-(2**15), 2**14])).tolist() == [-1.0, 0.5]


@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (TOKENS, [0, 1, 10, 2], r"number 2 is 10, not 0 to 9"),
        (TOKENS, [0, -1, 1, 2], r"number 1 is -1"),
        (TOKENS, [0, 1, 2], "3 numbers, where 4 token ids below 10 are read"),
        (Vectors(2), [0, 128], "number 1 is 128, not -128 to 127"),
        (TOKENS, np.zeros((8, 8, 1), np.uint8), "an image, where 4 token ids"),
        (Preprocess(), [1, 2, 3], "a row of 3 numbers, where images are read"),
    ],
)
def test_what_a_network_does_not_read_is_refused(read: Any, row: Any, message: str) -> None:
    for prepare in (read, read.pixels):
        with pytest.raises(Unfit, match=message):
            prepare(np.asarray(row))


def test_texts_are_padded_to_one_length() -> None:
    read = Tokens(4, 10, pad=9)
    assert read.padded([[1, 2], [], (3, 4, 5, 6)]).tolist() == [
        [1, 2, 9, 9],
        [9, 9, 9, 9],
        [3, 4, 5, 6],
    ]
    with pytest.raises(RecordError, match=r"'text 1'.*5 tokens, more than 4"):
        read.padded([[1], [1, 2, 3, 4, 5]])
    assert read.padded([[1, 2, 3, 4, 5]], cut=True).tolist() == [[1, 2, 3, 4]]
    with pytest.raises(RecordError, match=r"'text 0'.*not whole"):
        read.padded([[0.5]])


@pytest.mark.parametrize("read", [Tokens(7, 30, 2), Tokens(1, 1), Vectors(5), Vectors(3, 12)])
def test_rows_of_nobody_are_rows(read: Numbers) -> None:
    """Drawn ones and the blank one are what the network reads, and the draw is a seed's."""
    drawn = [read.drawn(np.random.default_rng(seed)) for seed in (0, 0, 1, 2, 3, 4)]
    for row in drawn:
        read(row)
    assert np.array_equal(drawn[0], drawn[1])
    assert read.blank().shape == (1, *read.shape)
    assert read.blank().dtype == read(drawn[0]).dtype


def test_short_texts_are_drawn_as_often_as_long_ones() -> None:
    read, rng = Tokens(64, 1000), np.random.default_rng(0)
    used = np.array([(read.drawn(rng) != 0).sum() for _ in range(400)])
    assert (used <= 8).mean() > 0.3
    assert (used > 32).mean() > 0.1


@pytest.mark.parametrize("read", [Tokens(7, 30, 2), Vectors(5, 12), Preprocess(0, 8)])
def test_they_are_what_their_files_say(read: Any) -> None:
    assert preparation_of(json.loads(json.dumps(read.to_dict()))) == read


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "tokens", "length": 4},
        {"kind": "tokens", "length": 0, "vocabulary": 9},
        {"kind": "tokens", "length": 4, "vocabulary": 9, "pad": 9},
        {"kind": "tokens", "length": True, "vocabulary": 9},
        {"kind": "tokens", "length": 2**40, "vocabulary": 9},
        {"kind": "vectors", "length": 4, "bits": 40},
        {"kind": "vectors", "length": 4, "code": "x"},
        {"kind": "pickle"},
        {"kind": ["tokens"]},
    ],
)
def test_other_files_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        numbers_of(values)


def test_pictures_of_numbers_are_named_by_their_place() -> None:
    shown = Pictures.of(IDS.tolist())
    assert shown.ids[1] == "image 1"
    assert shown.digests[1] == digest_of(row_source(IDS[1], "x").content())
