"""A user part: what is learnt from user records on top of the frozen core, and how it forgets them.

``compact`` and ``tangent`` are the two there are; a third is one more folder beside them and one more entry
in ``parts/table.py``. Whatever differs between parts is asked of them here: no other room tests which one it
has before it. A :class:`Forgetter` is the half of one that carries requests out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efface.errors import EffaceError
from efface.guarantee.apriori import RequestHistory, StatePolicy
from efface.guarantee.certificates import Certificate, ExactCertificate, Given
from efface.guarantee.check import Check
from efface.guarantee.promise import Guarantee
from efface.parts.compact.guest import Guest
from efface.parts.training_set import TrainingSet
from efface.progress import Progress

if TYPE_CHECKING:  # a part that only forgets needs no network, and does not load one
    from torch import Tensor

    from efface.arithmetic.form import Form
    from efface.data.pictures import Shown
    from efface.data.records import Records
    from efface.linear.solution import Solution
    from efface.network.activations import ActivationCache, Activations
    from efface.network.core import Core
    from efface.parts.exported import Exported


@dataclass(frozen=True)
class Change:
    """After a request: the training set that is left, and what is proved about the new weights."""

    data: TrainingSet
    certificate: Certificate | None
    solution: Solution | None


@dataclass(frozen=True)
class Agreement:
    """Rows computed anew against those that are kept.

    ``everywhere``: whether they must be equal on every machine; ``first`` is the place of one that differs.
    """

    num_equal: int
    ok: bool
    everywhere: bool
    first: int | None = None


class Outlook:
    """What a person should hear before work starts, in sentences; an error where it cannot end well.

    This one is of parts that always end well, in one way. ``part`` is the part that it is about.
    """

    most_samples: ClassVar[int] = 256  # core records that it wants to see

    def of_fit(self, part: Any, core_sample: Callable[[], Activations | None]) -> tuple[str, ...]:
        """Before a fit. ``core_sample``: activations of a few core records, None if there are none."""
        return ()

    def of_request(
        self, part: Any, data: TrainingSet, positions: np.ndarray, procedure: Any
    ) -> tuple[str, ...]:
        """Before a request by a ``procedure`` that was asked for; here there is none to ask for."""
        fix = "leave --procedure out, or train with --user tangent."
        raise EffaceError(f"the {part.kind} part has one way to forget, and it is exact.", fix)


class Forgetter(ABC):
    """What a workspace asks of a part to carry a request out: no network is needed for that. Abstract.

    ``shifts`` and ``history`` tell of its noisy releases so far; a part that adds no noise has none.
    """

    kind: ClassVar[str]  # its name, in files and options
    noisy: ClassVar[bool]  # whether every release after a request carries noise
    keeps_activations: ClassVar[bool]  # what it needs of a record: boundary activations, or rows
    float64: ClassVar[bool] = False  # whether its products need a device that has it
    secret_file: ClassVar[str | None] = None  # in private/: weights without noise
    outlook: ClassVar[Outlook] = Outlook()  # what can be said before work starts

    mu: float | None  # the ridge, or
    total_ridge: float | None = None  # λ = n μ, where that is what is fixed
    shifts: tuple[float, ...] = ()
    history: RequestHistory = RequestHistory()

    @abstractmethod
    def reset(self) -> None:
        """Forget everything: the weights are 0."""

    @abstractmethod
    def forget(
        self,
        data: TrainingSet,
        positions: np.ndarray,
        guarantee: Guarantee | None,
        *,
        procedure: Any = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Change:
        """Take the user records at ``positions`` out of the weights, but not all of them."""

    def forget_everything(self, data: TrainingSet) -> Change:
        """The weights are 0, and the model is the core."""
        self.reset()
        certificate = ExactCertificate(
            self.statistics_digest,
            self.weights_digest,
            num_retained=0,
            num_forgotten=len(data.records),
            solve_residual=0.0,
            weights_proved=True,
            given=self.given,
        )
        return Change(data.without(np.arange(len(data.records))), certificate, None)

    def host(self, data: TrainingSet, guest: Guest, guarantee: Guarantee | None) -> Change:
        """Take a partner's sums in, in the place of those that it has here; without rows left it is gone."""
        fix = "train with --user compact: its sums can be made elsewhere."
        raise EffaceError(f"a {self.kind} part has no sums that partners could send.", fix)

    @classmethod
    @abstractmethod
    def promise(
        cls, epsilon: float, delta: float, sigma: float | None, d: int, state: StatePolicy | str
    ) -> Guarantee:
        """The guarantee for d weights, or an error that says what is missing."""

    @property
    @abstractmethod
    def statistics_digest(self) -> str:
        """Of the sums that the weights follow from, where there are any."""

    @property
    @abstractmethod
    def weights_digest(self) -> str: ...

    @property
    def given(self) -> Given | None:
        """What an exact certificate is relative to."""
        return None

    def save_ahead(self, folder: Path, buckets: Path) -> None:
        """The next request's outcome will be saved there (:meth:`save_private`), rows in ``buckets``: what is
        known before the weights are may be written at once. Nobody relies on it."""
        return

    def has_saved(self, data: TrainingSet) -> bool:
        """Whether these training data are among it."""
        return False

    @abstractmethod
    def save_private(self, folder: Path) -> None:
        """Write what later requests need beside the weights."""

    @abstractmethod
    def load_private(self, folder: Path) -> None:
        """The inverse."""


