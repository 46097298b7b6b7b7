"""Verification: a workspace checked against its certificate, its journal and itself."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from efface.data.images import Channels
from efface.data.records import Records
from efface.digests import tensors_digest
from efface.environment import environment
from efface.files import locked, read_json
from efface.guarantee import bounds
from efface.guarantee.certificates import (
    Certificate,
    Difference,
    ExactCertificate,
    ShiftCertificate,
)
from efface.model.mixed_linear import MixedLinear
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.rounding import measured_gradient
from efface.workspace import Workspace
from efface.workspace.ledger import Action, Step
from efface.workspace.superseded import CERTIFICATE_SCHEMA

# Weights without a proof, or of an earlier version in float64, may differ by float32's rounding from those
# solved on another machine from the same sums.
RELATIVE = 2.0**-22
ROUNDING = 1e-3  # activations computed anew, with other kernels, may differ by this


@dataclass(frozen=True)
class Check:
    """``ok`` is None for what cannot be checked (any more): it neither holds nor fails."""

    name: str
    ok: bool | None
    detail: str


def all_checks(
    workspace: Workspace, *, retrain: bool = False, images: str | None = None
) -> Iterator[Check]:
    """The checks, one after the other, with no request running in between. Nothing is changed.

    A file that cannot be read as what it should be raises FormatError, a journal LedgerError.
    """
    with locked(workspace.path / "lock"):
        workspace.check_journal()
        yield _files(workspace)
        yield _journal(workspace)
        yield _leftovers(workspace)
        model = workspace.model()
        yield _core(workspace, model)
        yield _certificate(workspace, model)
        if retrain:
            yield from _retrain(workspace, model)
        if images is not None:
            yield _from_images(workspace, model, images)


# Without computing anything anew.


def _files(workspace: Workspace) -> Check:
    """SHA-256 of every file that the workspace owns, as written down when it was made."""
    manifest, cache = workspace.manifest, workspace.cache
    changed = list(manifest.wrong(workspace.path))
    if cache is not None:
        retained = workspace.data.digests
        there = set(retained) <= cache.digests
        if not there or manifest.activations != cache.digest_of(retained):
            changed.append("activations")
    detail = f"changed or missing: {', '.join(changed)}" if changed else ""
    return Check("files", not changed, detail or f"{len(manifest.files)} digests")


def _leftovers(workspace: Workspace) -> Check:
    """An unfinished request, old releases, and what only looks like a free place."""
    found = [
        path.relative_to(workspace.path).as_posix()
        for path in (*workspace.strays(), *workspace.forbidden())
    ]
    if workspace.cache is not None and not workspace.cache.is_tidy():
        found.append("rows of no record in activations")
    detail = ", ".join(found) or "none"
    if "pending.json" in found:
        advice = f"`efface resume {workspace.path}` or `efface cancel {workspace.path}`"
        detail = f"an unfinished request ({advice}): {detail}"
    return Check("no leftovers", not found, detail)


def _journal(workspace: Workspace) -> Check:
    entries = workspace.journal.entries()
    done = [entry.number for entry in entries if entry.step is Step.DONE]
    ok = bool(done) and done[-1] == workspace.number
    last = f"the last finished is {done[-1]}" if done else "none is finished"
    return Check("journal", ok, f"{len(entries)} lines; {last}, {workspace.number} is published")


def _core(workspace: Workspace, model: MixedLinear) -> Check:
    same = model.core.digest == workspace.settings["core_digest"]
    return Check("core", same, model.core.digest if same else "not the core it was made with")


def _certificate(workspace: Workspace, model: MixedLinear) -> Check:
    """What follows from the certificate's inputs is computed anew; digests are compared with the files."""
    certificate = workspace.certificate
    if certificate is None:
        ok = not workspace.shifts and not _made_by_forgetting(workspace)
        return Check("certificate", ok, "none: nothing to hide" if ok else "it is missing")
    problems = [
        f"{name}.json is not what follows from its inputs"
        for name, values in (("private", certificate.private()), ("public", certificate.public()))
        if _stored(workspace, name) != json.loads(json.dumps(values))
    ]
    if not certificate.passed:
        problems.append("the guarantee is not met")
    problems += _mismatches(workspace, model)
    problems += _other_givens(certificate, model)
    holds = f"{certificate.kind}, {'consistent' if _unchecked(certificate) else 'holds'}"
    return Check("certificate", not problems, "; ".join(problems) or holds)


def _other_givens(certificate: Certificate, model: MixedLinear) -> list[str]:
    """The core, class list, calibration and ridge must be those that the certificate is relative to."""
    if not isinstance(certificate, ExactCertificate) or certificate.given is None:
        return []
    stated, found = asdict(certificate.given), asdict(model.user.given)
    names = [name for name in stated if name != "environment" and stated[name] != found[name]]
    return [f"it was given another {name.replace('_', ' ')}" for name in names]


