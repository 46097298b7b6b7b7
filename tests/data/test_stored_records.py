"""Records by columns: the same as the records they were made of, in all that can be asked of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests import cases

from efface.data.images import Channels
from efface.data.record import Record, Split
from efface.data.records import Records
from efface.data.stored_records import CORE_COLUMNS, StoredRecords, columns_of
from efface.errors import EffaceError, RecordError
from efface.model.request import Request


def mixed() -> Records:
    """Records that differ in everything a record can have."""
    return Records(
        [
            replace(
                record,
                owner=f"owner {i % 4}",
                cohort=f"cohort {i % 2}",
                channels=(None, Channels.GRAY)[i % 2],
                extra={"path": f"dir/{i}", "size": i} if i % 3 else {},
            )
            for i, record in enumerate(cases.tiny_records(17, 1))
        ],
        ("a", "b", "c", "none has it"),
    )


def plain() -> Records:
    return cases.tiny_records(9, 2, split=Split.CORE)


def stored(records: Records, names: tuple[str, ...] | None = None) -> StoredRecords:
    """By way of JSON, as in a file."""
    columns = columns_of(records) if names is None else columns_of(records, names)
    return StoredRecords(json.loads(json.dumps(columns)), records.classes)


@pytest.mark.parametrize("records", [mixed(), plain(), mixed()[:0]], ids=["mixed", "plain", "none"])
def test_they_are_the_records_they_were_made_of(records: Records) -> None:
    got = stored(records)
    assert got == records
    assert len(got) == len(records)
    assert list(got) == list(records)
    assert (got.classes, got.ids, got.digests) == (records.classes, records.ids, records.digests)
    assert got.owners == records.owners
    assert np.array_equal(got.labels, records.labels)
    assert got.labels.dtype == records.labels.dtype
    assert columns_of(got) == columns_of(records)
    for name in ("core", "user", "test"):
        assert getattr(got, name) == getattr(records, name)


INDICES: list[Any] = [
    slice(2, 9),
    slice(None, None, -1),
    [4, 1, 16],
    np.array([], dtype=np.int64),
    np.arange(17) % 3 == 0,
    np.array([-1, 0]),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_some_of_them(index: Any) -> None:
    got, want = stored(mixed())[index], mixed()[index]
    assert got == want
    assert columns_of(got) == columns_of(want)
    assert np.array_equal(got.labels, want.labels)


def test_one_of_them() -> None:
    records, got = mixed(), stored(mixed())
    for i in (0, 5, -1, np.int64(3)):
        assert got[i] == records[i]
        assert isinstance(got[i], Record)
        assert got[i].split is Split.USER
    with pytest.raises(IndexError):
        got[17]
    with pytest.raises(IndexError):
        got[np.ones(3, dtype=bool)]
    with pytest.raises(TypeError):
        got["image"]
    for records in (mixed(), got):
        for twice in ([1, 1], [-1, 16]):
            with pytest.raises(RecordError, match="2 records have this id"):
                records[twice]
        for outside in ([17], [-18, 0]):
            with pytest.raises(IndexError, match="of 17 records"):
                records[outside]


def test_they_join_and_are_selected_from_like_others() -> None:
    records, got = mixed(), stored(mixed())
    more = cases.tiny_records(3, 8, name="more-")
    assert got + more == records + more
    assert more + got == more + records
    assert got.select(owner="owner 2") == records.select(owner="owner 2")
    assert got.without(records.ids[:4]) == records.without(records.ids[:4])
    for request in (Request.of(owner="owner 1"), Request.of(ids=records.ids[3:5])):
        assert np.array_equal(request.positions(got), request.positions(records))


def test_a_record_is_made_only_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    got, made = stored(mixed()), list[int]()
    original = StoredRecords._make
    monkeypatch.setattr(
        StoredRecords, "_make", lambda self, i: (made.append(i), original(self, i))[1]
    )
    Request.of(owner="owner 1").positions(got)
    assert len(made) == 4  # those of the owner, which must not be core records
    made.clear()
    columns_of(got[np.arange(12)])
    assert not made


def test_of_core_records_little_is_kept() -> None:
    got = stored(plain(), CORE_COLUMNS)
    assert set(columns_of(got)) == set(CORE_COLUMNS)
    assert (got.ids, got.digests) == (plain().ids, plain().digests)
    assert {record.owner for record in got} == {"core"}


def test_their_images_are_not_kept() -> None:
    with pytest.raises(EffaceError, match="keeps no images"):
        stored(mixed())[0].image()


def changed(**columns: Any) -> dict[str, list[Any]]:
    return columns_of(mixed()) | columns


@pytest.mark.parametrize(
    "columns",
    [
        changed(label=["a"]),
        {k: v for k, v in columns_of(mixed()).items() if k != "digest"},
        changed(split=["elsewhere"] * 17),
        changed(channels=["purple"] * 17),
    ],
    ids=["length", "missing", "split", "channels"],
)
def test_columns_that_are_none(columns: dict[str, list[Any]]) -> None:
    with pytest.raises(ValueError, match=r"columns are|is not a valid"):
        StoredRecords(columns, mixed().classes)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (changed(id=["same"] * 17), "17 records have this id"),
        (changed(label=["x"] * 17), "label 'x' is not one of the classes"),
        (changed(split=["core"] + ["user"] * 16, digest=["d"] * 17), "same image is core data"),
    ],
)
def test_what_records_promise_is_checked(columns: dict[str, list[Any]], problem: str) -> None:
    with pytest.raises(RecordError, match=problem):
        StoredRecords(columns, mixed().classes)
