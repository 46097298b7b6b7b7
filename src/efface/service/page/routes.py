"""The page's routes: sign in, see all requests, one request's story, try an image."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse

from efface.errors import EffaceError
from efface.report.language import Language
from efface.report.language import words as words_of
from efface.service.api.doors import RawBody, TheOffice, check_owned, stranger
from efface.service.api.native import page_reply, receipt_reply
from efface.service.api.replies import ServiceError
from efface.service.identities import IdentityFormat, SubjectIdentity
from efface.service.keys import Role
from efface.service.office import Office
from efface.service.page import words
from efface.service.page.chart import accuracy_chart
from efface.service.page.visitors import Acting, Fields, TheVisitor, Visitor, checked
from efface.service.sessions import COOKIE, SECONDS
from efface.service.states import Reason, Regulation
from efface.service.tickets import Intake, Ticket
from efface.service.times import rfc3339
from efface.version import VERSION

SOURCE, SHOWN = "page", 50
FOLDER = Path(__file__).parent
STATIC = {"style.css": "text/css", "page.js": "text/javascript"}
router = APIRouter()
templates = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
)
templates.filters["time"] = lambda seconds: rfc3339(seconds).replace("T", " ").removesuffix("Z")
templates.globals |= {"version": VERSION, "STATES": words.STATES}


def shown(name: str, status: int = 200, **values: Any) -> HTMLResponse:
    return HTMLResponse(templates.get_template(name).render(**values), status)


def _to(path: str) -> RedirectResponse:
    return RedirectResponse(path, 303)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Style and script; two files, by name."""
    if name not in STATIC:
        raise ServiceError(404, "no_file", "there is no such file.")
    return Response((FOLDER / "static" / name).read_bytes(), media_type=STATIC[name])


@router.get("/favicon.ico")
def icon() -> Response:
    return Response(status_code=204)


# --- in and out -----------------------------------------------------------------------------------


@router.get("/login")
def door() -> HTMLResponse:
    return shown("login.html", problem="")


@router.post("/login")
def sign_in(office: TheOffice, form: Fields, _: Annotated[None, Depends(stranger)]) -> Response:
    key = office.keys.holder(form.get("key", "").strip())
    if key is None:
        return shown("login.html", 401, problem="This is no key of this service.")
    session = office.sessions.begin(key.name)
    answer = _to("/")
    secure = office.settings.public_url.startswith("https://")
    options: dict[str, Any] = {"httponly": True, "samesite": "strict", "secure": secure}
    answer.set_cookie(COOKIE, office.sessions.cookie(session), max_age=SECONDS, **options)
    return answer


@router.post("/logout")
def sign_out(guest: Acting) -> Response:
    answer = _to("/login")
    answer.delete_cookie(COOKIE)
    return answer


# --- looking --------------------------------------------------------------------------------------


def _common(office: Office, guest: Visitor) -> dict[str, Any]:
    return {
        "guest": guest,
        "release": office.served.release,
        "counts": office.desk.counts(),
        "model": office.path.resolve().name,
    }


def _visible(office: Office, guest: Visitor) -> list[Ticket]:
    latest = office.desk.latest(SHOWN)
    if guest.key.role is Role.SUBMIT:
        return [ticket for ticket in latest if ticket.client == guest.key.name]
    return latest


def _certificate(office: Office) -> dict[str, Any] | None:
    path = office.path / "certificates" / f"{office.served.release}.public.json"
    found: dict[str, Any] | None = json.loads(path.read_bytes()) if path.is_file() else None
    return found


@router.get("/")
def home(office: TheOffice, guest: TheVisitor) -> HTMLResponse:
    return _home(office, guest)


def _home(office: Office, guest: Visitor, problem: str = "", status: int = 200) -> HTMLResponse:
    return shown(
        "home.html",
        status,
        **_common(office, guest),
        **_about(office),
        tickets=_visible(office, guest),
        formats=list(IdentityFormat),
        regulations=list(Regulation),
        problem=problem,
    )


def _about(office: Office) -> dict[str, Any]:
    """Accuracy over releases, the guarantee and its limits."""
    measured, certificate = office.evaluations.all(), _certificate(office)
    return {
        "measured": measured,
        "chart": accuracy_chart(measured),
        "promise": words.promise(certificate),
        "limits": words.limits(certificate),
    }


