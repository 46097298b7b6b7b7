"""OpenDSR 2.0: discovery, requests, status, cancellation; every reply is signed over its raw body."""

from __future__ import annotations

import base64
import json
import re
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import BaseModel, Field, StringConstraints

from efface.errors import EffaceError
from efface.service.addresses import check_url
from efface.service.api.doors import (
    RawBody,
    TheOffice,
    allowed,
    check_owned,
    check_type,
    json_body,
    parsed,
    stranger,
)
from efface.service.api.forms import Identities, JsonForm, Time
from efface.service.api.replies import ErrorReply, ServiceError, content, errors, reply_to
from efface.service.desk import ANNOUNCED
from efface.service.identities import IdentityFormat, read_mapping
from efface.service.keys import ANYBODY, BRINGING, ApiKey
from efface.service.office import AlreadyForgottenError, Office, UnknownIdentityError
from efface.service.settings import OpenDsrSettings
from efface.service.states import Regulation, State
from efface.service.tickets import CallbackWish, Intake, Ticket
from efface.service.times import rfc3339, seconds_of

SOURCE, VERSION = "opendsr", "2.0"
UUID4 = r"^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
PEM = "application/x-pem-file"
OWN_NAMES = "controller_customer_id"  # the type of the workspace's own owner names
router = APIRouter(tags=["OpenDSR"])
Anybody = Annotated[ApiKey, Depends(allowed(*ANYBODY))]
Bringing = Annotated[ApiKey, Depends(allowed(*BRINGING))]
RequestId = Annotated[str, Path(pattern=UUID4, json_schema_extra={"format": "uuid"})]
Uuid4 = Annotated[
    str, StringConstraints(pattern=UUID4), Field(json_schema_extra={"format": "uuid"})
]
Url = Annotated[str, StringConstraints(min_length=8, max_length=2048)]


class DsrForm(JsonForm):
    """A data subject request as the specification has it; only erasure is done here."""

    regulation: Regulation
    subject_request_id: Uuid4
    subject_request_type: Literal["erasure"]
    subject_identities: Identities
    submitted_time: Time
    api_version: Annotated[str, StringConstraints(pattern=r"^2(\.[0-9]+)*$")] = VERSION
    status_callback_urls: Annotated[list[Url], Field(max_length=5)] = Field(default_factory=list)
    extensions: dict[str, dict[str, Any]] = Field(default_factory=dict)


class DsrReceived(BaseModel):
    controller_id: str
    expected_completion_time: str
    received_time: str
    encoded_request: str
    subject_request_id: str


class DsrStatus(BaseModel):
    controller_id: str
    expected_completion_time: str
    subject_request_id: str
    request_status: Literal["pending", "in_progress", "completed", "cancelled"]
    api_version: str = VERSION
    results_url: str | None = None
    results_count: int | None = None


class DsrCancelled(BaseModel):
    controller_id: str
    received_time: str
    subject_request_id: str
    api_version: str = VERSION


class DsrIdentity(BaseModel):
    identity_type: str
    identity_format: IdentityFormat


class DsrDiscovery(BaseModel):
    api_version: str
    supported_identities: list[DsrIdentity]
    supported_subject_request_types: list[str]
    processor_certificate: str


@router.get("/v2/discovery", response_model=DsrDiscovery, responses=errors())
def discovery(office: TheOffice, _: Annotated[None, Depends(stranger)]) -> Response:
    """What is supported, and where the certificate is that replies are signed with."""
    mapping = office.settings.identities
    types = {OWN_NAMES}
    if mapping is not None:
        types |= {entry.type for listed in read_mapping(mapping).values() for entry in listed}
    pairs = [
        {"identity_type": kind, "identity_format": str(how)}
        for kind in sorted(types)
        for how in IdentityFormat
    ]
    values = {
        "api_version": VERSION,
        "supported_identities": pairs,
        "supported_subject_request_types": ["erasure"],
        "processor_certificate": f"{office.settings.public_url}/v2/certificate",
    }
    return signed(office, 200, values)


@router.get(
    "/v2/certificate",
    responses=errors(fine=content(PEM)),
)
def certificate(office: TheOffice, _: Annotated[None, Depends(stranger)]) -> Response:
    """The X.509 certificate of the replies' signatures, PEM."""
    assert office.place.signer is not None
    return Response(office.place.signer.certificate, media_type=PEM)


