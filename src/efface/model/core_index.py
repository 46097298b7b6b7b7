"""Who and what is in core: what a request must be held against, because core is never forgotten.

Of every core record the workspace keeps id, content digest, label and perceptual hash, and of its owner and
cohort a keyed hash, HMAC-SHA-256(key, name). The key lies in ``private/``: with it a name that is asked for
can be recognised, without it the hash is no name. Calibration records, from which bases and scales
came, are listed too: what came from them is not forgotten either.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from efface.data.names import tidy
from efface.data.record import Record
from efface.data.records import Records
from efface.errors import FormatError, GuaranteeError, RecordError
from efface.model.request import Request, RequestKind

SCHEMA = "efface.core-records/2"
KEY_BYTES = 32
CORE, CALIBRATION = "core", "calibration"


def tag(key: bytes, kind: str, name: str) -> str:
    """HMAC-SHA-256(key, kind ‖ 0 ‖ name), in hexadecimal digits; of names that are one, one."""
    return hmac.digest(key, f"{kind}\0{tidy(name)}".encode(), "sha256").hex()


@dataclass(frozen=True)
class CoreRecord:
    """What is kept of one; ``owner`` and ``cohort`` are keyed hashes, ``role`` is core or calibration."""

    id: str
    digest: str
    label: str
    owner: str
    cohort: str
    role: str = CORE
    look: str = ""

    @classmethod
    def of(cls, record: Record, key: bytes, role: str, look: str = "") -> CoreRecord:
        owner, cohort = tag(key, "owner", record.owner), tag(key, "cohort", record.cohort)
        if role == CALIBRATION and record.owner == record.id:
            owner = ""  # a path in another folder, nobody's name
        return cls(record.id, record.digest, record.label, owner, cohort, role, look)


@dataclass(frozen=True)
class CoreIndex:
    """The core and calibration records, sorted, and the key of their owners' hashes."""

    key: bytes = field(repr=False)
    records: tuple[CoreRecord, ...] = ()

    @classmethod
    def of(
        cls,
        core: Iterable[Records | None],
        calibration: Records | None = None,
        *,
        key: bytes | None = None,
        looks: Mapping[str, str] | None = None,
    ) -> CoreIndex:
        """Of some sets of core records; ``looks`` are perceptual hashes by content digest."""
        key, looks = secrets.token_bytes(KEY_BYTES) if key is None else key, looks or {}
        found = {
            (role, r.id): CoreRecord.of(r, key, role, looks.get(r.digest, ""))
            for role, sets in ((CORE, core), (CALIBRATION, (calibration,)))
            for records in sets
            for r in records or ()
        }
        return cls(key, tuple(found[name] for name in sorted(found)))

    @property
    def ids(self) -> set[str]:
        """Of core records proper: those of calibration are names in another folder."""
        return {record.id for record in self.records if record.role == CORE}

    @property
    def digests(self) -> dict[str, str]:
        """Content digest to role."""
        return {record.digest: record.role for record in self.records}

    def owners_among(self, names: Iterable[str]) -> list[str]:
        """Those of the ``names`` that have records here, sorted."""
        known = {record.owner for record in self.records}
        return [name for name in sorted(set(names)) if tag(self.key, "owner", name) in known]

    def matching(self, request: Request) -> tuple[str, ...]:
        """Ids of the records here that the request would name if they were user records."""
        if request.kind is RequestKind.EVERYTHING:
            return tuple(sorted(self.ids))
        if request.kind is RequestKind.IDS:
            return request.in_core  # core ids among the values are refused one by one
        if request.kind is RequestKind.LABEL:
            return tuple(r.id for r in self.records if r.label in request.values and r.role == CORE)
        kind = str(request.kind)
        wanted = {tag(self.key, kind, value) for value in request.values}
        return tuple(r.id for r in self.records if getattr(r, kind) in wanted)

    def check(self, request: Request, *, user_part_only: bool) -> int:
        """How many images stay in core; refuses a request for people of whom some do.

        A class, or everything, is no person: there the user records are what is asked for.
        """
        staying = self.matching(request)
        people = request.kind not in (RequestKind.LABEL, RequestKind.EVERYTHING)
        if staying and people and not user_part_only:
            whose = "this request" if request.kind is RequestKind.IDS else f"this {request.kind}"
            shown = ", ".join(map(repr, staying[:3]))
            more = f" and {len(staying) - 3} more" if len(staying) > 3 else ""
            raise GuaranteeError(
                f"{len(staying)} images of {whose} are core data, which is not forgotten: "
                f"{shown}{more}; nothing was changed.",
                "train again without these images, or forget the rest with --user-part-only "
                "(user_part_only=True): the certificate will then say what stays.",
            )
        return len(staying)

    def still_known(self, request: Request) -> tuple[str, ...]:
        """What has to be said of a class that is forgotten while images of it are core."""
        number = len(self.matching(request)) if request.kind is RequestKind.LABEL else 0
        if not number:
            return ()
        name = ", ".join(map(repr, request.values))
        return (
            f"the class {name} is still known: {number} images of it are core data, which stays; to have it "
            "forgotten altogether train a core without them",
        )

    def check_new(self, records: Records) -> None:
        """Refuses images that are here: as user records they would seem to be forgettable."""
        role = self.digests
        for record in records:
            if role.get(record.digest) == CORE:
                fix = "core data cannot be forgotten: do not add it as user data."
                raise RecordError(record.id, "the same image is core data.", fix)
            if record.digest in role:
                fix = "what came from it is not forgotten: do not add it as user data."
                raise RecordError(record.id, "bases and scales were calibrated on this image.", fix)

    # --- files ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Columns, ready for JSON; the key is kept elsewhere."""
        names = ("id", "digest", "label", "owner", "cohort", "role", "look")
        columns = {f"{name}s": [getattr(r, name) for r in self.records] for name in names}
        return {"schema": SCHEMA, **columns}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], key: bytes) -> CoreIndex:
        names = ("ids", "digests", "labels", "owners", "cohorts", "roles", "looks")
        try:
            rows = list(zip(*(values[name] for name in names), strict=True))
            if not all(isinstance(text, str) for row in rows for text in row):
                raise ValueError("a value is no text")
            return cls(key, tuple(CoreRecord(*row) for row in rows))
        except (KeyError, TypeError, ValueError) as error:
            message = f"core-records.json is not as it was saved: {error!r}."
            raise FormatError(message, "restore it from a copy.") from error
