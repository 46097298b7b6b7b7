"""SGD, conjugate gradients and Cholesky against the dense solution; a solve that falls short says so."""

from __future__ import annotations

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, ridge_solution
from torch import Tensor

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.linear.solution import Solution, Status
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.dense import Cholesky
from efface.parts.tangent.preconditioners import Nystrom
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import SGD, largest_eigenvalue, minibatches

N = 24
CASE = cases.BY_NAME["cnn"]


def draw(*shape: int, seed: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem_of(mu: float = 0.5, **options: object) -> RidgeProblem:
    operator = TangentOperator(cases.tail("cnn"))
    options.setdefault("dtype", torch.float64)
    return RidgeProblem(operator, CASE.inputs(N), draw(N, cases.NUM_CLASSES), mu, **options)  # type: ignore[arg-type]


def dense(mu: float = 0.5) -> Tensor:
    net, x = cases.tail("cnn"), CASE.inputs(N)
    return ridge_solution(net(x).detach(), explicit_jacobian(net, x), problem_of().targets, mu)


def error(solution: Solution, mu: float = 0.5) -> float:
    want = dense(mu)
    return float((solution.value - want).norm() / want.norm())


# --- they reach the dense solution ----------------------------------------------------------------


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_reaches_the_dense_solution(momentum: float, replacement: bool) -> None:
    mu = 5.0  # κ ≈ 20: slow modes would need thousands of epochs
    problem = problem_of(mu)
    lr = 0.5 * (1 - momentum) / largest_eigenvalue(problem)
    milestones = (60, 90, 120, 150, 180, 210)
    solver = SGD(240, 8, lr, momentum, milestones, 0.5, replacement=replacement)
    solution = solver.solve(problem)
    assert solution.status is Status.FIXED_BUDGET
    assert solution.ok
    # Independent draws leave an error of the order of the root of the last learning rates (measured
    # .017–.025 over seeds); within a shuffled epoch the noise cancels (measured below .0006).
    assert error(solution, mu) < (0.04 if replacement else 0.002)
    assert solution.passes == pytest.approx(240 + 1)  # and one for the residual


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_full_batch_sgd_converges_to_rounding(momentum: float) -> None:
    mu = 5.0
    problem = problem_of(mu)
    solver = SGD(600, N, 1 / largest_eigenvalue(problem), momentum, (), tolerance=1e-8)
    solution = solver.solve(problem)
    assert solution.status is Status.CONVERGED
    # ‖w − w*‖ ≤ ‖g‖/μ.
    assert float((solution.value - dense(mu)).norm()) <= 1e-8 / mu


def test_one_step_of_sgd_by_hand() -> None:
    """u ← m u + g, w ← w − η u, twice, on the full batch; the second epoch at a tenth of η."""
    problem, solver = problem_of(), SGD(2, N, 0.01, 0.9, (1,))
    w, u = problem.zeros(), problem.zeros()
    for lr in (0.01, 0.001):
        u = 0.9 * u + problem.gradient(w)
        w = w - lr * u
    torch.testing.assert_close(solver.solve(problem).value, w, rtol=1e-10, atol=1e-12)  # rounding


def test_sgd_does_not_depend_on_the_global_generator() -> None:
    solver = SGD(3, 8, 0.01)
    torch.manual_seed(1)
    first = solver.solve(problem_of()).value
    torch.manual_seed(2)
    assert torch.equal(solver.solve(problem_of()).value, first)
    assert not torch.equal(SGD(3, 8, 0.01, seed=1).solve(problem_of()).value, first)


@pytest.mark.parametrize("mu", [0.5, 1e-3])
def test_conjugate_gradients_reach_the_dense_solution(mu: float) -> None:
    solution = ConjugateGradient(tolerance=1e-11, max_passes=1000).solve(problem_of(mu))
    assert solution.status is Status.CONVERGED
    # The residual is 1e-11 of ‖g(0)‖; the error is at most κ ≈ 1e5 times that.
    assert error(solution, mu) < 1e-6


def test_nystrom_reaches_the_same_solution_in_fewer_passes() -> None:
    mu, problem = 1e-3, problem_of(1e-3)
    plain = ConjugateGradient(tolerance=1e-10, max_passes=1000).solve(problem)
    preconditioner = Nystrom.build(problem, 40)
    solver = ConjugateGradient(tolerance=1e-10, max_passes=1000, preconditioner=preconditioner)
    fast = solver.solve(problem)
    assert plain.ok
    assert fast.ok
    assert error(fast, mu) < 1e-6  # 1e-10 times κ, as above
    assert fast.passes < plain.passes / 2


def test_nystrom_of_full_rank_is_the_inverse_up_to_its_scale() -> None:
    problem = problem_of(0.1)
    preconditioner = Nystrom.build(problem, problem.d)
    scale = float(preconditioner.eigenvalues[-1]) + 0.1
    r = draw(problem.d)
    # The shift of 1e-9 relative to λmax ≈ 100, over μ = 0.1, gives 1e-6.
    got = problem.product(preconditioner.apply(r)) / scale
    torch.testing.assert_close(got, r, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rank", [5, 100])
def test_nystrom_can_be_built_from_float32_products(rank: int) -> None:
    """Rank 100 is above the 72 outputs of the data: the sketch is singular up to rounding."""
    problem = problem_of(1e-3, dtype=torch.float32)
    preconditioner = Nystrom.build(problem, rank)
    solver = ConjugateGradient(tolerance=1e-6, max_passes=1000, preconditioner=preconditioner)
    assert solver.solve(problem).ok


def test_cholesky_is_the_dense_solution() -> None:
    solution = Cholesky().solve(problem_of(1e-3))
    assert solution.status is Status.CONVERGED
    assert error(solution, 1e-3) < 1e-9  # κ ≈ 1e5 times float64's 1e-16, with room
    assert solution.passes == 2  # the normal equations, and the residual


def test_cholesky_refuses_what_does_not_fit() -> None:
    problem = problem_of()
    with pytest.raises(EffaceError, match=f"{problem.d} weights are too many.*ConjugateGradient"):
        Cholesky(max_weights=10).solve(problem)


# --- what they say about themselves ---------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", [SGD(3, 8, 0.01), ConjugateGradient(tolerance=1e-3), Cholesky()], ids=type
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_reported_residual_is_that_of_the_final_weights(
    solver: object, dtype: torch.dtype
) -> None:
    problem = problem_of(dtype=dtype)
    solution = solver.solve(problem)  # type: ignore[attr-defined]
    want = float(problem.gradient(solution.value, torch.float64).norm())
    # SGD measures in the problem's own type: float32 has 1e-6 of the gradient's terms.
    loose = dtype == torch.float32 and isinstance(solver, SGD)
    assert solution.residual_norm == pytest.approx(want, rel=1e-4 if loose else 1e-12)


class Careless(RidgeProblem):
    """Products 10 % too large in one half: CG's recursive residual goes to 0 all the same."""

    def product(self, v: Tensor) -> Tensor:
        scale = torch.ones_like(v)
        scale[: len(v) // 2] = 1.1
        return scale.sqrt() * super().product(scale.sqrt() * v)


def careless() -> Careless:
    sound = problem_of()
    return Careless(sound.operator, sound.activations, sound.targets, 0.5, dtype=torch.float64)


def test_cg_does_not_believe_its_recursive_residual() -> None:
    problem = careless()
    solution = ConjugateGradient(tolerance=1e-8, refinements=0).solve(problem)
    target = 1e-8 * float(problem.gradient(problem.zeros()).norm())
    assert solution.history[-1] < target  # what the recursion claims
    assert solution.status is Status.STOPPED_SHORT
    assert solution.residual_norm > 1e3 * target


def test_refinement_repairs_careless_products() -> None:
    solution = ConjugateGradient(tolerance=1e-8, refinements=30, max_passes=3000).solve(careless())
    assert solution.status is Status.CONVERGED
    assert error(solution) < 1e-5  # 1e-8 times κ ≈ 300


def test_refinement_takes_float32_products_to_float64_accuracy() -> None:
    problem = problem_of(0.05, dtype=torch.float32)
    solution = ConjugateGradient(tolerance=1e-10, max_passes=2000).solve(problem)
    assert solution.status is Status.CONVERGED
    assert error(solution, 0.05) < 1e-6  # 1e-10 times κ


@pytest.mark.parametrize("max_passes", [1, 2, 3, 10])
def test_cg_stops_at_its_budget_and_says_so(max_passes: int) -> None:
    solver = ConjugateGradient(tolerance=1e-10, max_passes=max_passes)
    solution = solver.solve(problem_of(1e-3))
    assert solution.status is Status.STOPPED_SHORT
    assert not solution.ok
    assert solution.passes <= max_passes
    assert f"raise max_passes (now {max_passes})" in solution.advice
    assert "stopped short" in str(solution)
    assert solution.advice in str(solution)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_refinement_stays_within_the_budget(dtype: torch.dtype) -> None:
    solver = ConjugateGradient(tolerance=1e-14, max_passes=60)
    assert solver.solve(problem_of(1e-3, dtype=dtype), draw(problem_of().d)).passes <= 60


def test_sgd_that_stops_short_says_so() -> None:
    solution = SGD(1, 8, 1e-4, tolerance=1e-6).solve(problem_of())
    assert solution.status is Status.STOPPED_SHORT
    assert not solution.ok
    assert "raise epochs" in solution.advice


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_with_too_large_a_step_reports_that_it_diverged(momentum: float) -> None:
    problem = problem_of()
    solution = SGD(50, N, 10 / largest_eigenvalue(problem), momentum).solve(problem)
    assert solution.status is Status.DIVERGED
    assert not solution.ok
    assert "learning rate" in solution.advice
    assert solution.passes < 50  # it does not go on


def test_the_largest_eigenvalue_is_estimated_from_below() -> None:
    net = cases.tail("cnn")
    jac = explicit_jacobian(net, CASE.inputs(N)).flatten(0, 1)
    want = float(torch.linalg.eigvalsh(jac.T @ jac / N)[-1]) + 0.5
    got = largest_eigenvalue(problem_of(), iterations=60)
    assert got <= want * (1 + 1e-12)  # a Rayleigh quotient, up to rounding
    assert got == pytest.approx(want, rel=1e-3)  # 60 power iterations


# --- starts, targets, edges -----------------------------------------------------------------------


def test_a_warm_start_ends_where_a_cold_one_does() -> None:
    start = dense() + 0.01 * draw(problem_of().d)
    solver = ConjugateGradient(tolerance=1e-10)
    cold, warm = solver.solve(problem_of()), solver.solve(problem_of(), start)
    assert warm.ok
    assert len(warm.history) < len(cold.history)
    torch.testing.assert_close(warm.value, cold.value, rtol=0, atol=1e-7)  # 1e-10 times κ
    assert torch.equal(start, dense() + 0.01 * draw(problem_of().d))  # not written to


def test_an_absolute_target_is_kept() -> None:
    solution = ConjugateGradient(absolute=1e-7).solve(problem_of())
    assert solution.ok
    assert solution.residual_norm <= 1e-7


def test_a_target_of_zero_is_missed_without_breaking_the_progress_bar() -> None:
    seen: list[float] = []
    solver = ConjugateGradient(absolute=0.0, max_passes=50)
    solution = solver.solve(problem_of(), progress=lambda done, text: seen.append(done))
    assert solution.status is Status.STOPPED_SHORT
    assert seen
    assert all(0 <= done <= 1 for done in seen)


@pytest.mark.parametrize(
    "solver", [SGD(2), SGD(2, replacement=True), ConjugateGradient(), Cholesky()]
)
def test_no_data_means_no_weights(solver: object) -> None:
    solution = solver.solve(problem_of().subset(torch.arange(0)))  # type: ignore[attr-defined]
    assert solution.ok
    assert not solution.value.any()


def test_an_epoch_covers_every_sample_once_or_draws_independently() -> None:
    generator = torch.Generator().manual_seed(0)
    once = minibatches(10, 4, False, generator)
    assert [len(b) for b in once] == [4, 4, 2]
    assert sorted(torch.cat(once).tolist()) == list(range(10))
    drawn = [b for _ in range(50) for b in minibatches(10, 4, True, generator)]
    assert {len(b) for b in drawn} == {4}
    assert any(len(set(b.tolist())) < 4 for b in drawn)  # repeats within a batch: independent
