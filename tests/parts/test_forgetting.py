"""Forgetting equals retraining without the records, says how nearly, and on any error does nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests import cases
from tests.parts.forgetters import (
    CLASSES,
    CORE_RECORDS,
    TEST,
    both_parts,
    build_core,
    exact_weights,
    fitted,
    snapshot,
    user_records,
)
from tests.reference import explicit_jacobian, ridge_solution
from torch import Tensor

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import RequestError
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import ExactCertificate, ShiftCertificate
from efface.guarantee.promise import Guarantee
from efface.linear.solution import Status
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.parts.tangent.user import TangentUser
from efface.parts.training_set import TrainingSet, select

# --- tangent: the minimiser without them, within the bound ----------------------------------------


@pytest.mark.parametrize("name", ["cnn", "resnet bottleneck", "convnext", "vit"])
@pytest.mark.parametrize("epsilon", [1.0, 0.01])
@pytest.mark.parametrize("policy", StatePolicy)
def test_the_tangent_part_forgets_to_the_exact_minimiser(
    name: str, epsilon: float, policy: StatePolicy
) -> None:
    """Small tails, Jacobians written out: ‖w − w*_r‖ is within the certificate's bound, at the first
    request and at a second one, whether that starts from the weights before or after the noise."""
    tail, case, n = cases.tail(name), cases.BY_NAME[name], 12
    x, labels = case.inputs(n), torch.arange(n) % 3
    user = TangentUser(SimpleNamespace(tail=tail, classes=CLASSES, place=None), mu=0.05)  # type: ignore[arg-type]
    f, jac = tail(x.clone()).detach(), explicit_jacobian(tail, x)
    y = one_hot(labels, 3)
    user.state = user.weights = ridge_solution(f, jac, y, 0.05)
    data = TrainingSet(cases.tiny_records(n), None, labels.numpy(), activations=x)
    guarantee = Guarantee.plan(epsilon, 1e-5, sigma=0.01, d=user.operator.d, state=policy)
    left = np.arange(n)
    for forget, counts in ((np.array([1, 4, 5]), (9, 3)), (np.array([0, 8]), (7, 2))):
        outcome = user.outcome(data, forget, guarantee)
        left = np.delete(left, forget)
        want = ridge_solution(f[left], jac[left], y[left], 0.05)
        certificate = outcome.certificate
        assert isinstance(certificate, ShiftCertificate)
        assert outcome.solution is not None
        assert outcome.state is not None
        off = float((outcome.solution.value - want).norm())
        assert off <= certificate.distance_bound * (1 + 1e-6)  # float64 rounding
        assert certificate.gradient_norm <= guarantee.gradient_tolerance(0.05, user.operator.d)
        assert float((user.state - want).norm()) > 3 * off  # it had somewhere to go
        assert (certificate.num_retained, certificate.num_forgotten) == counts
        kept = outcome.release if policy is StatePolicy.NOISY else outcome.solution.value
        assert outcome.state is kept
        user.state, data = outcome.state, data.without(forget)


def test_the_tangent_models_state_is_the_retrained_one(core: Core) -> None:
    model, records = fitted(core, "tangent"), user_records()
    gone = [records[i].id for i in (0, 7, 31)]
    certificate = model.forget(ids=gone, guarantee=model.plan(epsilon=0.1))
    want = exact_weights(core, records.without(gone))
    assert isinstance(certificate, ShiftCertificate)
    assert float((model.user.state - want).norm()) <= certificate.distance_bound * (1 + 1e-6)
    assert model.solution is not None
    assert model.solution.status is Status.CONVERGED


def test_replayed_core_records_stay(core: Core) -> None:
    model, records = fitted(core, "tangent", replay=CORE_RECORDS), user_records()
    certificate = model.forget(ids=[r.id for r in records[:5]])
    want = exact_weights(core, records[5:] + CORE_RECORDS)
    assert isinstance(certificate, ShiftCertificate)
    assert float((model.user.state - want).norm()) <= certificate.distance_bound * (1 + 1e-6)
    assert certificate.num_retained == 40 + 12


# --- both: order, sequences, classes, everything --------------------------------------------------


def test_the_order_of_requests_does_not_matter_to_the_bit(core: Core) -> None:
    models = [fitted(core, "compact") for _ in range(3)]
    for model, steps in zip(models, (["s1-3", "s1-7"], ["s1-7", "s1-3"], []), strict=True):
        for step in steps:
            model.forget(ids=step)
    models[2].forget(ids=["s1-3", "s1-7"])
    assert len({model.user.statistics_digest for model in models}) == 1
    assert len({model.user.weights_digest for model in models}) == 1
    never = fitted(core, "compact", user_records().without(["s1-3", "s1-7"]))
    assert models[0].user.weights_digest == never.user.weights_digest


def test_the_order_of_requests_does_not_matter_within_the_bounds(core: Core) -> None:
    want = exact_weights(core, user_records().without(["s1-3", "s1-7"]))
    for steps in (["s1-3", "s1-7"], ["s1-7", "s1-3"]):
        model = fitted(core, "tangent")
        for step in steps:
            certificate = model.forget(ids=step)
        assert isinstance(certificate, ShiftCertificate)
        off = float((model.user.state - want).norm())
        assert off <= certificate.distance_bound * (1 + 1e-6)


@both_parts
def test_two_requests_both_stay_forgotten(core: Core, kind: str) -> None:
    model = fitted(core, kind)
    model.forget(owner="s1--owner4")
    model.forget(ids=["s1-9", "s1-2"])
    assert set(model.forgotten) == {"s1-4", "s1-9", "s1-2"}
    assert model.data is not None
    assert len(model.data) == 42
    assert not set(model.forgotten) & set(model.data.records.ids)
    with pytest.raises(RequestError, match="'s1-4' was forgotten already"):
        model.forget(ids="s1-4")


@both_parts
def test_what_is_kept_in_memory_is_what_a_model_without_them_keeps(core: Core, kind: str) -> None:
    """Rows, activations, labels and ids: nothing of the forgotten is left in the training set."""
    model = fitted(core, kind, replay=CORE_RECORDS)
    model.forget(ids=["s1-0", "s1-20"])
    never = fitted(core, kind, user_records().without(["s1-0", "s1-20"]), replay=CORE_RECORDS)
    a, b = snapshot(model), snapshot(never)
    assert all(a[key] == b[key] for key in ("ids", "labels", "rows"))


@both_parts
def test_a_forgotten_class_is_known_no_better_than_after_retraining(kind: str) -> None:
    """No core record shows class c, so that all that is known of it comes from users."""
    core = build_core(CORE_RECORDS.where(lambda r: r.label != "c"))
    records, only_c = user_records(60), TEST.where(lambda r: r.label == "c")
    model = fitted(core, kind, records)
    before = model.accuracy(only_c)
    if kind == "tangent":
        model.plan(sigma=1e-6)
    model.forget(label="c")
    never = fitted(core, kind, records.where(lambda r: r.label != "c"))
    assert before > 0.9
    assert model.accuracy(only_c) == never.accuracy(only_c) < 0.2
    assert model.predict(TEST).tolist() == never.predict(TEST).tolist()


def assert_is_core(model: MixedLinear) -> None:
    """To the bit in the model's own arithmetic, which for compact is integers of 8 bits."""
    assert torch.equal(model.logits(TEST), model.core_logits(TEST))
    off = (model.logits(TEST) - model.core.logits(TEST)).abs().max()
    assert float(off) <= (0.1 if model.user.kind == "compact" else 0.0)


