"""What can happen to a request: its states, which may follow which, and why one is refused."""

from __future__ import annotations

from enum import StrEnum

from efface.errors import RequestError

DAY = 86_400.0


class State(StrEnum):
    """Where a request is; the last three are ends."""

    RECEIVED = "received"  # it came, and whoever brought it may
    VERIFIED = "verified"  # the person it names is known
    WAITING = "waiting"  # until enough are together, or long enough
    RUNNING = "running"  # a worker has it
    PUBLISHED = "published"  # a release without the person is served
    HOOKS = "hooks"  # copies elsewhere are being replaced
    DONE = "done"
    CANCELLED = "cancelled"
    REFUSED = "refused"


FOLLOWING: dict[State, tuple[State, ...]] = {
    State.RECEIVED: (State.VERIFIED, State.REFUSED),
    State.VERIFIED: (State.WAITING, State.REFUSED, State.CANCELLED),
    State.WAITING: (State.RUNNING, State.CANCELLED, State.REFUSED),
    State.RUNNING: (State.PUBLISHED, State.WAITING, State.REFUSED),
    State.PUBLISHED: (State.HOOKS,),
    State.HOOKS: (State.DONE,),
    State.DONE: (),
    State.CANCELLED: (),
    State.REFUSED: (),
}
ENDS = tuple(state for state, following in FOLLOWING.items() if not following)
OPEN = tuple(state for state in State if state not in ENDS)
CANCELLABLE = tuple(state for state in State if State.CANCELLED in FOLLOWING[state])


class Reason(StrEnum):
    """Why a request is refused, in the words of the Data Rights Protocol."""

    NO_MATCH = "no_match"
    CLAIM_NOT_COVERED = (
        "claim_not_covered"  # the person's images are core data, which is not forgotten
    )
    OTHER = "other"


class Regulation(StrEnum):
    """Under which law somebody asks: it sets the deadline."""

    GDPR = "gdpr"
    CCPA = "ccpa"

    @property
    def days(self) -> int:
        return 30 if self is Regulation.GDPR else 45


def check(before: State, after: State) -> None:
    """RequestError where the one cannot follow the other."""
    if after not in FOLLOWING[before]:
        raise RequestError(f"a request that is {before} cannot become {after}.", _fix(before))


def _fix(state: State) -> str:
    return "it has ended." if state in ENDS else "wait until it is done."
