"""``--dry-run``: what is counted, and that the compact part is not taken for the tangent one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests import cases
from tests.shell import efface, values_of, write
from tests.workspaces import CORE, TEST, people
from torch import Tensor

from efface.arithmetic.exact.form import ExactForm
from efface.arithmetic.form import FloatForm, Form
from efface.arithmetic.integer.form import IntegerForm
from efface.commands.display import Mode, show
from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.pipeline.config import Config, load_config
from efface.pipeline.estimate import (
    LOOK,
    PASSES,
    Speed,
    Speeds,
    _compact_seconds,
    _test_seconds,
    _user_seconds,
    estimate,
)
from efface.pipeline.train import _accuracy
from efface.progress import duration

SPEED = Speed(activations=0.1, prefix=0.09, tail=0.01, product=0.02)
SPEEDS = Speeds(SPEED, SPEED)


def config(**given: object) -> Config:
    return load_config(None, {"data.spec": "digits", **given})


def test_compact_has_no_passes_of_a_solver() -> None:
    digits = Records.digits()
    compact = _compact_seconds(config(), digits, 1000, SPEEDS)
    assert compact < _user_seconds(config(), 1000, 10, 10_000, SPEED) / 10
    more = _compact_seconds(config(), digits, 2000, SPEEDS)
    rows = 3 * 1000 * SPEED.tail
    solve = _compact_seconds(config(**{"user.features": 8192}), digits, 1000, SPEEDS) - compact
    assert rows < more - compact < rows + solve


def test_without_core_data_synthetic_images_are_counted() -> None:
    digits = Records.digits()
    bare = _compact_seconds(config(), digits.user, 1000, SPEEDS)
    assert bare - _compact_seconds(config(), digits, 1000, SPEEDS) == pytest.approx(
        (256 - 96) * (LOOK * SPEED.prefix + 3 * SPEED.tail)
    )


def test_calibration_is_counted_in_floats() -> None:
    """The network that is looked at is the float one, however fast rows are on bytes."""
    digits = Records.digits()
    fast = Speeds(SPEED, Speed(activations=0.02, prefix=0.01, tail=0.01))
    same = _compact_seconds(config(), digits, 1000, SPEEDS)
    assert _compact_seconds(config(), digits, 1000, fast) == pytest.approx(same)


def seen_at_the_end(count: int, *, core: bool = True) -> Records:
    digits = Records.digits()
    kept = {*digits.test.ids[:count], *(digits.core.ids if core else ())}
    return digits.where(lambda record: record.id in kept)


def test_test_images_are_seen_twice() -> None:
    """By the core, and by the model; where the core was not trained, by the model alone."""
    assert _test_seconds(config(), seen_at_the_end(10), SPEEDS) == pytest.approx(
        10 * (0.2 + 0.01 + 0.03)
    )
    assert _test_seconds(config(), seen_at_the_end(0), SPEEDS) == 0
    bare = _test_seconds(config(), seen_at_the_end(10, core=False), SPEEDS)
    assert bare == pytest.approx(10 * (0.1 + 0.03))


def test_they_are_seen_once_in_floats_and_once_in_the_models_arithmetic() -> None:
    slow = Speed(activations=1.0, prefix=0.9, tail=0.1)
    seconds = _test_seconds(config(), seen_at_the_end(10), Speeds(SPEED, slow))
    assert seconds == pytest.approx(10 * (0.11 + 1.3))


def test_a_core_that_was_not_trained_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head is zero: what it says of the test images, slowly and in floats, is nothing."""
    core, records = small("resnet-basic")
    asked = cases.tiny_records(4, 2, channels=3, split=Split.TEST)
    model = MixedLinear(core, features=60).fit(records)
    monkeypatch.setattr(Core, "logits", lambda *_, **__: pytest.fail("the core was asked"))
    assert _accuracy(model, asked, None) == {"core": None, "user": pytest.approx(0.5, abs=0.5)}