@both_parts
@pytest.mark.parametrize("replay", [None, CORE_RECORDS], ids=["alone", "with replay"])
def test_everything_forgotten_is_the_core_to_the_bit(
    core: Core, kind: str, replay: Records | None
) -> None:
    digest = core.digest
    model = fitted(core, kind, replay=replay)
    assert not torch.equal(model.logits(TEST), core.logits(TEST))
    certificate = model.forget(everything=True)
    assert isinstance(certificate, ExactCertificate)
    assert_is_core(model)
    assert (certificate.num_forgotten, certificate.passed) == (45, True)
    assert core.digest == digest
    nobody = fitted(core, kind, user_records()[[]], replay=replay)
    assert model.user.tensors.keys() == nobody.user.tensors.keys()
    assert all(torch.equal(v, nobody.user.tensors[k]) for k, v in model.user.tensors.items())
    with pytest.raises(RequestError, match="nothing left"):
        model.forget(everything=True)


@both_parts
def test_forgetting_all_records_one_way_or_another_is_forgetting_everything(
    core: Core, kind: str
) -> None:
    model = fitted(core, kind)
    model.forget(ids=[r.id for r in user_records()[:44]])
    certificate = model.forget(cohort="default", user_part_only=True)  # core has that cohort, too
    assert isinstance(certificate, ExactCertificate)
    assert_is_core(model)


