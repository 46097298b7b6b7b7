"""The worker: requests together in one release, deadlines, kills, leases, hooks that fail."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.service.offices import EMAIL, everything, native
from tests.workspaces import LEFT, OWNER, contents, fitted

from efface.model.mixed_linear import MixedLinear
from efface.service.hooks.hook import Hook, HookError, PublicModel
from efface.service.identities import SubjectIdentity
from efface.service.leases import Lease
from efface.service.office import Office
from efface.service.place import Place
from efface.service.served import lagging
from efface.service.settings import BatchSettings
from efface.service.states import DAY, State
from efface.service.tickets import Intake, Ticket
from efface.service.worker import Worker, is_due
from efface.workspace import Workspace
from efface.workspace.published import current, load

NAMES = ("person-one", "person-two", OWNER)


def ask(office: Office, name: str, number: str = "", **values: Any) -> Ticket:
    intake = Intake("native", number or name, str(native(name)).encode(), "crm", **values)
    ticket, _ = office.take_in(intake, [SubjectIdentity("owner", name)])
    return ticket


def with_batch(worker: Worker, **values: Any) -> Worker:
    batch = BatchSettings.model_validate(values)
    worker.settings = worker.settings.model_copy(update={"batch": batch})
    return worker


def all_in(worker: Worker, state: State) -> list[Ticket]:
    return worker.desk.in_state(state)


def test_all_that_wait_become_one_release(office: Office, worker: Worker, folder: Path) -> None:
    for name in NAMES:
        ask(office, name)
    worker.step()
    done = all_in(worker, State.DONE)
    assert [ticket.release for ticket in done] == [2, 2, 2]
    assert current(folder).release == 2  # type: ignore[union-attr]
    stays = Workspace.open(folder).records
    assert set(stays.owners) == {"person-four", "person-five"}


def test_the_release_is_that_of_a_model_never_given_the_person(
    office: Office, worker: Worker, folder: Path
) -> None:
    ask(office, OWNER)
    worker.step()
    retrained: MixedLinear = fitted("compact", LEFT)
    assert load(folder).user.weights_digest == retrained.user.weights_digest


def test_two_requests_for_one_person_are_both_done_by_one_release(
    office: Office, worker: Worker
) -> None:
    ask(office, OWNER, "1")
    ask(office, OWNER, "2")
    worker.step()
    assert {ticket.release for ticket in all_in(worker, State.DONE)} == {2}


def test_a_person_who_is_gone_by_then_needs_no_release(
    office: Office, worker: Worker, folder: Path
) -> None:
    ask(office, OWNER)
    Workspace.open(folder).forget(owner=OWNER)  # by somebody else, on the command line
    worker.step()
    assert [ticket.release for ticket in all_in(worker, State.DONE)] == [2]
    assert current(folder).release == 2  # type: ignore[union-attr]


def test_when_a_batch_is_due(office: Office) -> None:
    now = time.time()
    ticket = ask(office, OWNER)
    batch = BatchSettings(window_seconds=60, minimum=2, margin_days=5)
    assert not is_due([], batch, now)
    assert not is_due([ticket], batch, now + 61)  # one person, two are waited for
    other = ask(office, "person-one")
    assert not is_due([ticket, other], batch, now + 30)
    assert is_due([ticket, other], batch, now + 61)
    twin = ask(office, OWNER, "twin")
    assert not is_due([ticket, twin], batch, now + 61)  # still one person
    assert not is_due([ticket], batch, now + 24.9 * DAY)
    assert is_due([ticket], batch, now + 25.1 * DAY)  # the deadline is near


def test_nobody_waits_beyond_the_deadline(office: Office, worker: Worker) -> None:
    ask(office, OWNER, submitted=time.time() - 26 * DAY)
    with_batch(worker, minimum=3, window_seconds=3600)
    worker.step()
    assert len(all_in(worker, State.DONE)) == 1


def test_what_is_not_due_waits(office: Office, worker: Worker, folder: Path) -> None:
    ask(office, OWNER)
    with_batch(worker, minimum=2)
    worker.step()
    assert len(all_in(worker, State.WAITING)) == 1
    assert current(folder).release == 1  # type: ignore[union-attr]


# --- kills ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """What nothing here catches."""


@pytest.mark.parametrize("state", [State.RUNNING, State.PUBLISHED, State.HOOKS, State.DONE])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_a_change_the_next_worker_goes_on(
    office: Office,
    place: Place,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: State,
    after: bool,
) -> None:
    """Before the change is on disk, or right after it."""
    for name in NAMES:
        ask(office, name)
    dying = Worker(place)
    real = dying.desk.move

    def move(tickets: Any, to: State, *words: Any, **values: Any) -> Any:
        if to is state and not after:
            raise Killed
        result = real(tickets, to, *words, **values)
        if to is state:
            raise Killed
        return result

    monkeypatch.setattr(dying.desk, "move", move)
    with pytest.raises(Killed):
        dying.step()
    heir = Worker(place)
    heir.step()
    done = all_in(heir, State.DONE)
    assert len(done) == 3
    assert {(ticket.release, ticket.num_records) for ticket in done} == {(2, 6)}
    assert current(folder).release == 2  # type: ignore[union-attr]
    place.ledger.verify()
    assert OWNER.encode() not in everything(folder)


def test_a_step_that_fails_keeps_the_requests_open(
    office: Office, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(office, OWNER)

    def fails(*_: Any, **__: Any) -> None:
        raise HookError("the disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "forget", fails)
        worker.step()
    [ticket] = all_in(worker, State.WAITING)
    assert (ticket.problem, ticket.attempts) == ("the disk is full.", 1)
    worker.step(time.time() + 1)
    assert len(all_in(worker, State.DONE)) == 1


# --- leases ---------------------------------------------------------------------------------------


def test_one_worker_at_a_time(place: Place) -> None:
    one, other = Lease(place.ledger, 10), Lease(place.ledger, 10)
    assert one.take(now=100.0)
    assert not other.take(now=105.0)
    assert one.take(now=105.0)  # renewed
    assert not other.take(now=114.0)
    assert other.take(now=115.1)  # it ran out
    assert not one.take(now=116.0)
    one.give_back()  # not its own any more
    assert not one.take(now=117.0)
    other.give_back()
    assert one.take(now=118.0)


def test_a_lease_is_renewed_while_it_is_held(place: Place) -> None:
    lease, renewed = Lease(place.ledger, 0.03), threading.Semaphore(0)
    real = lease.take
    lease.take = lambda now=None: (renewed.release(), real(now))[1]  # type: ignore[method-assign]
    assert lease.take()
    with lease:
        for _ in range(4):
            assert renewed.acquire(timeout=60)
    before = place.ledger.query("SELECT until FROM service_leases")
    assert lease._thread is not None
    assert not lease._thread.is_alive()
    assert place.ledger.query("SELECT until FROM service_leases") == before


# --- hooks ----------------------------------------------------------------------------------------


class Moody(Hook):
    """Fails as often as it is told."""

    name = "moody"

    def __init__(self, failures: int) -> None:
        self.failures, self.runs = failures, 0

    def run(self, model: PublicModel) -> None:
        self.runs += 1
        if self.runs <= self.failures:
            raise HookError("the registry does not answer.")


def test_a_hook_that_fails_keeps_the_request_open_and_says_so(
    office: Office, worker: Worker
) -> None:
    ask(office, OWNER)
    hook = Moody(1)
    worker.aftermath.hooks = [hook]
    worker.step()
    [ticket] = all_in(worker, State.HOOKS)
    assert ticket.problem == "hook moody: the registry does not answer."
    assert ticket.release == 2  # published it is
    worker.step(time.time() + 10)
    [ticket] = all_in(worker, State.DONE)
    assert (ticket.problem, hook.runs) == ("", 2)
    worker.step(time.time() + 20)
    assert hook.runs == 2  # once it has worked, it is not run again for this release


def test_a_later_release_closes_what_an_earlier_hook_left_open(
    office: Office, worker: Worker
) -> None:
    worker.aftermath.hooks = [Moody(1)]
    ask(office, OWNER)
    worker.step()
    ask(office, "person-one")
    worker.step(time.time() + 10)
    done = {ticket.release for ticket in all_in(worker, State.DONE)}
    assert done == {2, 3}


def test_done_waits_for_servers_to_have_the_release(office: Office, worker: Worker) -> None:
    office.served._tell()
    ask(office, OWNER)
    worker.step()
    assert lagging(office.place.ledger, 2, time.time()) == 1
    [ticket] = all_in(worker, State.HOOKS)
    assert ticket.problem == ""
    office.served.refresh()
    office.served._tell()
    worker.step()
    assert len(all_in(worker, State.DONE)) == 1


def test_a_server_that_was_killed_is_not_waited_for(office: Office, worker: Worker) -> None:
    office.served._tell()
    published = time.time() + 100  # long after it was heard of last
    ledger = office.place.ledger
    assert lagging(ledger, 2, published, now=published + 1) == 1  # it may be loading
    assert lagging(ledger, 2, published, now=published + 60) == 0


def test_a_worker_with_nothing_to_do_writes_nothing(office: Office, worker: Worker) -> None:
    """So that the ledger is at rest, and `efface verify` finds it so, while the service runs."""
    worker.step()
    assert not worker.is_needed()
    stop = threading.Event()
    running = threading.Thread(target=worker.run, args=(stop,))
    running.start()
    ask(office, OWNER)
    for _ in range(600):
        if len(all_in(worker, State.DONE)) == 1 and not office.place.has_log():
            break
        time.sleep(0.1)
    assert not office.place.has_log()
    assert office.place.ledger.query("SELECT COUNT(*) FROM service_leases WHERE name = 'worker'")
    stop.set()
    running.join(60)
    assert not running.is_alive()


# --- what is left ---------------------------------------------------------------------------------


def test_nothing_names_the_person_when_it_is_done(
    office: Office, worker: Worker, folder: Path
) -> None:
    mapping = worker.settings.identities
    assert mapping is not None
    ask(office, OWNER)
    assert OWNER.encode() in everything(folder)
    worker.step()
    left = everything(folder) + mapping.read_bytes()
    assert OWNER.encode() not in left
    assert EMAIL.encode() not in left
    assert b"person-four" in left
    assert contents(folder)


def test_accuracy_is_measured_once_a_release(
    office: Office, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.workspaces import TEST

    from efface.data.records import Records
    from efface.service.settings import EvaluationSettings

    monkeypatch.setattr(Records, "open", lambda *_, **__: TEST)
    worker.evaluations.settings = EvaluationSettings(data="x")
    assert worker.evaluations.is_needed()
    worker.evaluations.catch_up()
    assert not worker.evaluations.is_needed()
    ask(office, OWNER)
    worker.step()
    worker.evaluations.catch_up()
    found = office.evaluations.all()
    assert [entry.release for entry in found] == [1, 2]
    assert found[1].accuracy == load(worker.place.path).accuracy(TEST)