def _unchecked(certificate: Certificate) -> bool:
    """Whether part of it rests on what nobody has any more: weights without noise, sums before."""
    if isinstance(certificate, ShiftCertificate):
        return certificate.keeps_no_secret
    return certificate.difference is not None


def _made_by_forgetting(workspace: Workspace) -> bool:
    actions = {e.action for e in workspace.journal.entries() if e.number == workspace.number}
    return Action.FORGET in actions


def _stored(workspace: Workspace, form: str) -> dict[str, Any]:
    path = workspace.path / "certificates" / f"{workspace.number}.{form}.json"
    values = read_json(path, CERTIFICATE_SCHEMA)
    return {key: value for key, value in values.items() if key != "schema"}


def _mismatches(workspace: Workspace, model: MixedLinear) -> Iterator[str]:
    certificate = workspace.certificate
    assert certificate is not None
    user, records = model.user, workspace.records
    retained = len(workspace.data) if len(records) else 0
    if certificate.num_retained != retained:
        yield f"{retained} records are retained, not {certificate.num_retained}"
    if not isinstance(certificate, ExactCertificate):
        return
    if isinstance(user, CompactUser):
        if user.statistics_digest != certificate.statistics_digest:
            yield "the statistics are not the certificate's"
        if user.weights_digest != certificate.weights_digest:
            yield "the weights are not the certificate's"
    elif tensors_digest(user.tensors) != certificate.weights_digest:
        yield "the weights are not the certificate's"


# Computing it anew.


def _retrain(workspace: Workspace, model: MixedLinear) -> Iterator[Check]:
    if len(workspace.records) == 0:
        zero = not any(t.any() for n, t in model.user.tensors.items() if n in ("weights", "theta"))
        yield Check("retrain", zero, "no user records: the weights are 0" if zero else "not 0")
    elif isinstance(model.user, CompactUser):
        yield from _retrain_compact(model, workspace.certificate)
    else:
        yield from _recertify(workspace, model)


def _retrain_compact(model: MixedLinear, certificate: Certificate | None) -> Iterator[Check]:
    assert model.data is not None
    assert model.data.rows is not None
    user = model.user
    digest, theta, weights = user.statistics_digest, user.theta, user.weights_digest
    user.reset()
    user.add(model.data.rows.whole())
    same = user.statistics_digest == digest
    detail = digest if same else f"{user.statistics_digest} from the rows, {digest} stored"
    yield Check("statistics from the retained rows", same, detail)
    difference = certificate.difference if isinstance(certificate, ExactCertificate) else None
    if difference is not None:
        gone = "not checked: the sums before the request are gone"
        yield Check("epsilon between the releases", None, gone)
        yield _noise(difference, float(np.linalg.norm(theta - user.theta.astype(np.float64))))
        return
    yield _same_weights(user, theta, weights, certificate)


def _same_weights(
    user: CompactUser, theta: np.ndarray, digest: str, certificate: Certificate | None
) -> Check:
    """Where the stored weights were proved, and those solved just now are, they must be equal."""
    name, again = "weights from the statistics", user.theta
    assert again is not None
    if user.weights_digest == digest:
        proved = "proved to be the exact solution, rounded" if user.weights_proved else "not proved"
        return Check(name, True, f"{digest} ({proved})")
    off = float(np.abs(again.astype(np.float64) - theta).max() / np.abs(again).max())
    claimed = isinstance(certificate, ExactCertificate) and certificate.weights_proved
    if claimed and user.weights_proved:
        detail = f"they differ by {off:.1e} relative from the exact solution, which is proved"
        return Check(name, False, detail)
    detail = (
        f"they differ by {off:.1e} relative (without a proof on both sides, this may be rounding)"
    )
    return Check(name, off <= RELATIVE, detail)


def _recertify(workspace: Workspace, model: MixedLinear) -> Iterator[Check]:
    """‖g_r‖ in float64 on the noiseless weights, ε from it, and the size of the noise."""
    assert model.data is not None
    assert model.data.activations is not None
    user, certificate = model.user, workspace.certificate
    problem = user.problem(model.data.activations, model.data.labels)
    if isinstance(certificate, ShiftCertificate) and certificate.keeps_no_secret:
        yield from _resolve(certificate, problem, user.weights)
        return
    measured = measured_gradient(problem, user.state)
    norm = measured.norm
    if not isinstance(certificate, ShiftCertificate):
        yield Check("gradient on the noiseless weights", True, f"{norm:.2e}, nothing is promised")
        return
    again = replace(certificate, gradient_norm=norm, gradient_error=measured.error)
    promised = certificate.guarantee.epsilon
    detail = f"gradient {norm:.2e}, epsilon {again.epsilon_bound:.4g} of {promised:g}"
    yield Check("epsilon from the gradient", again.passed, detail)
    yield _noise(certificate, float((user.weights - user.state).norm()))


