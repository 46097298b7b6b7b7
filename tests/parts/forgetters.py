"""Small fitted models, and what of them a request may change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests import cases
from tests.reference import explicit_jacobian, ridge_solution
from torch import Tensor

from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.network.training import Stage
from efface.parts.tangent.cg import ConjugateGradient
from efface.parts.tangent.user import TangentUser

CLASSES = ["a", "b", "c"]

MU = 0.01

CORE_RECORDS = cases.tiny_records(12, 0, split=Split.CORE)

TEST = cases.tiny_records(60, 9, split=Split.TEST)

both_parts = pytest.mark.parametrize("kind", ["compact", "tangent"])


def build_core(records: Records) -> Core:
    torch.manual_seed(0)
    gray = Preprocess(0, 0, 1, (0.5,), (0.5,))
    core = Core(cases.named_sequential(), classes=CLASSES, preprocess=gray)
    return core.fit(records, [Stage("all", epochs=20, batch_size=4)])


def user_records(n: int = 45, seed: int = 1) -> Records:
    return cases.tiny_records(n, seed)


def fitted(core: Core, kind: str, records: Records | None = None, **options: Any) -> MixedLinear:
    default: dict[str, Any] = {"mu": MU}
    if kind == "tangent":
        default["solver"] = ConjugateGradient(tolerance=1e-6, max_passes=3000)
    replay = options.pop("replay", None)
    model = MixedLinear(core, kind, **{**default, **options})
    return model.fit(user_records() if records is None else records, replay=replay)


def exact_weights(core: Core, records: Records) -> Tensor:
    """The minimiser on these records, from explicit Jacobians in float64."""
    x = torch.as_tensor(core.activations(records)[0 : len(records)]).double()
    tail = core.tail.double()
    f, jac = tail(x.clone()).detach(), explicit_jacobian(tail, x)
    core.tail.float()
    return ridge_solution(f, jac, one_hot(core.labels(records), 3), MU)


def snapshot(model: MixedLinear) -> dict[str, Any]:
    """All that a request may change."""
    data, user = model.data, model.user
    assert data is not None
    if isinstance(user, TangentUser):
        weights: Any = (user.weights.numpy().tobytes(), user.state.numpy().tobytes())
        rows = data.activations[slice(None)].numpy().tobytes()  # type: ignore[index]
    else:
        weights = (user.statistics_digest, user.weights_digest)
        rows = (data.rows.features.tobytes(), data.rows.targets.tobytes())  # type: ignore[union-attr]
    return {
        "weights": weights,
        "ids": data.records.ids,
        "labels": data.labels.tolist(),
        "rows": rows,
        "forgotten": dict(model.forgotten),
        "shifts": model.user.shifts,
        "solution": model.solution,
        "logits": model.logits(TEST).numpy().tobytes(),
    }
