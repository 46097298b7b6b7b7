"""Readouts: their definitions, and that taking them changes nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy
from tests.audit.scenes import scene

from efface.audit import readouts
from efface.audit.methods import METHODS
from efface.audit.readouts import Relearn, Spread
from efface.audit.study import Reader


def logits(n: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, 4, generator=generator, dtype=torch.float64)


def test_error_counts_misreadings() -> None:
    f = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 2.0]])
    assert readouts.error(f, torch.tensor([0, 1, 1])) == pytest.approx(1 / 3)


def test_entropy_is_scipys() -> None:
    f = logits(5, 0)
    expected = scipy_entropy(f.softmax(1).numpy(), axis=1)
    np.testing.assert_allclose(readouts.entropy(f).numpy(), expected)
    certain = torch.tensor([[1000.0, 0.0]])
    assert float(readouts.entropy(certain)[0]) == 0  # and not NaN


def test_activation_distance_is_an_l1_distance_of_softmaxes() -> None:
    a, b = logits(6, 1), logits(6, 2)
    expected = np.abs(a.softmax(1).numpy() - b.softmax(1).numpy()).sum(1).mean()
    assert readouts.activation_distance(a, b) == pytest.approx(expected)
    assert readouts.activation_distance(a, a + 3) == pytest.approx(0, abs=1e-12)
    far = torch.tensor([[1000.0, 0.0]]), torch.tensor([[0.0, 1000.0]])
    assert readouts.activation_distance(*far) == pytest.approx(2)


def test_the_entropy_attack_finds_the_threshold_between_members_and_others() -> None:
    sure, unsure = logits(50, 3, scale=20.0), logits(50, 4, scale=0.1)
    assert readouts.entropy_attack(sure, unsure, sure[:10]) > 0.8
    assert readouts.entropy_attack(sure, unsure, unsure[:10]) == 0


def test_a_spread() -> None:
    assert Spread.of([2.0]) == Spread(2.0, 0.0, 1)
    spread = Spread.of([1.0, 3.0])
    assert (spread.mean, spread.std) == (2.0, pytest.approx(math.sqrt(2)))
    assert math.isinf(Spread.of([1.0, math.inf]).mean)


def reader() -> Reader:
    s = scene()
    return Reader(s, s.solve(s.everyone), Relearn(max_iterations=200))


def test_relearning_takes_longer_when_more_is_forgotten_and_changes_nothing() -> None:
    r = reader()
    before = r.trained.clone(), r.retrained.clone()
    halfway = (r.trained + r.retrained) / 2
    times = [r.relearn_time(w) for w in (r.trained, halfway, r.retrained)]
    assert times[0] == 0
    assert 0 < times[1] < times[2] < 200
    assert torch.equal(r.trained, before[0])
    assert torch.equal(r.retrained, before[1])


def test_relearning_gives_up_at_its_limit() -> None:
    s = scene()
    problem = s.problem(s.forget)
    never = Relearn(max_iterations=5).iterations(problem, problem.zeros(), lambda w: 1.0, 0.0)
    assert never == 5


def test_readouts_in_any_order_give_the_same_numbers() -> None:
    names = ("original", "paper-0.9", "fisher", "retrain")
    forward, backward = reader(), reader()
    first = {n: forward.read(METHODS[n]) for n in names}
    second = {n: backward.read(METHODS[n]) for n in reversed(names)}
    for name in names:
        for key in first[name].keys() - {"seconds"}:
            assert first[name][key] == second[name][key], (name, key)


def test_activation_distance_is_to_the_retrained_model() -> None:
    r = reader()
    values = {n: r.read(METHODS[n]) for n in ("original", "retrain", "exact")}
    for key in ("distance_retained", "distance_forgotten", "distance_test"):
        assert values["retrain"][key] == 0
        assert values["exact"][key] < 1e-6  # float32 weights
        assert values["original"][key] > 1e-3
    assert values["retrain"]["relearn_relative"] == 1
    assert values["retrain"]["information_nats_estimate"] == 0
