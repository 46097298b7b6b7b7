"""What cannot be in the sums, or out of them, is refused and changes nothing; sums in and out of arrays."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.parts.compact.sums import fitted, random_rows, refused, tuned
from tests.parts.compact.test_compact_statistics import assert_equal_to_twin
from tests.reference import exact_digest, exact_statistics

from efface.errors import EffaceError, FormatError
from efface.parts.compact.exact import ExactArray
from efface.parts.compact.statistics import Statistics


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
