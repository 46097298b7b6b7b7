"""The ridge problem from the side of the samples: the same minimiser, in fewer passes at small ridges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, ridge_solution
from torch import Tensor, nn

from efface import files
from efface.errors import EffaceError
from efface.linear.frozen import final_names
from efface.linear.operator import TangentOperator
from efface.linear.solution import Status
from efface.network.tail import Tail
from efface.network.targets import one_hot
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.dual import DualConjugateGradient, _at
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.parts.tangent.kronecker import HEAD, KroneckerKernel, _pooled, between_outputs
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.procedure import ProcedureChoice
from efface.parts.tangent.solve_state import SolveState
from efface.pipeline.solvers import DualConfig

NUM = 7
EXACT = DualConjugateGradient(tolerance=1e-11, max_passes=300)
every_kind = pytest.mark.parametrize(
    "name", ["cnn", "resnet bottleneck", "batch norms", "vit", "mirrored, folded"]
)


class Explicit:
    """A small problem and its Jacobians written out; the targets are far from the outputs."""

    def __init__(self, net: nn.Module, x: Tensor, mu: float, dtype: torch.dtype = torch.float64):
        self.f, self.jac, self.mu = net(x.clone()).detach(), explicit_jacobian(net, x), mu
        c = self.f.shape[1]
        self.y = one_hot(torch.arange(len(x)) % c, c)
        options = {"dtype": dtype, "batch_size": 3}
        self.problem = RidgeProblem(TangentOperator(net), x, self.y, mu, **options)  # type: ignore[arg-type]

    @property
    def kernel(self) -> Tensor:
        """K + nμI, (n·c, n·c)."""
        rows = self.jac.flatten(0, 1)
        return rows @ rows.T + len(self.f) * self.mu * torch.eye(len(rows), dtype=rows.dtype)

    @property
    def minimiser(self) -> Tensor:
        return ridge_solution(self.f, self.jac, self.y, self.mu)


def explicit(name: str, mu: float = 1e-3, **options: torch.dtype) -> Explicit:
    return Explicit(cases.tail(name), cases.BY_NAME[name].inputs(NUM), mu, **options)


def inverted(kernel: KroneckerKernel, n: int, c: int) -> Tensor:
    """P⁻¹ written out, (n·c, n·c)."""
    unit = torch.eye(n * c, dtype=torch.float64).view(n * c, n, c)
    return torch.stack([kernel.apply(one).flatten() for one in unit])


# --- products -------------------------------------------------------------------------------------


@every_kind
def test_pull_and_push_are_the_jacobian_in_half_a_pass_each(name: str) -> None:
    e, generator = explicit(name), torch.Generator().manual_seed(3)
    u = torch.randn(e.f.shape, generator=generator, dtype=torch.float64)
    v = torch.randn(e.jac.shape[2], generator=generator, dtype=torch.float64)
    torch.testing.assert_close(e.problem.pull(u), torch.einsum("ncd,nc->d", e.jac, u))
    torch.testing.assert_close(e.problem.push(v), e.jac @ v)
    assert e.problem.passes == 1
    residual, gradient = e.problem.residual(v)
    torch.testing.assert_close(residual, e.f + e.jac @ v - e.y)
    torch.testing.assert_close(gradient, e.problem.gradient(v))


# --- the preconditioner ---------------------------------------------------------------------------


def test_of_the_head_alone_the_preconditioner_is_the_kernel() -> None:
    head = cases.randomised(Tail([], nn.Linear(4, 3)).double())
    e = Explicit(head, torch.randn(NUM, 4, dtype=torch.float64), 1e-3)
    kernel = KroneckerKernel.build(e.problem)
    torch.testing.assert_close(
        inverted(kernel, NUM, 3) @ e.kernel, torch.eye(NUM * 3, dtype=torch.float64)
    )
    solution = EXACT.solve(e.problem)
    assert solution.status is Status.CONVERGED
    assert solution.passes < 8


def test_below_the_head_it_is_a_product_of_samples_and_outputs() -> None:
    """Of two linear layers the kernel is one: x_i·x_j times w_a·w_b. What is left is the sketch's noise."""
    from efface.network.families import Step

    first = nn.Linear(5, 6, bias=False)
    net = cases.randomised(Tail([Step("first", first)], nn.Linear(6, 3)).double())
    e = Explicit(net, torch.randn(NUM, 5, dtype=torch.float64), 1e-2)
    kernel = KroneckerKernel.build(e.problem, side=200, probes=20)
    spectrum = torch.linalg.eigvals(inverted(kernel, NUM, 3) @ e.kernel).real
    assert float(spectrum.min()) > 0.4
    assert float(spectrum.max()) < 2.5


