"""efface's own API: predict, submit, follow, cancel, fetch the receipt; health and numbers."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from starlette.responses import JSONResponse, PlainTextResponse

from efface.errors import EffaceError
from efface.report.language import Language
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
from efface.service.api.forms import (
    TICKET_ID,
    ModelReply,
    PredictionReply,
    SubmitForm,
    TicketReply,
    TicketsReply,
)
from efface.service.api.replies import ServiceError, content, errors
from efface.service.keys import ANYBODY, BRINGING, LOOKING, ApiKey
from efface.service.office import Office
from efface.service.pages import page_of
from efface.service.receipts import public_keys, receipt_of
from efface.service.states import OPEN, State
from efface.service.tickets import Intake, Ticket
from efface.service.times import seconds_of
from efface.workspace.published import current

SOURCE = "native"
IMAGES = ("image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif", "image/tiff")
router = APIRouter()
Anybody = Annotated[ApiKey, Depends(allowed(*ANYBODY))]
Bringing = Annotated[ApiKey, Depends(allowed(*BRINGING))]
Looking = Annotated[ApiKey, Depends(allowed(*LOOKING))]
TicketId = Annotated[str, Path(pattern=TICKET_ID)]
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in IMAGES},
    }
}


@router.post(
    "/v1/predict",
    response_model=PredictionReply,
    responses=errors(401, 403, 415),
    openapi_extra=IMAGE_BODY,
    tags=["model"],
)
def predict(
    request: Request,
    office: TheOffice,
    key: Anybody,
    body: RawBody,
    top: Annotated[int, Query(ge=1, le=1000)] = 5,
) -> Any:
    """The likeliest classes of the image in the body. It is not kept."""
    check_type(request, IMAGES)
    start = time.perf_counter()
    answer = office.served.predict(body, top)
    office.metrics.predicted(time.perf_counter() - start)
    return answer


@router.get("/v1/model", response_model=ModelReply, responses=errors(401, 403), tags=["model"])
def model(office: TheOffice, key: Anybody) -> Any:
    """Which release is served, its classes, and what is proved about it."""
    release = office.served.release
    path = office.path / "certificates" / f"{release}.public.json"
    certificate = json.loads(path.read_bytes()) if path.is_file() else None
    return {"release": release, "classes": office.served.classes, "certificate": certificate}


# --- requests -------------------------------------------------------------------------------------


@router.post(
    "/v1/requests",
    response_model=TicketReply,
    status_code=201,
    responses=errors(
        *(401, 403, 404, 409, 415), fine={"model": TicketReply, "description": "It came before."}
    ),
    openapi_extra=json_body(SubmitForm),
    tags=["requests"],
)
def submit(
    request: Request, response: Response, office: TheOffice, key: Bringing, body: RawBody
) -> Any:
    """Ask that a person be forgotten; the same ``external_id`` again is the same request."""
    check_type(request, ("application/json",))
    form = parsed(SubmitForm, body)
    submitted = None if form.submitted_time is None else seconds_of(form.submitted_time)
    intake = Intake(
        SOURCE,
        f"{key.name}\n{form.external_id}",
        body,
        key.name,
        regulation=form.regulation,
        submitted=submitted,
    )
    ticket, new = office.take_in(intake, [entry.identity() for entry in form.identities])
    response.status_code = 201 if new else 200
    return TicketReply.of(ticket)


@router.get(
    "/v1/requests", response_model=TicketsReply, responses=errors(401, 403), tags=["requests"]
)
def list_requests(
    office: TheOffice, key: Looking, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> Any:
    """The newest requests; they name nobody."""
    return {"requests": [TicketReply.of(ticket) for ticket in office.desk.latest(limit)]}


@router.get(
    "/v1/requests/{name}",
    response_model=TicketReply,
    responses=errors(401, 403, 404),
    tags=["requests"],
)
def follow(office: TheOffice, key: Anybody, name: TicketId) -> Any:
    """How a request stands, from intake on."""
    return TicketReply.of(_owned(office, key, name))


@router.delete(
    "/v1/requests/{name}",
    response_model=TicketReply,
    status_code=202,
    responses=errors(401, 403, 404, 409),
    tags=["requests"],
)
def cancel(office: TheOffice, key: Bringing, name: TicketId) -> Any:
    """Call a request off that still waits."""
    return TicketReply.of(office.desk.cancel(_owned(office, key, name).id))


@router.get(
    "/v1/requests/{name}/receipt",
    responses=errors(401, 403, 404, 409, fine=content("application/json", "object")),
    tags=["requests"],
)
def receipt(office: TheOffice, key: Anybody, name: TicketId) -> Response:
    """What is proved about the model that is served without the person."""
    return receipt_reply(office.path, _owned(office, key, name))


@router.get(
    "/v1/requests/{name}/page",
    responses=errors(401, 403, 404, 409, fine=content("text/html")),
    tags=["requests"],
)
def paper(
    office: TheOffice, key: Anybody, name: TicketId, language: Language | None = None
) -> Response:
    """A page for the papers, in plain words: what was asked, removed and checked. It prints on A4."""
    return page_reply(office, _owned(office, key, name), language)


@router.get(
    "/v1/receipt-keys",
    responses=errors(404, fine=content("application/json", "object")),
    tags=["requests"],
)
def receipt_keys(office: TheOffice, _: Annotated[None, Depends(stranger)]) -> Response:
    """The public keys that receipts are checked with: ``efface verify RECEIPT --key FILE``. For everybody."""
    found = public_keys(office.settings)
    if found is None:
        raise ServiceError(404, "no_keys", "receipts are not signed here.", "see signing_key.")
    headers = {"Content-Disposition": 'attachment; filename="receipts.pub"'}
    return Response(found, 200, headers, "application/json")


def receipt_reply(path: Any, ticket: Ticket) -> Response:
    if ticket.state is not State.DONE:
        fix = "ask again when it is done."
        raise ServiceError(409, "not_done", f"the request is {ticket.state}.", fix)
    try:
        name, data = receipt_of(path, ticket)
    except EffaceError as problem:
        raise ServiceError(404, "no_receipt", problem.message, problem.fix) from problem
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, 200, headers, "application/json")


def page_reply(office: Office, ticket: Ticket, language: Language | None) -> Response:
    """To be saved: opened from a file it is printed and signed."""
    if not ticket.has_ended:
        fix = "ask again when it is done."
        raise ServiceError(409, "not_done", f"the request is {ticket.state}.", fix)
    try:
        name, data = page_of(office.path, ticket, language or office.settings.language)
    except EffaceError as problem:
        raise ServiceError(404, "no_page", problem.message, problem.fix) from problem
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, 200, headers, "text/html; charset=utf-8")


def _owned(office: TheOffice, key: ApiKey, name: str) -> Ticket:
    ticket = office.desk.get(name)
    check_owned(key, ticket)
    return ticket


# --- health ---------------------------------------------------------------------------------------


@router.get("/health", tags=["health"], responses={200: {"description": "It runs."}})
def health() -> dict[str, str]:
    """Whether the process answers."""
    return {"status": "ok"}


@router.get(
    "/ready", tags=["health"], responses={503: {"description": "It cannot answer for the model."}}
)
def ready(office: TheOffice) -> Response:
    """Whether model and ledger are there, and the release in memory is the published one."""
    try:
        published = current(office.path)
        office.place.ledger.head()
        problem = "" if published is not None else "there is no model"
        if published is not None and published.release != office.served.release:
            problem = "a new release is being loaded"
    except (EffaceError, OSError):
        problem = "the ledger or the workspace cannot be read"
    status = {"status": problem or "ok", "release": office.served.release}
    return JSONResponse(status, 503 if problem else 200)


@router.get(
    "/metrics",
    tags=["health"],
    responses=errors(401, 403, fine=content("text/plain")),
)
def metrics(office: TheOffice, key: Looking) -> Response:
    """Numbers for Prometheus."""
    now = time.time()
    waiting = office.desk.in_state(*OPEN)
    oldest = max((now - ticket.received for ticket in waiting), default=0.0)
    due = min((ticket.due - now for ticket in waiting), default=0.0)
    states = {str(state): number for state, number in office.desk.counts().items()}
    text = office.metrics.text(states, office.served.release, oldest, due)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")
