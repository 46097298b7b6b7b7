"""Folders and lists with metadata."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.written import pixels, png, write, write_csv, write_jsonl

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError

ROWS = [
    {"file_name": "x/1.png", "label": "cat", "owner": "ann", "split": "train", "camera": "A"},
    {"file_name": "x/2.png", "label": "dog", "owner": "", "split": "core", "camera": ""},
    {"file_name": "3.png", "label": "dog", "owner": "bob", "split": "", "camera": "B, old"},
]


def images(root: Path) -> Path:
    return write(root, {"x/1.png": png(1), "x/2.png": png(2), "3.png": png(3)})


@pytest.mark.parametrize("writer", [write_csv, write_jsonl])
def test_metadata(tmp_path: Path, writer: Any) -> None:
    name = "metadata.csv" if writer is write_csv else "metadata.jsonl"
    file = writer(images(tmp_path) / name, ROWS)
    records = Records.open(tmp_path)
    assert records == Records.open(file) == Records.from_metadata(file)
    assert records.ids == ("x/1.png", "x/2.png", "3.png")
    assert records.owners == ("ann", "x/2.png", "bob")
    assert [record.split for record in records] == [Split.USER, Split.CORE, Split.USER]
    assert records[2].extra == {"camera": "B, old"}
    np.testing.assert_array_equal(records[2].image(), pixels(3))


def test_file_list_of_any_name_with_ids_and_cohorts(tmp_path: Path) -> None:
    rows = [{"file_name": "./3.png", "label": 7, "id": 12, "cohort": "may", "tags": [1, 2]}]
    records = Records.open(write_jsonl(images(tmp_path) / "list.jsonl", rows))
    assert (records[0].id, records[0].label, records[0].cohort) == ("12", "7", "may")
    assert records[0].extra == {"tags": [1, 2]}
    assert [note[:38] for note in records.notes] == ["the column 'tags' means nothing to eff"]


def test_csv_with_a_byte_order_mark(tmp_path: Path) -> None:
    (images(tmp_path) / "metadata.csv").write_bytes(
        b"\xef\xbb\xbffile_name,label\r\n3.png,\xc3\xa9mu\r\n"
    )
    assert Records.open(tmp_path / "metadata.csv").classes == ("ému",)


def test_images_that_are_not_listed_are_noted(tmp_path: Path) -> None:
    write_csv(images(tmp_path) / "metadata.csv", ROWS[:1])
    note = Records.open(tmp_path).notes[0]
    assert note == "2 image files are not in metadata.csv, for example '3.png'"


@pytest.mark.parametrize("name", ["../out.png", "/etc/out.png", "x/../../out.png", "a\0b.png"])
def test_file_names_must_stay_inside(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"out.png": png(1), "data/x/1.png": png(1)})
    write_jsonl(tmp_path / "data/metadata.jsonl", [{"file_name": name, "label": "a"}])
    for skip_bad in (False, True):
        with pytest.raises(RecordError, match="leads out of the folder"):
            Records.open(tmp_path / "data", skip_bad=skip_bad)


def test_links_must_stay_inside(tmp_path: Path) -> None:
    write(tmp_path, {"out.png": png(1), "data/1.png": png(1)})
    os.symlink(tmp_path / "out.png", tmp_path / "data/link.png")
    write_csv(tmp_path / "data/metadata.csv", [{"file_name": "link.png", "label": "a"}])
    with pytest.raises(RecordError, match=r"'link.png'.*leads out"):
        Records.open(tmp_path / "data")


def test_missing_file_is_named_or_skipped(tmp_path: Path) -> None:
    rows = [{"file_name": "3.png", "label": "a"}, {"file_name": "no.png", "label": "a"}]
    file = write_csv(images(tmp_path) / "list.csv", rows)
    with pytest.raises(RecordError, match=r"'no.png': the file .*no.png is missing"):
        Records.open(file)
    (bad,) = Records.open(file, skip_bad=True).skipped
    assert bad.id == "no.png"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"file_name": "3.png", "label": ""}, r"'3.png': its label is ''"),
        (
            {"file_name": "3.png"},
            r"line 2 of metadata.jsonl has no column 'label', it has file_name",
        ),
        ({"file_name": "3.png", "lable": "a"}, "no column 'label'.*rename 'lable' to 'label'"),
        ({"file_name": "3.png", "label": None}, r"'3.png': its label is None"),
        ({"file_name": "", "label": "a"}, "line 2 of metadata.jsonl has no file_name"),
        ({"file_name": "3.png", "label": 1.5}, r"'3.png': its label is 1.5"),
        ({"file_name": "3.png", "label": True}, r"'3.png': its label is True"),
        ({"file_name": "3.png", "label": "a", "split": "dev"}, r"'3.png': unknown split 'dev'"),
        ({"file_name": "x/1.png", "label": "a", "id": "x/1.png"}, "2 records have this id"),
        ({"label": "a"}, "line 2 of metadata.jsonl has no column 'file_name'"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    first = {"file_name": "x/1.png", "label": "a"}
    write_jsonl(images(tmp_path) / "metadata.jsonl", [first, row])
    with pytest.raises(EffaceError, match=message):
        Records.open(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metadata.csv", b"file,label\n", "no column 'file_name'.*rename 'file' to 'file_name'"),
        ("metadata.csv", b"", "no column 'file_name', it has none"),
        ("metadata.csv", b"file_name,label,label\n", "each column once"),
        ("metadata.csv", b"file_name,label\n3.png,a\n3.png,a,b\n", "line 3 .* does not have 2"),
        ("metadata.csv", b"file_name,label\n3.png\n", "line 2 .* does not have 2"),
        ("metadata.csv", b"file_name,label\n3.png,\xff\n", "UTF-8"),
        ("metadata.csv", b'file_name,label\n3.png,"' + b"a" * 200_000, "check its quotes"),
        ("metadata.csv", b"file_name,label\n", "no usable image among 0"),
        ("metadata.jsonl", b'{"file_name": "3.png", "label": "a"}\n[1]\n', "line 2 .* JSON object"),
        ("metadata.jsonl", b"\xff\n", "UTF-8"),
        ("metadata.jsonl", b"{oops\n", "line 1 .* JSON object"),
    ],
)
def test_bad_metadata_files(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    write(images(tmp_path), {name: text})
    with pytest.raises(FormatError, match=message):
        Records.open(tmp_path)


def test_metadata_must_be_there_and_alone(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no metadata.csv or .jsonl"):
        Records.from_metadata(images(tmp_path))
    write_csv(tmp_path / "metadata.csv", ROWS)
    write_jsonl(tmp_path / "metadata.jsonl", ROWS)
    with pytest.raises(FormatError, match="both"):
        Records.open(tmp_path)
