"""Whatever the history, the statistics are those of training on what remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.reference import exact_digest, exact_statistics

from efface.errors import EffaceError, FormatError
from efface.parts.compact import exact as exact_module
from efface.parts.compact import statistics as module
from efface.parts.compact.exact import ExactArray, Kernel, int8_kernel_is_exact
from efface.parts.compact.statistics import Statistics

Arrays = tuple[np.ndarray, np.ndarray]
KERNELS = [kernel for kernel in Kernel if kernel is not Kernel.INT8 or int8_kernel_is_exact()]


@contextmanager
def tuned(strip: int, block: int, kernel: Kernel | None = None) -> Iterator[None]:
    """Small strips and blocks, and a given kernel, so that small cases take every path."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(module, "STRIP", strip))
        stack.enter_context(mock.patch.dict(exact_module.BLOCK_ROWS, dict.fromkeys(Kernel, block)))
        if kernel is not None:
            stack.enter_context(forced(kernel))
        yield


@contextmanager
def forced(kernel: Kernel) -> Iterator[None]:
    """One kernel for every block, but for single rows, which the int8 one is never given."""

    def pick(bits: int, num_rows: int) -> Kernel:
        return kernel if num_rows > 1 else Kernel.FLOAT64

    with mock.patch.object(module, "pick_kernel", pick):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_rows(n: int, k: int, c: int, bits: int = 8, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    top = 2 ** (bits - 1) - 1
    rows = rng.integers(-top, top, (n, k), endpoint=True, dtype=np.int16)
    return rows, rng.integers(-32767, 32767, (n, c), endpoint=True, dtype=np.int16)


def fitted(rows: np.ndarray, targets: np.ndarray, **options: int) -> Statistics:
    statistics = Statistics(rows.shape[1], targets.shape[1], **options)
    statistics.add(rows, targets)
    return statistics


def assert_equal_to_twin(statistics: Statistics, twin: tuple[list, list, int]) -> None:
    gram, cross, n = twin
    entries = [strip.to_ints() for strip in statistics._gram]
    for (start, stop), values in zip(statistics._spans(), entries, strict=True):
        assert values == [value for row in gram[start:stop] for value in row[:stop]]
    assert statistics._cross.to_ints() == [value for row in cross for value in row]
    assert statistics.diagonal() == [gram[i][i] for i in range(len(gram))]
    assert statistics.num_rows == n


@st.composite
def histories(draw: st.DrawFn) -> dict:
    """Rows, and events that add, remove, add again and merge over three workers."""
    n, k, c = draw(st.integers(1, 10)), draw(st.integers(1, 7)), draw(st.integers(1, 3))
    bits = draw(st.sampled_from([2, 8, 12, 16]))
    pending = [["add"] + ["remove", "add"] * draw(st.integers(0, 2)) for _ in range(n)]
    for events in pending:
        events += ["remove"] * draw(st.booleans())
    kept = [events[-1] == "add" for events in pending]
    worker = [draw(st.integers(0, 2)) for _ in range(n)]
    steps: list[tuple[str, int, list[int]]] = []
    while any(pending):
        row = draw(st.sampled_from([i for i, events in enumerate(pending) if events]))
        event = (pending[row].pop(0), worker[row])
        if steps and steps[-1][:2] == event and row not in steps[-1][2] and draw(st.booleans()):
            steps[-1][2].append(row)  # a larger batch
        else:
            steps.append((*event, [row]))
        if worker[row] != 0 and draw(st.integers(0, 5)) == 0:
            gone = worker[row]
            steps.append(("merge", gone, []))
            worker = [0 if w == gone else w for w in worker]
    rows, targets = random_rows(n, k, c, bits, draw(st.integers(0, 2**32 - 1)))
    return {"rows": rows, "targets": targets, "bits": bits, "steps": steps, "kept": kept}


def replay(history: dict, limbs: tuple[int, int, int]) -> Statistics:
    rows, targets = history["rows"], history["targets"]
    shape = (rows.shape[1], targets.shape[1])
    workers = [Statistics(*shape, bits=history["bits"], limbs=count) for count in limbs]
    for i, (event, worker, batch) in enumerate(history["steps"]):
        if event == "merge":
            workers[0].merge(workers[worker])
            workers[worker] = Statistics(*shape, bits=history["bits"])
        else:
            with threads(1 + i % 2):
                getattr(workers[worker], event)(rows[batch], targets[batch])
    workers[0].merge(workers[1])
    workers[0].merge(workers[2])
    return workers[0]


@settings(max_examples=150, deadline=None)
@given(
    history=histories(),
    strip=st.sampled_from([1, 3, 512]),
    block=st.integers(1, 5),
    kernel=st.sampled_from([None, *KERNELS]),
    limbs=st.sampled_from([(1, 1, 1), (2, 2, 2), (2, 1, 2)]),
)
def test_any_history_ends_in_the_digest_of_what_remains(
    history: dict, strip: int, block: int, kernel: Kernel | None, limbs: tuple[int, int, int]
) -> None:
    fit_for_bits = kernel if history["bits"] <= 8 else None
    with tuned(strip, block, fit_for_bits):
        statistics = replay(history, limbs)
        rows, targets = history["rows"][history["kept"]], history["targets"][history["kept"]]
        assert_equal_to_twin(statistics, exact_statistics(rows, targets))
        assert statistics.digest() == exact_digest(rows, targets, history["bits"], 16)
        assert statistics.digest() == fitted(rows, targets, bits=history["bits"]).digest()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_kernels_at_their_own_sizes_and_extremes(kernel: Kernel, num_threads: int) -> None:
    """Full blocks of the largest values, more than a block of rows and a strip of features."""
    n, k = exact_module.BLOCK_ROWS[kernel] + 37, module.STRIP + 65
    rows, targets = random_rows(n, k, 3)
    rows[:, ::3] = np.where(rows[:, ::3] > 0, 127, -127)  # (an even share of extremes)
    rows[:, 1] = 127
    targets[:, 0] = 32767
    with threads(num_threads), forced(kernel):
        statistics = fitted(rows, targets)
    wide = rows.astype(np.float64)  # sums below 2^53: any order is exact
    np.testing.assert_array_equal(statistics.gram(), wide.T @ wide)
    np.testing.assert_array_equal(statistics.cross(), wide.T @ targets)


@pytest.mark.parametrize("num_rows", [1, exact_module.SMALL, exact_module.SMALL + 1, 5000])
@pytest.mark.parametrize("bits", [2, 8, 9, 16])
def test_no_block_can_pass_what_its_kernel_holds(bits: int, num_rows: int) -> None:
    kernel = exact_module.pick_kernel(bits, num_rows)
    holds = {Kernel.INT8: 2**31 - 1, Kernel.FLOAT32: 2**24, Kernel.FLOAT64: 2**53 - 2**48}[kernel]
    top = 2 ** (bits - 1) - 1
    assert exact_module.BLOCK_ROWS[kernel] * top**2 <= holds
    assert exact_module.BLOCK_ROWS[kernel] * top * 32767 <= 2**53 - 2**48  # B is always float64
    assert bits <= 8 or kernel is Kernel.FLOAT64


def test_without_an_exact_int8_kernel_float32_takes_over() -> None:
    with mock.patch.object(exact_module, "int8_kernel_is_exact", return_value=False):
        assert exact_module.pick_kernel(8, 1000) is Kernel.FLOAT32


def plain_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left.double() @ right.double()).to(torch.int32)