class UserPart(Forgetter):
    """f(x) = (what is kept of) f_core(x) + something linear in the part's weights. Abstract.

    A part is zero until it is fitted, so that the model is the core's.
    """

    options: ClassVar[tuple[str, ...]] = ()  # the user settings it takes beside mu and target_scale
    calibrates: ClassVar[bool] = False  # whether `prepare` has a use for public records
    larger_images: ClassVar[bool] = (
        False  # whether it was measured to gain by them (network/larger.py)
    )

    core: Core
    target_scale: float

    # --- the linear model -------------------------------------------------------------------------

    @abstractmethod
    def activations(
        self,
        records: Shown,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> Activations:
        """Boundary activations in this part's arithmetic."""

    @abstractmethod
    def logits(self, activations: Activations) -> Tensor:
        """The model's outputs, (n, c)."""

    @abstractmethod
    def core_logits(self, activations: Activations) -> Tensor:
        """f_core in this part's arithmetic: what is left when the weights are 0."""

    @property
    @abstractmethod
    def num_weights(self) -> int: ...

    def settle(self) -> None:
        """Make what computing needs, before it is used: an error now if another device does not compute what
        is promised."""

    # --- learning ---------------------------------------------------------------------------------

    def prepare(
        self,
        records: Records | None,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> bool:
        """Find whatever must be fixed before training, from core or public records; once.

        None: those that the core was fitted on, or none at all. Never user records: what comes from here
        is not forgotten. Returns whether given ``records`` were used.
        """
        return False

    @classmethod
    def form_for(cls, core: Core, given: Mapping[str, Any], records: Records) -> Form:
        """In which arithmetic a part with these user settings would compute images, found on a few of them
        and before the core is trained; nothing is kept of these."""
        from efface.arithmetic.form import FloatForm

        return FloatForm(core)

    def meet_replay(self, replayed: bool) -> None:
        """Told once, before the first fit: whether core records are among the training records."""

    @abstractmethod
    def samples(self, data: TrainingSet, activations: Activations) -> TrainingSet:
        """The set with what training needs of its records: rows, or the activations themselves."""

    def samples_of(
        self,
        data: TrainingSet,
        records: Records,
        cache: ActivationCache | None = None,
        *,
        progress: Progress | None = None,
    ) -> TrainingSet:
        """:meth:`samples` from the images of all of the set's ``records``, in its order."""
        return self.samples(data, self.activations(records, cache, progress=progress))

    @abstractmethod
    def learn(self, data: TrainingSet, progress: Progress | None = None) -> Solution:
        """Fit the weights on such a set, from nothing."""

    @classmethod
    @abstractmethod
    def kept_bytes(cls, core: Core, num_records: int, given: Mapping[str, Any]) -> int:
        """About how much requests will keep on disk of so many records, with these user settings."""

    @classmethod
    def arguments(
        cls, core: Core, given: Mapping[str, Any], cache: ActivationCache | None
    ) -> dict[str, Any]:
        """The arguments that the user settings are (``options``, mu and target_scale): as they stand."""
        return dict(given)

    def summary(self, data: TrainingSet | None) -> dict[str, Any] | None:
        """What whoever trained it should know beside its accuracy: plain values, for JSON."""
        return None

    # --- requests: on any error the part is as it was ---------------------------------------------

    @abstractmethod
    def add(
        self,
        data: TrainingSet,
        new: TrainingSet,
        guarantee: Guarantee | None,
        *,
        cache: ActivationCache | None = None,
        test_seed: bytes | None = None,
        progress: Progress | None = None,
    ) -> Change:
        """Take more user records in."""

    @abstractmethod
    def plan(
        self,
        epsilon: float,
        delta: float,
        sigma: float | None,
        state: StatePolicy | str,
        core_activations: Callable[[], Activations | None],
    ) -> Guarantee:
        """What later requests promise; σ, if it is not given, from core samples alone."""

    # --- what is proved ---------------------------------------------------------------------------

    def first_certificate(
        self, data: TrainingSet, solution: Solution | None
    ) -> ExactCertificate | None:
        """Of a model that has forgotten nothing; None where there is nothing to compare with."""
        return None

    @abstractmethod
    def verify(self, data: TrainingSet, certificate: Certificate | None) -> Iterator[Check]:
        """The weights computed anew from what is kept, against the certificate. Changes the weights."""

    @abstractmethod
    def agreement(self, data: TrainingSet, at: np.ndarray, again: TrainingSet) -> Agreement:
        """What was kept of the samples ``at`` these places, against the same computed from images."""

    def traces(self, activations: Activations, labels: Tensor) -> Iterator[tuple[str, np.ndarray]]:
        """What this part keeps of samples, by name, one row each: what must be gone once they are."""
        yield from ()

    # --- for others -------------------------------------------------------------------------------

    @abstractmethod
    def exported(self) -> Exported:
        """The model with these weights, as other programs can have it."""

    # --- files ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Plain values, for JSON: what the predictions depend on beside the tensors."""

    @property
    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What predictions need."""

    @classmethod
    @abstractmethod
    def load(
        cls, core: Core, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> UserPart:
        """The part that ``settings`` and ``tensors`` describe; they come from a file."""


def require_training_data(data: TrainingSet | None) -> TrainingSet:
    if data is None:
        raise EffaceError(
            "this model has no training data at hand, so there is nothing to forget from.",
            "forget on the model you fitted, or open its workspace.",
        )
    return data


def within_rounding(stored: np.ndarray, again: np.ndarray, tolerance: float) -> tuple[int, bool]:
    """How many rows are equal, and whether all are within the rounding of other kernels."""
    difference = np.abs(stored.astype(np.float64) - again.astype(np.float64))
    difference = difference.reshape(len(stored), -1)
    return int((difference.max(1) == 0).sum()), bool(difference.max() <= tolerance)
