"""A certificate from its file: numbers that follow from others are computed anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from efface.guarantee.certificates import (
    Certificate,
    Difference,
    ExactCertificate,
    Given,
    ShiftCertificate,
)
from efface.guarantee.promise import Guarantee


def certificate_of(values: Mapping[str, Any], shifts: tuple[float, ...]) -> Certificate:
    """A certificate from its private form; the numbers that follow from others are computed anew."""
    kind = ExactCertificate if values["kind"] == "exact" else ShiftCertificate
    given = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    if kind is ShiftCertificate:
        given["guarantee"] = Guarantee(**given["guarantee"])
        given["earlier_shifts"] = shifts[:-1]
    elif given.get("given") is not None:
        given["given"] = Given(**given["given"])
    if kind is ExactCertificate and given.get("difference") is not None:
        stored = {f.name: given["difference"][f.name] for f in fields(Difference)}
        given["difference"] = Difference(
            **{**stored, "guarantee": Guarantee(**stored["guarantee"])}
        )
    return kind(**given)