def test_between_outputs_is_unbiased() -> None:
    e = explicit("cnn")
    below = [
        i for i, name in enumerate(e.problem.operator.layout.names) if "classifier" not in name
    ]
    sizes = [view.numel() for view in e.problem.operator.layout.views(e.problem.zeros()).values()]
    jac = torch.cat([part for i, part in enumerate(e.jac.split(sizes, dim=2)) if i in below], dim=2)
    exact = torch.einsum("nad,nbd->ab", jac, jac)
    found = between_outputs(e.problem, probes=3000)
    torch.testing.assert_close(found, exact, rtol=0.1, atol=0.05 * float(exact.diagonal().max()))


# --- the solver -----------------------------------------------------------------------------------


@every_kind
def test_it_ends_in_the_minimiser_and_counts_its_passes(name: str) -> None:
    e = explicit(name)
    solution = EXACT.solve(e.problem)
    assert solution.status is Status.CONVERGED, solution
    assert solution.passes == e.problem.passes
    assert float((solution.value - e.minimiser).norm() / e.minimiser.norm()) < 1e-6
    gradient = float(e.problem.gradient(solution.value, torch.float64).norm())
    assert solution.residual_norm == pytest.approx(gradient, rel=1e-6, abs=1e-12)


def test_products_in_float32_are_refined() -> None:
    e = explicit("resnet bottleneck", dtype=torch.float32)
    solution = DualConjugateGradient(tolerance=1e-8, max_passes=300).solve(e.problem)
    assert solution.status is Status.CONVERGED, solution
    assert float((solution.value - e.minimiser).norm() / e.minimiser.norm()) < 1e-4


def test_from_any_start_nothing_of_a_removed_sample_is_left() -> None:
    """Solved with a sample whose target is a thousand times too large, then without it."""
    e = explicit("resnet bottleneck")
    whole, stay = e.problem, torch.arange(1, NUM)
    whole.targets[0] *= 1000
    before = EXACT.solve(whole).value
    left = whole.subset(stay)
    wanted = ridge_solution(e.f[stay], e.jac[stay], e.y[stay], e.mu)
    assert float((before - wanted).norm() / wanted.norm()) > 10
    for start in (before, before + 1.0, None):
        solution = EXACT.solve(whole.subset(stay), start)
        assert solution.status is Status.CONVERGED
        assert float((solution.value - wanted).norm() / wanted.norm()) < 1e-6
    by = SolvedForgetting(dual=True).solver(1e-7)
    assert by.solve(left, before).residual_norm <= 1e-7


def test_at_the_minimiser_it_stays_there() -> None:
    e = explicit("cnn")
    solution = DualConjugateGradient().solve(e.problem, e.minimiser)
    assert (solution.status, solution.history) == (Status.CONVERGED, ())


def test_at_a_small_ridge_it_takes_far_fewer_passes_than_conjugate_gradients() -> None:
    """More weights than samples times outputs, as in a large network."""
    target = {"tolerance": 1e-6, "max_passes": 2000}
    dual = DualConjugateGradient(**target).solve(explicit("resnet bottleneck", 1e-7).problem)  # type: ignore[arg-type]
    plain = ConjugateGradient(**target).solve(explicit("resnet bottleneck", 1e-7).problem)  # type: ignore[arg-type]
    assert dual.status is Status.CONVERGED
    assert dual.passes < plain.passes


