"""Whatever the history, the statistics are those of training on what remains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parts.compact.sums import KERNELS, Arrays, fitted, forced, random_rows, tuned
from tests.reference import exact_digest, exact_statistics

from efface.parts.compact import exact as exact_module
from efface.parts.compact import statistics as module
from efface.parts.compact.exact import Kernel, int8_kernel_is_exact
from efface.parts.compact.statistics import Statistics


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


@pytest.mark.parametrize("limbs", [1, 2])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_few_rows_are_taken_out_by_several_threads(num_threads: int, limbs: int) -> None:
    """A thread a strip: three of them, and the digest of the rows that stay."""
    rows, targets = random_rows(60, 2 * module.STRIP + 65, 3)
    statistics = Statistics(rows.shape[1], 3, limbs=limbs)
    statistics.add(rows, targets)
    with threads(num_threads):
        statistics.remove(rows[:7], targets[:7])
    assert statistics.digest() == exact_digest(rows[7:], targets[7:], 8, 16)


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
def test_the_digest_is_the_same_taken_from_the_words_of_a_file(limbs: int) -> None:
    rows, targets = random_rows(90, 600, 2, bits=16)
    packed = fitted(rows, targets, bits=16, limbs=limbs)
    arrays = packed.to_arrays()
    with mock.patch.object(module.Statistics, "_word_blocks", side_effect=AssertionError):
        found = packed.digest()  # known since the words were packed
    assert found == exact_digest(rows, targets, 16, 16)
    again = Statistics.from_arrays(arrays)
    assert again.digest() == found
    again.remove(rows[:1], targets[:1])
    again.to_arrays()
    assert again.digest() == exact_digest(rows[1:], targets[1:], 16, 16)


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