@pytest.mark.parametrize("kind", ["cg", "dual"])
def test_an_iterative_solver_is_not_counted_with_its_limit(kind: str) -> None:
    given = {"user.kind": "tangent", "user.solver": kind}
    seconds = _user_seconds(config(**given), 1000, 10, 10_000, SPEED)
    assert seconds == pytest.approx(PASSES * 1000 * SPEED.product)
    few = {**given, "user.solver": {"kind": kind, "max_passes": 7}}
    assert _user_seconds(config(**few), 1000, 10, 10_000, SPEED) == pytest.approx(7 * 20)


def test_sgd_is_counted_with_its_epochs() -> None:
    given = {"user.kind": "tangent", "user.solver": "sgd", "user.epochs": 4}
    assert _user_seconds(config(**given), 1000, 10, 10_000, SPEED) == pytest.approx(5 * 20)


# What is timed.


def counted(monkeypatch: pytest.MonkeyPatch, form: type[Form]) -> list[int]:
    """The images that each call of this form's prefix is given from now on."""
    seen: list[int] = []
    plain = form.boundary_of

    def boundary_of(self: Form, images: Tensor) -> Tensor:
        seen.append(len(images))
        return plain(self, images)  # type: ignore[arg-type]

    monkeypatch.setattr(form, "boundary_of", boundary_of)
    return seen


def small(kind: str) -> tuple[Core, Records]:
    records = cases.tiny_records(6, 1, channels=3)
    side = cases.TINY[kind][1]
    net = cases.randomised(cases.tiny(kind))
    return Core(net, classes=records.classes, preprocess=Preprocess(side, side)), records


@pytest.mark.parametrize(
    ("kind", "arithmetic", "timed"),
    [
        ("vit", "auto", ExactForm),
        ("vit", "float", FloatForm),
        ("resnet-basic", "auto", IntegerForm),
    ],
)
def test_the_arithmetic_that_will_be_used_is_timed(
    kind: str, arithmetic: str, timed: type[Form], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact sums take two to three times as long as floats, so timing these instead is off by as much."""
    core, records = small(kind)
    seen = {form: counted(monkeypatch, form) for form in (ExactForm, IntegerForm)}
    guess = estimate(config(**{"user.arithmetic": arithmetic}), core, records)
    assert guess.form == timed.kind
    assert guess.num_passes is None
    for form, calls in seen.items():
        assert (sum(calls) >= 2 * 3 * len(records)) is (form is timed)  # from files, and alone


def test_the_tangent_part_is_timed_in_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    core, records = small("vit")
    seen = counted(monkeypatch, ExactForm)
    guess = estimate(config(**{"user.kind": "tangent", "user.mu": 0.1}), core, records)
    assert (guess.form, guess.num_passes) == (FloatForm.kind, PASSES)
    assert seen == []


def test_scales_that_only_a_trained_core_has_are_not_needed_to_guess() -> None:
    core, records = small("resnet-basic")
    given = {"user.kind": "tangent", "user.mu": 0.1, "user.scales": "balanced"}
    assert estimate(config(**given), core, records).minutes_estimate > 0


def test_training_says_what_it_took_and_a_look_before_what_it_would(tmp_path: Path) -> None:
    data = write(tmp_path / "data.npz", CORE, people(), TEST)
    words = ("train", data, "--features", 40, "--out", tmp_path / "model")
    shown = efface(*words)
    assert shown.exit_code == 0, shown.stderr
    assert re.search(r"took \d+ s", shown.stdout)
    values = values_of(efface(*words, "--overwrite", "--json"))
    assert values["seconds"] > 0
    few = values_of(efface("train", data, "--dry-run", "--features", 40, "--json"))
    assert few["form"] == "integer"
    assert few["passes_estimate"] is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (89, "89 s"), (180, "3 min"), (9000, "2.5 h")]
)
def test_times_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json_progress_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with show("core", Mode.JSON) as progress:
        progress(0.25, "epoch 1/4")
        progress(1.0, "epoch 4/4")
    first, last = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["seconds_left"] >= 0
    assert last["seconds_left"] == 0