def test_a_budget_that_is_too_small_is_said_and_too_many_samples_are_refused() -> None:
    e = explicit("cnn", 1e-9)
    solution = DualConjugateGradient(tolerance=1e-12, max_passes=6).solve(e.problem)
    assert solution.status is Status.STOPPED_SHORT
    assert solution.passes <= 6
    assert "max_passes" in solution.advice
    with pytest.raises(EffaceError, match="too many for matrices between samples"):
        DualConjugateGradient(max_samples=NUM - 1).solve(e.problem)


def test_a_killed_solve_goes_on_where_it_was(tmp_path: Path) -> None:
    by = DualConjugateGradient(precision=1e-6, max_passes=500)
    whole = by.solve(explicit("resnet bottleneck", 1e-5).problem)
    steps = len(whole.history)
    assert steps > 6, "nothing to kill"
    state, seen = SolveState(tmp_path / "solve.partial", every=0.0), list[float]()

    def killed(fraction: float, message: str) -> None:
        seen.append(fraction)
        if len(seen) == steps // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        by.solve(explicit("resnet bottleneck", 1e-5).problem, state=state, progress=killed)
    assert state.path.is_file()
    seen.clear()
    problem = explicit("resnet bottleneck", 1e-5).problem
    rest = by.solve(problem, state=state, progress=lambda f, m: seen.append(f))
    assert rest.status is Status.CONVERGED
    assert len(seen) < steps, "it began anew"
    assert len(rest.history) == pytest.approx(steps, abs=2)
    torch.testing.assert_close(rest.value, whole.value, rtol=1e-5, atol=1e-9)
    assert rest.passes == pytest.approx(whole.passes + 1, abs=2)  # the preconditioner twice
    assert not state.path.exists()


@pytest.mark.parametrize("kind", ["no tensors", "other names", "another problem's"])
def test_a_state_of_something_else_is_no_state(tmp_path: Path, kind: str) -> None:
    state = SolveState(tmp_path / "solve.partial")
    assert state.read() is None
    one, point = torch.zeros(2, 2), ("alpha", "w", "residual", "gradient")
    tensors = {
        **{f"point.{n}": one for n in point},
        **{f"walk.{n}": one for n in ("x", "moved", "r", "p")},
    }
    tensors |= {name: torch.zeros(3) for name in ("history", "norms", "numbers")}
    if kind == "no tensors":
        state.path.write_bytes(b"nothing of the kind")
    else:
        files.write_tensors(state.path, {"w": one} if kind == "other names" else tensors)
    e = explicit("cnn")
    assert EXACT.solve(e.problem, state=state).status is Status.CONVERGED
    assert not state.path.exists()


def test_a_request_can_ask_for_it() -> None:
    assert ProcedureChoice("solved", solver="dual").build(3) == SolvedForgetting(dual=True)
    with pytest.raises(EffaceError, match="unknown solver"):
        ProcedureChoice("solved", solver="magic")
    with pytest.raises(EffaceError, match="has no --solver"):
        ProcedureChoice("paper", solver="dual")


# --- what it proves -------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", [{"precision": 1e-2}, {"precision": 1e-5}, {"distance": 1e-3}])
@every_kind
def test_the_proved_distance_holds_and_is_what_was_asked_for(
    name: str, goal: dict[str, float]
) -> None:
    e = explicit(name, 1e-2)
    solution = DualConjugateGradient(max_passes=300, **goal).solve(e.problem)
    assert solution.status is Status.CONVERGED, solution
    bound = solution.distance_bound
    assert bound is not None
    length = float(solution.value.norm()) if "precision" in goal else 1.0
    assert float((solution.value - e.minimiser).norm()) <= bound * (1 + 1e-9) + 1e-12
    assert bound <= next(iter(goal.values())) * length


