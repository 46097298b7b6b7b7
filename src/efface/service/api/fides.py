"""Fides: the webhook of a privacy request.

A two-way hook is halted here, and resumed when the person is forgotten.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel, Field, StringConstraints

from efface.service.addresses import check_url
from efface.service.api.doors import (
    RawBody,
    TheOffice,
    allowed,
    check_type,
    json_body,
    parsed,
)
from efface.service.api.forms import JsonForm, Text
from efface.service.api.replies import ServiceError, errors
from efface.service.identities import SubjectIdentity
from efface.service.keys import BRINGING, ApiKey
from efface.service.office import UnknownIdentityError
from efface.service.states import State
from efface.service.tickets import CallbackWish, Intake

SOURCE = "fides"
router = APIRouter(tags=["Fides"])
Bringing = Annotated[ApiKey, Depends(allowed(*BRINGING))]


class LabelledValue(JsonForm):
    value: Text
    label: str = ""


class FidesForm(JsonForm):
    """What Fides sends; only erasure concerns us."""

    privacy_request_id: Text
    privacy_request_status: str = ""
    direction: Literal["one_way", "two_way"]
    callback_type: str = ""
    identity: Annotated[dict[str, Text | LabelledValue | None], Field(max_length=20)]
    policy_action: Annotated[str, StringConstraints(max_length=64)] | None = None

    def identities(self) -> list[SubjectIdentity]:
        found = {
            kind: value.value if isinstance(value, LabelledValue) else value
            for kind, value in self.identity.items()
        }
        return [SubjectIdentity(kind, value) for kind, value in found.items() if value is not None]


class FidesReply(BaseModel):
    """``halt``: wait until the person is forgotten; ``reason`` says why there is nothing to wait for."""

    halt: bool
    reason: str = ""


@router.post(
    "/fides/webhook",
    response_model=FidesReply,
    responses=errors(401, 403, 409, 415),
    openapi_extra=json_body(FidesForm),
)
def webhook(
    request: Request,
    office: TheOffice,
    key: Bringing,
    body: RawBody,
    reply_to: Annotated[str | None, Header(max_length=2048)] = None,
    reply_to_token: Annotated[str | None, Header(max_length=4096)] = None,
) -> Any:
    """Take in a privacy request. Whoever is not in the model is no reason to halt."""
    check_type(request, ("application/json",))
    form = parsed(FidesForm, body)
    if form.policy_action not in (None, "erasure"):
        return FidesReply(halt=False, reason="not_erasure")
    wishes: tuple[CallbackWish, ...] = ()
    if form.direction == "two_way":
        if reply_to is None or reply_to_token is None:
            message = "a two-way webhook needs the headers reply-to and reply-to-token."
            raise ServiceError(400, "malformed", message)
        check_url(reply_to, office.settings.callbacks.hosts)
        wishes = (CallbackWish(SOURCE, reply_to, reply_to_token),)
    number = f"{key.name}\n{form.privacy_request_id}"
    intake = Intake(SOURCE, number, body, key.name, wishes=wishes)
    try:
        ticket, _ = office.take_in(intake, form.identities())
    except UnknownIdentityError:
        return FidesReply(halt=False, reason="no_match")
    if ticket.state is State.REFUSED:
        message = "images of this person are core data, which is not forgotten."
        raise ServiceError(409, ticket.reason, message, "ask the operator.")
    return FidesReply(halt=bool(wishes) and not ticket.has_ended)
