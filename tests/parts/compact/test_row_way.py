"""From few rows, without a factor between features: the same bits, or the usual way after all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from tests.parts.compact.compacts import CORE_RECORDS, digests, model_of, user_records

from efface.network.core import Core
from efface.parts.compact import ridge, row_way
from efface.parts.compact.factor import Factor
from efface.parts.compact.ridge import solve
from efface.parts.compact.row_way import RowWay
from efface.parts.compact.rows import Rows
from efface.parts.compact.statistics import Statistics
from efface.parts.compact.stored_rows import StoredRows

SCALES: dict[str, Any] = {"scale": 2.0**-6, "target_scale": 2.0**-9}


def fitted(n: int, k: int, seed: int = 0) -> tuple[Statistics, Rows]:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (n, k), dtype=np.int8)
    targets = rng.integers(-3000, 3000, (n, 3)).astype(np.int16)
    statistics = Statistics(k, 3)
    statistics.add(rows, targets)
    return statistics, Rows(rows, targets)


def way_of(rows: Rows | StoredRows, k: int, strength: float) -> RowWay | None:
    return RowWay.of(rows, np.full(k, SCALES["scale"]), strength, len(rows))


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 60),
    strength=st.sampled_from([1e-8, 1e-3, 0.5, 40.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_it_leads_to_the_same_bits(n: int, strength: float, seed: int) -> None:
    statistics, rows = fitted(n, 160, seed)
    way = way_of(rows, 160, strength)
    found = [solve(statistics, ridge=strength, **SCALES, near=near) for near in (way, None)]
    assert found[0].theta.tobytes() == found[1].theta.tobytes()
    assert all(solution.proved for solution in found)


def test_it_is_the_inverse() -> None:
    _, rows = fitted(20, 90)
    way = way_of(rows, 90, 0.5)
    assert way is not None
    real = rows.features * SCALES["scale"]
    right = np.random.default_rng(1).normal(size=(4, 90))
    want = np.linalg.solve(real.T @ real + 0.5 * np.eye(90), right.T).T
    np.testing.assert_allclose(way.solve(right), want, rtol=1e-9, atol=1e-12)


def test_it_is_all_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    statistics, rows = fitted(60, 200)
    way = way_of(rows, 200, 0.5)
    want = solve(statistics, ridge=0.5, **SCALES)

    def no_factor(*_: object) -> None:
        raise AssertionError("a factor between features was made")

    monkeypatch.setattr(ridge._System, "factor", no_factor)
    assert solve(statistics, ridge=0.5, **SCALES, near=way).theta.tobytes() == want.theta.tobytes()


def test_rows_on_disk_do_as_well(tmp_path: Path) -> None:
    _, rows = fitted(40, 160)
    stored = StoredRows.of(rows, [f"{i:064x}" for i in range(40)])
    ways = [way_of(r, 160, 0.5) for r in (rows, stored)]
    right = np.ones((1, 160))
    assert ways[0] is not None
    assert ways[1] is not None
    np.testing.assert_allclose(ways[0].solve(right), ways[1].solve(right), rtol=1e-9)


def test_other_rows_change_no_bit() -> None:
    """Forged rows, or those of another set, cost time."""
    statistics, _ = fitted(60, 200)
    way = way_of(fitted(60, 200, seed=7)[1], 200, 0.5)
    want = solve(statistics, ridge=0.5, **SCALES)
    assert solve(statistics, ridge=0.5, **SCALES, near=way).theta.tobytes() == want.theta.tobytes()


def test_many_rows_other_rows_and_no_ridge_are_for_a_factor() -> None:
    _, rows = fitted(61, 160)
    most = int(row_way.MOST_ROWS * 160)
    assert way_of(rows.select(np.arange(most)), 160, 0.5) is not None
    assert way_of(rows.select(np.arange(most + 1)), 160, 0.5) is None
    assert way_of(rows.select(np.arange(9)), 160, 0.0) is None
    scale = np.full(160, SCALES["scale"])
    assert RowWay.of(rows.select(np.arange(9)), scale, 0.5, 10) is None


@pytest.mark.parametrize("damage", ["gone", "cut", "narrow"])
def test_rows_that_cannot_be_read_are_no_way_and_no_error(tmp_path: Path, damage: str) -> None:
    """A request reads the rows it takes out; damage to others is found by `verify`."""
    _, rows = fitted(40, 160)
    digests = [f"{i:064x}" for i in range(40)]
    StoredRows.of(rows, digests).save(tmp_path / "index.json", tmp_path / "rows")
    stored = StoredRows.load(tmp_path / "index.json", tmp_path / "rows", digests)
    assert way_of(stored, 160, 0.5) is not None
    (bucket,) = (tmp_path / "rows").iterdir()
    if damage == "gone":
        bucket.unlink()
    elif damage == "cut":
        bucket.write_bytes(bucket.read_bytes()[:100])
    else:
        less = {"features": rows.features[:, :9], "targets": rows.targets}
        bucket.write_bytes(save({name: a.copy() for name, a in less.items()}))
    again = StoredRows.load(tmp_path / "index.json", tmp_path / "rows", digests)
    assert way_of(again, 160, 0.5) is None


def test_a_request_takes_it(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the rows of the records that stay; and the model is that of retraining without the others."""
    model = model_of(core).fit(user_records(30), replay=CORE_RECORDS)
    sizes: list[int] = []
    real = Factor.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Factor], strips: Any, scale: np.ndarray, *rest: Any) -> Factor | None:
        sizes.append(len(scale))
        return real(cls, strips, scale, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(Factor, "of", classmethod(of))
    gone = [record.id for record in user_records(30)[:2]]
    certificate = model.forget(ids=gone)
    num_left = model.user.statistics.num_rows  # type: ignore[union-attr]
    assert sizes == [num_left]
    assert num_left < model.user.num_features
    again = model_of(core).fit(user_records(30)[2:], replay=CORE_RECORDS)
    assert certificate.weights_digest == digests(again.user)[1]  # type: ignore[arg-type]
