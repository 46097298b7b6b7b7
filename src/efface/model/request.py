"""Requests to forget: whom or what, checked against the records before anything is touched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypedDict

import numpy as np

from efface.data.names import likeness, tidy
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import RequestError


class RequestKind(StrEnum):
    IDS = "ids"
    OWNER = "owner"
    COHORT = "cohort"
    LABEL = "label"
    EVERYTHING = "everything"


class Whom(TypedDict, total=False):
    """What a request names, as keyword arguments; exactly one of them, and ``in_core`` beside ``ids``."""

    ids: str | Iterable[str] | None
    owner: str | None
    cohort: str | None
    label: str | None
    everything: bool
    in_core: Iterable[str]


@dataclass(frozen=True)
class Request:
    """Forget these ids, this owner's, cohort's or class's records, or everything.

    ``in_core`` are ids of core records that are meant as well, where ids stand for people or pictures.
    """

    kind: RequestKind
    values: tuple[str, ...] = ()
    in_core: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        ids: str | Iterable[str] | None = None,
        owner: str | None = None,
        cohort: str | None = None,
        label: str | None = None,
        everything: bool = False,
        in_core: Iterable[str] = (),
    ) -> Request:
        """Exactly one of the arguments."""
        given: dict[RequestKind, Any] = {
            RequestKind.IDS: ids,
            RequestKind.OWNER: owner,
            RequestKind.COHORT: cohort,
            RequestKind.LABEL: label,
            RequestKind.EVERYTHING: everything or None,
        }
        chosen = [(kind, value) for kind, value in given.items() if value is not None]
        if len(chosen) != 1:
            raise RequestError(
                f"a request names exactly one of ids, owner, cohort, label or everything, "
                f"this one has {len(chosen)}.",
                "split it into several requests."
                if chosen
                else "say whom: --owner NAME, say (in Python: owner=).",
            )
        kind, value = chosen[0]
        if kind is RequestKind.EVERYTHING:
            return cls(kind)
        values = (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))
        if not values:
            raise RequestError("the request names no record.", "give at least one id.")
        for value in values:
            if not isinstance(value, str) or _is_broken(value):
                raise RequestError(f"{value!r} is no name.", "names are text, in UTF-8.")
        return cls(kind, values, tuple(in_core))

    def positions(
        self,
        records: Records,
        *,
        core: Iterable[str] = (),
        forgotten: Mapping[str, str] | None = None,
    ) -> np.ndarray:
        """Where the requested records are among the user ``records``; errors name what is wrong.

        ``core`` are ids that cannot be forgotten; ``forgotten`` maps earlier forgotten ids to when.
        """
        if self.kind is RequestKind.EVERYTHING:
            if len(records) == 0:
                raise RequestError("there is nothing left to forget.", "no request is needed.")
            return np.arange(len(records))
        if self.kind is RequestKind.IDS:
            self._check_ids(set(records.ids), set(core), forgotten or {})
        attribute = "id" if self.kind is RequestKind.IDS else self.kind.value
        wanted = set(self.values)
        found = np.array([value in wanted for value in records.column(attribute)], dtype=bool)
        if not found.any():
            raise RequestError(
                f"no user record has {attribute} {', '.join(map(repr, self.values))}.",
                "check the spelling; core records are not forgettable.",
            )
        positions = found.nonzero()[0]
        for record in records[positions]:
            if record.split is Split.CORE:  # it is in the core weights as well
                raise _is_core(record.id)
        return positions

    def _check_ids(self, known: set[str], core: set[str], forgotten: Mapping[str, str]) -> None:
        for value in self.values:
            if value in known:  # also when it came back after an earlier request
                continue
            if value in core:
                raise _is_core(value)
            if value in forgotten:
                raise RequestError(
                    f"{value!r} was forgotten already ({forgotten[value]}).",
                    "nothing is left to do.",
                )
            raise RequestError(f"no user record has id {value!r}.", "check the spelling.")

    @classmethod
    def one(cls, request: Request | None, whom: Whom) -> Request:
        """The request itself, or the one that these arguments make: either, not both."""
        if request is None:
            return cls.of(**whom)
        if whom:
            raise RequestError("a request and names are given.", "give one of the two.")
        return request

    def to_dict(self) -> dict[str, Any]:
        core = {"in_core": list(self.in_core)} if self.in_core else {}
        return {"kind": str(self.kind), "values": list(self.values), **core}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Request:
        try:
            core = tuple(values.get("in_core", ()))
            return cls(RequestKind(values["kind"]), tuple(values["values"]), core)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RequestError(
                f"not a stored request: {values!r:.200}.", "restore the file it comes from."
            ) from error


def _is_core(record_id: str) -> RequestError:
    return RequestError(
        f"{record_id!r} is a core record; core data is not forgettable.",
        "train a new core without it.",
    )


def meant(request: Request, owners: Iterable[str]) -> tuple[Request, tuple[str, ...]]:
    """The request with its owner as the records spell it, and notes on owners that look like it."""
    if request.kind is not RequestKind.OWNER:
        return request, ()
    known, (given,) = set(owners), request.values
    name = given if given in known else tidy(given)
    others = sorted(o for o in known if o != name and likeness(o) == likeness(name))
    notes = tuple(f"there is also an owner {other!r}, who is not meant" for other in others)
    return Request(request.kind, (name,)), notes


def _is_broken(text: str) -> bool:
    """Whether it holds bytes that are no text, as a command line in another encoding has them."""
    return any("\ud800" <= character <= "\udfff" for character in text)
