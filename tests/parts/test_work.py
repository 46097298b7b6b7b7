"""The work of a request, counted: what `make bench` measures in seconds, here without a clock."""

from __future__ import annotations

from typing import Any

import pytest
from tests.workspaces import CORE, fitted, people

from efface.parts.compact.statistics import Statistics


@pytest.mark.parametrize("n", [30, 60])
def test_a_request_sums_its_own_records_whatever_stays(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training sums all rows; a request those that go, and no other."""
    summed: list[int] = []
    update = Statistics._update

    def counting(self: Statistics, rows: Any, targets: Any, sign: int) -> None:
        summed.append(len(rows))
        update(self, rows, targets, sign)

    monkeypatch.setattr(Statistics, "_update", counting)
    records = people(n)
    model = fitted("compact", records)
    assert sum(summed) == n + len(CORE)
    summed.clear()
    model.forget(ids=records.ids[:3])
    assert sum(summed) == 3