def test_the_bound_is_tight_where_a_singular_value_squared_is_the_ridge() -> None:
    """s/(s² + nμ) is largest, 1/(2√(nμ)), at s² = nμ: there the bound is the distance itself."""
    head = cases.randomised(Tail([], nn.Linear(4, 3)).double())
    e = Explicit(head, torch.randn(NUM, 4, dtype=torch.float64), 1.0)
    square = float(torch.linalg.eigvalsh(e.kernel - NUM * torch.eye(NUM * 3).double())[-1])
    e = Explicit(head, e.problem.activations[slice(NUM)], square / NUM)
    vector = torch.linalg.eigh(e.kernel).eigenvectors[:, -1].view(NUM, 3)
    ridge = NUM * e.mu
    alpha = torch.linalg.solve(e.kernel, ((e.y - e.f).flatten() - vector.flatten())).view(NUM, 3)
    w = torch.einsum("ncd,nc->d", e.jac, alpha)
    point = _at(e.problem, alpha, w)
    torch.testing.assert_close(point.missing(ridge), vector)
    distance = float((w - e.minimiser).norm())
    assert point.distance_bound(ridge) == pytest.approx(distance, rel=1e-6)


def test_a_budget_too_small_for_a_distance_tells_the_one_that_was_proved() -> None:
    e = explicit("resnet bottleneck", 1e-9)
    solution = DualConjugateGradient(precision=1e-9, max_passes=8).solve(e.problem)
    assert solution.status is Status.STOPPED_SHORT
    assert "times too far" in solution.advice
    assert solution.distance_bound is not None
    assert float((solution.value - e.minimiser).norm()) <= solution.distance_bound


@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_pooled_slopes_give_both_matrices_exactly(scale: float) -> None:
    name = "resnet bottleneck"
    tail = cases.tail(name)
    names = final_names(tail)
    scales = {key: scale * (i + 1) for i, key in enumerate(names)}
    operator = TangentOperator(tail, names=names, scales=scales)
    x, c = cases.BY_NAME[name].inputs(NUM), cases.NUM_CLASSES
    problem = RidgeProblem(operator, x, torch.zeros(NUM, c), 0.1, dtype=torch.float64)
    assert _pooled(problem) is None
    problem.pool()
    found = _pooled(problem)
    assert found is not None
    batch = operator.prepare(x, torch.float64)
    unit = torch.eye(NUM * c, dtype=torch.float64).view(-1, NUM, c)
    jac = torch.stack([operator.vjp(batch, u) for u in unit]).view(NUM, c, -1)
    at = sum(v.numel() for k, v in operator.layout.views(jac[0, 0]).items() if HEAD not in k)
    below, head = jac[:, :, :at], jac[:, :, at:]
    torch.testing.assert_close(found[0], torch.einsum("iad,jad->ij", head, head) / c)
    torch.testing.assert_close(found[1], torch.einsum("iad,jad->ij", below, below))
    torch.testing.assert_close(found[2], torch.einsum("iad,ibd->ab", below, below))
    whole = RidgeProblem(TangentOperator(tail), x, torch.zeros(NUM, c), 0.1, dtype=torch.float64)
    assert _pooled(whole) is None


def test_the_final_layers_of_a_resnet_are_solved_to_a_proved_distance() -> None:
    tail, x = cases.tail("resnet bottleneck"), cases.BY_NAME["resnet bottleneck"].inputs(NUM)
    operator = TangentOperator(tail, names=final_names(tail))
    y = one_hot(torch.arange(NUM) % cases.NUM_CLASSES, cases.NUM_CLASSES)
    problem = RidgeProblem(operator, x, y, 1e-3)
    solution = DualConjugateGradient(precision=1e-6).solve(problem)
    assert solution.status is Status.CONVERGED
    exact = RidgeProblem(operator, x, y, 1e-3, dtype=torch.float64)
    assert float(exact.gradient(solution.value).norm()) < 1e-3 * float(
        exact.gradient(exact.zeros()).norm()
    )


def test_a_config_can_ask_for_a_proved_precision() -> None:
    solver = DualConfig(precision=0.01, max_passes=77).build()
    assert solver == DualConjugateGradient(precision=0.01, max_passes=77)
    with pytest.raises(ValueError, match="greater than 0"):
        DualConfig(precision=0)
