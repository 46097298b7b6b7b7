"""Sessions of the page: a signed cookie that says which key was used and until when, and a token
against forgery.

Cookie: ``name.until.nonce.mac`` with mac = HMAC-SHA-256(key, …). The token in every form is another
HMAC of the same session, so that a page elsewhere, which cannot read it, cannot make a browser act
here.
"""

from __future__ import annotations

import base64
import hmac
import secrets
import time
from dataclasses import dataclass

COOKIE = "efface_session"
SECONDS = 8 * 3600


@dataclass(frozen=True)
class Session:
    """Somebody at the page: the name of the key, until when, and what tells two sessions apart."""

    key_name: str
    until: int
    nonce: str

    @property
    def text(self) -> str:
        return f"{self.key_name}:{self.until}:{self.nonce}"


class Sessions:
    """Made and checked with one secret; nothing is stored."""

    def __init__(self, secret: bytes) -> None:
        self._secret = hmac.digest(secret, b"service sessions", "sha256")

    def begin(self, key_name: str, now: float | None = None) -> Session:
        now = time.time() if now is None else now
        return Session(key_name, int(now) + SECONDS, secrets.token_hex(8))

    def cookie(self, session: Session) -> str:
        text = base64.urlsafe_b64encode(session.text.encode()).decode().rstrip("=")
        return f"{text}.{self._mac('cookie', session)}"

    def read(self, cookie: str, now: float | None = None) -> Session | None:
        """The session of a cookie that is whole and not too old."""
        text, _, _ = cookie.partition(".")
        try:
            padded = text + "=" * (-len(text) % 4)
            plain = base64.b64decode(padded, b"-_", validate=True).decode()
            name, until, nonce = plain.split(":")
            session = Session(name, int(until), nonce)
        except ValueError:
            return None
        expected = self.cookie(session).encode()  # the whole of it: one cookie has one spelling
        if not hmac.compare_digest(cookie.encode("utf-8", "replace"), expected):
            return None
        return session if (time.time() if now is None else now) < session.until else None

    def token(self, session: Session) -> str:
        """For the forms of this session."""
        return self._mac("token", session)

    def accepts(self, session: Session, token: str) -> bool:
        given = token.encode("utf-8", "replace")
        return hmac.compare_digest(given, self.token(session).encode())

    def _mac(self, purpose: str, session: Session) -> str:
        message = f"{purpose}\0{session.text}".encode()
        return hmac.digest(self._secret, message, "sha256").hex()
