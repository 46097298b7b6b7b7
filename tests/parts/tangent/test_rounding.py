"""The bound on the gradient's rounding: it holds for every layer it is claimed for, and is of some use."""

from __future__ import annotations

import copy

import pytest
import torch
from tests import cases
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from efface.linear.operator import Prepared, TangentOperator
from efface.network.blocks import GlobalMean
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.rounding import _plain, measured_gradient

MU = 0.01


def wide() -> nn.Module:
    """Channels enough for Winograd's products, which the certificate does without."""
    torch.manual_seed(3)
    layers = [nn.Conv2d(64, 64, 3, padding=1), nn.LeakyReLU(0.1), GlobalMean()]
    return cases.with_head(layers, 64).double()


BOUNDED = {
    "cnn": cases.BY_NAME["cnn"],
    "uneven": cases.BY_NAME["uneven convolutions"],
    "capped": cases.BY_NAME["capped activations"],
    "batch norms": cases.BY_NAME["batch norms"],
    "residual": cases.BY_NAME["residual"],
    "bottleneck": cases.BY_NAME["resnet bottleneck"],
    "mirrored": cases.BY_NAME["mirrored cnn"],
    "wide": cases.Case("wide", wide, (64, 5, 5)),
}


def single(case: cases.Case) -> nn.Module:
    """The tail with weights that float32 holds exactly, in float64."""
    return copy.deepcopy(case.build()).float().double()


def exact_gradient(problem: RidgeProblem, w: Tensor) -> Tensor:
    """With float32's own primal side as the problem's data, products in float64."""
    plain, total = _plain(problem.operator), problem.zeros()
    for start in range(0, problem.n, problem.batch_size):
        part = slice(start, start + problem.batch_size)
        rough = plain.prepare(problem.activations[part], torch.float32)
        saved = tree_map(lambda t: t.double() if t.is_floating_point() else t, rough.saved)
        batch = Prepared(rough.outputs.double(), saved, plain.layer)
        residual = batch.outputs + plain.jvp(batch, w) - problem.targets[part]
        total += plain.vjp(batch, residual)
    return total / problem.n + problem.mu * w


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", BOUNDED)
def test_float32_is_off_by_no_more_than_the_bound(name: str, seed: int) -> None:
    """The same bound with float32's unit roundoff, where the error can be seen from float64."""
    case = BOUNDED[name]
    operator = TangentOperator(single(case))
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(operator.d, generator=generator).double()
    targets = torch.randn(9, cases.NUM_CLASSES, generator=generator).double()
    inputs = case.inputs(9, seed).float()
    problem = RidgeProblem(operator, inputs, targets, MU, batch_size=4)
    want = exact_gradient(problem, w)
    measured = measured_gradient(problem, w, torch.float32)
    assert measured.error is not None
    plain = _plain(operator)
    got = problem.zeros()
    for start in range(0, problem.n, problem.batch_size):
        part = slice(start, start + problem.batch_size)
        batch = plain.prepare(inputs[part], torch.float32)
        y = targets[part].float()
        got += plain.vjp(batch, batch.outputs + plain.jvp(batch, w) - y)
    off = float((got / problem.n + MU * w - want).norm())
    assert 0 < off <= measured.error
    assert abs(measured.norm - float(want.norm())) <= measured.error
    # Not so loose as to be useless: float64 gains nine digits over this.
    assert measured.error <= float(want.norm() + w.norm())


@pytest.mark.parametrize("name", BOUNDED)
def test_float64_agrees_with_the_solvers_gradient_and_is_tight(name: str) -> None:
    case = BOUNDED[name]
    operator = TangentOperator(case.build())
    w = torch.linspace(-1, 1, operator.d, dtype=torch.float64)
    targets = torch.ones(7, cases.NUM_CLASSES, dtype=torch.float64)
    problem = RidgeProblem(operator, case.inputs(7), targets, MU, dtype=torch.float64)
    measured = measured_gradient(problem, w)
    norm = float(problem.gradient(w, torch.float64).norm())
    assert measured.error is not None
    assert measured.norm == pytest.approx(norm, rel=1e-9)  # Winograd's products lose some digits
    assert 0 < measured.error < 1e-8 * norm


@pytest.mark.parametrize("name", ["vit", "layer norm on tokens", "max pooling, flattened"])
def test_layers_without_a_fast_form_have_no_bound(name: str) -> None:
    case = cases.BY_NAME[name]
    operator = TangentOperator(case.build())
    targets = torch.zeros(3, cases.NUM_CLASSES, dtype=torch.float64)
    problem = RidgeProblem(operator, case.inputs(3), targets, MU, dtype=torch.float64)
    measured = measured_gradient(problem, problem.zeros())
    assert measured.error is None
    assert measured.norm > 0
