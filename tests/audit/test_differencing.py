"""Two releases tell which image was deleted, and the audit says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.audit.scenes import records, scene

from efface.audit.differencing import Identified, identify, identify_in, ranking_in, scores


def rank_of_one(kind: str, position: int) -> int:
    """How many candidates have a higher score than the one record that was deleted."""
    base = scene(kind)
    one = base.forgetting(torch.tensor([position]))
    releases = [one.solve(index, tolerance=1e-8) for index in (one.everyone, one.retained)]
    ranking = ranking_in(one, *releases)
    return int((ranking > ranking[position]).sum())


def test_the_deleted_image_is_found_among_all_without_knowing_anybody() -> None:
    """Unprotected releases of the default user part: the attack must succeed, every time."""
    assert [rank_of_one("compact", i) for i in range(0, 300, 30)] == [0] * 10


def test_the_tangent_part_gives_it_away_nearly_as_well() -> None:
    """A strong ridge and no noise; 300 candidates."""
    assert max(rank_of_one("tangent", i) for i in range(0, 300, 60)) < 15


def test_a_batch_does_not_hide_its_images() -> None:
    base = scene("compact")
    before = base.solve(base.everyone)
    result = identify_in(base, before, base.solve(base.retained))
    assert result.deleted == len(base.forget) == 30
    assert result.candidates == 300
    assert result.by_chance == 3
    assert result.found >= 15


def test_nothing_is_found_where_nothing_was_deleted() -> None:
    """The same release twice, up to noise that has nothing to do with the candidates: chance."""
    base = scene("compact")
    before = base.solve(base.everyone)
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(len(before), generator=generator, dtype=torch.float64)
    found = identify_in(base, before, before + 1e-3 * noise)
    assert found.found <= 10  # 3 by chance, of 30


def test_the_outputs_move_against_the_residual_at_the_deleted_record() -> None:
    """f' − f = −ℓ (t − f') for one record, to rounding."""
    rng = np.random.default_rng(0)
    x, t, ridge = rng.normal(size=(20, 6)), rng.normal(size=(20, 3)), 0.5

    def solved(keep: np.ndarray) -> np.ndarray:
        h = x[keep].T @ x[keep] + ridge * np.eye(6)
        return x @ np.linalg.solve(h, x[keep].T @ t[keep])

    keep = np.arange(20) != 7
    before, after = solved(np.ones(20, dtype=bool)), solved(keep)
    ranking = scores(before, after, t)
    assert ranking[7] == pytest.approx(1, abs=1e-9)
    assert identify(ranking, np.array([7])) == Identified(1, 1, 20)


def test_the_audit_tells_what_differencing_shows(tmp_path: Path) -> None:
    from tests.audit.test_audit_commands import audited, workspace

    opened = workspace(tmp_path / "w", "compact")
    asked = records().user[:5]
    opened.forget(ids=asked.ids)
    values = audited(opened, asked, tmp_path / "out")
    assert values["ok"]  # it is not what the certificate is about, and it says so
    assert values["differencing"]["found"] == 5
    page = (tmp_path / "out" / "report.html").read_text()
    assert "5 of the 5 deleted images" in page
