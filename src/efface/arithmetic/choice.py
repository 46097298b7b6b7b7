"""Which form a core gets: integers where it has an integer form, else floats.

Two forms compute in integers. ``IntegerForm`` is for networks of convolutions, BatchNorm and (Leaky)ReLU:
8-bit integers in float32, as fast as floats. ``ExactForm`` is for the rest, LayerNorm, smooth activations and
attention included: about 20 bits in float64, slower. A network that has neither is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from torch import Tensor

from efface.arithmetic.exact.form import ExactForm
from efface.arithmetic.form import FloatForm, Form
from efface.arithmetic.integer.form import MOST_IMAGES, IntegerForm
from efface.arithmetic.integer.ops import NoIntegerForm
from efface.arithmetic.integer.self_test import NotExact
from efface.data.records import Records
from efface.errors import BackboneError, EffaceError, FormatError
from efface.network import synthetic
from efface.network.core import Core
from efface.progress import Progress


class Arithmetic(StrEnum):
    """What the caller wants."""

    AUTO = "auto"
    INTEGER = "integer"
    FLOAT = "float32"

    @classmethod
    def _missing_(cls, value: object) -> Arithmetic:
        if value == "float":
            return cls.FLOAT
        raise EffaceError(f"unknown arithmetic {value!r}.", "use integer, float or auto.")


@dataclass(frozen=True)
class Choice:
    """A form, and why the ones before it were not possible."""

    form: Form
    reasons: tuple[str, ...] = ()


def choose_form(
    core: Core, wanted: Arithmetic, records: Records, *, gradients: bool = True
) -> Choice:
    """The form of a core, its steps found on images of core or public records.

    ``gradients``: whether ψ has gradient features, so that there must be a way back through the tail.
    """

    def find() -> IntegerForm:
        some = records[:: max(1, -(-len(records) // MOST_IMAGES))]
        return IntegerForm.find(core, core.pixels(some))

    return _choose(core, wanted, find, gradients)


def choose_form_without_data(
    core: Core,
    wanted: Arithmetic,
    *,
    gradients: bool = True,
    count: int = synthetic.COUNT,
    progress: Progress | None = None,
) -> tuple[Choice, Tensor, int]:
    """The same on ``count`` synthetic images (``synthetic``): the form, its activations of them, and how many
    layers were matched to the network's own statistics."""
    found: list[tuple[Tensor, int]] = []

    def find() -> IntegerForm:
        form, made, matched = IntegerForm.without_data(core, count, progress=progress)
        found.append((made, matched))
        return form

    choice = _choose(core, wanted, find, gradients)
    if not isinstance(choice.form, IntegerForm):
        found = [synthetic.activations(core, count, progress=progress)]
    return choice, *found[0]


def _choose(
    core: Core, wanted: Arithmetic, find: Callable[[], IntegerForm], gradients: bool
) -> Choice:
    if wanted is Arithmetic.FLOAT:
        return Choice(FloatForm(core))
    reasons = []
    try:
        form = find()
        if form.has_gradients or not gradients:
            return Choice(form)
        reasons.append("8-bit integers: no gradients through a layer of the tail")
    except (NoIntegerForm, NotExact) as error:
        if isinstance(error, NotExact) and wanted is Arithmetic.INTEGER:
            raise
        reasons.append(f"8-bit integers: {error.message}")
    problem = ExactForm.problem(core)
    if problem is None:
        return Choice(ExactForm(core), tuple(reasons))
    reasons.append(f"exact sums in float64: {problem}")
    if wanted is Arithmetic.INTEGER:
        raise BackboneError(
            f"{core.backbone.spec} has no integer form ({'; '.join(reasons)}).",
            "use --arithmetic float: exact on one machine.",
        )
    return Choice(FloatForm(core), tuple(reasons))


FORMS: dict[str, Any] = {
    IntegerForm.kind: IntegerForm.load,
    ExactForm.kind: lambda core, _: ExactForm(core),
    FloatForm.kind: lambda core, _: FloatForm(core),
}


def load_form(core: Core, settings: Mapping[str, Any]) -> Form:
    """The form that a file describes."""
    kind = settings.get("kind") if isinstance(settings, Mapping) else None
    if kind not in FORMS:
        raise FormatError(f"unknown form {kind!r}.", f"this version has {', '.join(FORMS)}.")
    return FORMS[kind](core, settings)
