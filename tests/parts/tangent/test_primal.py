"""The samples' side that problems share: what they compute is what they would compute alone."""

from __future__ import annotations

import pytest
import torch
from tests import cases
from tests.linear.test_operator import CLOSE, vector
from torch import Tensor

from efface.linear.frozen import final_names
from efface.linear.operator import TangentOperator
from efface.linear.solution import Status
from efface.network.targets import one_hot
from efface.parts.tangent.dual import DualConjugateGradient
from efface.parts.tangent.kronecker import _pooled
from efface.parts.tangent.primal import Primal, SharedRows
from efface.parts.tangent.problem import RidgeProblem

NAME = "resnet bottleneck"
NUM, MU = 9, 1e-3
# Nearly all, few, in another order, everybody, nobody
SOME = ([0, 1, 2, 3, 5, 6, 7, 8], [4], [7, 0, 3], [*range(NUM)], [])


def operator_of(name: str = NAME) -> TangentOperator:
    tail = cases.tail(name)
    return TangentOperator(tail, names=final_names(tail))


def targets(num: int) -> Tensor:
    return one_hot(torch.arange(num) % cases.NUM_CLASSES, cases.NUM_CLASSES)


def pair(
    rows: list[int], *, pooled: bool = False, dtype: torch.dtype = torch.float64
) -> tuple[RidgeProblem, RidgeProblem]:
    """The same problem on shared rows, and on a copy of them."""
    operator, x = operator_of(), cases.BY_NAME[NAME].inputs(NUM)
    index, y = torch.tensor(rows, dtype=torch.int64), targets(NUM)
    primal = Primal(operator, x, batch_size=4, dtype=dtype)
    if pooled:
        primal.pool()
    shared = RidgeProblem(operator, SharedRows(primal, index), y[index], MU)
    return shared, RidgeProblem(operator, x[index], y[index], MU, dtype=dtype, batch_size=2)


@pytest.mark.parametrize("rows", SOME)
@pytest.mark.parametrize("pooled", [False, True])
def test_some_of_the_samples_are_a_problem_of_their_own(rows: list[int], pooled: bool) -> None:
    shared, alone = pair(rows, pooled=pooled)
    v, u = vector(alone.d), vector(alone.targets.numel(), 4).view_as(alone.targets)
    torch.testing.assert_close(shared.product(v), alone.product(v), **CLOSE)
    torch.testing.assert_close(shared.gradient(v), alone.gradient(v), **CLOSE)
    for mine, theirs in zip(shared.residual(v), alone.residual(v), strict=True):
        torch.testing.assert_close(mine, theirs, **CLOSE)
    torch.testing.assert_close(shared.push(v, outputs=True), alone.push(v, outputs=True), **CLOSE)
    torch.testing.assert_close(shared.pull(u), alone.pull(u), **CLOSE)
    assert shared.loss(v) == pytest.approx(alone.loss(v))
    assert shared.passes == alone.passes


def test_minibatches_are_of_the_problems_own_samples() -> None:
    shared, alone = pair([7, 0, 3, 4])
    v, index = vector(alone.d), torch.tensor([3, 1])
    for name in ("minibatch_gradient", "minibatch_product"):
        mine, theirs = getattr(shared, name)(v, index), getattr(alone, name)(v, index)
        torch.testing.assert_close(mine, theirs, **CLOSE)


@pytest.mark.parametrize("pooled", [False, True])
def test_batches_leave_the_others_out(pooled: bool) -> None:
    shared, alone = pair([0, 1, 2, 5], pooled=pooled)
    operator, v = alone.operator, vector(alone.d)
    mine, theirs = (
        torch.cat(
            [
                operator.jvp(batch.select(slice(i, i + 1)), v) + batch.outputs[i]
                for batch, _ in problem.batches()
                for i in range(len(batch))
            ]
        )
        for problem in (shared, alone)
    )
    torch.testing.assert_close(mine, theirs, **CLOSE)


def test_rows_are_selected_without_copies_and_read_as_they_are() -> None:
    x = cases.BY_NAME[NAME].inputs(NUM)
    rows = SharedRows(Primal(operator_of(), x))
    few = rows.select(torch.tensor([5, 2, 8]).numpy()).select(torch.tensor([2, 0]).numpy())
    assert len(few) == 2
    assert few.primal is rows.primal
    assert torch.equal(few[:], x[[8, 5]])