def saturating_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """What processors without VNNI do: unsigned times signed, pairs of products in 16 bits."""
    pairs = (left.double() + 128).unfold(1, 2, 2), right.double().t().unfold(1, 2, 2)
    sums = torch.einsum("mpi,epi->mep", *pairs).clamp(-(2**15), 2**15 - 1).sum(-1)
    return (sums - 128 * right.double().sum(0)).to(torch.int32)


@pytest.mark.parametrize(
    ("vnni", "product", "exact"),
    [(True, plain_product, True), (True, saturating_product, False), (False, plain_product, False)],
)
def test_a_saturating_int8_kernel_is_found_out(
    vnni: bool, product: Callable[..., torch.Tensor], exact: bool
) -> None:
    with (
        mock.patch.object(torch.cpu, "_is_vnni_supported", return_value=vnni, create=True),
        mock.patch.object(torch, "_int_mm", product, create=True),
    ):
        assert int8_kernel_is_exact.__wrapped__() is exact


def uninitialised(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (left.shape[0], right.shape[1])).to(torch.int32)


@pytest.mark.parametrize("product", [saturating_product, uninitialised])
def test_an_int8_product_that_failed_silently_is_not_used(
    product: Callable[..., torch.Tensor],
) -> None:
    rows, targets = random_rows(100, 9, 2)
    with mock.patch.object(torch, "_int_mm", product, create=True), tuned(4, 100, Kernel.INT8):
        statistics = fitted(rows, targets)
        assert statistics.digest() == exact_digest(rows, targets, 8, 16)


