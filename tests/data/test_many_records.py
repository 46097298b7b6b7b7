"""There may be millions of records: what one takes, and what many share."""

from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from PIL import Image
from tests.photos import write_photos

from efface.data.found import Found, make_row
from efface.data.images import FileImage
from efface.data.record import NOTHING, Record
from efface.data.records import Records

MANY = 2_000
MOST_BYTES = 600  # of a record with its path and digest; 480 were measured, 1,010 before


@pytest.fixture
def photos(tmp_path: Path) -> Records:
    return Records.open(write_photos(tmp_path / "photos", 4, 6, 3))


def test_a_record_takes_half_a_kilobyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a list of files, labels and owners is read, line by line: equal words are different objects."""
    Image.new("L", (2, 2)).save(tmp_path / "image.png")
    content = (tmp_path / "image.png").read_bytes()
    monkeypatch.setattr(
        "efface.data.images.read_regular", lambda path: content + str(path).encode()
    )

    def listed() -> Found:
        lines = (f"{i:07d}.png,class-{i % 9},user-{i // 10},c-{i % 3}" for i in range(MANY))
        found = []
        for line in lines:
            name, *rest = line.split(",")
            columns = dict(zip(("label", "owner", "cohort"), rest, strict=True))
            found.append(make_row(columns, FileImage(tmp_path / name), name))
        return Found(found)

    Records.assembled(listed(), channels="rgb")  # what is loaded when first used
    gc.collect()
    tracemalloc.start()
    try:
        records = Records.assembled(listed(), channels="rgb")
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(records) == MANY
    assert held / MANY < MOST_BYTES


def test_words_that_many_have_are_one_object(photos: Records) -> None:
    for name in ("owner", "cohort", "label"):
        words = [getattr(record, name) for record in photos]
        assert len({id(word) for word in words}) == len(set(words)) < len(photos)
    assert {id(record.extra) for record in photos} == {id(NOTHING)}
    assert not NOTHING


def test_whoever_is_their_own_owner_has_one_name(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.new("L", (2, 2), i).save(tmp_path / "a" / f"{i}.png")
    assert all(record.owner is record.id for record in Records.open(tmp_path))


def test_records_have_slots_and_travel_as_before(photos: Records) -> None:
    record = photos[0]
    for thing in (record, record.source):
        assert not hasattr(thing, "__dict__")
        assert pickle.loads(pickle.dumps(thing)) == copy.copy(thing) == thing
        assert hash(thing) == hash(copy.deepcopy(thing))
    with pytest.raises(FrozenInstanceError):
        record.owner = "somebody"  # type: ignore[misc]
    assert isinstance(record.source, FileImage)
    assert record.source.path.is_absolute()
    assert record.source == FileImage(record.source.path) == FileImage(str(record.source.path))
    assert record.source != FileImage(record.source.path, hidden_rows=1)
    changed = replace(record, owner="somebody")
    assert isinstance(changed, Record)
    assert (changed.owner, changed.digest) == ("somebody", record.digest)
    assert (changed.image() == record.image()).all()
