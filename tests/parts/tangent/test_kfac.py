"""K-FAC against explicit matrices in float64: exact where it should be, positive definite everywhere."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, kronecker_block, layer_rows, ridge_hessian
from torch import Tensor, nn

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.kfac import Kfac
from efface.parts.tangent.problem import RidgeProblem

DOUBLE = torch.float64
ALL = 100  # probes: more than there are outputs, so that the sum over them is exact


def draw(*shape: int, seed: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def inverse_of(preconditioner: Kfac) -> Tensor:
    """P⁻¹, column by column."""
    eye = torch.eye(preconditioner.layout.d, dtype=DOUBLE)
    return torch.stack([preconditioner.apply(column) for column in eye], dim=1)


def built(operator: TangentOperator, x: Tensor, mu: float, **options: object) -> Kfac:
    options = {"dtype": DOUBLE, "probes": ALL} | options
    return Kfac.build(operator, x, mu, **options)  # type: ignore[arg-type]


def positions(operator: TangentOperator, *names: str) -> Tensor:
    """Where these parameters lie in the flat vector, in the order a block has them: (o, k + 1)."""
    flat = torch.arange(operator.d)
    views = operator.layout.views(flat)
    return torch.cat([views[n].reshape(len(views[n]), -1) for n in names], dim=1).flatten()


# --- exact where the curvature is a Kronecker product ----------------------------------------------


@pytest.mark.parametrize("bias", [False, True])
def test_one_linear_layer_is_exact(bias: bool) -> None:
    """J = [a; 1] ⊗ I, so H = A ⊗ I + μI: nothing is approximated, scales included."""
    head = nn.Linear(5, 3, bias=bias).double().requires_grad_(False)
    tail = nn.Sequential(OrderedDict(classifier=head))
    scales = {"classifier.weight": 0.3} | ({"classifier.bias": 2.0} if bias else {})
    operator, x, mu = TangentOperator(tail, scales=scales), draw(8, 5), 1e-2
    jac = explicit_jacobian(tail, x)
    for name, columns in operator.layout.views(torch.arange(operator.d)).items():
        jac[:, :, columns.flatten()] *= scales[name]
    got = inverse_of(built(operator, x, mu))
    want = torch.linalg.inv(ridge_hessian(jac, mu))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)  # κ < 1e4, so 1e-12 would do


def test_a_newton_step_with_it_solves_a_linear_layer() -> None:
    operator = TangentOperator(nn.Linear(5, 3).double().requires_grad_(False))
    problem = RidgeProblem(operator, draw(9, 5), draw(9, 3, seed=8), 1e-3, dtype=DOUBLE)
    preconditioner = built(operator, problem.activations[:9], 1e-3)
    w = draw(operator.d, seed=9)
    w = w - preconditioner.apply(problem.gradient(w))
    assert float(problem.gradient(w).norm()) < 1e-10


# --- the factors are those of the definition -------------------------------------------------------

LAYERS = [
    ("cnn", "0.0"),
    ("cnn", "1.0"),
    ("uneven convolutions", "0"),
    ("grouped and dilated convolutions", "3"),
    ("layer norm on tokens", "1"),
    ("linear on permuted maps", "3"),
    ("resnet bottleneck, folded", None),
    ("vit", None),
]


def layer_of(case: str, name: str | None) -> tuple[TangentOperator, str, str | None]:
    tail = cases.tail(case)
    if name is None:  # the first layer with a dense weight below the head
        name = next(n for n, m in tail.named_modules() if type(m) in (nn.Linear, nn.Conv2d))
    scales = {f"{name}.weight": 0.5, f"{name}.bias": 3.0}
    operator = TangentOperator(tail)
    operator = TangentOperator(
        tail, scales={k: s for k, s in scales.items() if k in operator.scales}
    )
    return operator, name, f"{name}.bias" if f"{name}.bias" in operator.scales else None


@pytest.mark.parametrize(("case", "name"), LAYERS)
def test_blocks_are_the_kronecker_products(case: str, name: str | None) -> None:
    operator, name, bias = layer_of(case, name)
    x, mu = cases.BY_NAME[case].inputs(), 0.1
    a, g = layer_rows(operator.tail, name, x)
    a = a * operator.scales[f"{name}.weight"]
    if bias is not None:
        a = torch.cat([a, torch.full_like(a[..., :1], operator.scales[bias])], dim=2)
    want = torch.linalg.inv(kronecker_block(a, g) + mu * torch.eye(a.shape[2] * g.shape[3]))
    built_one = built(operator, x, mu, batch_size=2)
    at = positions(operator, *filter(None, (f"{name}.weight", bias)))
    r = draw(operator.d)
    got = built_one.apply(r)[at]
    torch.testing.assert_close(got, want @ r[at], rtol=1e-8, atol=1e-8 * float(want.norm()))


# --- a preconditioner for any tail -----------------------------------------------------------------


@pytest.mark.parametrize("case", cases.CASES, ids=lambda c: c.name)
def test_it_is_symmetric_and_positive_definite(case: cases.Case) -> None:
    """0 < P⁻¹ ≤ 1/μ, whatever the layers, from fewer probes than outputs."""
    operator, mu = TangentOperator(cases.tail(case.name)), 0.05
    preconditioner = built(operator, case.inputs(), mu, probes=2)
    r, s = draw(operator.d, seed=1), draw(operator.d, seed=2)
    pr, ps = preconditioner.apply(r), preconditioner.apply(s)
    assert float(r @ ps) == pytest.approx(float(s @ pr), rel=1e-9, abs=1e-9 * float(pr.norm()))
    # 0 < rᵀP⁻¹r ≤ ‖r‖²/μ; eigenvalues of single blocks are covered by the tests above.
    for v, pv in ((r, pr), (s, ps)):
        assert 0 < float(v @ pv) <= float(v @ v) / mu * (1 + 1e-9)


def test_it_does_not_change_what_it_is_given() -> None:
    operator = TangentOperator(cases.tail("cnn"))
    preconditioner = built(operator, cases.BY_NAME["cnn"].inputs(), 0.1)
    r = draw(operator.d)
    before = r.clone()
    preconditioner.apply(r)
    assert torch.equal(r, before)


def test_other_parameters_have_the_diagonal() -> None:
    """LayerNorm has no factors: its weights get diag C, estimated by random probes."""
    case = cases.BY_NAME["layer norm on tokens"]
    operator, x, mu = TangentOperator(cases.tail(case.name)), case.inputs(), 0.1
    hessian = ridge_hessian(explicit_jacobian(operator.tail, x), mu)
    at = positions(operator, "0.weight")
    preconditioner = built(operator, x, mu, probes=400)
    got = 1 / preconditioner.apply(torch.ones(operator.d, dtype=DOUBLE))[at]
    # Every batch adds a square for each of 400 probes: a relative error of √(2/400) = 7 %.
    torch.testing.assert_close(got, hessian.diag()[at], rtol=0.3, atol=0)


def test_a_layer_that_runs_twice_is_left_to_the_diagonal() -> None:
    operator = TangentOperator(cases.tail("tied weights"))
    preconditioner = built(operator, cases.BY_NAME["tied weights"].inputs(), 0.1)
    assert [b.weight for b in preconditioner.blocks] == ["classifier.weight"]


def test_no_samples_is_an_error_that_says_what_to_give() -> None:
    operator, nobody = TangentOperator(cases.tail("cnn")), cases.BY_NAME["cnn"].inputs(0)
    with pytest.raises(EffaceError, match="core samples"):
        built(operator, nobody, 0.1)


def test_another_ridge_needs_no_new_factors() -> None:
    operator, x = TangentOperator(cases.tail("cnn")), cases.BY_NAME["cnn"].inputs()
    r = draw(operator.d)
    moved, anew = built(operator, x, 0.1).with_mu(0.01), built(operator, x, 0.01)
    assert torch.equal(moved.apply(r), anew.apply(r))


def test_few_probes_estimate_the_same_factors() -> None:
    """The mean over seeds of one probe's B is the B of all outputs."""
    operator, x = TangentOperator(cases.tail("cnn")), cases.BY_NAME["cnn"].inputs(40)

    def trace(**options: object) -> float:
        return float(built(operator, x, 0.1, **options).blocks[0].spectrum.sum())

    exact = trace()
    seeds = [trace(probes=1, seed=s) for s in range(20)]
    spread = torch.tensor(seeds).std() / len(seeds) ** 0.5
    assert abs(sum(seeds) / len(seeds) - exact) < 5 * float(spread)
    assert float(spread) > 0


