"""Rows in memory or in a temporary file are the same rows, and the file has no name."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efface.ahead import ahead
from efface.errors import EffaceError
from efface.spool import Spool


def spooled(parts: list[np.ndarray], most_in_memory: int) -> Spool:
    spool = Spool(most_in_memory)
    for part in parts:
        spool.append(part)
    return spool


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    most=st.sampled_from([0, 30, 10**6]),
    seed=st.integers(0, 99),
)
def test_what_is_taken_is_what_was_appended(sizes: list[int], most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.integers(-99, 99, (size, 2, 3), dtype=np.int16) for size in sizes]
    whole = np.concatenate(parts)
    spool = spooled(parts, most)
    assert spool.on_disk == (whole.nbytes > most)
    assert len(spool) == len(whole)
    assert np.array_equal(spool.whole(), whole)
    index = rng.integers(0, len(whole), 7) if len(whole) else np.arange(0)
    assert np.array_equal(spool.take(index), whole[index])
    assert spool.take(index).dtype == np.int16


def test_the_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = spooled([np.ones((4, 2))], 0)
    assert spool.on_disk
    assert list(tmp_path.iterdir()) == []


def test_rows_of_another_shape_or_place_are_refused() -> None:
    spool = spooled([np.ones((4, 2))], 0)
    with pytest.raises(ValueError, match="among"):
        spool.append(np.ones((1, 3)))
    with pytest.raises(IndexError):
        spool.take(np.array([4]))


def test_a_full_disk_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    with pytest.raises(EffaceError, match="No space left") as caught:
        spooled([np.ones((4, 2))], 0)
    assert "TMPDIR" in caught.value.fix


def test_reading_ahead_keeps_the_order_and_the_errors() -> None:
    fetched: list[int] = []

    def items() -> Any:
        for i in range(4):
            fetched.append(i)
            yield i
        raise EffaceError("the fifth is broken.")

    stream = ahead(items())
    assert [next(stream) for _ in range(2)] == [0, 1]
    assert [next(stream), next(stream)] == [2, 3]
    with pytest.raises(EffaceError, match="fifth"):
        next(stream)
    assert list(ahead([])) == []


def test_whoever_stops_reading_half_way_leaves_the_rest_alone() -> None:
    fetched: list[int] = []
    stream = ahead(fetched.append(i) or i for i in range(100))
    assert next(stream) == 0
    stream.close()  # type: ignore[attr-defined]
    assert len(fetched) <= 3