def test_a_last_block_of_one_row() -> None:
    """torch's int8 product of one row with itself is uninitialised memory: it must not be used."""
    rows, targets = random_rows(exact_module.BLOCK_ROWS[Kernel.INT8] + 1, 6, 2)
    wide = rows.astype(np.int64)
    np.testing.assert_array_equal(fitted(rows, targets).gram(), wide.T @ wide)


def test_autocast_does_not_round_the_sums() -> None:
    rows, targets = random_rows(100, 8, 2)
    with forced(Kernel.FLOAT32), torch.autocast("cpu", dtype=torch.bfloat16):
        inside = fitted(rows, targets).digest()
    assert inside == exact_digest(rows, targets, 8, 16)


def fit_part(part: Arrays) -> dict[str, np.ndarray]:
    with threads(1):
        return fitted(*part).to_arrays()


def test_partitions_over_processes_merge_to_one_digest() -> None:
    rows, targets = random_rows(300, 40, 3)
    bounds = [(0, 170), (170, 171), (171, 300)]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        parts = list(pool.map(fit_part, [(rows[a:b], targets[a:b]) for a, b in bounds]))
    merged = Statistics(40, 3)
    for part in parts[::-1]:
        merged.merge(Statistics.from_arrays(part))
    assert merged.digest() == fitted(rows, targets).digest()


@pytest.mark.parametrize("limbs", [1, 2])
def test_removing_everything_is_the_empty_digest(limbs: int) -> None:
    rows, targets = random_rows(90, 600, 2, bits=16)
    statistics = fitted(rows, targets, bits=16, limbs=limbs)
    assert statistics.digest() != Statistics(600, 2, bits=16).digest()
    statistics.remove(rows[:80], targets[:80])
    statistics.remove(rows[80:], targets[80:])
    assert statistics.digest() == Statistics(600, 2, bits=16).digest()
    assert not statistics.gram().any()


def test_the_digest_tells_apart_what_differs() -> None:
    rows, targets = random_rows(5, 3, 2, bits=6)
    digests = [
        fitted(rows, targets).digest(),
        fitted(rows, targets, bits=9).digest(),
        fitted(rows, targets, target_bits=16, bits=7).digest(),
        fitted(rows[:, [1, 0, 2]], targets).digest(),
        fitted(rows, targets[:, ::-1]).digest(),
        fitted(-rows, targets).digest(),
        fitted(np.vstack([rows, 0 * rows[:1]]), np.vstack([targets, targets[:1]])).digest(),
    ]
    assert len(set(digests)) == len(digests)


def test_forgotten_targets_times_1000_leave_no_trace() -> None:
    rows, targets = random_rows(60, 30, 2)
    targets //= 1000
    loud = targets.copy()
    loud[:7] *= 1000
    statistics = fitted(rows, loud)
    assert statistics.digest() != fitted(rows, targets).digest()
    statistics.remove(rows[:7], loud[:7])
    assert statistics.digest() == fitted(rows[7:], targets[7:]).digest()


