"""``.npz`` and Parquet files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.written import pixels, png, write

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError


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
