"""Forgetting on the ridge problem: to the minimiser without the samples, by the paper's way and by CG."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, ridge_gradient, ridge_hessian, ridge_solution
from tests.workspaces import CORE, people
from torch import Tensor, nn

from efface.data.preprocess import Preprocess
from efface.errors import EffaceError
from efface.guarantee import bounds
from efface.linear import gemm
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.linear.solution import Status
from efface.linear.winograd import suits_winograd
from efface.model.mixed_linear import MixedLinear
from efface.network.blocks import GlobalMean
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.parts.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.parts.tangent.kfac import Kfac
from efface.parts.tangent.preconditioners import Nystrom, Preconditioner
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import SGD, minibatches
from efface.parts.tangent.user import PRECONDITIONERS, TangentUser

MU = 0.05
NUM, FORGET = 12, (1, 4, 5)
some_cases = pytest.mark.parametrize("name", ["cnn", "resnet bottleneck", "convnext", "vit"])


@dataclass(frozen=True)
class Explicit:
    """A small problem with its Jacobians written out, before (D) and after (r) forgetting."""

    name: str
    x: Tensor
    f: Tensor  # (n, c)
    jac: Tensor  # (n, c, d)
    y: Tensor  # (n, c)
    keep: Tensor
    mu: float = MU

    def problem(self, **options: object) -> RidgeProblem:
        """The retained data's."""
        options = {"dtype": torch.float64, "batch_size": 5, **options}
        operator = TangentOperator(cases.tail(self.name))
        x, y = self.x[self.keep], self.y[self.keep]
        return RidgeProblem(operator, x, y, self.mu, **options)  # type: ignore[arg-type]

    def gradient(self, w: Tensor, index: Tensor | None = None) -> Tensor:
        i = torch.arange(NUM) if index is None else index
        return ridge_gradient(self.f[i], self.jac[i], self.y[i], self.mu, w)

    def minimiser(self, index: Tensor | None = None) -> Tensor:
        i = torch.arange(NUM) if index is None else index
        return ridge_solution(self.f[i], self.jac[i], self.y[i], self.mu)

    @property
    def step(self) -> float:
        """1/λmax of every H_i at once, so that no minibatch diverges."""
        return 1 / max(float(torch.linalg.matrix_norm(j, 2)) ** 2 + self.mu for j in self.jac)


@cache
def explicit(name: str = "cnn") -> Explicit:
    net, x = cases.tail(name), cases.BY_NAME[name].inputs(NUM)
    f, jac = net(x.clone()).detach(), explicit_jacobian(net, x)
    y = one_hot(torch.arange(NUM) % cases.NUM_CLASSES, cases.NUM_CLASSES)
    keep = torch.tensor([i for i in range(NUM) if i not in FORGET])
    return Explicit(name, x, f, jac, y, keep)


def well_conditioned() -> Explicit:
    """A ridge so large that SGD gets somewhere in a test's time: κ is about 10."""
    e = explicit()
    return replace(e, mu=0.1 / e.step)


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


# --- identities (errata) --------------------------------------------------------------------------


