"""Who becomes core by ``core_fraction``, and so can never be forgotten: counted, and said in a sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from efface.data.found import Row
from efface.data.promises import is_core_owner
from efface.data.public_core import PREFIX
from efface.data.record import Split
from efface.data.records import Records
from efface.pipeline.sections import DataConfig

PAGE = "docs/officer.md"  # "What if someone in core asks?", "How do I choose core?"


@dataclass(frozen=True)
class CorePeople:
    """``people`` of ``of`` were drawn, with ``images`` of theirs (None: not counted)."""

    fraction: float
    people: int
    of: int
    images: int | None = None

    def __str__(self) -> str:
        images = "" if self.images is None else f", {self.images:,} images"
        return (
            f"core_fraction = {self.fraction:g} makes {self.people:,} of {self.of:,} people core{images}: "
            "what the core learns of them is never forgotten, and a request of theirs is refused. Ask them "
            f"first ({PAGE})"
        )


def core_people(data: DataConfig, records: Records, apart: Iterable[Row] = ()) -> CorePeople | None:
    """Those of ``records`` whom the config's fraction drew; None if it draws nobody.

    ``apart``: rows of user data whose images are looked at elsewhere.
    """
    fraction = data.core_fraction
    if not fraction:
        return None
    public = PREFIX if data.core_data is not None else None
    mine = records.where(lambda r: public is None or not r.id.startswith(public))
    drawn = mine.core.where(lambda r: is_core_owner(r.owner, fraction, data.seed))
    owners = {record.owner for record in mine if record.split is not Split.TEST}
    owners |= {row.owner for row in apart}
    people = len(set(drawn.owners))
    return CorePeople(fraction, people, len(owners), len(drawn)) if people else None
