"""Columns in every kind of list: known ones are used, misspelt ones refused, others named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from efface.data.columns import KNOWN_COLUMNS, meant, nearest
from efface.data.public_core import with_public_core
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError, RecordError


def stack(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 6, 6, 3), dtype=np.uint8)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "column"),
    [
        *[("splits", "split"), ("Cohort", "cohort"), ("spilt", "split"), ("customer id", "owner")],
        *[("class", "label"), ("idx", None), ("order", None), ("table", None), ("camera", None)],
    ],
)
def test_what_a_name_surely_means(name: str, column: str | None) -> None:
    assert meant(name, sorted(KNOWN_COLUMNS)) == column


def test_what_a_name_perhaps_means() -> None:
    assert nearest("order", KNOWN_COLUMNS) == "owner"
    assert nearest("camera", KNOWN_COLUMNS) is None


# npz


def arrays(**more: Any) -> dict[str, Any]:
    found = {"x_train": stack(4), "y_train": [0, 1, 0, 1], "x_test": stack(2, 1), "y_test": [0, 1]}
    return found | more


def test_npz_parts_have_owners(tmp_path: Path) -> None:
    owners = ["ann", "ann", "bob", "eve"]
    np.savez(tmp_path / "d.npz", **arrays(owner_train=owners, ids_train=[5, 6, 7, 8]))
    records = Records.open(tmp_path / "d.npz")
    assert list(records.user.owners) == owners
    assert records.user.ids == ("5", "6", "7", "8")
    assert records.test.owners == records.test.ids


@pytest.mark.parametrize(
    ("key", "close"),
    [
        *[("ownr_train", "owner_train"), ("owners", "owner_train"), ("owner_trian", "owner_train")],
        *[("age_train", None), ("Y_TEST", "y_test"), ("class", "classes")],
    ],
)
def test_npz_keys_that_are_meant_for_something(tmp_path: Path, key: str, close: str | None) -> None:
    np.savez(tmp_path / "d.npz", **arrays(**{key: ["ann", "ann", "bob", "eve"]}))
    with pytest.raises(FormatError, match=f"the array '{key}' is none of those") as problem:
        Records.open(tmp_path / "d.npz")
    assert close is None or f"did you mean '{close}'" in problem.value.message


def test_npz_keys_that_mean_nothing_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **arrays(licence="CC0"))
    assert Records.open(tmp_path / "d.npz").notes[0].startswith("the array 'licence' was not used")


def test_npz_tables_refuse_a_misspelt_column(tmp_path: Path) -> None:
    names = ["ann", "ann", "bob", "eve"]
    np.savez(tmp_path / "d.npz", images=stack(4), labels=[0, 1, 0, 1], ownr=names)
    with pytest.raises(FormatError, match="'ownr' looks like 'owner'"):
        Records.open(tmp_path / "d.npz")


# DataFrame and Parquet


def test_frames_refuse_a_misspelt_column() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"image": list(stack(2)), "label": ["a", "b"], "Owner": ["ann", "bob"]})
    with pytest.raises(FormatError, match="'Owner' looks like 'owner'"):
        Records.from_dataframe(frame)
    given = Records.from_dataframe(frame, owners=["eve", "eve"])  # then it means something else
    assert given.owners == ("eve", "eve")
    with pytest.raises(EffaceError, match=r"no labels.*is it the column 'class'"):
        Records.from_dataframe(frame.rename(columns={"label": "class"}))


def parquet(path: Path, **columns: list[Any]) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_may_name_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(stack(1)[0]))
    file = parquet(tmp_path / "d.parquet", file_name=["a.png"], label=["x"], owner=["ann"])
    (record,) = Records.open(file)
    assert (record.id, record.owner) == ("a.png", "ann")
    np.testing.assert_array_equal(record.image(), stack(1)[0])
    with pytest.raises(RecordError, match="leads out"):
        Records.open(parquet(file, file_name=["../a.png"], label=["x"]))
    with pytest.raises(FormatError, match="'people' looks like 'owner'"):
        Records.open(parquet(file, file_name=["a.png"], label=["x"], people=["ann"]))


# Absolute paths


def listed(tmp_path: Path) -> Path:
    (tmp_path / "far.png").write_bytes(png(stack(1)[0]))
    place = tmp_path / "lists"
    place.mkdir()
    (place / "list.csv").write_text(f"file_name,label\n{tmp_path / 'far.png'},x\n")
    return place / "list.csv"


def test_absolute_paths_are_read_when_asked_for(tmp_path: Path) -> None:
    file = listed(tmp_path)
    with pytest.raises(RecordError, match=r"leads out of the folder.*--absolute-paths"):
        Records.open(file)
    for records in (
        Records.open(file, absolute_paths=True),
        Records.from_metadata(file, absolute_paths=True),
    ):
        np.testing.assert_array_equal(records[0].image(), stack(1)[0])


def test_asked_for_or_not_a_relative_path_stays_inside(tmp_path: Path) -> None:
    file = listed(tmp_path)
    file.write_text("file_name,label\n../far.png,x\n")
    with pytest.raises(RecordError, match="leads out of the folder") as problem:
        Records.open(file, absolute_paths=True)
    assert "--absolute-paths" not in problem.value.fix


# A public set as core


def test_a_public_set_is_core_and_first_in_the_class_list() -> None:
    public = Records.from_arrays(stack(4, 7), ["c", "a", "b", "a"], split=["user"] * 3 + ["test"])
    mine = Records.from_arrays(stack(3, 8), ["b", "b", "a"], owners=["ann", "ann", "bob"])
    both = with_public_core(mine, public)
    assert len(both.core) == 3
    assert both.user == Records(mine, both.classes)
    assert both.classes == public.classes
    assert all(name.startswith("core/") for name in (*both.core.ids, *both.core.owners))


def test_an_image_in_both_is_set_aside() -> None:
    public = Records.from_arrays(stack(2, 7), ["a", "b"])
    mine = Records.from_arrays(np.concatenate([stack(1, 7), stack(1, 9)]), ["a", "b"])
    both = with_public_core(mine, public)
    assert both.user.digests == mine.digests[1:]
    assert [one.id for one in both.skipped] == [mine.ids[0]]
    assert all(record.split is not Split.TEST for record in both)
