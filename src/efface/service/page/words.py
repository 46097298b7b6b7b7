"""The page's words: what a state means, and what the guarantee says, for people who never saw the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from efface.service.states import Reason, State
from efface.service.tickets import Passage, Ticket

STATES = {
    State.RECEIVED: "The request arrived, and whoever brought it was allowed to.",
    State.VERIFIED: "The person it names has images in the model.",
    State.WAITING: "It waits for others, so that they are carried out together.",
    State.RUNNING: "The model is being computed without the person's images.",
    State.PUBLISHED: "A model without the person is served; what was derived from the images is deleted.",
    State.HOOKS: "Copies of the model elsewhere are being replaced.",
    State.DONE: "Done. The receipt can be downloaded; the request itself no longer names anybody.",
    State.CANCELLED: "It was called off before anything was changed.",
    State.REFUSED: "It was refused, and nothing was changed.",
}
WAY = (
    State.RECEIVED,
    State.VERIFIED,
    State.WAITING,
    State.RUNNING,
    State.PUBLISHED,
    State.HOOKS,
    State.DONE,
)
REASONS = {
    Reason.CLAIM_NOT_COVERED: "Some of the person's images are core data, which the model cannot forget. "
    "They have to be taken out by training a new core.",
    Reason.NO_MATCH: "Nobody of that name has images in the model.",
    Reason.OTHER: "The operator refused it.",
}


@dataclass(frozen=True)
class StoryStep:
    """A step of a request's story: reached or still to come."""

    state: State
    text: str
    passage: Passage | None
    is_now: bool


def story(ticket: Ticket) -> list[StoryStep]:
    """What has happened, in order, and what is still to come."""
    past = [
        StoryStep(step.state, STATES[step.state], step, step is ticket.history[-1])
        for step in ticket.history
    ]
    if ticket.has_ended:
        return past
    rest = WAY[WAY.index(ticket.state) + 1 :]
    return [*past, *(StoryStep(state, STATES[state], None, False) for state in rest)]


def promise(certificate: Mapping[str, Any] | None) -> list[str]:
    """What is proved about the served release, in sentences."""
    if certificate is None:
        return ["Nothing is proved about this release."]
    if certificate.get("kind") == "exact":
        first = (
            "The model that answers now is, to the last bit, the model that would have been trained "
            "without the people who were forgotten, given its core and its list of classes."
        )
        second = "Anybody with the remaining images can compute its digest again and compare."
        return [first, second]
    return [
        "The model that answers now cannot be told apart, up to a chance that was fixed beforehand, from one "
        "trained without the people who were forgotten.",
        "The bound was proved from the final weights; a request that misses it is not published.",
    ]


def limits(certificate: Mapping[str, Any] | None) -> list[str]:
    """What the guarantee does not say; the certificate's own list."""
    return [str(entry) for entry in (certificate or {}).get("not_covered", ())]
