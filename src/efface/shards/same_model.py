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


def require_same(what: str, theirs: Given, ours: Given) -> tuple[str, ...]:
    """Digests of core, calibration, classes and preprocessing; in floats the machine's kind as well.

    Integers are the same on every machine once an image is decoded, and decoders differ: where the two used
    other ones that is no error, but what is returned says so.
    """
    notes: tuple[str, ...] = ()
    if ours.arithmetic == "integer":
        if theirs.environment != ours.environment:
            notes = (_decoded_otherwise(what, theirs, ours),)
        theirs = replace(theirs, environment=ours.environment)
    if theirs == ours:
        return notes
    mine, other = asdict(ours), asdict(theirs)
    different = ", ".join(key for key in mine if mine[key] != other[key])
    message = f"{what} was made for another model: {different} differ."
    raise EffaceError(message, "make it with `--model` and this model.")


def _decoded_otherwise(what: str, theirs: Given, ours: Given) -> str:
    names = sorted({*theirs.environment, *ours.environment})
    odd = [name for name in names if theirs.environment.get(name) != ours.environment.get(name)]
    there, here = (
        "; ".join(f"{name} {str(given.environment.get(name, 'unknown'))[:80]}" for name in odd)
        for given in (theirs, ours)
    )
    return (
        f"{what} was computed elsewhere with {there}, here there is {here}: a decoder of another build may "
        "give other pixels of a JPEG, so rows computed anew here may differ"
    )
