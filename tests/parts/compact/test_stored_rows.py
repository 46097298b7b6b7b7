"""Rows in buckets: the same rows as in memory, and files that do not tell what was there before."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efface import files
from efface.errors import FormatError
from efface.parts.compact import stored_rows
from efface.parts.compact.rows import Rows
from efface.parts.compact.stored_rows import StoredRows, bucket_bits

K, C = 5, 3


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "PER_BUCKET", 4)


def digests_of(names: list[int]) -> list[str]:
    return [hashlib.sha256(str(name).encode()).hexdigest() for name in names]


def rows_of(names: list[int]) -> Rows:
    """A row is a function of its record."""
    made = [np.random.default_rng(name).integers(-127, 128, K + C) for name in names]
    whole = np.array(made).reshape(len(names), K + C)
    return Rows(whole[:, :K].astype(np.int8), whole[:, K:].astype(np.int16))


def written(rows: StoredRows, root: Path) -> StoredRows:
    rows.save(root / "rows.json", root / "rows")
    return StoredRows.load(root / "rows.json", root / "rows", rows.digests)


def used(root: Path) -> dict[str, bytes]:
    names = json.loads((root / "rows.json").read_text())["buckets"]
    return {name: (root / "rows" / name).read_bytes() for name in names}


def assert_same(got: Rows, want: Rows) -> None:
    for name in ("features", "targets"):
        a, b = getattr(got, name), getattr(want, name)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)


@pytest.mark.parametrize(("n", "bits"), [(0, 0), (1, 0), (7, 0), (8, 1), (15, 1), (16, 2), (64, 4)])
def test_the_number_of_buckets_is_a_function_of_the_number_of_rows(n: int, bits: int) -> None:
    assert bucket_bits(n) == bits
    assert (
        len(StoredRows.of(rows_of(list(range(n))), digests_of(list(range(n)))).buckets) == 1 << bits
    )


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove"]), st.integers(0, 2**32), st.integers(1, 12), st.booleans()
    ),
    max_size=6,
)


@given(start=st.integers(1, 40), replayed=st.integers(0, 12), steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_any_history_ends_in_the_rows_and_files_of_starting_afresh(
    start: int, replayed: int, steps: list, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("rows")
    names, replay = list(range(start)), list(range(1000, 1000 + replayed))
    rows = written(StoredRows.of(rows_of(names + replay), digests_of(names + replay)), root)
    following = 100
    for action, seed, count, save in steps:
        if action == "add":
            new = list(range(following, following + count))
            following += count
            rows = rows.plus(len(names), rows_of(new), digests_of(new))
            names += new
        else:
            gone = np.random.default_rng(seed).permutation(len(names))[:count]
            rows = rows.without(gone)
            names = [name for i, name in enumerate(names) if i not in set(gone.tolist())]
        if save:
            rows = written(rows, root)
    everyone = names + replay
    assert list(rows.digests) == digests_of(everyone)
    assert_same(rows.whole(), rows_of(everyone))
    some = np.random.default_rng(0).permutation(len(everyone))[:5]
    assert_same(rows.select(some), rows_of(everyone).select(some))
    fresh = tmp_path_factory.mktemp("fresh")
    written(rows, root)
    written(StoredRows.of(rows_of(everyone), digests_of(everyone)), fresh)
    assert used(root) == used(fresh)
    assert (root / "rows.json").read_bytes() == (fresh / "rows.json").read_bytes()


def test_only_the_buckets_of_the_records_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = list(range(100))
    rows = written(StoredRows.of(rows_of(names), digests_of(names)), tmp_path)
    before = set(used(tmp_path))
    read: list[Path] = []
    original = files.read_arrays
    monkeypatch.setattr(files, "read_arrays", lambda path: (read.append(path), original(path))[1])
    assert_same(rows.select(np.array([7])), rows_of([7]))
    assert len(read) == 1
    after = written(rows.without(np.array([7])), tmp_path)
    assert len(set(read)) == 1
    assert before - set(used(tmp_path)) == {read[0].name}
    assert len(after) == 99


def test_another_number_of_buckets_is_read_and_brought_to_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a version that had them larger."""
    names = list(range(50))
    with monkeypatch.context() as older:
        older.setattr(stored_rows, "PER_BUCKET", 16)
        rows = written(StoredRows.of(rows_of(names), digests_of(names)), tmp_path)
    assert len(rows.buckets) == 2
    assert_same(rows.whole(), rows_of(names))
    for changed in (rows.without(np.array([3])), rows.plus(50, rows_of([90]), digests_of([90]))):
        assert len(changed.buckets) == 8
    assert_same(rows.without(np.array([0])).whole(), rows_of(names[1:]))


def test_rows_that_are_the_same_twice_are_both_kept(tmp_path: Path) -> None:
    """One image under two owners: forgetting one keeps the other."""
    names = [1, 2, 1, 3]
    rows = written(StoredRows.of(rows_of(names), digests_of(names)), tmp_path)
    assert_same(rows.without(np.array([0])).whole(), rows_of([2, 1, 3]))


def test_buckets_that_are_not_the_records_are_noticed(tmp_path: Path) -> None:
    names = list(range(20))
    written(StoredRows.of(rows_of(names), digests_of(names)), tmp_path)
    other = StoredRows.load(tmp_path / "rows.json", tmp_path / "rows", digests_of(names[1:]))
    with pytest.raises(FormatError, match="not as many as records"):
        other.whole()
    listed = json.loads((tmp_path / "rows.json").read_text())
    listed["buckets"].pop()
    (tmp_path / "less.json").write_text(json.dumps(listed))
    with pytest.raises(FormatError, match="no power of two"):
        StoredRows.load(tmp_path / "less.json", tmp_path / "rows", digests_of(names))
    used_names = sorted(used(tmp_path))
    (tmp_path / "rows" / used_names[0]).unlink()
    with pytest.raises(FormatError, match=f"missing: {used_names[0]}.*restore the workspace"):
        StoredRows.load(tmp_path / "rows.json", tmp_path / "rows", digests_of(names)).whole()