# --- what it is for --------------------------------------------------------------------------------


@pytest.mark.parametrize(("hidden", "fewer"), [(0, 3), (8, 1.5)])
def test_conjugate_gradients_need_fewer_passes_on_an_ill_conditioned_problem(
    hidden: int, fewer: float
) -> None:
    """Inputs whose variances span four decades, as activations have them.

    One layer is a Kronecker product and needs next to none; between two layers the blocks miss how the
    layers stand in for each other, which costs most of the gain.
    """
    torch.manual_seed(0)
    layers = (
        [nn.Linear(30, hidden), nn.Tanh(), nn.Linear(hidden, 3)] if hidden else [nn.Linear(30, 3)]
    )
    operator = TangentOperator(nn.Sequential(*layers).double().requires_grad_(False))
    stretch, mu = torch.logspace(0, -2, 30, dtype=DOUBLE), 1e-6
    x, public = draw(200, 30) * stretch, draw(200, 30, seed=3) * stretch
    problem = RidgeProblem(operator, x, draw(200, 3, seed=4), mu, dtype=DOUBLE)
    # From other samples of the same kind, as core data are.
    preconditioner = built(operator, public, mu)
    slow, fast = (
        ConjugateGradient(tolerance=1e-6, max_passes=2000, **options).solve(problem)  # type: ignore[arg-type]
        for options in ({}, {"preconditioner": preconditioner})
    )
    assert slow.ok
    assert fast.ok
    assert fast.passes < slow.passes / fewer
    # both have ‖g‖ ≤ 1e-6 ‖g(0)‖, so they are at most 2e-6 ‖g(0)‖/μ apart
    limit = 2e-6 * float(problem.gradient(problem.zeros()).norm()) / mu
    assert float((slow.value - fast.value).norm()) <= limit
