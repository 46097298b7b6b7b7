"""The mixed-linear model with the paper's user part: the core's at first, better after fitting, the same
after saving."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, FormatError
from efface.linear.last_layer import LastLayer
from efface.linear.solution import Status
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.network.training import Stage
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.sgd import SGD

CLASSES = ["a", "b", "c"]


def user_records(n: int = 45, seed: int = 1) -> Records:
    return cases.tiny_records(n, seed)


TEST = cases.tiny_records(60, 9, split=Split.TEST)


@pytest.fixture(scope="module")
def core() -> Core:
    """Barely trained, so that there is something left for the user part to learn."""
    records = cases.tiny_records(12, 0, split=Split.CORE)
    return Core("cnn", classes=CLASSES).fit(records, [Stage("all", epochs=2, batch_size=4)])


# --- predictions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"fast": False}])
def test_without_user_weights_it_is_the_core_to_the_bit(
    core: Core, options: dict[str, object]
) -> None:
    model = MixedLinear(core, "tangent", **options)
    assert torch.equal(model.logits(TEST), core.logits(TEST))
    assert model.accuracy(TEST) == core.accuracy(TEST)


def test_with_user_weights_it_is_the_core_plus_the_tangent(core: Core) -> None:
    model = MixedLinear(core, "tangent").fit(user_records())
    x = torch.as_tensor(core.activations(TEST)[0:8])
    jac = explicit_jacobian(core.tail.double(), x.double())
    core.tail.float()
    want = core.logits_of(x).double() + jac @ model.user.weights
    # float32 products of J and w: 1e-7 of terms of size 1, several hundred of them.
    torch.testing.assert_close(model.logits_of(x).double(), want, rtol=1e-4, atol=1e-4)


def test_fitting_improves_on_the_core(core: Core) -> None:
    model = MixedLinear(core, "tangent")
    assert core.accuracy(TEST) < 0.9
    assert model.fit(user_records(90)) is model
    assert model.solution is not None
    assert model.solution.ok
    assert model.accuracy(TEST) > core.accuracy(TEST) + 0.1


def test_predictions_are_class_names(core: Core) -> None:
    model = MixedLinear(core, "tangent").fit(user_records())
    names = model.predict(TEST)
    assert len(names) == len(TEST)
    assert set(names) <= set(CLASSES)
    labels = [record.label for record in TEST]
    right = sum(a == b for a, b in zip(names, labels, strict=True)) / len(TEST)
    assert model.accuracy(TEST) == pytest.approx(right)  # float32 mean of 60
    scores = model.predict_proba(TEST)
    np.testing.assert_allclose(scores.sum(1), 1, atol=1e-6)  # float32
    assert [CLASSES[i] for i in scores.argmax(1)] == names.tolist()


def test_the_weights_minimise_the_loss(core: Core) -> None:
    """‖g‖ ≤ 1e-8 · ‖g(0)‖ on the final weights, measured on a problem built from the records anew."""
    model = MixedLinear(core, "tangent", solver=ConjugateGradient(tolerance=1e-8, max_passes=2000))
    model.fit(user_records())
    records = user_records()
    problem = model.user.problem(core.activations(records), torch.from_numpy(records.labels))
    at_zero = float(problem.gradient(problem.zeros(), torch.float64).norm())
    assert float(problem.gradient(model.user.weights, torch.float64).norm()) <= 1e-8 * at_zero


def test_the_order_of_the_records_does_not_matter(core: Core) -> None:
    solver = ConjugateGradient(tolerance=1e-10, max_passes=3000)
    records = user_records()
    a = MixedLinear(core, "tangent", solver=solver).fit(records).user.weights
    b = (
        MixedLinear(core, "tangent", solver=solver)
        .fit(records[list(reversed(range(45)))])
        .user.weights
    )
    # Both are within 1e-10 ‖g(0)‖/μ of the minimum.
    torch.testing.assert_close(a, b, rtol=0, atol=1e-6 * float(a.norm()))


def test_with_a_cache_it_is_the_same_model(core: Core, tmp_path: Path) -> None:
    plain = MixedLinear(core, "tangent").fit(user_records())
    cached = MixedLinear(core, "tangent", cache=core.cache(tmp_path)).fit(user_records())
    assert torch.equal(plain.user.weights, cached.user.weights)
    assert torch.equal(plain.logits(TEST), cached.logits(TEST))


def test_replayed_core_records_take_part(core: Core) -> None:
    replay = cases.tiny_records(12, 0, split=Split.CORE)
    with_replay = MixedLinear(core, "tangent").fit(user_records(), replay=replay)
    together = MixedLinear(core, "tangent").fit(user_records() + replay)
    assert torch.equal(with_replay.user.weights, together.user.weights)
    assert not torch.equal(
        with_replay.user.weights, MixedLinear(core, "tangent").fit(user_records()).user.weights
    )


def test_a_solve_that_stopped_short_is_there_to_be_seen(core: Core) -> None:
    model = MixedLinear(core, "tangent", solver=ConjugateGradient(tolerance=1e-12, max_passes=4))
    model.fit(user_records())
    assert model.solution is not None
    assert model.solution.status is Status.STOPPED_SHORT
    assert model.solution.advice


def test_progress_is_reported(core: Core) -> None:
    seen: list[tuple[float, str]] = []
    solver = SGD(epochs=2, lr=1e-4)
    MixedLinear(core, "tangent", solver=solver).fit(
        user_records(), progress=lambda done, text: seen.append((done, text))
    )
    assert any(text.startswith("activations") for _, text in seen)
    assert seen[-1] == (1.0, "epoch 2/2")
    assert all(0 <= done <= 1 for done, _ in seen)


# --- edges ----------------------------------------------------------------------------------------


def test_no_user_records_mean_no_user_weights(core: Core) -> None:
    model = MixedLinear(core, "tangent").fit(user_records())
    model.fit(user_records()[[]], replay=cases.tiny_records(12, 0, split=Split.CORE))
    assert not model.user.weights.any()
    assert model.solution is None  # not the earlier solve's
    assert torch.equal(model.logits(TEST), core.logits(TEST))


def test_evaluating_on_nothing_is_an_error(core: Core) -> None:
    with pytest.raises(EffaceError, match="no records to evaluate on"):
        MixedLinear(core, "tangent").accuracy(TEST[[]])


def test_predicting_nothing_is_nothing(core: Core, tmp_path: Path) -> None:
    for cache in (None, core.cache(tmp_path)):
        model = MixedLinear(core, "tangent", cache=cache)
        assert model.predict(TEST[[]]).shape == (0,)
        assert model.predict_proba(TEST[[]]).shape == (0, 3)


def test_classes_in_another_order_are_refused(core: Core) -> None:
    images, labels = cases.blobs(6)
    swapped = cases.records_of(images, labels, classes=["c", "b", "a"])
    with pytest.raises(EffaceError, match="classes differ"):
        MixedLinear(core, "tangent").fit(swapped)
    with pytest.raises(EffaceError, match="classes differ"):
        MixedLinear(core, "tangent").accuracy(swapped)


def test_unknown_user_parts_are_refused(core: Core) -> None:
    with pytest.raises(EffaceError, match=r"unknown user part 'linear'.*tangent"):
        MixedLinear(core, "linear")


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"mu": 0.5, "target_scale": 2.0}, {"fast": False}])
def test_a_saved_model_predicts_the_same_to_the_bit(
    core: Core, tmp_path: Path, options: dict[str, object]
) -> None:
    model = MixedLinear(core, "tangent", **options).fit(user_records())
    model.save(tmp_path)
    again = MixedLinear.load(tmp_path)
    assert again.core.digest == core.digest
    assert torch.equal(again.user.weights, model.user.weights)
    assert torch.equal(again.logits(TEST), model.logits(TEST))
    assert again.user.settings == model.user.settings


def test_no_training_data_is_saved(core: Core, tmp_path: Path) -> None:
    records = user_records()
    MixedLinear(core, "tangent").fit(records).save(tmp_path)
    data = b"".join(path.read_bytes() for path in tmp_path.rglob("*"))
    for record in records:
        assert record.digest.encode() not in data
        assert record.owner.encode() not in data
        assert record.image().tobytes() not in data
    rows = core.activations(records)
    assert not any(rows[i : i + 1].numpy().tobytes() in data for i in range(len(records)))


def test_changed_user_weights_are_noticed(core: Core, tmp_path: Path) -> None:
    MixedLinear(core, "tangent").fit(user_records()).save(tmp_path)
    path = tmp_path / "user.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="are not those that were saved"):
        MixedLinear.load(tmp_path)


def test_user_weights_of_another_core_are_refused(core: Core, tmp_path: Path) -> None:
    MixedLinear(core, "tangent").save(tmp_path / "a")
    MixedLinear(Core("cnn", classes=CLASSES, seed=5), "tangent").save(tmp_path / "b")
    (tmp_path / "b" / "model.json").replace(tmp_path / "a" / "model.json")
    with pytest.raises(FormatError, match="belong to another core"):
        MixedLinear.load(tmp_path / "a")


def test_user_weights_of_another_length_are_refused(core: Core, tmp_path: Path) -> None:
    MixedLinear(core, "tangent").save(tmp_path / "a")
    MixedLinear(Core("cnn", classes=CLASSES, linearize="head"), "tangent").save(tmp_path / "b")
    (tmp_path / "b" / "user.safetensors").replace(tmp_path / "a" / "user.safetensors")
    with pytest.raises(FormatError, match="are not those that were saved"):
        MixedLinear.load(tmp_path / "a")


def test_other_schema_versions_are_refused(core: Core, tmp_path: Path) -> None:
    MixedLinear(core, "tangent").save(tmp_path)
    path = tmp_path / "model.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "schema": "efface.model/99"}))
    with pytest.raises(FormatError, match=r"'efface\.model/99'.*reads 'efface\.model/1'"):
        MixedLinear.load(tmp_path)


# --- the small parts beside it --------------------------------------------------------------------


def test_targets_are_scaled_one_hot_rows() -> None:
    got = one_hot(torch.tensor([2, 0]), 3)
    want = torch.tensor([[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(got, want)
    assert float(one_hot(torch.tensor([1]), 2, scale=0.5).sum()) == 0.5


def test_the_last_layer_is_ridge_regression() -> None:
    """Stationary: Hᵀ(HΘ − Y)/n + μΘ = 0 with H the features and a constant; float64 rounding."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(20, 3, generator=generator, dtype=torch.float64)
    fitted = LastLayer.fit(features, targets, 0.1)
    h = torch.cat([features, torch.ones(20, 1, dtype=torch.float64)], dim=1)
    gradient = h.T @ (h @ fitted.theta - targets) / 20 + 0.1 * fitted.theta
    assert float(gradient.abs().max()) < 1e-13
    torch.testing.assert_close(fitted.logits(features), h @ fitted.theta)


def test_linearising_the_head_alone_is_the_last_layer() -> None:
    """Two implementations of one model: a zero head's tangent part is ridge on the features."""
    core = Core("cnn", classes=CLASSES, linearize="head")
    solver = ConjugateGradient(tolerance=1e-11, max_passes=3000)
    records = user_records()
    model = MixedLinear(core, "tangent", mu=0.01, solver=solver).fit(records)
    features = core.features_of(core.activations(records))
    targets = one_hot(torch.from_numpy(records.labels), 3)
    layer = LastLayer.fit(features, targets, 0.01)
    got = model.user.operator.layout.views(model.user.weights)
    # 1e-11 of the gradient over μ = 0.01.
    torch.testing.assert_close(got["classifier.weight"], layer.theta[:-1].T, rtol=0, atol=1e-6)
    torch.testing.assert_close(got["classifier.bias"], layer.theta[-1], rtol=0, atol=1e-6)