# What is refused, and that nothing changes


def refused(statistics: Statistics, action: Callable[[], None], message: str) -> None:
    before, arrays = statistics.digest(), statistics.to_arrays()
    with pytest.raises(EffaceError, match=message):
        action()
    assert statistics.digest() == before
    for key, value in statistics.to_arrays().items():
        np.testing.assert_array_equal(value, arrays[key])


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("target_bits", [8, 16])
def test_the_guard_refuses_before_any_harm_and_never_a_removal(
    limbs: int, target_bits: int
) -> None:
    step = 127 * (2 ** (target_bits - 1) - 1)
    rows, targets = np.full((10, 3), 127), np.full((10, 2), 2 ** (target_bits - 1) - 1)
    options = {"target_bits": target_bits, "limbs": limbs, "entry_limit": 10 * step + 5}
    statistics = fitted(rows, targets, **options)  # up to the limit
    assert statistics.max_rows == 10
    assert statistics.cross().max() == 10 * step
    one = fitted(rows[:1], targets[:1], target_bits=target_bits)
    refused(statistics, lambda: statistics.add(rows[:1], targets[:1]), "widened")
    refused(statistics, lambda: statistics.merge(one), "widened")
    for _ in range(5):  # what is there counts, not what has been
        statistics.remove(rows, targets)
        statistics.add(rows, targets)
    statistics.remove(rows[:1], targets[:1])
    statistics.merge(one)
    assert statistics.digest() == fitted(rows, targets, target_bits=target_bits).digest()


@given(seed=st.integers(0, 2**32 - 1), num_removed=st.integers(0, 8))
def test_cancelling_targets_may_be_removed_at_the_limit(seed: int, num_removed: int) -> None:
    """B may grow by a removal, since what cancelled is gone: there is room for that."""
    rows = np.random.default_rng(seed).choice([-127, 127], (8, 2))
    targets = np.random.default_rng(seed + 1).choice([-127, 127], (8, 2))
    statistics = fitted(rows, targets, target_bits=8, entry_limit=8 * 127 * 127)
    statistics.remove(rows[:num_removed], targets[:num_removed])
    left = rows[num_removed:], targets[num_removed:]
    assert statistics.digest() == exact_digest(*left, 8, 8)


def test_wrong_removals_cannot_drive_an_entry_past_what_is_exact() -> None:
    """(5, 5) in and (5, -5) out leaves no squares, but entries off the diagonal that only grow."""
    plus, minus, target = np.array([[127, 127]]), np.array([[127, -127]]), np.array([[1]])
    limit = 4 * 127 * 127
    statistics = fitted(plus, target, target_bits=8, entry_limit=limit)

    def churn() -> None:
        for _ in range(20):
            statistics.add(plus, target)
            statistics.remove(minus, target)

    with pytest.raises(EffaceError, match="not be exact"):
        churn()
    assert statistics._measure_entry_bound() <= 2 * limit


def test_one_limb_stops_before_it_is_inexact_and_two_go_on() -> None:
    rows, targets = random_rows(3, 4, 2, bits=16)
    rows[:, 0] = 32767
    narrow, count = fitted(rows, targets, bits=16), 1
    while narrow.num_rows * 2 <= narrow.max_rows:
        narrow.merge(narrow.copy())
        count *= 2
    assert_equal_to_twin(narrow, exact_statistics(rows, targets, [count] * 3))
    assert 2**51 < narrow._measure_entry_bound() <= 2**52
    refused(narrow, lambda: narrow.merge(narrow.copy()), "not be exact")
    wide = narrow.widened()
    assert wide.digest() == narrow.digest()
    wide.merge(narrow)
    assert_equal_to_twin(wide, exact_statistics(rows, targets, [2 * count] * 3))
    refused(narrow, lambda: narrow.merge(wide), "widened")


