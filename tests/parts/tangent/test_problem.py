"""Loss, gradient and Hessian of the ridge problem against the formulas, and against curvlinops."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import cases
from tests.reference import explicit_jacobian, ridge_gradient, ridge_hessian, ridge_loss
from torch import Tensor, nn

from efface.linear.operator import TangentOperator
from efface.network.activations import ActivationCache
from efface.parts.tangent.dense import normal_equations
from efface.parts.tangent.problem import RidgeProblem

MU = 0.03
# float64, a few thousand terms a sum: rounding is near 1e-13 of the result.
CLOSE = {"rtol": 1e-10, "atol": 1e-10}

every_case = pytest.mark.parametrize("name", [case.name for case in cases.CASES])
both_forms = pytest.mark.parametrize("fast", [True, False], ids=["fast", "opaque"])


@cache
def explicit(name: str) -> tuple[Tensor, Tensor]:
    """f (n, c) and J (n, c, d)."""
    net, x = cases.tail(name), cases.BY_NAME[name].inputs()
    return net(x.clone()).detach(), explicit_jacobian(net, x)


def draw(*shape: int, seed: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def problem_of(name: str = "cnn", *, fast: bool = True, **options: object) -> RidgeProblem:
    options = {"batch_size": 2, "dtype": torch.float64, **options}  # 2 does not divide 5
    operator = TangentOperator(cases.tail(name), fast=fast)
    targets = draw(cases.NUM_SAMPLES, cases.NUM_CLASSES)
    return RidgeProblem(operator, cases.BY_NAME[name].inputs(), targets, MU, **options)  # type: ignore[arg-type]


@every_case
@both_forms
def test_everything_equals_the_formula(name: str, fast: bool) -> None:
    (f, jac), problem = explicit(name), problem_of(name, fast=fast)
    y, w, v = problem.targets, draw(problem.d, seed=8), draw(problem.d, seed=9)
    hessian = ridge_hessian(jac, MU)
    assert problem.loss(w) == pytest.approx(ridge_loss(f, jac, y, MU, w), rel=1e-12)  # rounding
    torch.testing.assert_close(problem.gradient(w), ridge_gradient(f, jac, y, MU, w), **CLOSE)
    torch.testing.assert_close(problem.product(v), hessian @ v, **CLOSE)


@every_case
def test_dense_normal_equations_equal_the_formula(name: str) -> None:
    (f, jac), problem = explicit(name), problem_of(name)
    hessian, gradient = normal_equations(problem)
    torch.testing.assert_close(hessian, ridge_hessian(jac, MU), **CLOSE)
    want = ridge_gradient(f, jac, problem.targets, MU, problem.zeros())
    torch.testing.assert_close(gradient, want, **CLOSE)


@every_case
def test_the_gradient_is_the_derivative_of_the_loss(name: str) -> None:
    """L is quadratic: a central difference is exact up to rounding, whatever the step."""
    problem = problem_of(name)
    w, v = draw(problem.d, seed=8), draw(problem.d, seed=9)
    difference = (problem.loss(w + v) - problem.loss(w - v)) / 2
    assert difference == pytest.approx(float(problem.gradient(w) @ v), rel=1e-9)  # rounding


@every_case
@pytest.mark.parametrize("t", [1e-2, 1.0])
def test_the_hessian_is_the_derivative_of_the_gradient(name: str, t: float) -> None:
    """H v = (g(w + tv) − g(w))/t for every t: they would differ if one were a sum, one a mean."""
    problem = problem_of(name)
    w, v = draw(problem.d, seed=8), draw(problem.d, seed=9)
    difference = (problem.gradient(w + t * v) - problem.gradient(w)) / t
    # Cancellation costs 1/t: 1e-13 · |g| / 1e-2.
    scale = float(difference.abs().max())
    torch.testing.assert_close(problem.product(v), difference, rtol=0, atol=1e-10 * scale)


# --- one normalisation ----------------------------------------------------------------------------


def test_the_regularisers_gradient_is_mu_w() -> None:
    """With targets f + J w the squared error is flat at w, and only the ridge is left."""
    f, jac = explicit("cnn")
    w = draw(jac.shape[2], seed=8)
    problem = problem_of()
    problem.targets = f + jac @ w
    # The residual is rounding, 1e-15, times the size of J.
    torch.testing.assert_close(problem.gradient(w), MU * w, rtol=0, atol=1e-12)
    assert problem.loss(w) == pytest.approx(MU / 2 * float(w @ w), rel=1e-12)


def test_every_sample_twice_is_the_same_problem() -> None:
    once = problem_of()
    twice = RidgeProblem(
        once.operator,
        torch.cat([once.activations, once.activations]),
        torch.cat([once.targets, once.targets]),
        MU,
        dtype=torch.float64,
    )
    w = draw(once.d, seed=8)
    assert twice.loss(w) == pytest.approx(once.loss(w), rel=1e-12)  # another order of summation
    torch.testing.assert_close(twice.gradient(w), once.gradient(w), **CLOSE)
    torch.testing.assert_close(twice.product(w), once.product(w), **CLOSE)


def test_one_sample_one_output_by_hand() -> None:
    """f = θ x with θ = 2, x = 3, y = 1, w = 0.5: J = 3, residual 6 + 1.5 − 1 = 6.5."""
    net = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(net.weight, 2.0)
    x, y, w = (torch.tensor(v, dtype=torch.float64) for v in ([[3.0]], [[1.0]], [0.5]))
    problem = RidgeProblem(TangentOperator(net), x, y, 0.1, dtype=torch.float64)
    assert problem.loss(w) == pytest.approx(6.5**2 / 2 + 0.1 / 2 * 0.25, rel=1e-15)  # exact but 0.1
    assert float(problem.gradient(w)) == pytest.approx(3 * 6.5 + 0.1 * 0.5, rel=1e-15)
    assert float(problem.product(w)) == pytest.approx((9 + 0.1) * 0.5, rel=1e-15)


def test_a_minibatch_of_everything_is_everything() -> None:
    problem, everything = problem_of(), torch.arange(cases.NUM_SAMPLES)
    w = draw(problem.d, seed=8)
    torch.testing.assert_close(
        problem.minibatch_gradient(w, everything), problem.gradient(w), **CLOSE
    )
    torch.testing.assert_close(
        problem.minibatch_product(w, everything), problem.product(w), **CLOSE
    )


def test_minibatches_are_unbiased() -> None:
    problem = problem_of()
    w = draw(problem.d, seed=8)
    singles = [torch.tensor([i]) for i in range(problem.n)]
    mean = torch.stack([problem.minibatch_gradient(w, i) for i in singles]).mean(0)
    torch.testing.assert_close(mean, problem.gradient(w), **CLOSE)
    mean = torch.stack([problem.minibatch_product(w, i) for i in singles]).mean(0)
    torch.testing.assert_close(mean, problem.product(w), **CLOSE)


@pytest.mark.parametrize("mu", [0.0, -1.0])
def test_mu_must_be_positive(mu: float) -> None:
    problem = problem_of()
    with pytest.raises(ValueError, match="mu must be positive"):
        RidgeProblem(problem.operator, problem.activations, problem.targets, mu)


def test_activations_and_targets_must_match() -> None:
    problem = problem_of()
    with pytest.raises(ValueError, match="5 activations for 4 targets"):
        RidgeProblem(problem.operator, problem.activations, problem.targets[:4], MU)


def test_an_empty_problem_is_the_regulariser() -> None:
    problem = problem_of().subset(torch.arange(0))
    w = draw(problem.d, seed=8)
    assert torch.equal(problem.gradient(w), MU * w)
    assert torch.equal(problem.product(w), MU * w)


# --- removing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_subset_is_the_problem_that_never_had_the_others(cache_bytes: int) -> None:
    """The removed samples' targets are × 1000, so that any trace of them shows."""
    whole = problem_of(cache_bytes=cache_bytes)
    kept, removed = torch.tensor([0, 2, 3]), torch.tensor([1, 4])
    whole.targets[removed] *= 1000
    whole.gradient(whole.zeros())  # fills the cache with the removed samples too
    never = RidgeProblem(
        whole.operator,
        whole.activations[kept],
        problem_of().targets[kept],
        MU,
        batch_size=2,
        dtype=torch.float64,
    )
    part, w = whole.subset(kept), draw(whole.d, seed=8)
    assert part.n == 3
    # The same numbers in the same batches: equal to the bit.
    assert part.loss(w) == never.loss(w)
    assert torch.equal(part.gradient(w), never.gradient(w))
    assert torch.equal(part.product(w), never.product(w))


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, cases.NUM_SAMPLES - 1), min_size=1, max_size=cases.NUM_SAMPLES - 1))
def test_retained_and_forgotten_add_up(forgotten: set[int]) -> None:
    """(n − b) g_r = n g_D − b g_f, and the same for H (errata 3)."""
    problem, b = problem_of(), len(forgotten)
    f, r = (
        problem.subset(torch.tensor([i for i in range(problem.n) if (i in forgotten) is wanted]))
        for wanted in (True, False)
    )
    n, w = problem.n, draw(problem.d, seed=8)
    want = n * problem.gradient(w) - b * f.gradient(w)
    torch.testing.assert_close((n - b) * r.gradient(w), want, **CLOSE)
    want = n * problem.product(w) - b * f.product(w)
    torch.testing.assert_close((n - b) * r.product(w), want, **CLOSE)


