"""A request carried out on a part and what it was trained on: what every kind of model does alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from efface.guarantee.certificates import Certificate
from efface.guarantee.promise import Guarantee
from efface.model.core_index import CoreIndex
from efface.model.request import Request
from efface.parts.part import Change, Forgetter
from efface.parts.training_set import TrainingSet


@dataclass(frozen=True)
class Carried:
    """``change`` is the part's, ``gone`` the ids of what was forgotten and when."""

    change: Change
    certificate: Certificate
    gone: Mapping[str, str]


def carry_out(
    part: Forgetter,
    data: TrainingSet,
    index: CoreIndex,
    request: Request,
    guarantee: Guarantee | None,
    *,
    user_part_only: bool = False,
    forgotten: Mapping[str, str] | None = None,
    plan: Callable[[], Guarantee] | None = None,
    **options: Any,
) -> Carried:
    """Check the request against the records, then have the part forget them; ``options`` are the part's.

    ``plan`` is asked for a guarantee where the part needs one and none is given.
    """
    staying = index.check(request, user_part_only=user_part_only)
    core = data.core_ids | index.ids
    positions = request.positions(data.records, core=core, forgotten=forgotten)
    if len(positions) == len(data.records) and not data.num_from_partners:
        change = part.forget_everything(data)
    else:
        if guarantee is None and part.noisy and plan is not None:
            guarantee = plan()
        change = part.forget(data, positions, guarantee, **options)
    assert change.certificate is not None
    people = len({data.records[int(i)].owner for i in positions})
    certificate = replace(change.certificate, num_in_core=staying, num_people=people)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return Carried(change, certificate, {data.records[int(i)].id: when for i in positions})