def _resolve(
    certificate: ShiftCertificate, problem: RidgeProblem, release: Tensor
) -> Iterator[Check]:
    """What is left to check where only the noisy weights are kept: solve again, look at the difference.

    ‖release − w̃‖ = ‖σξ + (w − w*) − (w̃ − w*)‖ is within (m + m̃)σ of σ‖ξ‖, so a release that is far from the
    retained minimiser shows, and so does noise of the wrong size. That ‖w − w*‖ itself was at most mσ, a
    small part of it, cannot be seen any more.
    """
    g = certificate.guarantee
    solver = SolvedForgetting().solver(g.gradient_tolerance(problem.mu, problem.d))
    solution = solver.solve(problem, release)
    detail = "not checked: it was that of weights which were not kept (state: noisy)"
    yield Check("epsilon from the gradient", None, detail)
    if not solution.ok:
        yield Check("noise in the release", None, f"not checked: the solver {solution}")
        return
    again = bounds.distance_bound(solution.residual_norm, problem.mu) / g.sigma
    shift = again + certificate.distance_bound / g.sigma
    yield _noise(certificate, float((release - solution.value).norm()), shift)


def _noise(promise: ShiftCertificate | Difference, norm: float, shift: float = 0.0) -> Check:
    """‖release − w‖ / (σ √d) is 1 ± 1/√(2d): noise that was left out, or too small, shows.

    Where w is known up to a distance of ``shift`` σ only, that much more is allowed for.
    """
    sigma, d = promise.guarantee.sigma, promise.d
    ratio = norm / (sigma * math.sqrt(d))
    ok = abs(ratio - 1) <= 6 / math.sqrt(2 * d) + shift / math.sqrt(d)
    return Check("noise in the release", ok, f"{ratio:.4f} of what sigma {sigma:.3g} gives")


def _from_images(workspace: Workspace, model: MixedLinear, spec: str) -> Check:
    """Compute rows from images, found by content digest, and count how many agree."""
    data = model.data
    assert data is not None
    retained = data.records if data.replay is None else data.records + data.replay
    channels = Channels.of_count(model.core.backbone.preprocess.channels)
    source = {record.digest: record for record in Records.open(spec, channels=channels)}
    at = np.array([i for i, r in enumerate(retained) if r.digest in source], dtype=np.int64)
    if not len(at):
        return Check("rows from images", False, f"none of the retained records is in {spec}")
    found = [replace(source[retained[int(i)].digest], id=retained[int(i)].id) for i in at]
    labelled = [replace(r, label=retained[int(i)].label) for r, i in zip(found, at, strict=True)]
    model.cache = None
    part = model.stage(Records(labelled, model.classes))
    if isinstance(model.user, CompactUser):
        assert data.rows is not None
        assert part.rows is not None
        stored_rows, rows = data.rows.select(at), part.rows.whole()
        if model.user.form.arithmetic == "integer":
            return _equal_rows(
                workspace, [r.id for r in labelled], stored_rows, rows, len(retained)
            )
        agree, ok = _compare(stored_rows.features, rows.features, 1.0)
    else:
        assert data.activations is not None
        assert part.activations is not None
        stored = np.stack([data.activations[slice(i, i + 1)].numpy()[0] for i in at])
        again = part.activations[slice(0, len(at))].numpy()
        agree, ok = _compare(stored, again, ROUNDING * float(np.abs(stored).max()))
    detail = (
        f"{agree} of {len(at)} agree bit for bit; {len(retained) - len(at)} are not in the data"
    )
    return Check("rows from images", ok, detail if ok else f"{detail}; others are far off")


def _equal_rows(
    workspace: Workspace, ids: list[str], stored: Rows, again: Rows, num_retained: int
) -> Check:
    """In integers a row is a function of the image alone: one that differs is wrong."""
    differ = (stored.features != again.features).any(1) | (stored.targets != again.targets).any(1)
    equal, missing = int((~differ).sum()), num_retained - len(ids)
    detail = f"{equal} of {len(ids)} are equal, as they are on every machine; {missing} are not in the data"
    if not differ.any():
        return Check("rows from images", True, detail)
    detail += f"; differs: {ids[int(differ.argmax())]}{_other_decoder(workspace)}"
    return Check("rows from images", False, detail)


def _other_decoder(workspace: Workspace) -> str:
    """Pixels come from a decoder, and those of another build may be off by one here and there."""
    certificate, here = workspace.certificate, environment(integer=True)["decoder"]
    given = getattr(certificate, "given", None)
    if given is None or given.environment["decoder"] == here:
        return ""
    return f" (images were decoded by {given.environment['decoder']}, here by {here})"


def _compare(stored: Any, again: Any, tolerance: float) -> tuple[int, bool]:
    """How many rows are equal, and whether all are within the rounding of other kernels."""
    difference = np.abs(stored.astype(np.float64) - again.astype(np.float64))
    difference = difference.reshape(len(stored), -1)
    return int((difference.max(1) == 0).sum()), bool(difference.max() <= tolerance)