@some_cases
def test_the_gradients_of_the_parts_make_up_the_whole(name: str) -> None:
    """(n − b) g_r = n g_D − b g_f at any w, the ridge inside each; and the same for H."""
    e, n, b = explicit(name), NUM, len(FORGET)
    w = torch.randn(e.jac.shape[2], dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    gone = torch.tensor(FORGET)
    left = (n - b) * e.problem().gradient(w)
    right = n * e.gradient(w) - b * e.gradient(w, gone)
    torch.testing.assert_close(left, right, rtol=1e-10, atol=1e-10)  # float64 rounding
    h = [ridge_hessian(e.jac[i], MU) for i in (torch.arange(n), gone, e.keep)]
    torch.testing.assert_close((n - b) * h[2], n * h[0] - b * h[1], rtol=1e-10, atol=1e-10)


@some_cases
def test_at_the_optimum_the_retained_gradient_needs_the_forgotten_alone(name: str) -> None:
    """g_r(w*_D) = −b/(n−b) g_f(w*_D); and so the sensitivity bound holds there."""
    e, n, b = explicit(name), NUM, len(FORGET)
    w, gone = e.minimiser(), torch.tensor(FORGET)
    g_f = e.gradient(w, gone)
    scale = float(g_f.norm())
    want = -b / (n - b) * g_f
    torch.testing.assert_close(e.problem().gradient(w), want, rtol=0, atol=1e-9 * scale)
    bound = bounds.sensitivity_bound(b, n, scale, MU)
    assert 0 < float((w - e.minimiser(e.keep)).norm()) <= bound


# --- solved ---------------------------------------------------------------------------------------


@some_cases
@pytest.mark.parametrize("tolerance", [1e-3, 1e-9])
def test_solved_forgetting_is_retraining(name: str, tolerance: float) -> None:
    """To its tolerance; the distance to the exact minimiser is within the a-posteriori bound."""
    e = explicit(name)
    solution = SolvedForgetting().solver(tolerance).solve(e.problem(), e.minimiser())
    assert solution.status is Status.CONVERGED
    off = float((solution.value - e.minimiser(e.keep)).norm())
    assert off <= bounds.distance_bound(solution.residual_norm, MU) * (1 + 1e-6)  # rounding
    assert bounds.distance_bound(solution.residual_norm, MU) <= tolerance / MU
    assert off < float((e.minimiser() - e.minimiser(e.keep)).norm())


@some_cases
@pytest.mark.parametrize("kind", ["nystrom", "kfac"])
def test_a_preconditioner_from_public_samples_ends_in_the_same_place(name: str, kind: str) -> None:
    """It may cost or save passes, but the minimiser is that of the retained samples."""
    e = explicit(name)
    problem, public = e.problem(), cases.BY_NAME[name].inputs(20, seed=5)
    built: Preconditioner = (
        Kfac.build(problem.operator, public, MU, dtype=torch.float64)
        if kind == "kfac"
        else Nystrom.build(RidgeProblem(problem.operator, public, torch.zeros(20, 3), MU), 20)
    )
    solution = SolvedForgetting(preconditioner=built).solver(1e-9).solve(problem, e.minimiser())
    assert solution.status is Status.CONVERGED
    assert distance(solution.value, e.minimiser(e.keep)) < 1e-6


def test_forgotten_targets_times_1000_leave_nothing_behind() -> None:
    """Weights fitted to absurd targets, then those forgotten: the minimiser without them."""
    e = explicit()
    wild = replace(e, y=e.y.clone())
    wild.y[list(FORGET)] *= 1000
    start = wild.minimiser()
    assert distance(start, e.minimiser(e.keep)) > 10
    solution = SolvedForgetting().solver(1e-10).solve(wild.problem(), start)
    assert distance(solution.value, e.minimiser(e.keep)) < 1e-8  # 1e-10/μ over a norm near 1


def test_a_solve_without_enough_passes_says_so() -> None:
    e = explicit()
    solution = SolvedForgetting(max_passes=3).solver(1e-12).solve(e.problem(), e.minimiser())
    assert solution.status is Status.STOPPED_SHORT
    assert solution.advice
    assert solution.residual_norm == pytest.approx(
        float(e.gradient(solution.value, e.keep).norm()), rel=1e-8
    )


# --- the paper's ----------------------------------------------------------------------------------


def paper_twin(e: Explicit, p: PaperForgetting, start: Tensor) -> Tensor:
    """The printed recursion on explicit matrices, minibatch by minibatch."""
    jac, n, w = e.jac[e.keep], len(e.keep), start.clone()
    for snapshot in range(p.snapshots):
        g = e.gradient(w, e.keep)
        v, velocity = torch.zeros_like(w), torch.zeros_like(w)
        generator = torch.Generator().manual_seed(p.seed + snapshot)
        for epoch in range(p.epochs):
            for index in minibatches(n, p.batch_size, False, generator):
                velocity = p.momentum * velocity + ridge_hessian(jac[index], MU) @ v - g
                v = v - p.lr * p.factor**epoch * velocity
        w = w - v
    return w


@pytest.mark.parametrize("momentum", [0.0, 0.9, 0.999])
@pytest.mark.parametrize("snapshots", [1, 2])
def test_the_papers_recursion_as_printed(momentum: float, snapshots: int) -> None:
    e = explicit()
    procedure = PaperForgetting(
        epochs=3, lr=0.1 * e.step, momentum=momentum, batch_size=4, snapshots=snapshots, seed=5
    )
    got = procedure.solve(e.problem(), e.minimiser())
    want = paper_twin(e, procedure, e.minimiser())
    torch.testing.assert_close(got.value, want, rtol=1e-9, atol=1e-10)  # float64 rounding
    assert got.status is Status.FIXED_BUDGET
    assert got.residual_norm == pytest.approx(float(e.gradient(want, e.keep).norm()), rel=1e-8)


def test_the_printed_settings_are_the_defaults() -> None:
    p = PaperForgetting()
    assert (p.epochs, p.lr, p.momentum, p.factor, p.snapshots) == (3, 0.01, 0.999, 0.5, 1)
    assert p.complete


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_the_gradient_is_the_exact_one_of_all_retained_samples(batch_size: int) -> None:
    """From v = 0 the first step is −η g_r: with steps that are tiny, w − ητ g_r for τ steps."""
    e, steps = explicit(), -(-(NUM - len(FORGET)) // batch_size)
    p = PaperForgetting(epochs=1, lr=1e-9, momentum=0.0, batch_size=batch_size)
    w = e.minimiser()
    moved = (w - p.solve(e.problem(), w).value) / (1e-9 * steps)
    g = e.gradient(w, e.keep)
    assert float((moved - g).norm() / g.norm()) < 1e-5  # w's rounding over the tiny step


def test_complete_and_estimated_gradients_differ() -> None:
    """complete=False is fine-tuning: SGD from the present weights, the rate halved every epoch."""
    e = explicit()
    p = PaperForgetting(epochs=3, lr=0.3 * e.step, momentum=0.9, batch_size=4, complete=False)
    tuned = p.solve(e.problem(), e.minimiser())
    sgd = SGD(3, 4, 0.3 * e.step, 0.9, milestones=(1, 2), factor=0.5)
    assert torch.equal(tuned.value, sgd.solve(e.problem(), e.minimiser()).value)
    assert not torch.equal(
        tuned.value, replace(p, complete=True).solve(e.problem(), e.minimiser()).value
    )


def test_snapshots_come_ever_closer_and_reach_the_minimiser() -> None:
    e, errors = well_conditioned(), []
    for snapshots in (1, 3, 10, 60):
        p = PaperForgetting(
            4, lr=0.3 * e.step, momentum=0.5, factor=1.0, batch_size=4, snapshots=snapshots
        )
        value = p.solve(e.problem(), e.minimiser()).value
        errors.append(distance(value, e.minimiser(e.keep)))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9 < errors[0]  # from nearly 1 to rounding over μ


def test_snapshots_in_float32_pass_its_floor() -> None:
    """The snapshot gradient is float64, the steps float32: refinement, not a floor of 1e-5."""
    e = well_conditioned()
    p = PaperForgetting(4, lr=0.3 * e.step, momentum=0.5, factor=1.0, batch_size=4, snapshots=60)
    solution = p.solve(e.problem(dtype=torch.float32), e.minimiser())
    assert solution.residual_norm < 1e-9
    assert distance(solution.value, e.minimiser(e.keep)) < 1e-7


def test_momentum_999_swings_where_momentum_9_has_settled() -> None:
    """Errata 15: the envelope is m^(t/2); after 60 steps 0.97 for m = 0.999 and 0.04 for 0.9."""
    e = well_conditioned()
    start = distance(e.minimiser(), e.minimiser(e.keep))

    def ratio(momentum: float, epochs: int) -> float:
        p = PaperForgetting(epochs, 0.3 * e.step, momentum, factor=1.0, batch_size=9)
        return distance(p.solve(e.problem(), e.minimiser()).value, e.minimiser(e.keep)) / start

    ends = range(60, 70, 2)  # more than half a swing, so that none is missed at its middle
    assert max(ratio(0.999, epochs) for epochs in ends) > 0.5
    assert max(ratio(0.9, epochs) for epochs in ends) < 0.1


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("factor", [30.0, 1e30])
def test_a_rate_that_diverges_is_reported(complete: bool, factor: float) -> None:
    """Also where the weights are still finite numbers."""
    e = explicit()
    p = PaperForgetting(
        5, lr=factor * e.step, momentum=0.9, factor=1.0, batch_size=3, complete=complete
    )
    solution = p.solve(e.problem(), e.minimiser())
    assert solution.status is Status.DIVERGED
    assert not solution.ok
    assert solution.residual_norm == float("inf")
    assert "too large" in solution.advice


def test_the_start_is_not_changed() -> None:
    e = explicit()
    start = e.minimiser()
    before = start.clone()
    PaperForgetting(lr=0.1 * e.step).solve(e.problem(), start)
    SolvedForgetting().solver(1e-6).solve(e.problem(), start)
    assert torch.equal(start, before)


def test_passes_count_the_gradients_too() -> None:
    """Errata 23: τ epochs, one pass for g_r and one for the certificate."""
    e = explicit()
    p = PaperForgetting(3, lr=0.1 * e.step, batch_size=3, snapshots=2)
    assert p.solve(e.problem(), e.minimiser()).passes == pytest.approx(2 * (3 + 1) + 1)


def test_progress_is_reported_each_epoch() -> None:
    e, seen = explicit(), []
    p = PaperForgetting(2, lr=0.1 * e.step)
    p.solve(e.problem(), e.minimiser(), progress=lambda done, text: seen.append((done, text)))
    assert seen == [(0.5, "epoch 1/2"), (1.0, "epoch 2/2")]


# --- scales ---------------------------------------------------------------------------------------


@some_cases
def test_balanced_scales_give_every_tensor_a_mean_trace_of_one(name: str) -> None:
    e = explicit(name)
    operator = TangentOperator(cases.tail(name))
    scales = balanced_scales(operator, e.x, probes=200)
    squares = e.jac.square().sum(1).mean(0)  # mean over samples of ‖∂f/∂θ_j‖², (d,)
    for key, view in operator.layout.views(squares).items():
        norm = float(view.sum())
        if norm > 1e-12:
            # 200 probes of at least one degree of freedom: a spread of √(2/200) = 10 %.
            assert scales[key] ** 2 * norm == pytest.approx(1, rel=0.4)


def test_tensors_without_gradient_keep_the_scale_one() -> None:
    tail = cases.BY_NAME["cnn"].build()
    nn.init.zeros_(tail.head.weight)  # nothing below the head has a gradient then
    scales = balanced_scales(TangentOperator(tail), explicit().x)
    assert {k for k, v in scales.items() if v != 1.0} == {"classifier.weight", "classifier.bias"}


def test_scales_are_a_change_of_variables() -> None:
    """w = S w̃: with scales the same tangent model, J S w̃ = J w."""
    e = explicit()
    scales = balanced_scales(TangentOperator(cases.tail("cnn")), e.x)
    plain, scaled = (
        TangentOperator(cases.tail("cnn")),
        TangentOperator(cases.tail("cnn"), scales=scales),
    )
    w = torch.randn(plain.d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shrunk = torch.cat(
        [(view / scales[k]).reshape(-1) for k, view in plain.layout.views(w).items()]
    )
    a = plain.jvp(plain.prepare(e.x, torch.float64), w)
    b = scaled.jvp(scaled.prepare(e.x, torch.float64), shrunk)
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# --- the user part builds preconditioners ---------------------------------------------------------


def user_of(name: str = "cnn") -> TangentUser:
    core = SimpleNamespace(tail=cases.tail(name), classes=("a", "b", "c"), place=None)
    return TangentUser(core, mu=MU)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", PRECONDITIONERS)
def test_a_user_part_builds_each_preconditioner_from_activations_alone(kind: str) -> None:
    user, e = user_of(), explicit()
    built = user.preconditioner(kind, cases.BY_NAME["cnn"].inputs(20, seed=5), rank=20)
    assert type(built).__name__ == {"none": "Identity"}.get(kind, kind.capitalize())
    solution = SolvedForgetting(preconditioner=built).solver(1e-8).solve(e.problem(), e.minimiser())
    assert solution.ok


def test_an_unknown_preconditioner_is_named_with_the_known_ones() -> None:
    with pytest.raises(EffaceError, match=r"'magic'.*none, nystrom, kfac"):
        user_of().preconditioner("magic", torch.zeros(1, 2, 6, 5))


def test_memory_of_products_is_let_go_with_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds numbers of whoever was in the last product."""
    small = partial(suits_winograd, min_channels=1)
    monkeypatch.setattr("efface.linear.lowering.suits_winograd", small)
    records = people()
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), GlobalMean()
    )
    gray = Preprocess(resize=0, crop=0, channels=1, mean=(0.5,), std=(0.5,))
    core = Core(network, classes=records.classes, preprocess=gray).fit(CORE)
    model = MixedLinear(core, "tangent", mu=1e-2).fit(records, replay=CORE)
    assert sum(map(len, gemm._ROOMS)) > 0  # or this test shows nothing
    model.forget(owner=records[0].owner)
    assert sum(map(len, gemm._ROOMS)) == 0
    model.logits(records)
    model.user.reset()
    assert sum(map(len, gemm._ROOMS)) == 0
