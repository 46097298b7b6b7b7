"""Whether what was made elsewhere was made for the model at hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from efface.errors import EffaceError
from efface.guarantee.certificates import Given

if TYPE_CHECKING:
    from efface.model.kept import KeptModel
    from efface.model.mixed_linear import MixedLinear


def given_of(model: MixedLinear | KeptModel) -> Given:
    """What rows and sums for the model are relative to; an error if it has none."""
    given = model.user.given
    if not isinstance(given, Given):
        fix = "train with --user compact: its sums can be made in parts."
        raise EffaceError(f"a {model.user.kind} part cannot be trained in shards.", fix)
    if model.user.num_weights == 0:
        fix = "train it first, `efface train --core-only` say: rows need its bases and scales."
        raise EffaceError("the model's user part has no features yet.", fix)
    return given


def require_same(what: str, theirs: Given, ours: Given) -> None:
    """Digests of core, calibration, classes and preprocessing; in floats the machine's kind as well."""
    if ours.arithmetic == "integer":  # the same on every machine
        theirs = replace(theirs, environment=ours.environment)
    if theirs == ours:
        return
    mine, other = asdict(ours), asdict(theirs)
    different = ", ".join(key for key in mine if mine[key] != other[key])
    message = f"{what} was made for another model: {different} differ."
    raise EffaceError(message, "make it with `--model` and this model.")
