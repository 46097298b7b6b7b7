"""A precision that is proved, between samples and between weights; and what a verdict may rest on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, ridge_solution

from efface.linear.operator import TangentOperator
from efface.linear.solution import Status
from efface.network.targets import one_hot
from efface.parts.tangent.preconditioners import Identity
from efface.parts.tangent.primal import SharedRows
from efface.parts.tangent.problem import RidgeProblem
from efface.reproduce.figure import judged
from efface.reproduce.minimiser import between_samples, dense_factor, minimise
from efface.reproduce.multipliers import Multipliers


def problem_of(name: str, n: int, mu: float = 1e-2) -> tuple[RidgeProblem, torch.Tensor]:
    net, x = cases.tail(name), cases.BY_NAME[name].inputs(n)
    y = one_hot(torch.arange(n) % cases.NUM_CLASSES, cases.NUM_CLASSES)
    problem = RidgeProblem(TangentOperator(net), x, y, mu, dtype=torch.float64)
    wanted = ridge_solution(net(x.clone()).detach(), explicit_jacobian(net, x), y, mu)
    return problem, wanted


@pytest.mark.parametrize("n", [7, 120], ids=["fewer samples than weights", "more"])
@pytest.mark.parametrize("goal", [{"precision": 1e-3}, {"distance": 1e-4}])
def test_it_ends_within_the_distance_that_it_proves(n: int, goal: dict[str, float]) -> None:
    problem, wanted = problem_of("cnn", n)
    assert between_samples(problem) == (n == 7)
    for start in (None, wanted + 0.1):
        solution = minimise(problem, start, max_passes=2000, **goal)  # type: ignore[arg-type]
        assert solution.status is Status.CONVERGED, solution
        assert solution.distance_bound is not None
        assert float((solution.value - wanted).norm()) <= solution.distance_bound + 1e-12
        length = float(solution.value.norm()) if "precision" in goal else 1.0
        assert solution.distance_bound <= next(iter(goal.values())) * length


@pytest.mark.parametrize("n", [7, 120])
def test_a_budget_that_is_too_small_is_not_called_converged(n: int) -> None:
    problem, wanted = problem_of("cnn", n, 1e-8)
    solution = minimise(problem, precision=1e-9, max_passes=8)
    assert solution.status is Status.STOPPED_SHORT
    assert solution.distance_bound is not None
    assert float((solution.value - wanted).norm()) <= solution.distance_bound


ROW: dict[str, Any] = {
    "training_status": "converged",
    "reference_status": "converged",
    "trained_error": 0.2,
    "last_layer_error": 0.3,
}


def test_a_verdict_needs_solved_models_that_are_above_their_last_layer() -> None:
    assert judged({"a/0": ROW}, True) == "**Agrees.**"
    assert judged({"a/0": ROW}, False, True) == "**Partly.**"
    assert judged({"a/0": ROW}, False) == "**Disagrees.**"
    for key in ("training_status", "reference_status"):
        rows = {"a/0": ROW, "b/0": ROW | {key: "stopped short"}}
        assert judged(rows, True).startswith("**Not tested.** 1 of 2 parts")
    below = {"a/0": ROW | {"trained_error": 0.3}}
    assert "no better than its last layer" in judged(below, True)
    assert judged(below, True, above=False) == "**Agrees.**"


def test_the_factor_of_everybody_solves_for_some_in_few_passes() -> None:
    problem, _ = problem_of("cnn", 120, 1e-4)
    factor = dense_factor(problem)
    assert factor is not None
    some = problem.subset(torch.arange(6, 120))
    quick = minimise(some, precision=1e-4, preconditioner=factor)
    plain = minimise(some, precision=1e-4, preconditioner=Identity(), max_passes=5000)
    assert quick.status is Status.CONVERGED
    assert quick.passes < plain.passes / 2
    assert dense_factor(problem_of("cnn", 7)[0]) is None  # that one is solved between samples


def some_of(samples: SharedRows, labelled: RidgeProblem, index: torch.Tensor) -> RidgeProblem:
    rows = samples.select(index.numpy())
    return RidgeProblem(labelled.operator, rows, labelled.targets[index], labelled.mu)


def test_from_the_multipliers_of_a_near_problem_it_takes_fewer_passes_to_the_same_end() -> None:
    own, _ = problem_of("cnn", 14)
    samples, known = SharedRows(own.primal), Multipliers()
    torch.manual_seed(0)
    targets = own.targets + 1e-4 * torch.randn(own.targets.shape, dtype=torch.float64)
    before, now = (RidgeProblem(own.operator, samples, y, own.mu) for y in (own.targets, targets))
    known.keep(before, minimise(before, distance=1e-6, max_passes=2000))
    cold = minimise(now, distance=1e-6, max_passes=2000)
    warm = minimise(now, distance=1e-6, max_passes=2000, multipliers=known.near(now))
    wanted = minimise(now, distance=1e-12, max_passes=2000).value
    for solution in (cold, warm):
        assert solution.status is Status.CONVERGED
        assert solution.distance_bound is not None
        assert solution.distance_bound <= 1e-6
        assert float((solution.value - wanted).norm()) <= 2e-6
    assert warm.passes < 0.7 * cold.passes
    known.keep(now, warm)
    again = minimise(now, distance=1e-6, multipliers=known.near(now))
    assert again.passes <= 2  # it is looked at, and there


def test_the_nearest_multipliers_are_taken_and_none_where_a_request_is_timed() -> None:
    labelled, _ = problem_of("cnn", 14)
    samples, known = SharedRows(labelled.primal), Multipliers()
    whole = some_of(samples, labelled, torch.arange(14))
    assert known.near(whole) is None
    few, most = (some_of(samples, labelled, i) for i in (torch.arange(4), torch.arange(13).flip(0)))
    solutions = [minimise(problem, distance=1e-6, max_passes=2000) for problem in (few, most)]
    for problem, solution in zip((few, most), solutions, strict=True):
        known.keep(problem, solution)
    near, own = known.near(whole), solutions[1].multipliers
    assert near is not None
    assert own is not None
    assert torch.equal(near[:13], own.flip(0))  # those of most, in whole's order
    assert not near[13].any()
    with known.unused():
        assert known.near(whole) is None
    assert known.near(whole) is not None
