"""Who is at the door: the key of a request, its body, and how often its sender has been here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError

from efface.service.api.replies import ServiceError, described
from efface.service.keys import ApiKey, Role
from efface.service.office import Office
from efface.service.tickets import Ticket

BEARER = HTTPBearer(auto_error=False, description="A key from `efface service new-key`.")
Model = TypeVar("Model", bound=BaseModel)


def office_of(request: Request) -> Office:
    office: Office = request.app.state.office
    return office


TheOffice = Annotated[Office, Depends(office_of)]


def count(office: Office, name: str, per_minute: int) -> None:
    """429 for whoever asks too often."""
    wait = office.limiter.wait(name, per_minute)
    if wait:
        seconds = str(max(1, math.ceil(wait)))
        message, fix = "too many requests.", f"wait {seconds} s."
        raise ServiceError(429, "too_many_requests", message, fix, {"Retry-After": seconds})


def stranger(request: Request, office: TheOffice) -> None:
    """Nobody needs a key here, but not too often."""
    host = request.client.host if request.client else "?"
    count(office, f"host {host}", office.settings.limits.strangers_per_minute)


def allowed(*roles: Role) -> Callable[..., ApiKey]:
    """The key that came with the request, if it has one of these roles."""

    def caller(
        request: Request,
        office: TheOffice,
        given: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER)],
    ) -> ApiKey:
        key = office.keys.holder(given.credentials) if given is not None else None
        if key is None:
            stranger(request, office)
            headers = {"WWW-Authenticate": "Bearer"}
            fix = "send `Authorization: Bearer KEY`."
            raise ServiceError(401, "unauthorized", "there is no valid key.", fix, headers)
        count(office, f"key {key.name}", office.settings.limits.per_minute)
        if key.role not in roles:
            message = f"a key that may {key.role} may not do this."
            raise ServiceError(403, "forbidden", message, f"use one that may {roles[0]}.")
        return key

    return caller


def check_owned(key: ApiKey, ticket: Ticket) -> None:
    """Who submits sees their own requests; others' are as if they were not there."""
    if key.role is Role.SUBMIT and ticket.client != key.name:
        raise ServiceError(404, "no_request", "there is no such request.", "check its number.")


async def raw_body(request: Request) -> bytes:
    return await request.body()


RawBody = Annotated[bytes, Depends(raw_body)]


def check_type(request: Request, types: Iterable[str]) -> None:
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in types:
        fix = f"send {', '.join(types)}."
        raise ServiceError(415, "media_type", "this type of body is not read here.", fix)


def parsed(model: type[Model], body: bytes) -> Model:
    """The body as it should be; 400 names the field, not its value."""
    try:
        return model.model_validate(json.loads(body))
    except ValidationError as problem:
        message = described(problem.errors()[0])
        raise ServiceError(400, "malformed", message) from None
    except (ValueError, RecursionError):
        raise ServiceError(400, "malformed", "the body is not JSON.") from None


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The description of a body that is read raw."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inlined(part: Any, known: dict[str, Any]) -> Any:
    """The same without references; none of the forms holds itself."""
    if isinstance(part, list):
        return [_inlined(entry, known) for entry in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inlined(known[part["$ref"].rpartition("/")[2]], known)
    return {name: _inlined(value, known) for name, value in part.items()}


def only_known(request: Request) -> None:
    """400 for a parameter that the route does not have: a misspelt one would else be ignored."""
    route = request.scope["route"]
    known = {parameter.alias for parameter in route.dependant.query_params}
    unknown = set(request.query_params) - known
    if unknown:
        message = f"there are {len(unknown)} parameters in the URL that are not known here."
        raise ServiceError(
            400, "malformed", message, f"known: {', '.join(sorted(known)) or 'none'}."
        )
