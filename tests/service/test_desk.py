"""Requests and their states: each once, each change with a row, nothing of the person left at the end."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from tests.service.offices import EMAIL, everything
from tests.workspaces import OWNER

from efface.errors import EffaceError, RequestError
from efface.service.aftermath import scrub
from efface.service.desk import ROW, ConflictError, Desk, UnknownTicketError
from efface.service.place import Place
from efface.service.states import DAY, ENDS, FOLLOWING, OPEN, Reason, Regulation, State, check
from efface.service.tickets import CallbackWish, Intake

WAY = (State.RUNNING, State.PUBLISHED, State.HOOKS, State.DONE)


@pytest.fixture
def desk(place: Place) -> Desk:
    return Desk(place.ledger, place.key)


def intake(number: str = "1", body: bytes = b'{"a": 1}', source: str = "native") -> Intake:
    return Intake(source, number, body, "crm", (OWNER,))


def rows(desk: Desk) -> list[dict[str, object]]:
    return [row.values for row in desk.ledger.rows() if row.kind == ROW]


def test_only_listed_states_follow() -> None:
    for before, after in itertools.product(State, State):
        if after in FOLLOWING[before]:
            check(before, after)
        else:
            with pytest.raises(RequestError):
                check(before, after)


def test_every_state_can_be_reached_and_every_open_one_can_end() -> None:
    reached = {State.RECEIVED}
    for _ in State:
        reached |= {after for before in reached for after in FOLLOWING[before]}
    assert reached == set(State)
    assert set(OPEN) | set(ENDS) == set(State)
    ending = set(ENDS)
    for _ in State:
        ending |= {state for state in State if ending & set(FOLLOWING[state])}
    assert ending == set(State)


def test_every_change_has_a_row(desk: Desk) -> None:
    ticket, new = desk.submit(intake())
    assert new
    for state in WAY:
        [ticket] = desk.move([ticket], state)
    told = [row["state"] for row in rows(desk)]
    assert told == [step.state for step in ticket.history]
    assert [step.row for step in ticket.history] == sorted(step.row for step in ticket.history)
    desk.ledger.verify()


def test_a_change_that_cannot_be_leaves_neither_row_nor_state(desk: Desk) -> None:
    first, _ = desk.submit(intake("1"))
    second, _ = desk.submit(intake("2"))
    desk.cancel(second.id)
    before = rows(desk)
    with pytest.raises(RequestError):
        desk.move([first, second], State.RUNNING)  # the second cannot: neither does
    assert rows(desk) == before
    assert desk.get(first.id).state is State.WAITING


def test_the_same_request_is_one(desk: Desk) -> None:
    first, _ = desk.submit(intake(body=b'{"a": 1, "b": 2}'))
    again, new = desk.submit(intake(body=b'{"b":2,"a":1}'))  # written differently
    assert (again.id, new) == (first.id, False)
    assert len(desk.latest()) == 1


def test_the_same_number_of_another_source_is_another_request(desk: Desk) -> None:
    desk.submit(intake())
    _, new = desk.submit(intake(source="fides"))
    assert new


def test_a_number_that_was_used_for_something_else_is_a_conflict(desk: Desk) -> None:
    desk.submit(intake())
    before = rows(desk)
    with pytest.raises(ConflictError):
        desk.submit(intake(body=b'{"a": 2}'))
    assert rows(desk) == before


def test_it_is_the_same_request_after_its_end_too(desk: Desk) -> None:
    ticket, _ = desk.submit(intake())
    desk.cancel(ticket.id)
    again, new = desk.submit(intake())
    assert (again.state, new) == (State.CANCELLED, False)
    with pytest.raises(ConflictError):
        desk.submit(intake(body=b"[]"))


@pytest.mark.parametrize(("regulation", "days"), [(Regulation.GDPR, 30), (Regulation.CCPA, 45)])
def test_deadlines_run_from_when_the_person_asked(
    desk: Desk, regulation: Regulation, days: int
) -> None:
    values = {"regulation": regulation, "submitted": 1000.0}
    ticket, _ = desk.submit(Intake("native", "1", b"", "crm", (OWNER,), **values), now=5000.0)  # type: ignore[arg-type]
    assert ticket.due == 1000.0 + days * DAY
    late, _ = desk.submit(Intake("native", "2", b"", "crm", submitted=9e9), now=5000.0)
    assert late.due == 5000.0 + 30 * DAY  # not asked in the future


def test_a_running_request_cannot_be_cancelled_and_cancelling_twice_is_once(desk: Desk) -> None:
    ticket, _ = desk.submit(intake("1"))
    desk.move([ticket], State.RUNNING)
    with pytest.raises(ConflictError):
        desk.cancel(ticket.id)
    other, _ = desk.submit(intake("2"))
    assert desk.cancel(other.id) == desk.cancel(other.id)


def test_unknown_numbers(desk: Desk) -> None:
    with pytest.raises(UnknownTicketError):
        desk.get("0" * 24)
    with pytest.raises(UnknownTicketError):
        desk.find("native", "1")


def test_refused_with_a_reason(desk: Desk) -> None:
    ticket, _ = desk.submit(
        Intake("native", "1", b"", "crm", (OWNER,), refused=Reason.CLAIM_NOT_COVERED)
    )
    assert (ticket.state, ticket.reason) == (State.REFUSED, Reason.CLAIM_NOT_COVERED)
    assert not ticket.owners


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_nothing_of_the_person_is_left_in_the_database(desk: Desk, place: Place, end: str) -> None:
    """Neither in the table nor in a free page nor in the write-ahead log; keyed hashes are."""
    secret, url = "reply-token-4711", f"https://example.com/{EMAIL}"
    number = f"number-of-{EMAIL}"
    ticket, _ = desk.submit(
        Intake(
            "fides",
            number,
            f'{{"email": "{EMAIL}"}}'.encode(),
            "crm",
            (OWNER,),
            wishes=(CallbackWish("fides", url, secret),),
        )
    )
    database = place.ledger.database.path.parent  # type: ignore[attr-defined]
    files = lambda: b"".join(p.read_bytes() for p in database.glob("ledger.sqlite*"))  # noqa: E731
    assert OWNER.encode() in files()
    if end == "cancelled":
        desk.cancel(ticket.id)
    else:
        for state in WAY:
            [ticket] = desk.move([ticket], state)
        with place.ledger.transaction() as tx:  # as if it had been delivered
            tx.execute("DELETE FROM service_callbacks")
    assert scrub(place.ledger)
    left = files()
    body = "eyJlbWFpbCI6"  # base64 of the body's beginning
    for word in (OWNER, EMAIL, secret, number, body):
        assert word.encode() not in left
    assert desk.tag("external", number).encode() in left


def test_what_is_postponed_waits_again_and_says_why(desk: Desk) -> None:
    ticket, _ = desk.submit(intake())
    desk.move([ticket], State.RUNNING)
    desk.postpone([ticket], "the disk is full.", until=9e9)
    found = desk.get(ticket.id)
    assert (found.state, found.problem, found.attempts) == (State.WAITING, "the disk is full.", 1)
    assert found.not_before == 9e9


def test_a_place_without_a_workspace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EffaceError, match="not a workspace"):
        Place.open(tmp_path)


def test_the_helper_sees_what_is_there(place: Place, desk: Desk) -> None:
    desk.submit(intake())
    assert OWNER.encode() in everything(place.path)
