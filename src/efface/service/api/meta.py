"""Meta's data-deletion callback: a signed form; the reply is where to look, and a code."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel

from efface.errors import EffaceError
from efface.service.api.doors import RawBody, TheOffice, check_type, stranger
from efface.service.api.replies import ServiceError, errors
from efface.service.identities import SubjectIdentity
from efface.service.settings import MetaSettings
from efface.service.tickets import Intake

SOURCE = "meta"
ALGORITHM = "HMAC-SHA256"
router = APIRouter(tags=["Meta"])
FORM = "application/x-www-form-urlencoded"
SCHEMA = {
    "type": "object",
    "required": ["signed_request"],
    "properties": {"signed_request": {"type": "string", "minLength": 1, "maxLength": 8192}},
}


class MetaReply(BaseModel):
    url: str
    confirmation_code: str


def sign(payload: bytes, secret: bytes) -> str:
    """``b64url(mac).b64url(payload)``; the mac is over the encoded payload."""
    encoded = _b64url(payload)
    return f"{_b64url(hmac.digest(secret, encoded.encode(), 'sha256'))}.{encoded}"


def opened(signed_request: str, secret: bytes) -> dict[str, Any]:
    """The payload, if the signature is the one.

    ServiceError otherwise. Compared in constant time, as text.
    """
    _, _, encoded = signed_request.partition(".")
    expected = f"{_b64url(hmac.digest(secret, encoded.encode(), 'sha256'))}.{encoded}"
    if not hmac.compare_digest(signed_request.encode(), expected.encode()):
        raise ServiceError(401, "bad_signature", "the signature of this request is not valid.")
    try:
        payload = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
        values = json.loads(payload)
    except (binascii.Error, ValueError, RecursionError):
        values = None
    fine = isinstance(values, dict) and values.get("algorithm", "").upper() == ALGORITHM
    if not fine or not isinstance(values.get("user_id"), str):
        raise ServiceError(400, "malformed", "the signed request names no user.")
    return dict(values)


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def secret_of(settings: MetaSettings) -> bytes:
    try:
        found = settings.app_secret_file.read_bytes().strip()
    except OSError as problem:
        raise EffaceError(f"{settings.app_secret_file} cannot be read.", "check it.") from problem
    if len(found) < 16:
        raise EffaceError("the app secret is empty or too short.", "copy it from Meta's page.")
    return found


@router.post(
    "/meta/data-deletion",
    response_model=MetaReply,
    responses=errors(401, 404, 409, 415),
    openapi_extra={"requestBody": {"required": True, "content": {FORM: {"schema": SCHEMA}}}},
)
def data_deletion(
    request: Request, office: TheOffice, body: RawBody, _: Annotated[None, Depends(stranger)]
) -> Any:
    """Take in the wish of a person who has left; the signature says that it is Meta who tells."""
    assert office.settings.meta is not None
    check_type(request, (FORM,))
    try:
        fields = parse_qs(body.decode("ascii"), strict_parsing=True, max_num_fields=10)
        (signed_request,) = fields["signed_request"]
        signed_request.encode("ascii")
    except (ValueError, KeyError):
        message = "the form has no field signed_request."
        raise ServiceError(400, "malformed", message) from None
    values = opened(signed_request, secret_of(office.settings.meta))
    identity = SubjectIdentity(office.settings.meta.identity_type, str(values["user_id"]))
    intake = Intake(SOURCE, signed_request, body, SOURCE)
    ticket, _new = office.take_in(intake, [identity])
    url = f"{office.settings.public_url}/status/{ticket.id}"
    return MetaReply(url=url, confirmation_code=ticket.id)
