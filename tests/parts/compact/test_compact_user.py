"""The compact user part: exact to the bit, whatever the order of taking in and taking out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import cases
from tests.parts.compact.compacts import (
    CLASSES,
    CORE_RECORDS,
    FEATURES,
    TEST,
    calibrated,
    digests,
    model_of,
    threads,
    user_records,
)
from tests.reference import cross_validated_ridge

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError, RequestError
from efface.linear.last_layer import LastLayer
from efface.network.core import Core
from efface.network.device import Placement
from efface.network.targets import one_hot
from efface.network.training import Stage
from efface.parts.compact.calibration import RIDGES
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser

# --- exactness on the level of rows ---------------------------------------------------------------


@cache
def small() -> tuple[Core, CompactUser]:
    """A user part of few features, so that hypothesis can go through many histories."""
    made = Core("cnn", classes=CLASSES).fit(CORE_RECORDS, [Stage("all", epochs=2, batch_size=4)])
    return made, calibrated(made, features=1)


@cache
def pool() -> Rows:
    """Some rows, two of them with the most extreme integers there are (targets × 1000, clipped)."""
    made, user = small()
    rows = user.rows(made.activations(user_records(10)), made.labels(user_records(10)))
    rows.targets[3], rows.targets[7] = 2**15 - 1, -(2**15) + 1
    return rows


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[bool, list[int]]]:
    """Steps (take in?, which rows); rows are taken out only when they are in, each at most once in."""
    inside: set[int] = set()
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        take_in = not inside or (len(inside) < 10 and draw(st.booleans()))
        choices = sorted(set(range(10)) - inside) if take_in else sorted(inside)
        which = draw(st.lists(st.sampled_from(choices), min_size=1, unique=True))
        inside = inside | set(which) if take_in else inside - set(which)
        steps.append((take_in, which))
    return steps


@settings(max_examples=40, deadline=None)
@given(histories())
def test_any_history_ends_where_its_last_state_begins(steps: list[tuple[bool, list[int]]]) -> None:
    _, user = small()
    user.reset()
    inside: list[int] = []
    for take_in, which in steps:
        part = pool().select(np.array(which))
        _ = user.add_rows(part) if take_in else user.remove_rows(part)
        inside = inside + which if take_in else [i for i in inside if i not in which]
    after = digests(user)
    user.reset()
    if inside:
        user.add_rows(pool().select(np.array(sorted(inside))))
    assert digests(user) == after


def test_taking_everything_out_leaves_the_core(core: Core) -> None:
    user = calibrated(core)
    fresh = digests(user)
    x = core.activations(TEST)
    rows = user.rows(core.activations(user_records()), core.labels(user_records()))
    user.add_rows(rows)
    assert digests(user) != fresh
    user.remove_rows(rows)
    assert digests(user) == fresh
    assert torch.equal(user.logits(x), core.logits_of(x))


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_order_batches_and_threads_do_not_change_the_statistics(core: Core, bits: int) -> None:
    """Given the rows: 100 at once use another kernel than batches of 7."""
    user = calibrated(core, bits=bits)
    rows = user.rows(core.activations(user_records(100)), core.labels(user_records(100)))
    user.add_rows(rows)
    want = digests(user)
    orders = [np.arange(100), np.random.default_rng(0).permutation(100)]
    for order in orders:
        for size in (7, 100):
            for count in (1, 2):
                user.reset()
                with threads(count):
                    for start in range(0, 100, size):
                        part = rows.select(order[start : start + size])
                        user.statistics.add(part.features, part.targets)  # type: ignore[union-attr]
                user.solve()
                assert digests(user) == want


@pytest.mark.parametrize("name", [case.name for case in cases.CASES if case.name != "tied weights"])
def test_a_row_does_not_depend_on_the_company_it_is_computed_in(name: str) -> None:
    """Bit for bit on 16 bits, alone, in a short batch, or in another place of a full one."""
    case = cases.BY_NAME[name]

    class Stub:
        """As much of a core as rows need."""

        tail, classes, place = case.build().float(), CLASSES, Placement()

    x, labels = case.inputs(40).float(), torch.arange(40) % 3
    gradients = {"layer_features": "gradients", "power": 1.0}
    user = CompactUser(Stub(), features=200, bits=16, mu=0.1, **gradients)  # type: ignore[arg-type]
    user.calibrate(x[:20], labels[:20])
    with torch.no_grad():
        everyone = user.rows(x, labels)
        for some in ([0], [39], [3, 7, 38], list(range(1, 40)), list(range(39, -1, -2))):
            alone, among = user.rows(x[some], labels[some]), everyone.select(np.array(some))
            assert np.array_equal(alone.features, among.features)
            assert np.array_equal(alone.targets, among.targets)


def test_rows_never_added_are_refused_and_change_nothing(core: Core) -> None:
    user = calibrated(core)
    rows = user.rows(core.activations(user_records(6)), core.labels(user_records(6)))
    user.add_rows(rows.select(np.arange(3)))
    before = digests(user)
    with pytest.raises(RequestError):
        user.remove_rows(rows)
    assert digests(user) == before


def test_a_solve_that_fails_leaves_everything_as_it_was(core: Core) -> None:
    """Without a ridge, fewer rows than features have no unique weights."""
    user = calibrated(core, mu=1.0)
    rows = user.rows(core.activations(user_records(20)), core.labels(user_records(20)))
    user.add_rows(rows.select(np.arange(10)))
    before, theta = digests(user), user.theta
    user.mu = 0.0
    for change, part in ((user.remove_rows, np.arange(4)), (user.add_rows, np.arange(10, 20))):
        with pytest.raises(EffaceError, match="larger --mu"):
            change(rows.select(part))
        assert digests(user) == before
        assert user.theta is theta


# --- exactness of models --------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 12, 16])
@pytest.mark.parametrize("replay", [None, CORE_RECORDS], ids=["alone", "with replay"])
@pytest.mark.parametrize("ridge", [{}, {"mu": 0.01}], ids=["chosen", "given"])
def test_forgetting_is_never_having_known(
    core: Core, bits: int, replay: Records | None, ridge: dict[str, float]
) -> None:
    records = user_records()
    gone = [records[i].id for i in (0, 7, 31, 44)]
    model = model_of(core, bits=bits, **ridge).fit(records, replay=replay)
    before, theirs = digests(model.user), core.digest
    model.forget(ids=gone)
    never = model_of(core, bits=bits, **ridge).fit(records.without(gone), replay=replay)
    assert digests(model.user) == digests(never.user) != before
    assert torch.equal(model.logits(TEST), never.logits(TEST))
    assert core.digest == theirs


def test_bases_scales_and_ridge_come_from_core_data_alone(core: Core) -> None:
    """Whoever the users are; a model that never saw any has the same."""
    models = [model_of(core).fit(user_records(30, seed)) for seed in (1, 2)]
    models.append(model_of(core).fit(user_records()[[]]))
    users = [model.user for model in models]
    assert all(user.total_ridge == users[0].total_ridge for user in users)
    for key, value in users[0].tensors.items():
        if key != "theta":
            assert all(torch.equal(user.tensors[key], value) for user in users)


def test_other_core_data_give_other_bases_and_scales(core: Core) -> None:
    user, other = calibrated(core), CompactUser(core, features=FEATURES)
    records = cases.tiny_records(12, 5, split=Split.CORE)
    other.calibrate(core.activations(records), core.labels(records))
    assert not torch.equal(
        user.tensors["projection.inputs.0"], other.tensors["projection.inputs.0"]
    )
    assert not torch.equal(user.tensors["quantiser.centre"], other.tensors["quantiser.centre"])


@pytest.mark.parametrize("replay", [None, CORE_RECORDS], ids=["alone", "with replay"])
def test_records_that_come_later_are_as_if_they_had_been_there(
    core: Core, replay: Records | None
) -> None:
    """Also when nobody was there at first, or everybody had left."""
    records = user_records()
    whole = model_of(core).fit(records, replay=replay)
    late = model_of(core).fit(records[[]], replay=replay)
    back = model_of(core).fit(user_records(6, 2), replay=replay)
    back.forget(everything=True)
    for model in (late, back):
        model.add(records)
        assert digests(model.user) == digests(whole.user)
        assert torch.equal(model.logits(TEST), whole.logits(TEST))


def test_fitting_again_does_not_calibrate_again(core: Core) -> None:
    model = model_of(core).fit(user_records())
    projection, quantiser = model.user.projection, model.user.quantiser
    model.fit(user_records(30, 2), calibration=user_records())
    assert model.user.projection is projection
    assert model.user.quantiser is quantiser


def test_before_calibration_it_says_what_is_missing() -> None:
    user = CompactUser(Core("cnn", classes=CLASSES), features=FEATURES)
    with pytest.raises(EffaceError, match=r"no bases and scales yet.*calibrate"):
        user.fit(torch.zeros(2, 32, 4, 4), torch.tensor([0, 1]))


def test_calibration_records_stand_in_for_core_data() -> None:
    model = model_of(Core("cnn", classes=CLASSES))
    model.fit(user_records(), calibration=CORE_RECORDS)
    assert model.accuracy(TEST) > 0.8


# --- the ridge ------------------------------------------------------------------------------------


def test_a_ridge_that_is_given_is_kept(core: Core) -> None:
    assert calibrated(core, mu=0.37).ridge_mu == 0.37
    assert calibrated(core, mu=0.37).total_ridge is None
    assert calibrated(core, total_ridge=0.2).total_ridge == 0.2


def test_the_chosen_ridge_is_one_of_the_grid_and_shared_by_all_rows(core: Core) -> None:
    user = calibrated(core)
    assert user.mu is None
    assert user.total_ridge in RIDGES
    rows = user.rows(core.activations(user_records(20)), core.labels(user_records(20)))
    user.add_rows(rows)
    assert user.ridge_mu == user.total_ridge / 20
    user.remove_rows(rows.select(np.arange(15)))
    assert user.ridge_mu == user.total_ridge / 5


@pytest.mark.parametrize("shuffled", [0, 20, 60])
def test_the_chosen_ridge_has_the_least_squared_error_on_held_out_core_data(
    core: Core, shuffled: int
) -> None:
    """The more labels are wrong, the larger it is."""
    labels = core.labels(CORE_RECORDS).clone()
    labels[:shuffled] = labels[:shuffled][torch.randperm(len(labels[:shuffled]))]
    user = CompactUser(core, features=FEATURES)
    user.calibrate(core.activations(CORE_RECORDS), labels)
    rows = user.rows(core.activations(CORE_RECORDS), labels).features * user.quantiser.scale
    targets = user.target_scale * np.eye(len(core.classes))[labels.numpy()]
    fold = np.zeros(len(labels), dtype=np.int64)  # the i-th record of a class is in fold i mod 5
    for label in range(len(core.classes)):
        members = np.flatnonzero(labels.numpy() == label)
        fold[members] = np.arange(len(members)) % 5
    assert user.total_ridge == cross_validated_ridge(rows, targets, fold, RIDGES)
    assert (user.total_ridge > 0.1) == bool(shuffled)


def test_one_core_record_a_class_cannot_choose(core: Core) -> None:
    user = CompactUser(core, features=FEATURES)
    three = CORE_RECORDS[:3]
    user.calibrate(core.activations(three), core.labels(three))
    assert user.total_ridge in RIDGES


# --- what the model is ----------------------------------------------------------------------------


def test_the_weights_solve_the_ridge_of_the_quantised_rows(core: Core) -> None:
    """(QᵀQ/n + μI) Θ = QᵀT/n written out in float64, targets y − f_core."""
    user = calibrated(core, mu=0.02)
    x, labels = core.activations(user_records()), core.labels(user_records())
    rows = user.rows(x, labels)
    user.add_rows(rows)
    q = rows.features.astype(float) * user.quantiser.scale  # type: ignore[union-attr]
    t = rows.targets.astype(float) * user.target_quantiser.scale
    want = np.linalg.solve(q.T @ q / 45 + 0.02 * np.eye(q.shape[1]), q.T @ t / 45)
    np.testing.assert_allclose(user.theta, want, rtol=2.0**-23, atol=1e-8)  # float32
    residuals = one_hot(labels, 3).numpy() - core.logits_of(x).double().numpy()
    step = user.target_quantiser.scale.max()
    np.testing.assert_allclose(t, residuals, rtol=0, atol=step / 2 + 1e-5)  # batches of the core
    logits = core.logits_of(x).double().numpy() + q @ user.theta
    np.testing.assert_allclose(user.logits(x).numpy(), logits, rtol=0, atol=1e-4)  # float32


@pytest.mark.parametrize("features", [0, 32])
def test_few_features_are_the_last_layer(core: Core, features: int) -> None:
    """Ridge on the pooled features, centred and scaled as the quantiser has them, on 16 bits."""
    mu, records = 0.05, user_records()
    model = model_of(core, features=features, bits=16, mu=mu, power=1.0, arithmetic="float32")
    model.fit(records)
    user, x = model.user, core.activations(records)
    assert user.projection.names == ()
    assert user.projection.num_features == 33

    def pooled(activations: torch.Tensor) -> torch.Tensor:
        h = core.features_of(activations).double() / user.projection.part_scales[0]
        return h - torch.from_numpy(user.quantiser.centre[:-1].copy())

    targets = one_hot(core.labels(records), 3) - core.logits_of(x).double()
    layer = LastLayer.fit(pooled(x), targets, mu)
    test = core.activations(TEST)
    want = core.logits_of(test).double() + layer.logits(pooled(test))
    # 16 bits: steps below 1e-4 of each feature and 1.3e-3 of the targets.
    torch.testing.assert_close(user.logits(test).double(), want, rtol=0, atol=0.01)


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_few_bits_predict_as_many_do(core: Core, bits: int) -> None:
    fine = model_of(core, bits=16, mu=0.05).fit(user_records()).logits(TEST)
    model = model_of(core, bits=bits, mu=0.05).fit(user_records())
    assert model.data is not None
    assert model.data.rows.features.dtype == (np.int8 if bits == 8 else np.int16)  # type: ignore[union-attr]
    # Steps of 2^-bits of the range: logits are near 5, their noise adds up over 150 features.
    torch.testing.assert_close(model.logits(TEST), fine, rtol=0, atol=100 * 2.0**-bits)
    assert model.accuracy(TEST) > core.accuracy(TEST) + 0.1


def test_bits_out_of_range_are_refused(core: Core) -> None:
    with pytest.raises(EffaceError, match="17 bits"):
        model_of(core, bits=17).fit(user_records())


def test_random_bases_work_too(core: Core) -> None:
    a, b = (model_of(core, bases="random", seed=s).fit(user_records()) for s in (0, 1))
    assert a.accuracy(TEST) > core.accuracy(TEST)
    assert digests(a.user) != digests(b.user)


def test_saturated_numbers_are_counted(core: Core) -> None:
    """Ten times the core's activations are beyond its range, twice the deviations are not."""
    user = calibrated(core)
    x, labels = core.activations(CORE_RECORDS), core.labels(CORE_RECORDS)
    assert user.num_saturated(user.rows(x, labels)) == 0
    wild = user.rows(10 * x, labels)
    assert user.num_saturated(wild) > 0
    assert user.num_saturated(wild) == int(
        (np.abs(wild.features.astype(int)) == 127).sum()
        + (np.abs(wild.targets.astype(int)) == 2**15 - 1).sum()
    )
    quiet = [i for i in range(12) if user.num_saturated(wild.select(np.array([i]))) == 0]
    assert user.num_saturated(wild.select(np.array(quiet, dtype=int))) == 0


def test_two_bits_do_not_count_the_constant(core: Core) -> None:
    user = calibrated(core, bits=2)
    rows = Rows(np.zeros((3, user.projection.num_features), np.int8), np.zeros((3, 3), np.int16))  # type: ignore[union-attr]
    rows.features[:, user.projection.bias] = 1  # type: ignore[union-attr]
    assert user.num_saturated(rows) == 0
