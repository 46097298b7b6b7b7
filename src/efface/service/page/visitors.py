"""Who is at the page: the session of the cookie, the key behind it, and the token of a form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request

from efface.service.api.doors import RawBody, TheOffice, count
from efface.service.api.replies import ServiceError
from efface.service.keys import BRINGING, ApiKey
from efface.service.sessions import COOKIE, Session


class NotSignedIn(Exception):
    """Nobody is there: show the door."""


@dataclass(frozen=True)
class Visitor:
    """Somebody with a session; ``token`` goes into every form."""

    key: ApiKey
    session: Session
    token: str

    @property
    def may_submit(self) -> bool:
        return self.key.role in BRINGING


def visitor(request: Request, office: TheOffice) -> Visitor:
    """NotSignedIn without a session, or if its key was revoked since."""
    session = office.sessions.read(request.cookies.get(COOKIE, ""))
    key = None if session is None else office.keys.named(session.key_name)
    if session is None or key is None:
        raise NotSignedIn
    count(office, f"page {key.name}", office.settings.limits.per_minute)
    return Visitor(key, session, office.sessions.token(session))


TheVisitor = Annotated[Visitor, Depends(visitor)]


def fields(body: RawBody) -> dict[str, str]:
    """Of a form, each once."""
    try:
        found = parse_qs(body.decode(), strict_parsing=True, max_num_fields=20)
    except ValueError:
        raise ServiceError(400, "malformed", "this is no form.") from None
    return {name: values[0] for name, values in found.items()}


Fields = Annotated[dict[str, str], Depends(fields)]


def acting(request: Request, office: TheOffice, guest: TheVisitor, form: Fields) -> Visitor:
    """A visitor who sent a form of this very session."""
    return checked(office, guest, form.get("token", ""))


def checked(office: TheOffice, guest: Visitor, token: str) -> Visitor:
    if not office.sessions.accepts(guest.session, token):
        fix = "go back, reload the page, try again."
        raise ServiceError(403, "forged", "this form is not of your session.", fix)
    return guest


Acting = Annotated[Visitor, Depends(acting)]