@both_parts
def test_fitting_and_forgetting_leave_the_core_alone(core: Core, kind: str) -> None:
    digest, tensors = core.digest, {k: v.clone() for k, v in core.tensors.items()}
    model = fitted(core, kind)
    assert core.digest == digest
    model.forget(label="a")
    assert core.digest == digest
    assert all(torch.equal(v, tensors[k]) for k, v in core.tensors.items())


@both_parts
def test_with_a_cache_it_forgets_the_same(core: Core, kind: str, tmp_path: Path) -> None:
    plain = fitted(core, kind)
    cached = fitted(core, kind, cache=core.cache(tmp_path))
    for model in (plain, cached):
        if kind == "tangent":
            model.plan()
        model.forget(label="b", test_seed=b"the same noise")
    a, b = snapshot(plain), snapshot(cached)
    assert all(a[key] == b[key] for key in ("weights", "ids", "labels", "rows", "logits"))


# --- the training set -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tensor", "cache"])
def test_a_selection_holds_the_other_rows_only(core: Core, tmp_path: Path, kind: str) -> None:
    records = user_records(10)
    cache = core.cache(tmp_path) if kind == "cache" else None
    rows = core.activations(records, cache)
    keep = np.array([1, 2, 7])
    chosen = select(rows, keep)
    assert len(chosen) == 3
    assert torch.equal(chosen[slice(None)], rows[slice(None)][keep])
    if isinstance(chosen, Tensor):  # a copy: a view would keep the forgotten in memory
        assert chosen.untyped_storage().nbytes() == chosen.numel() * chosen.element_size()


def test_what_stays_of_a_training_set() -> None:
    records, replay = user_records(6), cases.tiny_records(3, 0, split=Split.CORE)
    labels = torch.arange(9)
    data = TrainingSet(records, replay, labels.numpy(), activations=torch.arange(9.0)[:, None])
    left = data.without(np.array([0, 4]))
    assert left.records.ids == ("s1-1", "s1-2", "s1-3", "s1-5")
    assert left.labels.tolist() == [1, 2, 3, 5, 6, 7, 8]
    assert left.activations.flatten().tolist() == [1, 2, 3, 5, 6, 7, 8]  # type: ignore[union-attr]
    assert left.replay is replay
    assert data.core_ids == set(replay.ids)
    assert len(data.without(np.arange(6)).records) == 0


def test_progress_is_reported(core: Core) -> None:
    seen: list[tuple[float, str]] = []
    note: Callable[[float, str], None] = lambda done, text: seen.append((done, text))  # noqa: E731
    fitted(core, "tangent").forget(ids="s1-3", progress=note)
    assert seen
    assert all(0 <= done <= 1 for done, _ in seen)
