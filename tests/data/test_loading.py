"""Images read ahead, by threads or by processes: the same arrays in order, errors that name the record."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from tests.cases import tiny_records
from tests.photos import write_photos

from efface.data import loading
from efface.data.loading import Loader
from efface.data.looks import Seen, looks_of
from efface.data.preprocess import Preprocess
from efface.data.record import Record, Split
from efface.data.records import Records
from efface.errors import EffaceError, RecordError

PREPARE = Preprocess(resize=20, crop=16)


@pytest.fixture(autouse=True)
def few_are_worth_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "WORTH_PROCESSES", 1)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records.open(write_photos(tmp_path / "photos", num_owners=4, each=2, num_test=3))


def loaded(records: Records, workers: int, size: int = 4) -> list[tuple[tuple[str, ...], bytes]]:
    found = Loader(workers).batches(records, PREPARE, size)
    return [(batch.ids, arrays.tobytes()) for batch, arrays in found]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_images_one_by_one(records: Records, workers: int) -> None:
    found = loaded(records, workers)
    assert [len(ids) for ids, _ in found] == [4, 4, 3]
    alone = [
        np.stack([PREPARE(record.image()) for record in records[i : i + 4]]) for i in (0, 4, 8)
    ]
    assert [data for _, data in found] == [array.tobytes() for array in alone]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_changed_names_its_record(records: Records, workers: int) -> None:
    Path(records[5].source.path).write_bytes(b"no image any more")  # type: ignore[attr-defined]
    with pytest.raises(RecordError, match=r"0005\.png.*content changed") as caught:
        loaded(records, workers)
    assert caught.value.record == records[5].id


@pytest.mark.parametrize("workers", [0, 2])
def test_looks_come_with_the_images_of_training(records: Records, workers: int) -> None:
    """Those of decoding them again; none of test images, nor where nobody asks."""
    seen: Seen = {}
    found = [a.tobytes() for _, a in Loader(workers, seen).batches(records, PREPARE, 4)]
    assert found == [data for _, data in loaded(records, 0)]
    trained = records.where(lambda record: record.split is not Split.TEST)
    assert set(seen) == {(record.digest, record.channels) for record in trained}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "image", None)
        looks = looks_of(trained, seen)
    assert looks == looks_of(trained)
    assert len(set(looks)) > 1


def test_one_image_alone_has_a_look_too(records: Records) -> None:
    seen: Seen = {}
    alone = Loader(seen=seen).one(records[0], PREPARE)
    assert alone.tobytes() == PREPARE(records[0].image()).tobytes()
    assert list(seen.values()) == list(looks_of(records[:1]))


def test_images_in_one_array_are_not_sent_to_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "ProcessPoolExecutor", None)
    assert len(loaded(tiny_records(8), workers=2)) == 2


def test_a_number_that_is_none_of_processes_is_refused() -> None:
    with pytest.raises(EffaceError, match="cannot decode"):
        Loader(-1)


def test_errors_are_the_same_after_a_way_through_another_process() -> None:
    error = RecordError("a.jpg", "is broken.", "mend it.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (RecordError, str(error), vars(error))