# --- what is kept, and how it is read ------------------------------------------------------------


@every_case
def test_results_do_not_depend_on_what_is_kept(name: str) -> None:
    kept, rebuilt = problem_of(name), problem_of(name, cache_bytes=0)
    w, index = draw(kept.d, seed=8), torch.tensor([4, 1, 1])
    # The kept tree may have other strides than a batch prepared anew: equal up to rounding.
    assert kept.loss(w) == pytest.approx(rebuilt.loss(w), rel=1e-12)
    torch.testing.assert_close(kept.gradient(w), rebuilt.gradient(w), **CLOSE)
    torch.testing.assert_close(kept.product(w), rebuilt.product(w), **CLOSE)
    torch.testing.assert_close(
        kept.minibatch_gradient(w, index), rebuilt.minibatch_gradient(w, index), **CLOSE
    )
    torch.testing.assert_close(
        kept.minibatch_product(w, index), rebuilt.minibatch_product(w, index), **CLOSE
    )
    assert kept.primal.kept is not None
    assert rebuilt.primal.kept is None


@pytest.mark.parametrize("batch_size", [None, 1, 3, 100])
def test_results_do_not_depend_on_the_batch_size(batch_size: int | None) -> None:
    w = draw(problem_of().d, seed=8)
    got = problem_of(batch_size=batch_size).gradient(w)
    torch.testing.assert_close(got, problem_of().gradient(w), **CLOSE)


