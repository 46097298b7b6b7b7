"""The printed numbers under both readings of the loss, the rates that are stable, and procedures by name."""

from __future__ import annotations

import pytest
import torch
from tests import cases

from efface.errors import EffaceError
from efface.linear.operator import TangentOperator
from efface.linear.solution import Status
from efface.network.targets import one_hot
from efface.parts.tangent.dense import normal_equations
from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.procedure import ProcedureChoice
from efface.parts.tangent.reading import Reading
from efface.parts.tangent.sgd import SGD
from efface.parts.tangent.stability import stability


def problem(mu: float = 0.05) -> RidgeProblem:
    operator, x = TangentOperator(cases.tail("cnn")), cases.BY_NAME["cnn"].inputs(8)
    num_classes = operator.prepare(x[:1]).outputs.shape[1]
    y = one_hot(torch.arange(8) % num_classes, num_classes, 5.0)
    return RidgeProblem(operator, x, y, mu, batch_size=8, dtype=torch.float64)


def test_in_the_papers_reading_a_step_is_that_of_a_loss_averaged_over_the_classes() -> None:
    """By autograd on the averaged loss itself, with the printed rate and weight decay."""
    rate, decay = 0.05, 1e-2
    some = problem()
    c = some.targets.shape[1]
    batch = some.operator.prepare(some.activations, torch.float64)
    jac = torch.stack(
        [some.operator.vjp(batch, _unit(i, k, some.n, c)) for i in range(some.n) for k in range(c)]
    )
    w = torch.randn(some.d, dtype=torch.float64, requires_grad=True)
    outputs = batch.outputs + (jac @ w).view(some.n, c)
    loss = torch.nn.functional.mse_loss(outputs, some.targets) + decay / 2 * w @ w
    (gradient,) = torch.autograd.grad(loss, w)
    ours = problem(Reading.PAPER.ridge(decay, c)).gradient(w.detach(), torch.float64)
    step = Reading.PAPER.rate(rate, c) * ours
    assert torch.allclose(step, rate * gradient, rtol=1e-10, atol=1e-14)
    assert Reading.SUM.ridge(decay, c) == decay
    assert Reading.SUM.rate(rate, c) == rate


def _unit(i: int, k: int, n: int, c: int) -> torch.Tensor:
    unit = torch.zeros(n, c, dtype=torch.float64)
    unit[i, k] = 1
    return unit


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_beyond_the_stable_rate_sgd_diverges_and_below_it_does_not(momentum: float) -> None:
    some = problem()
    exact = float(torch.linalg.eigvalsh(normal_equations(some)[0])[-1])
    found = stability(some, momentum)
    assert found.eigenvalue_estimate == pytest.approx(exact, rel=0.02)
    assert found.eigenvalue_estimate <= exact * (
        1 + 1e-12
    )  # from below: nothing is refused in vain
    limit = found.largest_rate
    for rate, status in ((0.8 * limit, Status.FIXED_BUDGET), (1.3 * limit, Status.DIVERGED)):
        sgd = SGD(epochs=300, batch_size=8, lr=rate, momentum=momentum, milestones=())
        assert sgd.solve(problem()).status is status
    with pytest.raises(EffaceError, match=r"it would diverge.*divide --rate by 1.3 "):
        found.require(1.3 * limit)
    assert f"{found.eigenvalue_estimate:.3g}" in found.require(0.8 * limit)


def test_a_procedure_by_name_has_the_printed_settings_in_a_reading_of_the_loss() -> None:
    assert ProcedureChoice("paper").build(10) == PaperForgetting(lr=0.01 * 2 / 10)
    assert ProcedureChoice("paper", loss="sum").build(10) == PaperForgetting()
    fine = ProcedureChoice("finetune", rate=0.025, epochs=4, loss="sum").build(10)
    assert fine == PaperForgetting(epochs=4, lr=0.025, momentum=0.9, complete=False)
    assert ProcedureChoice("solved", max_passes=7).build(3) == SolvedForgetting(max_passes=7)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kind": "magic"}, "magic"),
        ({"kind": "paper", "momentum": 1.0}, "--momentum"),
        ({"kind": "paper", "momentum": float("nan")}, "--momentum"),
        ({"kind": "paper", "rate": 0.0}, "--rate"),
        ({"kind": "paper", "rate": float("inf")}, "--rate"),
        ({"kind": "paper", "rate": True}, "--rate"),
        ({"kind": "finetune", "epochs": 0}, "--epochs"),
        ({"kind": "finetune", "epochs": 1.5}, "--epochs"),
        ({"kind": "paper", "loss": "mean"}, "mean"),
        ({"kind": "paper", "max_passes": 5}, "--max-passes"),
        ({"kind": "solved", "rate": 0.1}, "--rate"),
    ],
)
def test_a_procedure_that_cannot_be_is_refused_with_a_fix(values: dict, named: str) -> None:
    with pytest.raises(EffaceError, match=named) as caught:
        ProcedureChoice(**values)
    assert caught.value.fix
    with pytest.raises(ValueError, match=named):  # the same from a file
        ProcedureChoice.from_dict(values)


def test_a_procedure_comes_back_from_its_values() -> None:
    choice = ProcedureChoice("paper", momentum=0.9, rate=0.025, epochs=4)
    assert ProcedureChoice.from_dict(choice.to_dict()) == choice
    with pytest.raises(ValueError, match="'hidden'"):
        ProcedureChoice.from_dict({"kind": "paper", "hidden": 1})
