"""The ridge problem from the side of the samples: the same minimiser, in fewer passes at small ridges."""

from __future__ import annotations

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, ridge_solution
from torch import Tensor, nn

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.linear.solution import Status
from efface.network.tail import Tail
from efface.network.targets import one_hot
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.dual import DualConjugateGradient
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.parts.tangent.kronecker import KroneckerKernel, between_outputs
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.procedure import ProcedureChoice

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


def test_a_request_can_ask_for_it() -> None:
    assert ProcedureChoice("solved", solver="dual").build(3) == SolvedForgetting(dual=True)
    with pytest.raises(EffaceError, match="unknown solver"):
        ProcedureChoice("solved", solver="magic")
    with pytest.raises(EffaceError, match="has no --solver"):
        ProcedureChoice("paper", solver="dual")
