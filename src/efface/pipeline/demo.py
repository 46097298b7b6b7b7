"""``efface demo``: the story told on scikit-learn's digits, ending in one HTML report.

A core is trained on core data; a person's photos come in as user data; the mixed-linear model learns
from them; then some are asked back. ``run`` measures first, the report only draws.
"""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface import files
from efface.alone import one_thread
from efface.audit.differencing import Identified, identify, scores
from efface.data.records import Records
from efface.errors import GuaranteeError
from efface.guarantee.certificates import Certificate, ShiftCertificate
from efface.linear.last_layer import LastLayer
from efface.linear.solution import Solution
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.targets import one_hot
from efface.parts.part import require_training_data
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import largest_eigenvalue
from efface.pipeline.config import Config, to_toml
from efface.pipeline.core_section import CoreConfig
from efface.pipeline.sections import DataConfig, UserConfig
from efface.pipeline.solvers import ConjugateGradientConfig
from efface.pipeline.train import Training
from efface.progress import Progress, part
from efface.report.demo import demo_report
from efface.version import VERSION
from efface.workspace import Workspace

SCHEMA = "efface.demo/1"
MU = 1e-2
CONFIG = Config(
    data=DataConfig(spec="digits"),
    core=CoreConfig(backbone="cnn"),
    user=UserConfig(
        kind="tangent",
        mu=MU,
        solver=ConjugateGradientConfig(tolerance=1e-5, max_passes=2000),
    ),
)
OWNER = "u00"
LABEL = "7"


@dataclass(frozen=True)
class Trained:
    """What training gave, with the measurements that the report shows."""

    records: Records
    tangent: MixedLinear
    compact: MixedLinear
    accuracy: dict[str, float]
    predicted: list[str]
    solution: Solution


def run(out: Path | str, progress: Progress | None = None) -> dict[str, Any]:
    """Tell the story into ``out``: the model alone in ``model/``, and in ``workspace/`` with what requests
    need (``efface serve``), ``demo.json`` and ``report.html``; returns the values.

    Everything here is small, so it runs on one thread: faster than sharing 8 × 8 pixels between
    threads, and the same numbers whatever the machine's number of cores.
    """
    out, start = Path(out), time.monotonic()
    with one_thread():
        trained = _train(part(progress, 0.0, 0.8))
        trained.compact.save(out / "model")
        Workspace.create(out / "workspace", trained.compact, overwrite=True, allow_reingest=True)
        told = _forget(trained, part(progress, 0.8, 0.97, "forgetting"))
    values = _values(trained, told, out, time.monotonic() - start)
    (out / "config.toml").write_text(to_toml(CONFIG), encoding="utf-8")
    files.write_json(out / "demo.json", {"schema": SCHEMA, **values})
    page = demo_report(trained.records, trained.predicted, values, out)
    page.write(out / "report.html")
    if progress is not None:
        progress(1.0, "report written")
    return values


# Training and measuring.


def _train(progress: Progress) -> Trained:
    training = Training(CONFIG)
    records = training.records()
    core = training.core(records)
    training.fit_core(core, records, part(progress, 0.0, 0.5, "core"))
    tangent = training.fit_user(core, records, part(progress, 0.5, 0.9, "tangent"))
    compact = _fit_compact(core, records.user, records.core)
    progress(1.0, "compact part fitted")
    accuracy = {
        "core": core.accuracy(records.test),
        "last_layer": _last_layer_accuracy(core, records),
        "tangent": tangent.accuracy(records.test),
        "user": compact.accuracy(records.test),
    }
    assert tangent.solution is not None  # digits has user records
    predicted = compact.predict(records.test).tolist()
    return Trained(records, tangent, compact, accuracy, predicted, tangent.solution)


def _fit_compact(core: Core, user: Records, replay: Records) -> MixedLinear:
    return MixedLinear(core, "compact", features=1500).fit(user, replay=replay)


def _last_layer_accuracy(core: Core, records: Records) -> float:
    """The plain alternative: the same data, targets and ridge, but only the head is fitted."""
    training = records.user + records.core
    features = core.features_of(core.activations(training))
    targets = one_hot(
        torch.from_numpy(training.labels), len(records.classes), CONFIG.user.target_scale
    )
    layer = LastLayer.fit(features, targets, MU)
    guesses = layer.logits(core.features_of(core.activations(records.test))).argmax(1)
    return float((guesses == torch.from_numpy(records.test.labels)).float().mean())


# Forgetting.


@dataclass(frozen=True)
class Told:
    """What the requests showed."""

    requests: list[dict[str, Any]]
    digests: dict[str, str]
    accuracy: dict[str, float]
    class_story: str
    differencing: Identified


