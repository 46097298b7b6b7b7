"""The activation cache: rows come back, purged rows are gone, and a crash leaves nothing behind."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import cases
from tests.faults import Disk
from torch import Tensor

from efface.data.record import Split
from efface.errors import EffaceError
from efface.network.activations import ActivationCache
from efface.network.core import Core
from efface.network.training import Stage

SHAPE = (3, 2, 2)
PREFIX = "ab" * 32


def digest(i: int) -> str:
    return f"{i:064x}"


def digests(count: int, start: int = 0) -> list[str]:
    return [digest(i) for i in range(start, start + count)]


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def opened(folder: Path, dtype: str = "float32") -> ActivationCache:
    return ActivationCache(folder, PREFIX, SHAPE, dtype)


def everything(folder: Path) -> bytes:
    """Every byte of every file below a folder."""
    return b"".join(p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file())


def raw(row: Tensor, dtype: str = "float32") -> bytes:
    return row.numpy().astype(dtype).tobytes()


# --- rows come back -------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 64, 65, 200])
def test_rows_come_back_in_any_order(tmp_path: Path, count: int) -> None:
    cache, x = opened(tmp_path), rows(count)
    cache.put(digests(count), x)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    got = cache.rows([digest(int(i)) for i in order])
    assert len(got) == len(cache) == count
    assert torch.equal(got[0:count], x[order])
    assert torch.equal(got[torch.tensor([count - 1, 0])], x[order][[count - 1, 0]])
    assert torch.equal(got.select(np.array([count - 1]))[0:1], x[order][-1:])


def test_float16_rounds_each_entry_once(tmp_path: Path) -> None:
    x = rows(5)
    opened(tmp_path, "float16").put(digests(5), x)
    got = opened(tmp_path, "float16").rows(digests(5))[0:5]
    assert got.dtype == torch.float16
    assert torch.equal(got, x.half())


def test_float16_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    cache, x = opened(tmp_path, "float16"), rows(2)
    x[1, 0, 0, 0] = 70_000
    with pytest.raises(EffaceError, match=r"up to 70000 do not fit float16.*float32"):
        cache.put(digests(2), x)
    assert len(cache) == len(opened(tmp_path, "float16")) == 0


@pytest.mark.parametrize("dtype", ["float64", "int8", "bfloat16"])
def test_other_types_are_refused(tmp_path: Path, dtype: str) -> None:
    with pytest.raises(EffaceError, match="use one of float32, float16"):
        opened(tmp_path, dtype)


def test_types_do_not_mix(tmp_path: Path) -> None:
    opened(tmp_path).put(digests(2), rows(2))
    assert len(opened(tmp_path, "float16")) == 0


def test_reopening_finds_everything(tmp_path: Path) -> None:
    opened(tmp_path).put(digests(70), rows(70))
    again = opened(tmp_path)
    assert again.digests == set(digests(70))
    assert torch.equal(again.rows(digests(70))[0:70], rows(70))


def test_missing_names_each_absent_record_once(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(digests(2), rows(2))
    assert cache.missing([digest(5), digest(0), digest(5), digest(6), digest(1)]) == [0, 3]
    assert digest(0) in cache
    assert digest(5) not in cache


def test_a_record_put_twice_keeps_one_row(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put([digest(0), digest(1), digest(0)], rows(1).expand(3, *SHAPE))
    cache.put([digest(1)], rows(1))
    assert len(cache) == 2
    assert everything(tmp_path).count(raw(rows(1)[0])) == 2  # one of each, no orphan
    assert torch.equal(cache.rows([digest(0), digest(1)])[0:2], rows(1).expand(2, *SHAPE))


def test_rows_of_another_shape_are_refused(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    with pytest.raises(
        EffaceError, match=r"shape \(3, 2, 1\) do not fit this cache of \(3, 2, 2\)"
    ):
        cache.put(digests(2), rows(2)[..., :1])
    cache.put(digests(2), rows(2))
    with pytest.raises(EffaceError, match="use another cache directory"):
        ActivationCache(tmp_path, PREFIX, (3, 4))


def test_no_rows_are_no_trouble(tmp_path: Path) -> None:
    got = opened(tmp_path).rows([])
    assert len(got) == 0
    assert got[0:5].shape == (0, *SHAPE)


# --- purging --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_purged_record_leaves_no_bytes(tmp_path: Path, dtype: str) -> None:
    cache, x = opened(tmp_path, dtype), rows(6)
    cache.put(digests(6), x)
    assert raw(x[2], dtype) in everything(tmp_path)  # the search would find it
    assert cache.purge([digest(2), digest(4), digest(2), digest(99)]) == 2
    left = everything(tmp_path)
    for gone in (2, 4):
        assert raw(x[gone], dtype) not in left
        assert digest(gone).encode() not in left
        assert digest(gone) not in cache
    kept = [0, 1, 3, 5]
    for store in (cache, opened(tmp_path, dtype)):
        got = store.rows([digest(i) for i in kept])[0:4]
        assert torch.equal(got, x[kept].to(got.dtype))


def test_purging_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(digests(3), rows(3))
    before = everything(tmp_path)
    assert cache.purge([digest(7)]) == 0
    assert everything(tmp_path) == before


def test_places_are_used_again(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(digests(64), rows(64))
    size = (cache.path / "rows.bin").stat().st_size
    cache.purge(digests(10))
    cache.put(digests(10, start=100), rows(10, seed=1))
    assert (cache.path / "rows.bin").stat().st_size == size
    assert torch.equal(cache.rows(digests(10, start=100))[0:10], rows(10, seed=1))
    assert torch.equal(cache.rows(digests(54, start=10))[0:54], rows(64)[10:])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 9), min_size=1)), max_size=8))
def test_any_history_leaves_what_is_in_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[bool, set[int]]]
) -> None:
    folder, x, present = tmp_path_factory.mktemp("cache"), rows(10), set[int]()
    for is_put, chosen in history:
        cache, names = opened(folder), [digest(i) for i in sorted(chosen)]
        if is_put:
            cache.put(names, x[sorted(chosen)])
            present |= chosen
        else:
            cache.purge(names)
            present -= chosen
    cache, left = opened(folder), everything(folder)
    assert cache.digests == {digest(i) for i in present}
    got = cache.rows([digest(i) for i in sorted(present)])
    assert torch.equal(got[0 : len(present)], x[sorted(present)])
    assert [raw(row) in left for row in x] == [i in present for i in range(10)]


# --- crashes --------------------------------------------------------------------------------------


def left_by_a_kill(folder: Path, work: Path, act: Callable[[], object]) -> list[Path]:
    """Copies of the folder as a process would leave it that dies at each operation on the disk."""
    found: list[Path] = []

    def watch(_: int) -> None:
        found.append(shutil.copytree(folder, work / str(len(found))))

    with Disk(watch=watch).installed():
        act()
    return found


@pytest.mark.parametrize("before", [0, 3, 64])  # none, some, and a file that is full
def test_a_kill_while_putting_is_harmless(tmp_path: Path, before: int) -> None:
    """What is there afterwards is right, what is not has left nothing; and it can be put again."""
    folder, new = tmp_path / "cache", rows(5, seed=1)
    cache, names = opened(folder), digests(5, start=80)
    for i in range(before):  # lines of a log, which the new ones follow
        cache.put([digest(i)], rows(before)[i : i + 1])
    seen = set()
    copies = left_by_a_kill(folder, tmp_path, lambda: opened(folder).put(names, new))
    for copy in (*copies, folder):
        again = opened(copy)
        seen.add(len(again) - before)
        assert again.is_tidy()
        assert again.digests - set(names) == set(digests(before))
        assert torch.equal(again.rows(digests(before))[0:before], rows(before))
        if names[0] in again:
            assert torch.equal(again.rows(names)[0:5], new)
        else:  # a record that was never entered can never be purged: its row must not be there
            assert not any(raw(row) in everything(copy) for row in new)
        again.put(names, new)
        assert torch.equal(opened(copy).rows(names)[0:5], new)
    assert seen == {0, 5}
    assert len(copies) > 10


def test_a_kill_while_purging_is_harmless(tmp_path: Path) -> None:
    folder, x = tmp_path / "cache", rows(4)
    opened(folder).put(digests(3), x[:3])
    opened(folder).put([digest(3)], x[3:])
    seen = set()
    copies = left_by_a_kill(folder, tmp_path, lambda: opened(folder).purge([digest(1), digest(3)]))
    for copy in (*copies, folder):
        again = opened(copy)
        seen.add(len(again))
        assert again.is_tidy()
        if len(again) == 4:  # the purge never began: rows are whole, not zeros
            assert torch.equal(again.rows(digests(4))[0:4], x)
            again.purge([digest(1), digest(3)])
        left = everything(copy)
        for gone in (1, 3):
            assert raw(x[gone]) not in left
            assert digest(gone).encode() not in left
        assert torch.equal(again.rows([digest(0), digest(2)])[0:2], x[[0, 2]])
    assert seen == {2, 4}


def test_a_full_disk_is_an_error_and_the_cache_goes_on(tmp_path: Path) -> None:
    """At each operation in turn; half a line may be in the log then, and must not stay before others."""
    x = rows(9)
    for at in range(100):
        folder = tmp_path / str(at)
        cache = opened(folder)
        cache.put(digests(3), x[:3])
        disk = Disk(at, errno.ENOSPC)
        with disk.installed(), suppress(OSError):
            cache.put(digests(3, start=3), x[3:6])
        if len(disk.done) <= at:
            break
        cache.put(digests(3, start=6), x[6:])
        assert torch.equal(cache.rows(digests(3))[0:3], x[:3])
        again = opened(folder)
        assert torch.equal(again.rows(digests(3))[0:3], x[:3])
        assert torch.equal(again.rows(digests(3, start=6))[0:3], x[6:])
        assert again.is_tidy()
        if digest(3) in again:
            assert torch.equal(again.rows(digests(3, start=3))[0:3], x[3:6])
    assert at > 4


# --- the index ------------------------------------------------------------------------------------


def test_adding_writes_what_is_added_and_not_the_index_again(tmp_path: Path) -> None:
    cache, sizes = opened(tmp_path), []
    index, log = cache.path / "index.json", cache.path / "index.log"
    cache.put([digest(0)], rows(1))
    whole = index.read_bytes()
    for i in range(1, 200):
        before = log.stat().st_size
        cache.put([digest(i)], rows(1))
        sizes.append(log.stat().st_size - before)
    assert index.read_bytes() == whole
    assert max(sizes) < 200  # a digest and two places
    assert len(opened(tmp_path)) == 200
    assert torch.equal(opened(tmp_path).rows(digests(200))[0:200], rows(1).expand(200, *SHAPE))


def test_a_cache_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    """It has one index, without a number, written anew with every batch."""
    cache = opened(tmp_path)
    cache.put(digests(3), rows(3))
    places = cache._places
    values = {"shape": SHAPE, "capacity": places.capacity, "slots": places.slots}
    values |= {"free": list(places.free), "pending": []}
    (cache.path / "index.json").write_text(json.dumps(values))
    # A log that such a version left lying: it counts for nothing, also where it has the first number.
    log = cache.path / "index.log"
    log.write_text("1\n" + json.dumps({"entered": {digest(7): 0}}) + "\n")
    again = opened(tmp_path)
    assert again.digests == set(digests(3))
    assert not log.exists()
    again.put([digest(5)], rows(1, seed=4))
    assert torch.equal(opened(tmp_path).rows(digests(3))[0:3], rows(3))
    assert torch.equal(opened(tmp_path).rows([digest(5)])[0:1], rows(1, seed=4))


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        '{"capacity": 64}',
        '{"capacity": 64, "pending": [9]}',  # not the next free one
        '{"capacity": 1000000000000000, "pending": [4]}',
        '{"entered": {"x": 0}}',  # a place that has a record
        '{"entered": {"x": 7}}',  # and one that is not pending
    ],
)
def test_a_log_that_cannot_be_is_refused(tmp_path: Path, line: str) -> None:
    cache = opened(tmp_path)
    for i in range(4):
        cache.put([digest(i)], rows(4)[i : i + 1])
    with (cache.path / "index.log").open("a") as log:
        log.write(line + "\n")
    with pytest.raises(EffaceError, match="does not fit the rows"):
        opened(tmp_path)


def test_only_looking_writes_nothing(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    for i in range(4):
        cache.put([digest(i)], rows(4)[i : i + 1])
    with (cache.path / "index.log").open("a") as log:
        log.write('{"entered')  # cut short
    before = everything(tmp_path)
    looked = ActivationCache(tmp_path, PREFIX, SHAPE, recover=False)
    assert looked.digests == set(digests(4))
    assert everything(tmp_path) == before
    assert opened(tmp_path).digests == set(digests(4))
    assert everything(tmp_path) != before


def test_a_half_written_index_is_dropped(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.put(digests(2), rows(2))
    (cache.path / "index.json.tmp").write_text(json.dumps({"slots": {digest(9): 1}})[:-5])
    assert opened(tmp_path).digests == set(digests(2))
    assert digest(9).encode() not in everything(tmp_path)


# --- whose activations they are ------------------------------------------------------------------


def core(**options: object) -> Core:
    return Core("cnn", classes=["a", "b", "c"], **options)  # type: ignore[arg-type]


def test_another_prefix_does_not_read_them(tmp_path: Path) -> None:
    records = cases.tiny_records(6)
    first, second = core(seed=0), core(seed=1)
    first.activations(records, first.cache(tmp_path))
    assert len(first.cache(tmp_path)) == 6
    assert len(second.cache(tmp_path)) == 0
    with pytest.raises(EffaceError, match="activations of another core"):
        second.activations(records, first.cache(tmp_path))


def test_the_same_prefix_shares_them_whatever_the_tail(tmp_path: Path) -> None:
    records = cases.tiny_records(6)
    first, second = core(leaky_slope=0.1), core(leaky_slope=None)
    first.fit(cases.tiny_records(6, 1, split=Split.CORE), [Stage("tail", 1)])
    first.activations(records, first.cache(tmp_path))
    assert first.digest != second.digest
    assert len(second.cache(tmp_path)) == 6


def test_what_has_no_weights_is_part_of_the_prefix() -> None:
    def build(activation: torch.nn.Module) -> Core:
        torch.manual_seed(0)
        net = cases.named_sequential()
        net.stem[2] = activation
        return Core(net, classes=["a", "b"], preprocess=core().backbone.preprocess)

    assert build(torch.nn.ReLU()).prefix_digest == build(torch.nn.ReLU()).prefix_digest
    assert build(torch.nn.ReLU()).prefix_digest != build(torch.nn.GELU()).prefix_digest


def test_training_the_prefix_makes_the_old_cache_strange(tmp_path: Path) -> None:
    network, records = core(), cases.tiny_records(6, split=Split.CORE)
    cache = network.cache(tmp_path)
    old = network.activations(records, cache)[0:6].clone()
    # The tail stage after the one that trained the prefix must not read the rows of the old prefix.
    network.fit(records, [Stage("all", 2), Stage("tail", 1)], cache=cache)
    with pytest.raises(EffaceError, match=r"of this one before training.*core\.cache"):
        network.activations(records, cache)
    new = network.activations(records, network.cache(tmp_path))[0:6]
    assert not torch.equal(new, old)
    assert torch.equal(new, network.activations(records)[0:6])
    assert torch.equal(cache.rows(records.digests)[0:6], old)  # and nothing was written to it


def test_rows_are_known_by_content_not_by_name(tmp_path: Path) -> None:
    images, labels = cases.blobs(4)
    network = core()
    cache = network.cache(tmp_path)
    network.activations(cases.records_of(images, labels, name="x"), cache)
    with mock.patch.object(network, "boundary", side_effect=AssertionError):  # nothing to compute
        network.activations(cases.records_of(images, labels, name="other names "), cache)
    assert len(cache) == 4
    brighter = cases.records_of(255 - images, labels, name="x")  # the same names, other pictures
    got = network.activations(brighter, cache)
    assert len(cache) == 8
    assert torch.equal(got[0:4], network.activations(brighter)[0:4])


def test_copies_of_a_picture_share_a_row(tmp_path: Path) -> None:
    images, labels = cases.blobs(3)
    twice = np.concatenate([images, images])
    network = core()
    cache = network.cache(tmp_path)
    got = network.activations(cases.records_of(twice, labels * 2), cache)
    assert len(cache) == 3
    assert len(got) == 6
    assert torch.equal(got[0:3], got[3:6])