@router.post(
    "/v2/requests",
    status_code=201,
    response_model=DsrReceived,
    responses=errors(401, 403, 409, 415),
    openapi_extra=json_body(DsrForm),
)
def submit(request: Request, office: TheOffice, key: Bringing, body: RawBody) -> Response:
    """Take in a request; sent twice, it is one."""
    try:
        check_type(request, ("application/json",))
        form = parsed(DsrForm, body)
        for url in form.status_callback_urls:
            check_url(url, office.settings.callbacks.hosts)
        intake = Intake(
            SOURCE,
            form.subject_request_id,
            body,
            key.name,
            regulation=form.regulation,
            submitted=seconds_of(form.submitted_time),
            wishes=tuple(CallbackWish(SOURCE, url) for url in form.status_callback_urls),
        )
        ticket, _ = office.take_in(intake, [i.identity() for i in form.subject_identities])
        check_owned(key, ticket)
        if ticket.state is State.REFUSED:
            message = "images of this person are core data, which is not forgotten."
            raise ServiceError(400, ticket.reason, message, "ask the operator.")
    except UnknownIdentityError as problem:
        reason = "already_forgotten" if isinstance(problem, AlreadyForgottenError) else "no_match"
        unknown = ServiceError(400, reason, problem.message, problem.fix)
        return signed_error(office, unknown)
    except EffaceError as problem:
        return signed_error(office, problem)
    values = {
        "controller_id": _settings(office).controller_id,
        "expected_completion_time": rfc3339(ticket.due),
        "received_time": rfc3339(ticket.received),
        "encoded_request": base64.b64encode(body).decode(),
        "subject_request_id": form.subject_request_id,
    }
    return signed(office, 201, values)


@router.get(
    "/v2/requests/{subject_request_id}",
    response_model=DsrStatus,
    response_model_exclude_none=True,
    responses=errors(401, 403, 404),
)
def status(office: TheOffice, key: Anybody, subject_request_id: RequestId) -> Response:
    """How a request stands."""
    try:
        ticket = _found(office, key, subject_request_id)
    except EffaceError as problem:
        return signed_error(office, problem)
    return signed(office, 200, status_values(office, ticket, subject_request_id))


@router.delete(
    "/v2/requests/{subject_request_id}",
    status_code=202,
    response_model=DsrCancelled,
    responses=errors(401, 403, 404, 409),
)
def cancel(office: TheOffice, key: Bringing, subject_request_id: RequestId) -> Response:
    """Call a request off while it is pending."""
    try:
        office.desk.cancel(_found(office, key, subject_request_id).id)
    except EffaceError as problem:
        return signed_error(office, problem)
    values = {
        "controller_id": _settings(office).controller_id,
        "received_time": rfc3339(time.time()),
        "subject_request_id": subject_request_id,
        "api_version": VERSION,
    }
    return signed(office, 202, values)


def _found(office: Office, key: ApiKey, number: str) -> Ticket:
    if not re.fullmatch(UUID4, number):
        raise ServiceError(400, "malformed", "this is no UUID of version 4.")
    ticket = office.desk.find(SOURCE, number)
    check_owned(key, ticket)
    return ticket


def status_values(office: Office, ticket: Ticket, number: str) -> dict[str, Any]:
    """The words of the specification for where a request is."""
    words = ANNOUNCED[SOURCE]
    working = (State.PUBLISHED, State.HOOKS)
    word = words.get(ticket.state) or ("in_progress" if ticket.state in working else "pending")
    values: dict[str, Any] = {
        "controller_id": _settings(office).controller_id,
        "expected_completion_time": rfc3339(ticket.due),
        "subject_request_id": number,
        "request_status": word,
        "api_version": VERSION,
    }
    if ticket.state is State.DONE:
        url = f"{office.settings.public_url}/v1/requests/{ticket.id}/receipt"
        values |= {"results_url": url, "results_count": ticket.num_records or 0}
    return values


def _settings(office: Office) -> OpenDsrSettings:
    assert office.settings.opendsr is not None
    return office.settings.opendsr


def signed(office: Office, code: int, values: dict[str, Any]) -> Response:
    """The signature is over the bytes that are sent."""
    assert office.place.signer is not None
    body = json.dumps(values).encode()
    return Response(body, code, office.place.signer.headers(body), "application/json")


def signed_error(office: Office, problem: EffaceError) -> Response:
    assert office.place.signer is not None
    reply = reply_to(problem)
    body = bytes(reply.body)
    ErrorReply.model_validate_json(body)
    headers = dict(getattr(problem, "headers", {})) | office.place.signer.headers(body)
    return Response(body, reply.status_code, headers, "application/json")