@settings(max_examples=40, deadline=None)
@given(
    doublings=st.integers(0, 65),
    seed=st.integers(0, 2**32 - 1),
    strip=st.sampled_from([1, 2, 512]),
)
def test_two_limbs_equal_python_integers_far_beyond_two_to_the_53(
    doublings: int, seed: int, strip: int
) -> None:
    rows, targets = random_rows(6, 3, 2, bits=16, seed=seed)
    with tuned(strip, 2):
        statistics = fitted(rows[:4], targets[:4], bits=16, limbs=2)
        for _ in range(doublings):
            statistics.merge(statistics)
        statistics.add(rows[4:], targets[4:])
        statistics.remove(rows[:1], targets[:1])
        counts = [2**doublings - 1] + [2**doublings] * 3 + [1, 1]
        twin = exact_statistics(rows, targets, counts)
        assert_equal_to_twin(statistics, twin)
        assert statistics.digest() == exact_digest(rows, targets, 16, 16, counts)
        again = Statistics.from_arrays(statistics.to_arrays())
        assert_equal_to_twin(again, twin)
        np.testing.assert_allclose(statistics.cross(), np.array(twin[1], float), rtol=2**-52)


@given(values=st.lists(st.integers(-(2**99), 2**99), min_size=1, max_size=5))
def test_words_of_two_limbs_are_the_integers(values: list[int]) -> None:
    first = [(value + 2**63) % 2**64 - 2**63 for value in values]
    second = [(value - word) >> 64 for value, word in zip(values, first, strict=True)]
    words = np.array([first, second], dtype=np.int64)
    array = ExactArray.from_words(words)
    assert array.to_ints() == values
    assert ((array.low >= 0) & (array.low < 2**48)).all()
    np.testing.assert_array_equal(array.words(), words)
    assert max(abs(value) for value in values) <= array.max_abs_bound()


def test_rows_that_were_never_added_are_refused_where_the_sums_can_tell() -> None:
    rows, targets = random_rows(4, 3, 2)
    statistics = fitted(rows, targets)
    both = np.vstack([rows, rows]), np.vstack([targets, targets])
    refused(statistics, lambda: statistics.remove(*both), "only 4 were added")
    loud = np.full((2, 3), 127), targets[:2]
    quiet = fitted(rows // 8, targets)
    refused(quiet, lambda: quiet.remove(*loud), "Feature 0")
    silent = np.zeros((4, 3), dtype=np.int8), targets  # n = 0 must leave no squares
    refused(statistics, lambda: statistics.remove(*silent), "Feature 0")


def test_a_remainder_without_rows_is_refused_and_undone() -> None:
    plus, minus = np.array([[5, 5]]), np.array([[5, -5]])
    target = np.array([[7]])
    statistics = fitted(plus, target)
    refused(statistics, lambda: statistics.remove(minus, target), "remainder")
    refused(statistics, lambda: statistics.remove(plus, -target), "remainder")
    statistics.remove(plus, target)
    assert statistics.digest() == Statistics(2, 1).digest()


@pytest.mark.parametrize(
    ("rows", "targets", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 1), int), "float64"),
        (np.zeros((2, 4), int), np.zeros((2, 1), int), r"shape \(2, 4\)"),
        (np.zeros((2, 3), int), np.zeros((3, 1), int), r"shape \(3, 1\)"),
        (np.full((2, 3), -128, np.int8), np.zeros((2, 1), int), "beyond ±127"),
        (np.zeros((2, 3), int), np.full((2, 1), 32768), "beyond ±32767"),
    ],
)
def test_bad_rows_are_refused(rows: np.ndarray, targets: np.ndarray, message: str) -> None:
    statistics = fitted(*random_rows(5, 3, 1))
    refused(statistics, lambda: statistics.add(rows, targets), message)
    refused(statistics, lambda: statistics.remove(rows, targets), message)


