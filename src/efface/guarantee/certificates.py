"""Certificates: what was proved about a release, from numbers checked on the final weights.

A private certificate holds everything; its public form holds only what was fixed beforehand and whether it
was met, because residual norms, passes and times are functions of the forgotten data.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from efface.guarantee import bounds
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.promise import Guarantee
from efface.version import VERSION

DIFFERENCE = (
    "the difference between a release before and one after the request: whoever has both can tell which "
    "images were deleted, without knowing any others"
)
FURTHER = "differences between releases that are further apart than the last two"
ROUNDING = "rounding in float64 of the gradient: not bounded for a network with such layers"
PARTNERS = (
    "that the sums which partners sent instead of records are those of images, and that what was forgotten "
    "there is out of them: this rests on their word"
)
NOT_COVERED = (
    "releases made before the request",
    DIFFERENCE,
    "what other people's later requests were chosen to reveal",
    "core data",
)


def together(num_people: int) -> tuple[str, ...]:
    """The size of the set in which a person hides from an observer of two releases, in words."""
    if num_people == 0:
        return ()
    if num_people == 1:
        return ("that the images deleted here are one person's: nobody else was in this request",)
    return (
        f"that the images deleted here are those of {num_people} people: only which of them belong together "
        "is hidden among these",
    )


def finite(value: float) -> float | None:
    """For JSON, which has no infinity: None is "no bound"."""
    return value if math.isfinite(value) else None


def in_core(num_images: int) -> tuple[str, ...]:
    """What has to be said where a request could only be carried out in part."""
    if not num_images:
        return ()
    return (
        f"{num_images} images that the request would name are core data: they stay in the core weights, and "
        "in the user part if core records are replayed there",
    )


@dataclass(frozen=True)
class ShiftCertificate:
    """The a-posteriori certificate of an approximate solve with noise (the tangent user part).

    ``gradient_norm`` is ‖g_r‖ recomputed in float64 on the final noiseless weights, ``gradient_error`` bounds
    how far its rounding may have put it off (None: not bounded for this network). Everything named
    ``*_bound`` follows from it by ``bounds.py``; ``distance_estimate`` (to an actual retrain, as in the
    paper's plots) is a measurement.
    """

    guarantee: Guarantee
    mu: float
    d: int
    num_retained: int
    num_forgotten: int
    gradient_norm: float
    passes: float
    releasable: bool = True
    num_in_core: int = 0
    num_people: int = 0
    gradient_error: float | None = None
    earlier_shifts: tuple[float, ...] = ()
    distance_estimate: float | None = None
    apriori: dict[str, Any] = field(default_factory=dict)
    kind: str = "a-posteriori"
    version: str = VERSION

    @property
    def distance_bound(self) -> float:
        return bounds.distance_bound(self.gradient_norm, self.mu, self.gradient_error or 0.0)

    @property
    def shift_bound(self) -> float:
        return self.guarantee.shift_bound(self.distance_bound, self.d)

    @property
    def total_shift_bound(self) -> float:
        """Of all releases since the oldest request still counted: √Σ m_k².

        Requests may be chosen in view of earlier releases. Composition then needs bounds that were fixed
        before them: the planned m_k, which every release keeps, and not the smaller one it was found to have.
        """
        return bounds.total_shift([*self.earlier_shifts, self.planned_shift])

    @property
    def planned_shift(self) -> float:
        return self.guarantee.planned_shift(self.d)

    @property
    def total_epsilon_bound(self) -> float:
        """Of all these releases together, with the sampler's error in each of them."""
        num = len(self.earlier_shifts) + 1
        return self.guarantee.epsilon_bound(self.total_shift_bound, self.d, num)

    @property
    def epsilon_bound(self) -> float:
        return self.guarantee.epsilon_bound(self.shift_bound, self.d)

    @property
    def passed(self) -> bool:
        return self.guarantee.is_met(self.shift_bound, self.d)

    @property
    def keeps_no_secret(self) -> bool:
        """Whether the weights that ``gradient_norm`` was computed on are gone."""
        return self.guarantee.state is StatePolicy.NOISY

    def private(self) -> dict[str, Any]:
        m = self.shift_bound
        return {
            **asdict(self),
            "distance_bound": self.distance_bound,
            "shift_bound": m,
            "information_bound_nats": bounds.information_bound(m),
            "best_advantage_bound": bounds.advantage_bound(bounds.kl(m)),
            "epsilon_bound": finite(self.epsilon_bound),
            "total_shift_bound": self.total_shift_bound,
            "total_epsilon_bound": finite(self.total_epsilon_bound),
            "passed": self.passed,
            "not_covered": self.not_covered,
        }

    @property
    def not_covered(self) -> tuple[str, ...]:
        rounding = (ROUNDING,) if self.gradient_error is None else ()
        said = (*in_core(self.num_in_core), *rounding)
        return (*said, *NOT_COVERED, *together(self.num_people))

    def public(self) -> dict[str, Any]:
        """Only what was set beforehand, and whether it was met."""
        return {
            "kind": self.kind,
            "guarantee": asdict(self.guarantee),
            "passed": self.passed and self.releasable,
            "releasable": self.releasable,
            **({"num_in_core": self.num_in_core} if self.num_in_core else {}),
            **({"num_people": self.num_people} if self.num_people else {}),
            "not_covered": self.not_covered,
            "version": self.version,
        }


@dataclass(frozen=True)
class Difference:
    """What a release with noise tells somebody who also has the release before it (compact).

    The release is Θ + σξ. Had nothing changed it would have been Θ' + σξ', Θ' solved from the sums before
    the request by the same code. ``distance`` is ‖Θ − Θ'‖_F: both are at hand, so it is known, where
    otherwise ‖∇(Θ)‖/μ would bound it. The two are Gaussians at a shift of ``distance``/σ (and the grid),
    whatever the release before was.
    """

    guarantee: Guarantee
    distance: float
    d: int
    releasable: bool = True

    @property
    def shift_bound(self) -> float:
        return self.guarantee.shift_bound(self.distance, self.d)

    @property
    def epsilon_bound(self) -> float:
        return self.guarantee.epsilon_bound(self.shift_bound, self.d)

    @property
    def passed(self) -> bool:
        return self.guarantee.is_met(self.shift_bound, self.d)

    def private(self) -> dict[str, Any]:
        computed = {"shift_bound": self.shift_bound, "passed": self.passed}
        return {**asdict(self), **computed, "epsilon_bound": finite(self.epsilon_bound)}

    def public(self) -> dict[str, Any]:
        return {
            "guarantee": asdict(self.guarantee),
            "passed": self.passed and self.releasable,
            "releasable": self.releasable,
        }


@dataclass(frozen=True)
class Given:
    """What an exact certificate takes as given: equal sums and weights follow for whoever has the same.

    ``arithmetic`` says on which machines: "integer" on every one; "float32" on one like that of
    ``environment``, processor and libraries. Digests are SHA-256; λ is the ridge of the whole sum (None where
    μ = λ/n is fixed instead).
    """

    arithmetic: str
    core_digest: str
    calibration_digest: str
    classes_digest: str
    preprocess_digest: str
    ridge: float | None
    mu: float | None
    environment: dict[str, str]

    @property
    def machines(self) -> str:
        """The claim in words."""
        if self.arithmetic == "integer":
            return "the same rows, sums and weights on every machine"
        return "the same rows on this processor with these libraries, and from equal rows the same sums"


@dataclass(frozen=True)
class ExactCertificate:
    """The exact certificate (the compact user part, and everything forgotten at once).

    ``statistics_digest`` is that of the integer sums of the retained records. A model never given the
    forgotten records has the same digest. Where ``weights_proved``, every machine at every thread count gets
    from equal sums the weights of ``weights_digest``, unless there is a ``difference``: then that is the
    digest of weights with noise. Where it is False they are this machine's, at this thread count; None
    is a certificate of an earlier version, which claimed no more than that. All of it is relative to what is
    ``given``: the core, its class list and calibration are not forgotten, and were made from core data.
    """

    statistics_digest: str
    weights_digest: str
    num_retained: int
    num_forgotten: int
    solve_residual: float
    difference: Difference | None = None
    weights_proved: bool | None = None
    given: Given | None = None
    num_in_core: int = 0
    num_people: int = 0
    num_partners: int = 0  # who sent sums instead of records, and how many records these are of
    num_from_partners: int = 0
    kind: str = "exact"
    version: str = VERSION

    passes = 0.0

    @property
    def passed(self) -> bool:
        return self.difference is None or self.difference.passed

    @property
    def not_covered(self) -> tuple[str, ...]:
        stays = (*in_core(self.num_in_core), *((PARTNERS,) if self.num_partners else ()))
        if self.difference is None:
            return (*stays, *NOT_COVERED, *together(self.num_people))
        return (*stays, *(FURTHER if text == DIFFERENCE else text for text in NOT_COVERED))

    @property
    def _proved(self) -> dict[str, bool]:
        """Only where it is known: certificates of earlier versions must read as they were written."""
        return {} if self.weights_proved is None else {"weights_proved": self.weights_proved}

    @property
    def _given(self) -> dict[str, Any]:
        return {} if self.given is None else {"given": asdict(self.given)}

    @property
    def _partners(self) -> dict[str, int]:
        names = ("num_partners", "num_from_partners")
        return {name: getattr(self, name) for name in names} if self.num_partners else {}

    def private(self) -> dict[str, Any]:
        # Not in certificates of earlier versions.
        late = ("weights_proved", "given", "num_partners", "num_from_partners")
        fields = {name: value for name, value in asdict(self).items() if name not in late}
        return {
            **fields,
            **self._proved,
            **self._given,
            **self._partners,
            "difference": None if self.difference is None else self.difference.private(),
            "passed": self.passed,
            "not_covered": self.not_covered,
        }

    def public(self) -> dict[str, Any]:
        """Where the difference to the release before is hidden, so must be what else would show it: the
        digest, the number of rows and what was proved of the weights have no noise."""
        sums = {
            "statistics_digest": self.statistics_digest,
            "num_retained": self.num_retained,
            **self._proved,
            **self._partners,
        }
        noise = None if self.difference is None else self.difference.public()
        return {
            "kind": self.kind,
            **(sums if noise is None else {}),
            **({"num_people": self.num_people} if noise is None and self.num_people else {}),
            "weights_digest": self.weights_digest,
            **self._given,
            "difference": noise,
            **({"num_in_core": self.num_in_core} if self.num_in_core else {}),
            "passed": self.passed if noise is None else noise["passed"],
            "not_covered": self.not_covered,
            "version": self.version,
        }


Certificate = ShiftCertificate | ExactCertificate


def reached(epsilon_bound: float) -> str:
    return f"{epsilon_bound:.3g}" if math.isfinite(epsilon_bound) else "none at this delta"
