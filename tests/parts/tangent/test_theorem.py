"""The paper's theorem beside a certificate: constants that are never too small, and an honest verdict."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests import cases, reference
from tests.reference import explicit_jacobian
from torch import Tensor

from efface.guarantee import apriori
from efface.guarantee.apriori import RequestHistory
from efface.guarantee.certificates import ShiftCertificate
from efface.guarantee.promise import Guarantee
from efface.linear.operator import TangentOperator
from efface.network.targets import one_hot
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.theorem import FAILURE_PROBABILITY, theorem_constants, with_theorem
from efface.parts.tangent.user import TangentUser
from efface.parts.training_set import TrainingSet

CLASSES = ["a", "b", "c"]
LABELS = torch.arange(8) % 3


def user_of(name: str, mu: float, **options: Any) -> TangentUser:
    core: Any = SimpleNamespace(tail=cases.tail(name), classes=CLASSES, place=None)
    return TangentUser(core, mu=mu, **options)


def samples(name: str) -> Tensor:
    return cases.BY_NAME[name].inputs(8)


# --- constants ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [case.name for case in cases.CASES])
def test_the_constants_are_never_below_the_exact_ones(name: str) -> None:
    tail, x, y = cases.tail(name), samples(name), one_hot(LABELS, 3)
    exact = reference.theorem_constants(
        tail(x.clone()).detach(), explicit_jacobian(tail, x), y, 0.05
    )
    beta, largest = theorem_constants(user_of(name, 0.05, batch_size=3).problem(x, LABELS))
    assert beta >= exact[0]
    assert largest == pytest.approx(exact[1], rel=1e-10)
    # p over the χ²_8 quantile at 1e-6/8 is 100; 3 classes and 8 samples: probes exceed p rarely.
    assert beta <= 1000 * exact[0]


def test_scales_of_the_layers_are_part_of_the_constants() -> None:
    x = samples("cnn")
    plain = user_of("cnn", 0.05)
    scaled = user_of("cnn", 0.05, scales=dict.fromkeys(plain.operator.layout.names, 100.0))
    one, other = (theorem_constants(user.problem(x, LABELS))[0] for user in (plain, scaled))
    assert other > 100 * one  # 10^4, less what the probes vary


def test_the_constants_take_one_primal_pass_and_no_loop_over_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: dict[str, list[int]] = {"prepare": [], "jvp": [], "vjp": []}

    def counted(name: str, size: Any) -> None:
        original = getattr(TangentOperator, name)

        def run(self: TangentOperator, first: Any, *rest: Any) -> Any:
            calls[name].append(size(first))
            return original(self, first, *rest)

        monkeypatch.setattr(TangentOperator, name, run)

    problem = user_of("cnn", 0.05, batch_size=4).problem(samples("cnn"), LABELS)
    for name in calls:
        counted(name, len)
    theorem_constants(problem, probes=5)
    assert calls == {"prepare": [4, 4], "jvp": [4] * 10, "vjp": []}


def test_no_samples_have_the_smallest_constants() -> None:
    problem = user_of("cnn", 0.05).problem(samples("cnn")[:0], LABELS[:0])
    assert theorem_constants(problem) == (0.05, 0.0)


# --- what it says ---------------------------------------------------------------------------------


def certificate_of(user: TangentUser, sigma: float, b: int = 1) -> ShiftCertificate:
    d = user.operator.d
    guarantee = Guarantee.plan(1.0, 1e-5, sigma, d)
    return ShiftCertificate(guarantee, user.mu, d, 8 - b, b, gradient_norm=0.0, passes=1.0)


def shown(mu: float, sigma: float, epochs: int, *sizes: int) -> dict[str, Any]:
    """The theorem after requests of these sizes, from 8 records."""
    user, history, left = user_of("cnn", mu), RequestHistory(), 8
    constants = theorem_constants(user.problem(samples("cnn"), LABELS))
    for b in sizes:
        history = history.with_request(left, b, *constants)
        left -= b
    procedure = PaperForgetting(epochs=epochs)
    return with_theorem(certificate_of(user, sigma), history, procedure).private()["apriori"]


def test_it_is_printed_and_says_that_it_is_vacuous() -> None:
    values = shown(0.05, 0.01, 100, 1)
    assert values["vacuous"] is True
    assert values["nats_bound"] > 1e6
    assert "nats leave room for an attack" in values["reason"]
    assert values["gamma"] == pytest.approx(1 - (0.05 / values["beta"]) ** 2, rel=1e-12)
    assert values["failure_probability"] == FAILURE_PROBABILITY
    assert any("iid with replacement" in text for text in values["assumptions"])


def test_it_can_say_something_where_it_does() -> None:
    """A huge ridge and huge noise: β ≈ μ contracts at once, and little is left to find."""
    values = shown(1e7, 1e3, 50, 1)
    assert values["vacuous"] is False
    assert 0 <= values["nats_bound"] < 1
    assert "every attack" in values["reason"]
    inputs = apriori.TheoremInputs(
        n=8, b=1, num_requests=1, beta=values["beta"], M=values["M"], mu=1e7, sigma=1e3,
        sigma_l=values["M"], d=user_of("cnn", 1.0).operator.d, batch_size=64, steps=50,
    )  # fmt: skip
    assert values["nats_bound"] == apriori.paper_information_bound(inputs).nats_bound


def test_too_many_requests_break_its_hidden_condition() -> None:
    assert shown(1e7, 1e3, 50, 1, 1, 1, 1)["vacuous"] is False  # K b = n/2
    values = shown(1e7, 1e3, 50, 1, 1, 1, 1, 1)
    assert values["vacuous"] is True
    assert values["nats_bound"] is None  # infinite, which JSON has no word for
    assert "errata 20" in values["reason"]
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_it_changes_nothing_else() -> None:
    user = user_of("cnn", 0.05)
    plain = certificate_of(user, 0.01)
    beside = with_theorem(plain, RequestHistory().with_request(8, 1, 3.0, 1.0), PaperForgetting())
    assert beside.public() == plain.public()
    assert beside.passed == plain.passed
    assert plain.apriori == {}


def test_every_request_counts_and_forgotten_records_count_too() -> None:
    """The constants are those of the records before the request: here the one that goes is the worst."""
    user, x = user_of("cnn", 0.05), samples("cnn")
    x[2] *= 100
    data = TrainingSet(cases.tiny_records(8), None, LABELS.numpy(), activations=x)
    guarantee = Guarantee.plan(1.0, 1e-5, sigma=1.0, d=user.operator.d)
    outcome = user.outcome(data, np.array([2]), guarantee)
    first = outcome.certificate.private()["apriori"]
    tail = cases.tail("cnn")
    f, jac = tail(x.clone()).detach(), explicit_jacobian(tail, x)
    beta, largest = reference.theorem_constants(f, jac, one_hot(LABELS, 3), 0.05)
    assert first["beta"] >= beta
    assert first["M"] >= largest
    assert (first["num_requests"], first["n"], first["b"]) == (1, 8, 1)
    rest = data.without(np.array([2]))
    user.history = outcome.history
    kept = user.outcome(rest, np.array([0, 1]), guarantee)
    second = kept.certificate.private()["apriori"]
    assert (second["num_requests"], second["n"], second["b"]) == (2, 8, 2)
    assert (second["beta"], second["M"]) == (first["beta"], first["M"])


# --- histories ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 1e-300, 0.5, 1.0, 1.0 + 1e-15, 3.7, 2.0**80, math.inf])
def test_powers_of_two_are_just_above(value: float) -> None:
    above = apriori.power_of_two_above(value)
    assert value <= above
    if 0 < value < math.inf:
        assert above < 2 * value
        assert math.frexp(above)[0] == 0.5


def test_a_history_keeps_the_worst() -> None:
    history = RequestHistory().with_request(100, 3, 5.0, 0.3).with_request(97, 7, 2.0, 1.0)
    assert history == RequestHistory(num_requests=2, n=100, b=7, beta=8.0, M=1.0)
