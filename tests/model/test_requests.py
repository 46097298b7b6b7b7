"""Requests: exactly one criterion, found among the user records, refused with a reason otherwise."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import cases

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import RequestError
from efface.model.request import Request, RequestKind


@pytest.fixture(scope="module")
def records() -> Records:
    """Nine records of three owners; classes a, b, c; the last three in another cohort."""
    plain = cases.tiny_records(9, 1, name="r")
    changed = [
        replace(r, owner=f"owner{i // 3}", cohort="late" if i >= 6 else "early")
        for i, r in enumerate(plain)
    ]
    return Records(changed, plain.classes)


# --- what a request may say -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "criteria",
    [
        {"ids": ["r1"], "owner": "owner1"},
        {"owner": "owner1", "everything": True},
        {"cohort": "late", "label": "a"},
        {"ids": [], "label": "a"},
        {"ids": "r1", "owner": "o", "cohort": "c", "label": "a", "everything": True},
        {},
        {"everything": False},
    ],
)
def test_exactly_one_criterion(criteria: dict[str, object]) -> None:
    count = sum(value is not None and value is not False for value in criteria.values())
    with pytest.raises(RequestError, match=f"exactly one of .* has {count}") as caught:
        Request.of(**criteria)  # type: ignore[arg-type]
    assert ("split it" if count else "say whom") in caught.value.fix


@pytest.mark.parametrize("empty", [[], (), iter(())])
def test_an_empty_request_is_refused(empty: object) -> None:
    with pytest.raises(RequestError, match="names no record"):
        Request.of(ids=empty)  # type: ignore[arg-type]


def test_one_id_is_not_its_letters() -> None:
    assert Request.of(ids="r12") == Request(RequestKind.IDS, ("r12",))


def test_repeated_ids_count_once() -> None:
    assert Request.of(ids=["r2", "r1", "r2"]).values == ("r2", "r1")
    assert Request.of(ids=(x for x in ["r1", "r1"])).values == ("r1",)


# --- where its records are ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("criteria", "wanted"),
    [
        ({"ids": "r4"}, [4]),
        ({"ids": ["r7", "r0"]}, [0, 7]),
        ({"owner": "owner1"}, [3, 4, 5]),
        ({"cohort": "late"}, [6, 7, 8]),
        ({"label": "b"}, [1, 4, 7]),
        ({"everything": True}, list(range(9))),
    ],
)
def test_the_positions_are_those_of_the_records(
    records: Records, criteria: dict[str, object], wanted: list[int]
) -> None:
    found = Request.of(**criteria).positions(records)  # type: ignore[arg-type]
    assert found.tolist() == wanted
    assert np.issubdtype(found.dtype, np.integer)


@pytest.mark.parametrize(
    "criteria", [{"ids": "r99"}, {"owner": "nobody"}, {"cohort": "never"}, {"label": "zebra"}]
)
def test_unknown_names_are_named(records: Records, criteria: dict[str, str]) -> None:
    (value,) = criteria.values()
    with pytest.raises(RequestError, match=f"no user record has .*{value}") as caught:
        Request.of(**criteria).positions(records)
    assert caught.value.fix


def test_one_unknown_id_among_known_ones_refuses_all(records: Records) -> None:
    with pytest.raises(RequestError, match="'r99'"):
        Request.of(ids=["r1", "r99"]).positions(records)


def test_core_ids_are_refused(records: Records) -> None:
    with pytest.raises(RequestError, match=r"'core7'.*core data is not forgettable"):
        Request.of(ids=["r1", "core7"]).positions(records, core=["core7"])


@pytest.mark.parametrize(
    "criteria", [{"ids": "r4"}, {"owner": "owner1"}, {"cohort": "early"}, {"label": "b"}]
)
def test_core_records_among_the_user_records_are_refused(
    records: Records, criteria: dict[str, str]
) -> None:
    """Their image is in the core weights, where nothing is ever forgotten (errata 25)."""
    mixed = [replace(r, split=Split.CORE) if r.id == "r4" else r for r in records]
    with pytest.raises(RequestError, match=r"'r4'.*core data is not forgettable"):
        Request.of(**criteria).positions(Records(mixed, records.classes))


def test_an_id_forgotten_already_says_when(records: Records) -> None:
    with pytest.raises(RequestError, match=r"'gone' was forgotten already \(2026-01-02\)"):
        Request.of(ids="gone").positions(records, forgotten={"gone": "2026-01-02"})


def test_a_record_that_came_back_can_be_forgotten_again(records: Records) -> None:
    found = Request.of(ids="r4").positions(records, core=["r4"], forgotten={"r4": "2026-01-02"})
    assert found.tolist() == [4]


def test_nothing_left_to_forget(records: Records) -> None:
    with pytest.raises(RequestError, match="nothing left to forget"):
        Request.of(everything=True).positions(records[[]])
    with pytest.raises(RequestError, match="no user record has owner 'owner1'"):
        Request.of(owner="owner1").positions(records[[]])


# --- files ----------------------------------------------------------------------------------------


@given(
    st.one_of(
        st.builds(lambda v: Request.of(ids=v), st.lists(st.text(), min_size=1)),
        st.builds(lambda v: Request.of(owner=v), st.text()),
        st.builds(lambda v: Request.of(label=v), st.text()),
        st.just(Request.of(everything=True)),
    )
)
def test_a_stored_request_is_the_same_request(request: Request) -> None:
    assert Request.from_dict(json.loads(json.dumps(request.to_dict()))) == request


@pytest.mark.parametrize("values", [{}, {"kind": "ids"}, {"kind": "x", "values": []}])
def test_what_is_no_stored_request_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(RequestError, match="not a stored request"):
        Request.from_dict(values)