def test_statistics_of_other_widths_or_shapes_are_not_merged() -> None:
    statistics = fitted(*random_rows(5, 3, 1))
    for other in (Statistics(4, 1), Statistics(3, 2), Statistics(3, 1, bits=9)):
        refused(statistics, lambda other=other: statistics.merge(other), "same shape and bits")
    with pytest.raises(EffaceError, match="limbs"):
        Statistics(3, 1, limbs=3)


def test_an_update_cut_short_is_never_used_again() -> None:
    rows, targets = random_rows(5, 3, 1)
    statistics = fitted(rows, targets)
    failing = mock.patch.object(ExactArray, "add_product", side_effect=MemoryError)
    with failing, pytest.raises(MemoryError):
        statistics.add(rows, targets)
    for use in (statistics.digest, statistics.copy, statistics.to_arrays, statistics.cross):
        with pytest.raises(EffaceError, match="cut short"):
            use()
    with pytest.raises(EffaceError, match="cut short"):
        statistics.add(rows, targets)
    with pytest.raises(EffaceError, match="cut short"):
        Statistics(3, 1).merge(statistics)


# Values in and out


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("strip", [2, 512])
def test_arrays_and_back(limbs: int, strip: int) -> None:
    rows, targets = random_rows(9, 5, 2)
    with tuned(strip, 4):
        statistics = fitted(rows, targets, limbs=limbs)
        arrays = statistics.to_arrays()
        assert arrays["gram"].shape == (limbs, 15)  # the lower triangle only
        again = Statistics.from_arrays(arrays)
        assert again.digest() == statistics.digest()
        again.remove(rows[:3], targets[:3])  # the diagonal blocks are whole again
        assert_equal_to_twin(again, exact_statistics(rows[3:], targets[3:]))


def test_equal_statistics_save_equally_whatever_their_history() -> None:
    rows, targets = random_rows(20, 5, 2)
    forgetful = fitted(rows, targets)
    forgetful.remove(rows[:6], targets[:6])
    clean = fitted(rows[6:], targets[6:])
    for key, value in clean.to_arrays().items():
        assert value.tobytes() == forgetful.to_arrays()[key].tobytes()


def test_damaged_arrays_are_refused() -> None:
    arrays = fitted(*random_rows(9, 3, 2)).to_arrays()
    damages = [
        {"header": arrays["header"] + 1},
        {"header": arrays["header"] * [1, 1, 1, 1, 1, 1, -1, 1]},
        {"gram": arrays["gram"][:, :-1]},
        {"gram": -arrays["gram"]},
        {"gram": arrays["gram"] + 2**60},
        {"cross": arrays["cross"].astype(float)},
    ]
    for damage in damages:
        with pytest.raises(FormatError):
            Statistics.from_arrays({**arrays, **damage})
    with pytest.raises(FormatError, match="cross"):
        Statistics.from_arrays({key: arrays[key] for key in ("header", "gram")})


def test_a_copy_is_its_own() -> None:
    rows, targets = random_rows(9, 3, 2)
    statistics = fitted(rows, targets)
    twin = statistics.copy()
    twin.remove(rows, targets)
    assert statistics.digest() == fitted(rows, targets).digest()
    assert twin.digest() == Statistics(3, 2).digest()


def test_views_cannot_change_the_sums_and_rows_may_be_read_only() -> None:
    rows, targets = random_rows(9, 3, 2)
    rows.flags.writeable = targets.flags.writeable = False
    statistics = fitted(rows, targets)
    with pytest.raises(ValueError, match="read-only"):
        statistics.cross()[0, 0] = 1
    for _, _, strip in statistics.strips():
        with pytest.raises(ValueError, match="read-only"):
            strip[0, 0] = 1


def test_no_rows_change_nothing() -> None:
    rows, targets = random_rows(9, 3, 2)
    statistics = fitted(rows, targets)
    before = statistics.digest()
    statistics.add(rows[:0], targets[:0])
    statistics.remove(rows[:0], targets[:0])
    assert statistics.digest() == before
