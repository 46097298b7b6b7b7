"""``--dry-run``: what is counted, and that the compact part is not taken for the tangent one."""

from __future__ import annotations

import json

import pytest

from efface.commands.display import Mode, show
from efface.data.records import Records
from efface.pipeline.config import Config, load_config
from efface.pipeline.estimate import Speed, _compact_seconds, _test_seconds, _user_seconds

SPEED = Speed(activations=0.1, prefix=0.09, tail=0.01, product=0.02)


def config(**given: object) -> Config:
    return load_config(None, {"data.spec": "digits", **given})


def test_compact_has_no_passes_of_a_solver() -> None:
    digits = Records.digits()
    compact = _compact_seconds(config(), digits, 1000, SPEED)
    assert compact < _user_seconds(config(), 1000, 10, 10_000, SPEED) / 10
    more = _compact_seconds(config(), digits, 2000, SPEED)
    rows = 3 * 1000 * SPEED.tail
    solve = _compact_seconds(config(**{"user.features": 8192}), digits, 1000, SPEED) - compact
    assert rows < more - compact < rows + solve


def test_without_core_data_synthetic_images_are_counted() -> None:
    digits = Records.digits()
    bare = _compact_seconds(config(), digits.user, 1000, SPEED)
    assert bare - _compact_seconds(config(), digits, 1000, SPEED) == pytest.approx(
        (256 - 96) * (SPEED.prefix + 3 * SPEED.tail)
    )


def test_test_images_are_seen_twice() -> None:
    assert _test_seconds(config(), 10, SPEED) == pytest.approx(10 * (0.2 + 0.01 + 0.03))
    assert _test_seconds(config(), 0, SPEED) == 0


def test_json_progress_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with show("core", Mode.JSON) as progress:
        progress(0.25, "epoch 1/4")
        progress(1.0, "epoch 4/4")
    first, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["seconds_left"] >= 0
    assert last["seconds_left"] == 0
