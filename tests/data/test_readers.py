"""Every layout, and everything that can be wrong with it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from efface.data.images import Channels
from efface.data.record import Skipped, Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError


def pixels(seed: int, channels: int = 3, size: int = 6) -> np.ndarray:
    shape = (size, size, channels) if channels > 1 else (size, size)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(seed: int, channels: int = 3) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, channels)).save(buffer, "PNG")
    return buffer.getvalue()


def truncated(seed: int) -> bytes:
    """Its header is sound, its body is not."""
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed, size=64)).save(buffer, "JPEG")
    return buffer.getvalue()[:2000]


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_csv(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    return path


# folders


def test_folder_of_splits(tmp_path: Path) -> None:
    files = {
        "train/cat/1.png": png(1),
        "train/dog/deep/2.PNG": png(2),
        "core/cat/3.png": png(3),
        "test/cat/4.png": png(4),
        "val/dog/5.png": png(5),
    }
    records = Records.open(write(tmp_path, files))
    assert records == Records.from_folder(str(tmp_path))
    assert records.classes == ("cat", "dog")
    assert records.core.ids == ("core/cat/3.png",)
    assert records.user.ids == ("train/cat/1.png", "train/dog/deep/2.PNG")
    assert records.test.ids == ("test/cat/4.png", "val/dog/5.png")
    assert records.owners == records.ids
    assert records[0].cohort == "default"
    assert records.skipped == records.notes == ()
    np.testing.assert_array_equal(records.user[1].image(), pixels(2))


def test_folder_of_classes_is_user_data(tmp_path: Path) -> None:
    records = Records.open(write(tmp_path, {"cat/1.png": png(1), "dog/2.png": png(2)}))
    assert records.user.ids == ("cat/1.png", "dog/2.png")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    records = Records.open(write(tmp_path, {"train/1.png": png(1), "car/2.png": png(2)}))
    assert records.classes == ("car", "train")


def test_splits_without_classes_are_no_classes(tmp_path: Path) -> None:
    write(tmp_path, {"train/1.png": png(1), "test/2.png": png(2)})
    with pytest.raises(FormatError, match="no class folders"):
        Records.from_folder(tmp_path)


def test_empty_folder_and_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no class folders"):
        Records.open(tmp_path)
    with pytest.raises(FormatError, match="not a folder"):
        Records.from_folder(tmp_path / "nowhere")


def test_hidden_files_are_ignored_others_are_listed(tmp_path: Path) -> None:
    files = {
        ".DS_Store": b"",
        ".cache/x.png": b"",
        "README.txt": b"",
        "spare/9.png": png(9),
        "train/cat/1.png": png(1),
        "train/cat/._1.png": b"",
        "train/cat/Thumbs.db": b"",
        "train/cat/notes.txt": b"",
        "train/loose.png": png(2),
    }
    records = Records.from_folder(write(tmp_path, files))
    assert records.ids == ("train/cat/1.png",)
    assert records.skipped == (
        Skipped("README.txt", "not a split folder with class folders"),
        Skipped("spare", "not a split folder with class folders"),
        Skipped("train/loose.png", "outside any class folder"),
        Skipped("train/cat/notes.txt", "not an image file"),
    )
    assert records[:0].skipped == records.skipped


def test_linked_folders_are_listed_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1)})
    os.symlink(tmp_path / "cat", tmp_path / "cat/again")
    records = Records.from_folder(tmp_path)
    assert records.ids == ("cat/1.png",)
    assert records.skipped == (Skipped("cat/again", "not an image file"),)


def test_empty_class_folder_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train/cat/1.png": png(1), "train/dog/readme.md": b""})
    with pytest.raises(RecordError, match="'train/dog': this class folder has no images"):
        Records.from_folder(tmp_path)


def test_class_without_training_records_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"train/cat/1.png": png(1), "test/dog/2.png": png(2)})
    with pytest.raises(RecordError, match="'dog': this class has no core or user record"):
        Records.from_folder(tmp_path)
    write(tmp_path, {"train/dog/3.png": png(3)})
    named = Records.from_folder(tmp_path, classes=["cat", "dog", "emu"])  # the list is the caller's
    assert named.notes == ("class 'emu' has no core or user record",)


def test_pure_test_data_needs_no_training_records(tmp_path: Path) -> None:
    records = Records.from_folder(
        write(tmp_path, {"test/dog/2.png": png(2)}), classes=["cat", "dog"]
    )
    assert records.labels.tolist() == [1]


def test_given_classes_order_and_limit(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1), "dog/2.png": png(2)})
    assert Records.from_folder(tmp_path, classes=["dog", "cat"]).labels.tolist() == [1, 0]
    with pytest.raises(RecordError, match=r"'dog/2.png': label 'dog' is not one of the classes"):
        Records.from_folder(tmp_path, classes=["cat"])


@pytest.mark.parametrize("data", [b"", b"no image", png(1)[:20]])
def test_unreadable_image_is_found_at_once(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, {"cat/1.png": png(1), "cat/2.png": data})
    with pytest.raises(RecordError, match=r"'cat/2.png'.*Fix: .*skip_bad"):
        Records.from_folder(tmp_path)
    records = Records.from_folder(tmp_path, skip_bad=True)
    assert records.ids == ("cat/1.png",)
    assert [bad.id for bad in records.skipped] == ["cat/2.png"]


def test_truncated_image_is_found_at_decoding_or_when_asked(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1), "cat/2.jpg": truncated(2)})
    records = Records.from_folder(tmp_path)
    with pytest.raises(RecordError, match=r"'cat/2.jpg'.*truncated"):
        records[1].image()
    records = Records.from_folder(tmp_path, skip_bad=True)
    (bad,) = records.skipped
    assert bad.id == "cat/2.jpg"
    assert bad.reason.startswith("the image cannot be read (image file is truncated")


def test_skipping_never_empties_a_class(tmp_path: Path) -> None:
    write(tmp_path, {"cat/1.png": png(1), "dog/2.png": b""})
    with pytest.raises(RecordError, match="'dog': this class has no core or user record"):
        Records.from_folder(tmp_path, skip_bad=True)
    (tmp_path / "cat/1.png").write_bytes(b"")
    with pytest.raises(FormatError, match="no usable image among 2"):
        Records.from_folder(tmp_path, skip_bad=True)


def test_mixed_channels_name_the_first_odd_record(tmp_path: Path) -> None:
    write(
        tmp_path, {"a/1.png": png(1, 1), "a/2.png": png(2), "a/3.png": png(3), "a/4.png": png(4, 1)}
    )
    write(tmp_path, {"a/5.png": png(5)})
    with pytest.raises(RecordError, match=r"'a/1.png': 1 channel.*2 such of 5.*channels=\"rgb\""):
        Records.from_folder(tmp_path)
    rgb = Records.from_folder(tmp_path, channels="rgb")
    assert {record.image().shape for record in rgb} == {(6, 6, 3)}
    gray = Records.from_folder(tmp_path, channels=Channels.GRAY)
    assert {record.image().shape for record in gray} == {(6, 6, 1)}
    assert rgb.digests == gray.digests
    with pytest.raises(EffaceError, match="channels 'cmyk' are unknown"):
        Records.from_folder(tmp_path, channels="cmyk")


def test_core_and_user_copy_is_refused_test_copy_noted(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/1.png": png(1), "test/a/1.png": png(1)})
    (note,) = Records.from_folder(tmp_path).notes
    assert "training and test" in note
    write(tmp_path, {"core/a/copy.png": png(1)})
    with pytest.raises(RecordError, match=r"'train/a/1.png'.*core data, as 'core/a/copy.png'"):
        Records.from_folder(tmp_path)


def test_core_fraction_keeps_copies_on_one_side(tmp_path: Path) -> None:
    files = {f"a/{i}.png": png(i // 2) for i in range(12)}
    for seed in range(5):
        records = Records.from_folder(write(tmp_path, files), core_fraction=0.5, seed=seed)
        assert not set(records.core.digests) & set(records.user.digests)
        assert len(records) + len(records.skipped) == 12


# metadata


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


# npz


def stack(n: int, seed: int = 0, channels: int = 3) -> np.ndarray:
    return np.stack([pixels(seed * 100 + i, channels) for i in range(n)])


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_of_parts(tmp_path: Path) -> None:
    file = save(
        tmp_path / "d.npz",
        x_train=stack(3),
        y_train=np.array([[1], [0], [1]], np.uint8),
        x_test=stack(1, 1),
        y_test=[0],
        x_core=stack(2, 2),
        y_core=[0, 1],
        classes=["dog", "cat"],
        mean=np.zeros(3),
    )
    records = Records.open(file)
    assert records.classes == ("dog", "cat")
    assert records.core.ids == ("core/000000", "core/000001")
    assert records.user.labels.tolist() == [1, 0, 1]
    assert records.test.ids == ("test/000000",)
    assert records.notes == ("the array 'mean' was not used",)
    np.testing.assert_array_equal(records.user[2].image(), pixels(2))


def test_npz_of_columns(tmp_path: Path) -> None:
    file = save(
        tmp_path / "d.npz",
        images=stack(3, channels=1),
        labels=["b", "a", "b"],
        ids=[10, 11, 12],
        owners=["ann", "bob", "ann"],
        cohorts=["may", "may", "june"],
        splits=["core", "user", "test"],
        angle=[0.5, 1.5, 2.5],
        version=3,
    )
    records = Records.from_npz(file, classes=["b", "a"])
    assert records.ids == ("10", "11", "12")
    assert records.labels.tolist() == [0, 1, 0]
    assert records.owners == ("ann", "bob", "ann")
    assert records[2].cohort == "june"
    assert [record.split for record in records] == list(Split)
    assert records[1].extra == {"angle": 1.5}
    assert records.notes[0] == "the array 'version' was not used"
    assert "'angle'" in records.notes[1]
    assert records[0].image().shape == (6, 6, 1)


def test_npz_bare_numbers_sort_as_numbers(tmp_path: Path) -> None:
    labels = [10, 2, 0]
    records = Records.open(save(tmp_path / "d.npz", images=stack(3), labels=labels))
    assert records.classes == ("0", "2", "10")
    assert records.ids == ("000000", "000001", "000002")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"data": stack(1)}, "the arrays are data"),
        ({}, "the arrays are none"),
        ({"images": stack(2)}, "no 'labels'"),
        ({"images": stack(2), "labels": [1]}, r"'labels' has shape \(1,\) for 2 images"),
        ({"images": stack(2), "labels": [1, 1], "ids": ["x"]}, "'ids' has shape"),
        ({"x_train": stack(2)}, r"'y_train' has shape \(0,\)"),
        ({"x_train": stack(2) / 255, "y_train": [0, 1]}, "'x_train' does not hold images.*float64"),
        ({"x_train": stack(2).transpose(0, 3, 1, 2), "y_train": [0, 1]}, "6 channels"),
        ({"x_train": stack(2).reshape(2, -1), "y_train": [0, 1]}, "does not hold images"),
        ({"x_train": stack(1), "y_train": np.array(["a"], object)}, "cannot be read"),
    ],
)
def test_bad_npz(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Records.open(save(tmp_path / "d.npz", **arrays))


@pytest.mark.parametrize(
    ("labels", "message"),
    [([0, 2], "'000001': label 2 is outside the 2 classes"), ([0.0, 1.0], "'000000': its label")],
)
def test_bad_npz_labels_are_named(tmp_path: Path, labels: list[Any], message: str) -> None:
    file = save(tmp_path / "d.npz", images=stack(2), labels=labels, classes=["a", "b"])
    with pytest.raises(RecordError, match=message):
        Records.open(file)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"not an .npz file"):
        Records.open(write(tmp_path, {"d.npz": b"nothing"}) / "d.npz")
    with pytest.raises(FormatError, match="does not exist"):
        Records.open(tmp_path / "other.npz")
    file = save(tmp_path / "d.npz", images=stack(4), labels=[0, 1, 2, 3])
    data = bytearray(file.read_bytes())
    data[300] ^= 255  # a pixel: the archive's checksum tells
    file.write_bytes(data)
    with pytest.raises(FormatError, match=r"d\.npz cannot be read"):
        Records.open(file)


# Parquet


def parquet(path: Path, columns: dict[str, list[Any]], names: list[str] | None = None) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pa.table(columns)
    if names:
        features = {"label": {"names": names, "_type": "ClassLabel"}, "image": {"_type": "Image"}}
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    pq.write_table(table, path)
    return path


def test_parquet_with_class_names(tmp_path: Path) -> None:
    cells = [{"bytes": png(i), "path": f"{i}.png"} for i in range(3)]
    columns = {"image": cells, "label": [1, 0, 1], "owner": ["ann", None, "bob"], "age": [3, 4, 5]}
    records = Records.open(parquet(tmp_path / "d.parquet", columns, ["dog", "cat"]))
    assert records.classes == ("dog", "cat")
    assert records.labels.tolist() == [1, 0, 1]
    assert records.owners == ("ann", "d/000001", "bob")
    assert records[2].extra == {"age": 5}
    assert {record.split for record in records} == {Split.USER}
    np.testing.assert_array_equal(records[2].image(), pixels(2))


def test_parquet_of_raw_bytes_and_other_column_names(tmp_path: Path) -> None:
    columns = {
        "img": [png(1), png(2)],
        "fine": [10, 9],
        "image": ["x", "y"],
        "split": ["core", "test"],
    }
    file = parquet(tmp_path / "d.parquet", columns)
    with pytest.raises(FormatError, match="no column 'label', it has img, fine, image, split"):
        Records.open(file)
    columns["fine"] = [10, 10]
    records = Records.from_parquet(parquet(file, columns), image="img", label="fine")
    assert records.classes == ("10",)
    assert records[0].extra == {"image": "x"}
    assert [record.split for record in records] == [Split.CORE, Split.TEST]


def test_parquet_shards_say_their_split(tmp_path: Path) -> None:
    for i, name in enumerate(
        ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]
    ):
        parquet(tmp_path / f"{name}.parquet", {"image": [png(i)], "label": ["a"]})
    records = Records.open(tmp_path)
    assert records.user.ids == ("train-00000-of-00002/000000", "train-00001-of-00002/000000")
    assert records.test.ids == ("test-00000-of-00001/000000",)


def test_parquet_numbers_without_names_sort_as_numbers(tmp_path: Path) -> None:
    columns = {"image": [png(1), png(2)], "label": [10, 9]}
    assert Records.open(parquet(tmp_path / "d.parquet", columns)).classes == ("9", "10")


@pytest.mark.parametrize(
    "cell", [None, {"bytes": None, "path": "x.png"}, {"bytes": b"?", "path": ""}]
)
def test_parquet_bad_images_are_named_or_skipped(tmp_path: Path, cell: Any) -> None:
    columns = {"image": [{"bytes": png(1), "path": ""}, cell], "label": ["a", "a"]}
    file = parquet(tmp_path / "d.parquet", columns)
    with pytest.raises(RecordError, match="'d/000001'"):
        Records.open(file)
    assert [bad.id for bad in Records.open(file, skip_bad=True).skipped] == ["d/000001"]


@pytest.mark.parametrize("label", [None, -1, 2])
def test_parquet_bad_labels_are_named(tmp_path: Path, label: int | None) -> None:
    columns = {"image": [png(1), png(2)], "label": [0, label]}
    with pytest.raises(RecordError, match=r"'d/000001'.*label"):
        Records.open(parquet(tmp_path / "d.parquet", columns, ["a", "b"]))


def test_files_that_are_no_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(FormatError, match=r"d.parquet is not Parquet"):
        Records.open(write(tmp_path, {"d.parquet": b"nothing"}) / "d.parquet")
    with pytest.raises(FormatError, match="no Parquet file"):
        Records.open(tmp_path / "other.parquet")


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EffaceError, match=r"efface\[parquet\]"):
        Records.open(write(tmp_path, {"d.parquet": b""}) / "d.parquet")


# digits and open


def test_digits() -> None:
    records = Records.open("digits")
    assert repr(records) == "Records(1797 in 10 classes: core 539, user 899, test 359)"
    assert records.classes == tuple("0123456789")
    assert records.notes == records.skipped == ()
    people = set(records.user.owners)
    assert len(people) == 60
    assert not people & {*records.core.owners, *records.test.owners}
    sizes = [records.user.owners.count(person) for person in people]
    assert min(sizes) >= 14
    cohorts = {(record.owner, record.cohort) for record in records.user}
    assert len(cohorts) == 60  # an owner is of one cohort
    assert len({cohort for _, cohort in cohorts}) == 4
    for split, share in ((records.core, 0.3), (records.test, 0.2)):
        counts = np.bincount(split.labels)
        np.testing.assert_allclose(counts, share * np.bincount(records.labels), atol=0.5)


def test_digits_pixels_and_reproducibility() -> None:
    from sklearn.datasets import load_digits

    records = Records.digits()
    expected = load_digits().images[7] * 255 / 16
    np.testing.assert_allclose(records[7].image()[:, :, 0], expected, atol=0.5)
    assert records[7].image().dtype == np.uint8
    assert records == Records.digits()
    # pinned: a split that moved would turn every published number of the demo
    rows = "".join(f"{r.id} {r.label} {r.split} {r.owner} {r.cohort} {r.digest}" for r in records)
    assert hashlib.sha256(rows.encode()).hexdigest().startswith("959c00ba9a5fb35b")
    assert Records.digits(channels="rgb")[0].image().shape == (8, 8, 3)


@pytest.mark.parametrize("name", ["nowhere", "archive.zip"])
def test_open_says_what_it_reads(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError, match=r"nothing that can be read.*digits.*parquet"):
        Records.open(tmp_path / name)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="skip_all"):
        Records.open("digits", skip_all=True)


def test_reading_warns_of_nothing_and_leaves_no_file_open(tmp_path: Path) -> None:
    write(tmp_path, {"a/1.png": png(1), "a/2.jpg": truncated(1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Records.open(tmp_path, skip_bad=True)[0].image()


def test_import_is_light() -> None:
    code = (
        "import sys, efface.data.records, efface.data.readers;"
        "print([m for m in ('torch', 'pyarrow', 'sklearn', 'scipy') if m in sys.modules])"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "[]"
