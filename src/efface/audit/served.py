"""A served model after a request, held against retraining: do its very weights keep the certificate?"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from efface.audit.metrics import CERTAINTY
from efface.audit.scene import Scene
from efface.data.records import Records
from efface.errors import EffaceError
from efface.guarantee import bounds
from efface.guarantee.certificates import Certificate, ShiftCertificate
from efface.model.mixed_linear import MixedLinear
from efface.parts.part import require_training_data
from efface.parts.table import view_of
from efface.parts.training_set import joined

EXACT_TOLERANCE = 1e-6  # relative: two float64 solves of one system agree far better


@dataclass(frozen=True)
class Held:
    """``shift_lower_bound``: how many σ the weights are, at least, off the retrained ones (99.99 %).

    ``noise_ratio`` is ‖w − w_r‖ over the σ√d of the noise, None where the certificate promises none.
    """

    relative_distance: float
    shift_lower_bound: float
    allowed_shift: float
    kept: bool
    noise_ratio: float | None = None


def scene_of(
    model: MixedLinear, asked: Records, test: Records, certificate: Certificate | None
) -> Scene:
    """The scene in which the ``asked`` records are there again, to be forgotten.

    Those still in the model's data stay where they are; the others are computed anew, in memory only:
    nothing of a forgotten record may get back into a workspace.
    """
    model.cache = None
    data = require_training_data(model.data)
    place = {digest: i for i, digest in enumerate(data.records.digests)}
    inside = [place[d] for d in asked.digests if d in place]
    absent = asked.where(lambda record: record.digest not in place)
    if len(absent):
        part = model.stage(Records(absent, model.classes))
        together = None if part.activations is None else joined(data, part, model.cache)
        start = len(data.records)
        data = data.plus(part, together)
        inside += range(start, len(data.records))
    if not inside:
        raise EffaceError("no records to audit.", "name an owner or records of the data.")
    model.data = data
    guarantee = certificate.guarantee if isinstance(certificate, ShiftCertificate) else None
    return Scene.of(model, np.array(sorted(inside)), test, guarantee=guarantee)


def served_weights(model: MixedLinear) -> Tensor:
    """The published weights in the scene's layout, (d,)."""
    return view_of(model.user).weights()


def promised_sigma(certificate: Certificate | None) -> float:
    """Of the noise in the served weights; 0 where none was promised."""
    if isinstance(certificate, ShiftCertificate):
        return certificate.guarantee.sigma
    if certificate is None or certificate.difference is None:
        return 0.0
    return certificate.difference.guarantee.sigma


def hold(
    scene: Scene,
    weights: Tensor,
    trained: Tensor,
    retrained: Tensor,
    certificate: Certificate | None,
) -> Held | None:
    """Test the certificate on the weights themselves; None if there is none.

    Exact: ‖w − w_r‖ ≤ 1e-6 ‖w_r‖, or, with noise between releases, as below with the grid's m alone.
    Noise N(0, σ²I): with u the direction that forgetting had to undo,
    z = ⟨w − w_r, u⟩/σ ~ N(m_u, 1) and |m_u| ≤ m, so m ≥ |z| − Φ⁻¹(0.99995) with 99.99 % confidence; the
    error of w_r itself, at most ‖g_r(w_r)‖/(μσ), is taken off as well. Noise that was left out hides
    nothing, so ‖w − w_r‖ must not be far below σ√d either.
    """
    if certificate is None:
        return None
    moved = weights - retrained
    relative = float(moved.norm() / retrained.norm().clamp_min(1e-300))
    d = scene.operator.d
    if isinstance(certificate, ShiftCertificate):
        sigma, allowed = certificate.guarantee.sigma, certificate.shift_bound
    elif certificate.difference is not None:  # the retrained weights and noise, nothing else
        guarantee = certificate.difference.guarantee
        sigma, allowed = guarantee.sigma, guarantee.shift_bound(0.0, d)
    else:
        kept = relative <= EXACT_TOLERANCE
        return Held(relative, 0.0 if kept else float("inf"), 0.0, kept)
    problem = scene.retained_problem
    undone = trained - retrained
    z = abs(float(moved @ undone)) / max(float(undone.norm()), 1e-300) / sigma
    residual = float(problem.gradient(retrained, torch.float64).norm())
    slack = bounds.distance_bound(residual, problem.mu) / sigma
    least = max(0.0, z - float(norm.ppf(0.5 + CERTAINTY / 2)) - slack)
    ratio = float(moved.norm()) / (sigma * math.sqrt(d))
    noisy = ratio >= 1 - 6 / math.sqrt(2 * d)  # six deviations of ‖ξ‖/√d
    return Held(relative, least, allowed, noisy and least <= allowed, ratio)


def beside(records: Records) -> Records:
    """The same records under ids of their own, so that they can stand beside those of a model."""
    return Records([replace(r, id=f"audited/{r.id}") for r in records], records.classes)
