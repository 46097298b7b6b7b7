"""Many records: rows and activations in temporary files, some images at a time; the model is the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.workspaces import CORE, LEFT, NEW, OWNER, contents, core, fitted, people

from efface import spool
from efface.data import loading
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.activations import SpooledActivations
from efface.parts.compact import stored_rows
from efface.parts.compact import user as compact
from efface.parts.compact.rows import Rows
from efface.parts.compact.spooled_rows import SpooledRows
from efface.shards import Partial
from efface.workspace import Workspace


@pytest.fixture(autouse=True)
def several_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "PER_BUCKET", 8)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is so small that it stays in memory, and batches are tiny."""
    monkeypatch.setattr(spool, "MOST_IN_MEMORY", 0)
    monkeypatch.setattr(compact, "BATCH", 4)


def digests(model: MixedLinear) -> tuple[str, str]:
    return model.user.statistics_digest, model.user.weights_digest


def test_a_compact_model_is_the_same_with_its_rows_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = fitted("compact", people())
    assert isinstance(plain.data.rows, Rows)  # type: ignore[union-attr]
    Workspace.create(tmp_path / "plain", plain)
    plain.forget(owner=OWNER)
    request.getfixturevalue("on_disk")
    model = fitted("compact", people())
    assert isinstance(model.data.rows, SpooledRows)  # type: ignore[union-attr]
    Workspace.create(tmp_path / "spooled", model)
    same = [contents(tmp_path / name) for name in ("plain", "spooled")]
    names = [name for name in same[0] if "rows" in name or "statistics" in name]
    assert len(names) > 4
    for name in names:
        assert same[0][name] == same[1][name]
    model.forget(owner=OWNER)
    assert digests(model) == digests(plain) == digests(fitted("compact", LEFT))
    for each in (model, plain):
        each.add(NEW)
    assert digests(model) == digests(plain)


@pytest.mark.usefixtures("on_disk")
def test_a_forgotten_row_is_in_no_file_any_more() -> None:
    model = fitted("compact", people())
    before = model.data.rows  # type: ignore[union-attr]
    gone = np.flatnonzero(np.array(model.data.records.owners) == OWNER)  # type: ignore[union-attr]
    forgotten = before.select(gone).features
    model.forget(owner=OWNER)
    left = model.data.rows.whole().features  # type: ignore[union-attr]
    assert len(left) == len(before) - len(gone)
    assert not any((left == row).all(1).any() for row in forgotten)


@pytest.mark.usefixtures("on_disk")
def test_a_tangent_model_reads_its_activations_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted("tangent", people())
    assert isinstance(model.data.activations, SpooledActivations)  # type: ignore[union-attr]
    monkeypatch.setattr(spool, "MOST_IN_MEMORY", 1 << 27)
    plain = fitted("tangent", people())
    assert model.user.weights_digest == plain.user.weights_digest
    for each in (model, plain):
        each.forget(owner=OWNER, test_seed=b"the same")
    assert model.user.weights_digest == plain.user.weights_digest
    assert isinstance(model.data.activations, SpooledActivations)  # type: ignore[union-attr]
    assert len(model.data.activations) == len(LEFT) + len(CORE)  # type: ignore[union-attr]


def test_few_images_and_activations_are_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "BATCH", 4)
    model = fitted("compact", people())
    expected, seen, ahead = digests(model), [], []
    read: list[str] = []
    original, rows = loading.checked_image, model.user.rows

    def look(shown: loading.Depicted) -> np.ndarray:
        read.append(shown.id)
        return original(shown)

    def watched(activations: Rows, labels: object) -> Rows:
        seen.append(len(activations))
        ahead.append(len(read) - sum(seen))
        return rows(activations, labels)

    monkeypatch.setattr(loading, "checked_image", look)
    monkeypatch.setattr(model.user, "rows", watched)
    model.fit(people(), replay=CORE)
    assert digests(model) == expected
    assert sum(seen) == len(people()) + len(CORE)
    assert max(seen) == 4
    assert max(ahead) <= loading.AHEAD * 4


@pytest.mark.usefixtures("on_disk")
def test_a_partial_of_rows_on_disk_is_that_of_rows_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = fitted("compact", people()[:0])
    Partial.make(model, people(), "1/1").save(tmp_path / "a")
    monkeypatch.setattr(spool, "MOST_IN_MEMORY", 1 << 27)
    Partial.make(model, people(), "1/1").save(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_the_cache_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "BATCH", 4)
    cached = MixedLinear(core(), cache=core().cache(tmp_path), features=120)
    for _ in range(2):  # the second time all of them are there
        cached.fit(Records(people()), replay=CORE)
        assert digests(cached) == digests(fitted("compact", people()))
