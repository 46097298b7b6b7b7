"""Core data from elsewhere: a public set whose images nobody will ask to have forgotten."""

from __future__ import annotations

from dataclasses import replace

from efface.data.record import Record, Skipped, Split
from efface.data.records import Records

PREFIX = "core/"  # of ids, so that a file called as somebody's is not mixed up with it


def with_public_core(records: Records, public: Records) -> Records:
    """``records``, with all of ``public`` but its test records as core.

    The class list begins with the public set's, so that no user record has a say in its order. A user
    record whose image is in the public set is set aside in ``.skipped``: it could not be forgotten.
    """
    core = [_as_core(record) for record in public if record.split is not Split.TEST]
    shown = {record.digest: record.id for record in core}
    kept = records.where(lambda r: r.split is not Split.USER or r.digest not in shown)
    twice = [r for r in records.user if r.digest in shown]
    skipped = [Skipped(r.id, f"the same image is core data, as {shown[r.digest]!r}") for r in twice]
    first = Records(
        core,
        public.classes,
        listed=public.listed,
        skipped=(*public.skipped, *skipped),
        remarks=public.remarks,
    )
    return first + kept


def _as_core(record: Record) -> Record:
    owner = PREFIX + record.owner if record.owner == record.id else record.owner
    return replace(record, id=PREFIX + record.id, owner=owner, split=Split.CORE)