def _forget(trained: Trained, progress: Progress) -> Told:
    records, compact, core = trained.records, trained.compact, trained.compact.core
    gone = records.user.select(owner=OWNER)
    twin = _fit_compact(core, records.user.without(gone.ids), records.core)
    before = compact.logits(records.user)
    requests = [_timed(compact, f"owner {OWNER}", "compact", owner=OWNER)]
    shown = _identified(records.user, before, compact.logits(records.user))
    digests = {
        "forgotten": compact.user.statistics_digest,
        "retrained": twin.user.statistics_digest,
        "forgotten_weights": compact.user.weights_digest,
        "retrained_weights": twin.user.weights_digest,
    }
    accuracy = {"after": compact.accuracy(records.test), "retrained": twin.accuracy(records.test)}
    progress(0.3, "compact request done")
    requests += _tangent_requests(trained.tangent)
    progress(0.7, "tangent requests done")
    requests.append(_timed(compact, f"class “{LABEL}”", "compact", label=LABEL))
    story = _class_story(compact, records)
    requests.append(_timed(compact, "everything", "compact", everything=True))
    same = torch.equal(compact.logits(records.test), compact.core_logits(records.test))
    requests[-1]["verdict"] += ", the core bit for bit" if same else ", NOT the core"
    return Told(requests, digests, accuracy, story, shown)


def _identified(users: Records, before: Tensor, after: Tensor) -> Identified:
    """What somebody with both releases can tell of the request."""
    labels = torch.from_numpy(users.labels)
    targets = one_hot(labels, len(users.classes), CONFIG.user.target_scale)
    ranking = scores(before.double().numpy(), after.double().numpy(), targets.numpy())
    return identify(ranking, np.flatnonzero([owner == OWNER for owner in users.owners]))


def _tangent_requests(model: MixedLinear) -> list[dict[str, Any]]:
    """The published procedure first: where it misses the guarantee the model is left as it was."""
    model.plan(epsilon=1.0, delta=1e-5)
    lr = 1.0 / largest_eigenvalue(_problem(model))
    paper = PaperForgetting(epochs=3, lr=lr, momentum=0.9)
    entries = [_timed(model, f"owner {OWNER}", "paper", owner=OWNER, procedure=paper)]
    if entries[0]["certificate"] is None:
        entries.append(_timed(model, f"owner {OWNER}", "tangent", owner=OWNER))
    return entries


def _problem(model: MixedLinear) -> RidgeProblem:
    data = require_training_data(model.data)
    assert data.activations is not None
    return model.user.problem(data.activations, data.labels)


def _timed(model: MixedLinear, title: str, method: str, **request: Any) -> dict[str, Any]:
    """Carry out a request; a guarantee that was missed is part of the story, not an end of it."""
    kind = next(k for k in ("owner", "label", "everything") if k in request)
    before = len(require_training_data(model.data).records)
    start = time.monotonic()
    entry: dict[str, Any] = {"kind": kind, "title": title, "method": method}
    try:
        certificate = model.forget(**request)
    except GuaranteeError as error:
        seconds = time.monotonic() - start
        chosen = request["procedure"]
        entry |= {"certificate": None, "passes": chosen.epochs + 2, "num_forgotten": 0}
        entry["verdict"] = f"missed, nothing released: {error.message.split(';')[0]}"
    else:
        seconds = time.monotonic() - start
        after = len(require_training_data(model.data).records)
        entry |= {"certificate": certificate.private(), "passes": certificate.passes}
        entry |= {"num_forgotten": before - after, "verdict": _verdict(certificate)}
    return entry | {"seconds": seconds}


def _verdict(certificate: Certificate) -> str:
    if isinstance(certificate, ShiftCertificate):
        g = certificate.guarantee
        apriori = certificate.apriori
        nats = apriori["nats_bound"]
        known = "no bound" if nats is None else f"{nats:.1g} nats"
        vacuous = ", vacuous" if apriori["vacuous"] else ""
        return (
            f"ε ≤ {certificate.epsilon_bound:.2f} at δ = {g.delta:g} (asked: {g.epsilon:g}); the paper's "
            f"theorem, before the fact: {known}{vacuous}"
        )
    return "exact"


def _class_story(model: MixedLinear, records: Records) -> str:
    test = records.test.select(label=LABEL)
    core_part = len(records.core.select(label=LABEL))
    return (
        f"Forgetting the class “{LABEL}” takes out all its user images; the {core_part} core images of "
        f"that class stay, since core data is not forgettable, so the model still reads "
        f"{_percent(model.accuracy(test))} of the test images of that class. Forgetting everything "
        "sets the user weights to zero: the model is then the core model."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


# What is kept and shown.


def _values(trained: Trained, told: Told, out: Path, seconds: float) -> dict[str, Any]:
    records, model = trained.records, trained.tangent
    solution = trained.solution
    return {
        "accuracy": trained.accuracy | told.accuracy,
        "requests": told.requests,
        "digests": told.digests,
        "class_story": told.class_story,
        "differencing": asdict(told.differencing),
        "owner": OWNER,
        "records": {s: len(getattr(records, s)) for s in ("core", "user", "test")},
        "weights": model.user.num_weights,
        "mu": MU,
        "solution": {
            "status": str(solution.status),
            "residual_norm": solution.residual_norm,
            "distance_bound": solution.residual_norm / MU,
            "weights_norm": float(solution.value.norm()),
            "passes": solution.passes,
            "history": list(solution.history),
        },
        "core_digest": model.core.digest,
        "environment": {
            "efface": VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "seconds": round(seconds, 1),
        "model": str(out / "model"),
        "report": str(out / "report.html"),
    }