@router.get("/about")
def about(office: TheOffice, guest: TheVisitor) -> HTMLResponse:
    """What changes with a release, for the script that keeps it fresh."""
    return shown("about.html", **_about(office))


@router.get("/live")
def live(office: TheOffice, guest: TheVisitor) -> HTMLResponse:
    """The table of requests alone, for the script that keeps it fresh."""
    common = _common(office, guest)
    return shown("requests.html", **common, tickets=_visible(office, guest))


@router.get("/requests/{name}")
def one(office: TheOffice, guest: TheVisitor, name: str) -> HTMLResponse:
    return _one(office, guest, _seen(office, guest, name))


def _one(
    office: Office, guest: Visitor, ticket: Ticket, problem: str = "", status: int = 200
) -> HTMLResponse:
    return shown("request.html", status, **_told(office, guest, ticket), problem=problem)


def _told(office: Office, guest: Visitor, ticket: Ticket) -> dict[str, Any]:
    reason = words.REASONS[Reason(ticket.reason)] if ticket.reason else ""
    told = words.story(ticket)
    languages = {language: words_of(language).name for language in Language}
    values = {"ticket": ticket, "story": told, "reason": reason, "languages": languages}
    values["language"] = office.settings.language
    return {**_common(office, guest), **values, "signed": office.settings.signing_key is not None}


@router.get("/requests/{name}/live")
def one_live(office: TheOffice, guest: TheVisitor, name: str) -> HTMLResponse:
    return shown("story.html", **_told(office, guest, _seen(office, guest, name)))


@router.get("/requests/{name}/receipt")
def receipt(office: TheOffice, guest: TheVisitor, name: str) -> Response:
    return receipt_reply(office.path, _seen(office, guest, name))


@router.get("/requests/{name}/page")
def paper(
    office: TheOffice, guest: TheVisitor, name: str, language: Language | None = None
) -> Response:
    return page_reply(office, _seen(office, guest, name), language)


def _seen(office: Office, guest: Visitor, name: str) -> Ticket:
    ticket = office.desk.get(name)
    check_owned(guest.key, ticket)
    return ticket


@router.get("/status/{name}")
def public_status(
    office: TheOffice, name: str, _: Annotated[None, Depends(stranger)]
) -> HTMLResponse:
    """For the person who asked through somebody else; whoever has the code may look."""
    return shown("status.html", ticket=office.desk.get(name))


# --- acting ---------------------------------------------------------------------------------------


@router.post("/requests")
def submit(office: TheOffice, guest: Acting, form: Fields) -> Response:
    if not guest.may_submit:
        raise ServiceError(403, "forbidden", "your key may only look.")
    value = form.get("identity_value", "").strip()[:512]
    try:
        how = IdentityFormat(form.get("identity_format", "raw"))
        regulation = Regulation(form.get("regulation", "gdpr"))
    except ValueError:
        raise ServiceError(400, "malformed", "this is no form of this page.") from None
    identity = SubjectIdentity(form.get("identity_type", "").strip()[:64] or "owner", value, how)
    number = secrets.token_hex(8)
    body = json.dumps([identity.type, value, str(how), str(regulation)]).encode()
    external = f"{guest.key.name}\n{number}"
    intake = Intake(SOURCE, external, body, guest.key.name, regulation=regulation)
    try:
        ticket, _ = office.take_in(intake, [identity])
    except EffaceError as problem:
        return _home(office, guest, f"{problem.message} {problem.fix}", 400)
    return _to(f"/requests/{ticket.id}")


@router.post("/requests/{name}/cancel")
def cancel(office: TheOffice, guest: Acting, name: str) -> Response:
    ticket = _seen(office, guest, name)
    if not guest.may_submit:
        raise ServiceError(403, "forbidden", "your key may only look.")
    try:
        office.desk.cancel(ticket.id)
    except EffaceError as problem:
        return _one(office, guest, office.desk.get(name), f"{problem.message} {problem.fix}", 409)
    return _to(f"/requests/{ticket.id}")


@router.post("/page/predict")
def predict(request: Request, office: TheOffice, guest: TheVisitor, body: RawBody) -> Response:
    """What the served release sees in an image; the script asks again when there is another release."""
    checked(office, guest, request.headers.get("x-token", ""))
    return JSONResponse(office.served.predict(body, 3))