@pytest.mark.parametrize("rows", [rows for rows in SOME if len(rows) > 1])
def test_inner_products_of_some_are_read_from_those_of_all(rows: list[int]) -> None:
    shared, alone = pair(rows, pooled=True)
    alone.pool()
    mine, theirs = _pooled(shared), _pooled(alone)
    assert mine is not None
    assert theirs is not None
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def half(x: Tensor, operator: TangentOperator) -> Primal:
    """Pooled slopes in half precision: all of them in single precision would not fit."""
    primal = Primal(operator, x, cache_bytes=3 * operator.pooled_numbers * len(x))
    primal.pool()
    assert not primal.pooled
    primal.pool(half=True)
    return primal


def test_slopes_in_half_precision_give_products_to_eleven_bits() -> None:
    operator, x = operator_of(), cases.BY_NAME[NAME].inputs(NUM)
    narrow = RidgeProblem(operator, SharedRows(half(x, operator)), targets(NUM), MU)
    wide = RidgeProblem(operator, x, targets(NUM), MU, dtype=torch.float64)
    v, u = vector(wide.d), vector(wide.targets.numel(), 4).view_as(wide.targets)
    for mine, theirs in (
        (narrow.push(v), wide.push(v)),
        (narrow.pull(u), wide.pull(u)),
        (
            narrow.minibatch_product(v.float(), torch.arange(NUM)),
            wide.minibatch_product(v, torch.arange(NUM)),
        ),
    ):
        error = float((mine - theirs).norm() / theirs.norm())
        assert 1e-7 < error < 2**-11
    assert narrow.primal.half


def test_a_solve_over_half_slopes_is_proved_in_float64() -> None:
    operator, x = operator_of(), cases.BY_NAME[NAME].inputs(NUM)
    rows = SharedRows(half(x, operator), torch.tensor([0, 1, 3, 4, 6, 8]))
    problem = RidgeProblem(operator, rows, targets(6), MU)
    solution = DualConjugateGradient(precision=1e-7).solve(problem)
    assert solution.status is Status.CONVERGED
    alone = RidgeProblem(operator, rows[:], targets(6), MU, dtype=torch.float64)
    exact = DualConjugateGradient(precision=1e-11).solve(alone)
    assert solution.distance_bound is not None
    distance = float((solution.value - exact.value).norm())
    assert distance <= solution.distance_bound <= 1e-7 * float(solution.value.norm())


def test_a_solve_over_half_slopes_begins_with_what_it_is_given() -> None:
    """α is what w says in float64: from half slopes the start would be worse by their rounding over nμ."""
    operator, x = operator_of(), cases.BY_NAME[NAME].inputs(NUM)
    exact = RidgeProblem(operator, x, targets(NUM), MU, dtype=torch.float64)
    w = DualConjugateGradient(precision=1e-12).solve(exact).value
    problem = RidgeProblem(operator, SharedRows(half(x, operator)), targets(NUM), MU)
    again = DualConjugateGradient(precision=1e-6).solve(problem, w)
    assert again.status is Status.CONVERGED
    assert again.history == ()  # nothing was left to do


def test_a_start_that_is_worse_than_nothing_is_left() -> None:
    operator, x = operator_of(), cases.BY_NAME[NAME].inputs(NUM)
    problem = RidgeProblem(operator, x, targets(NUM), MU, dtype=torch.float64)
    cold = DualConjugateGradient(precision=1e-3).solve(problem)
    far = DualConjugateGradient(precision=1e-3).solve(problem, 1e6 * vector(problem.d))
    torch.testing.assert_close(far.history, cold.history)


def test_slopes_too_large_for_half_precision_are_not_kept_so() -> None:
    operator, x = operator_of(), 1e7 * cases.BY_NAME[NAME].inputs(NUM)
    primal = half(x, operator)
    problem = RidgeProblem(operator, SharedRows(primal), targets(NUM), MU)
    wide = RidgeProblem(operator, x, targets(NUM), MU)
    v = vector(problem.d)
    torch.testing.assert_close(problem.push(v), wide.push(v))
    assert (primal.pooled, primal.half) == (False, False)


def test_only_a_solver_that_proves_its_result_asks_for_half_precision() -> None:
    operator, x = operator_of(), cases.BY_NAME[NAME].inputs(NUM)
    room = 3 * operator.pooled_numbers * NUM
    problem = RidgeProblem(operator, x, targets(NUM), MU, cache_bytes=room)
    assert DualConjugateGradient(tolerance=1e-3).solve(problem).ok
    assert not problem.pooled


def test_what_was_dropped_is_prepared_again() -> None:
    shared, alone = pair([0, 2, 5], pooled=True)
    v = vector(alone.d)
    before = shared.product(v)
    shared.primal.drop()
    assert shared.primal._kept is None
    assert torch.equal(shared.product(v), before)
