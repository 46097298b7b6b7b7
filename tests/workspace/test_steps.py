"""Steps of a request: intents that read back, a lock that holds, places where tests kill."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efface.files import locked
from efface.guarantee.promise import Guarantee
from efface.model.request import Request, RequestKind
from efface.workspace.steps import Action, Intent, Milestone, reach

names = st.text(min_size=1)
requests = st.one_of(
    st.none(),
    st.just(Request(RequestKind.EVERYTHING)),
    st.builds(Request, st.just(RequestKind.IDS), st.lists(names, min_size=1).map(tuple)),
    st.builds(Request, st.just(RequestKind.OWNER), st.tuples(names)),
)
positive = st.floats(min_value=1e-300, max_value=1e300)
intents = st.builds(
    Intent,
    number=st.integers(2, 10**9),
    action=st.sampled_from([Action.FORGET, Action.ADD]),
    digests=st.lists(names).map(tuple),
    request=requests,
    guarantee=st.none() | st.builds(Guarantee, positive, positive, positive, positive),
    restored=st.lists(names).map(tuple),
)


@given(intent=intents)
def test_intents_read_back(intent: Intent) -> None:
    assert Intent.from_text(intent.to_text()) == intent


def test_the_lock_lets_one_in_at_a_time(tmp_path: Path) -> None:
    """Each thread opens the file itself, as processes do."""
    inside, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with locked(tmp_path / "lock"):
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0)  # let others try
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_an_error_inside_frees_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock"):
        pass


def test_steps_are_passed_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: killed.append(number))
    monkeypatch.delenv("EFFACE_TEST_KILL_AT", raising=False)
    reach(Milestone.SWITCHED)
    monkeypatch.setenv("EFFACE_TEST_KILL_AT", "release")
    reach(Milestone.SWITCHED)
    assert killed == []
    reach(Milestone.RELEASE)
    assert killed == [9]
