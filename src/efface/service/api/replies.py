"""Replies: one shape for all errors, and the status that each kind of error has.

    {"error": {"code": 404, "message": "…", "errors": [{"domain": "…", "reason": "…", "message": "…"}]}}

It is OpenDSR's. Messages name no person.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from efface.errors import EffaceError
from efface.service.addresses import AddressError
from efface.service.desk import ConflictError, UnknownTicketError
from efface.service.office import AlreadyForgottenError, UnknownIdentityError
from efface.service.served import ImageError

log = logging.getLogger("efface.service")


class ErrorDetail(BaseModel):
    domain: str
    reason: str
    message: str


class ErrorBody(BaseModel):
    code: int
    message: str
    errors: list[ErrorDetail]


class ErrorReply(BaseModel):
    """What is wrong, where, and what to do."""

    error: ErrorBody


class ServiceError(EffaceError):
    """An error with a status of its own."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        fix: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.reason, self.headers = status, reason, dict(headers or {})
        super().__init__(message, fix)


KNOWN: tuple[tuple[type[EffaceError], int, str], ...] = (
    (AlreadyForgottenError, 404, "already_forgotten"),
    (UnknownIdentityError, 404, "no_match"),
    (UnknownTicketError, 404, "no_request"),
    (ConflictError, 409, "conflict"),
    (AddressError, 400, "callback_url"),
    (ImageError, 400, "image"),
)
DESCRIBED = {
    400: "Malformed, or it means something that is not done here.",
    401: "No key, or none that is known.",
    403: "The key may not do this.",
    404: "Nobody, or nothing, of that name.",
    408: "The body did not arrive in time.",
    409: "It contradicts what was asked before, or comes too late.",
    413: "The body is too large.",
    415: "Not a type that is read here.",
    429: "Too many requests.",
}


def errors(
    *statuses: int, fine: Mapping[str, Any] | None = None
) -> dict[int | str, dict[str, Any]]:
    """For the description of a route: the errors that it may answer with, and ``fine`` for status 200."""
    found: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorReply, "description": DESCRIBED[status]}
        for status in (*statuses, 400, 408, 413, 429)
    }
    return found | ({} if fine is None else {200: dict(fine)})


def content(kind: str, schema: str = "string") -> dict[str, Any]:
    """The description of a body that is no JSON of ours."""
    return {"content": {kind: {"schema": {"type": schema}}}}


def error_reply(
    status: int,
    message: str,
    reason: str,
    fix: str = "",
    *,
    domain: str = "service",
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    text = f"{message} {fix}".strip()
    detail = {"domain": domain, "reason": reason, "message": text}
    error = {"code": status, "message": message, "errors": [detail]}
    return JSONResponse({"error": error}, status, dict(headers or {}))


def reply_to(problem: EffaceError) -> JSONResponse:
    if isinstance(problem, ServiceError):
        return error_reply(
            problem.status, problem.message, problem.reason, problem.fix, headers=problem.headers
        )
    for kind, status, reason in KNOWN:
        if isinstance(problem, kind):
            return error_reply(status, problem.message, reason, problem.fix)
    log.error("an answer could not be made: %s", type(problem).__name__)
    return error_reply(500, "the service could not do this.", "internal", "ask its operator.")


def handle_errors(app: FastAPI) -> None:
    @app.exception_handler(EffaceError)
    async def ours(_: Request, problem: EffaceError) -> Response:
        return reply_to(problem)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, problem: RequestValidationError) -> Response:
        first = problem.errors()[0]
        return error_reply(400, described(first), "malformed", domain="Validation")

    @app.exception_handler(HTTPException)
    async def plain(_: Request, problem: HTTPException) -> Response:
        return error_reply(
            problem.status_code, str(problem.detail), "http", headers=problem.headers
        )


def described(error: Mapping[str, Any]) -> str:
    """Where a value is wrong and why, without the value."""
    where = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    return f"{where or 'the body'}: {error['msg']}."