def test_passes_are_counted() -> None:
    problem, w = problem_of(), problem_of().zeros()
    problem.gradient(w)
    problem.product(w)
    problem.loss(w)
    assert problem.passes == 3
    problem.minibatch_gradient(w, torch.tensor([0, 1]))
    assert problem.passes == pytest.approx(3 + 2 / 5)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_activations_may_be_a_memory_map(tmp_path: Path, dtype: str) -> None:
    x = cases.BY_NAME["cnn"].inputs().to(getattr(torch, dtype))
    store = ActivationCache(tmp_path, "d" * 64, x.shape[1:], dtype)
    digests = [f"{i:064d}" for i in range(len(x))]
    store.put(digests, x.float())
    operator, targets = problem_of().operator, problem_of().targets
    mapped = RidgeProblem(operator, store.rows(digests), targets, MU, dtype=torch.float64)
    memory = RidgeProblem(operator, x, targets, MU, dtype=torch.float64)
    w, kept = draw(mapped.d, seed=8), torch.tensor([3, 0])
    assert torch.equal(mapped.gradient(w), memory.gradient(w))  # the same numbers, read differently
    assert torch.equal(mapped.subset(kept).gradient(w), memory.subset(kept).gradient(w))
    assert isinstance(store.rows(digests).memory, np.memmap)


def test_float32_problems_certify_in_float64() -> None:
    narrow, wide = problem_of(dtype=torch.float32), problem_of()
    w = draw(narrow.d, seed=8)
    # The first is float64 throughout; the second has float32's 1e-7, times a few hundred terms.
    torch.testing.assert_close(narrow.gradient(w, torch.float64), wide.gradient(w), **CLOSE)
    assert not torch.allclose(narrow.gradient(w), wide.gradient(w), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(narrow.gradient(w), wide.gradient(w), rtol=1e-4, atol=1e-4)


# --- an outside oracle ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["cnn", "resnet bottleneck", "resnet bottleneck, folded", "resnet basic block", "residual"],
)
def test_the_product_equals_curvlinops_gauss_newton(name: str) -> None:
    """MSELoss(sum) is Σ‖f − y‖², its Gauss–Newton matrix 2 Σ JᵀJ; ours is 1/n Σ JᵀJ + μ I."""
    problem, net = problem_of(name), cases.BY_NAME[name].build()
    params = [p for p in net.parameters() if p.requires_grad]
    data = [(problem.activations, problem.targets)]
    oracle = GGNLinearOperator(net, nn.MSELoss(reduction="sum"), params, data)
    v = draw(problem.d, seed=9)
    want = oracle @ v / (2 * problem.n) + MU * v
    torch.testing.assert_close(problem.product(v), want, **CLOSE)


class Linearised(nn.Module):
    """f_i + J_i w with w the only weights; its input is the samples' indices."""

    def __init__(self, f: Tensor, jac: Tensor, w: Tensor) -> None:
        super().__init__()
        self.f, self.jac, self.w = f, jac, nn.Parameter(w)

    def forward(self, index: Tensor) -> Tensor:
        return self.f[index] + self.jac[index] @ self.w


@pytest.mark.parametrize("name", ["cnn", "resnet bottleneck", "vit"])
def test_the_product_equals_curvlinops_hessian_of_the_linear_model(name: str) -> None:
    problem, (f, jac) = problem_of(name), explicit(name)
    net = Linearised(f, jac, draw(problem.d, seed=8))
    data = [(torch.arange(problem.n), problem.targets)]
    oracle = HessianLinearOperator(net, nn.MSELoss(reduction="sum"), [net.w], data)
    v = draw(problem.d, seed=9)
    want = oracle @ v / (2 * problem.n) + MU * v
    torch.testing.assert_close(problem.product(v), want, **CLOSE)
