"""10,000 mutations of everything that is signed: none is accepted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.service.offices import SECRET, certified

from efface.errors import EffaceError
from efface.ledger import Ledger
from efface.service.api.meta import opened, sign
from efface.service.keys import ApiKeys, Role
from efface.service.sessions import Session, Sessions
from efface.service.signing import ReplySigner, is_signed

MUTATIONS = 10_000
LETTERS = "abcXYZ0189-_=.+/%~: \0é"
SESSIONS = Sessions(b"secret")
SESSION = Session("crm", 4_000_000_000, "00ff00ff00ff00ff")
PAYLOAD = json.dumps({"algorithm": "HMAC-SHA256", "user_id": "218471"}).encode()


def mutated(text: str, draw: random.Random) -> str:
    """One to three changes: a letter replaced, put in, taken out, doubled, swapped; or a piece cut."""
    result = text
    while result == text:
        for _ in range(draw.randint(1, 3)):
            i = draw.randrange(max(1, len(result)))
            letter = draw.choice(LETTERS)
            result = draw.choice(
                [
                    result[:i] + letter + result[i + 1 :],
                    result[:i] + letter + result[i:],
                    result[:i] + result[i + 1 :],
                    result[:i] + result[i : i + 1] * 2 + result[i + 1 :],
                    result[:i] + result[i + 1 : i + 2] + result[i : i + 1] + result[i + 2 :],
                    result[:i],
                    result[i:],
                    result[:i] + result[i : i + 1].swapcase() + result[i + 1 :],
                ]
            )
    return result


def accepts_meta(text: str) -> bool:
    try:
        opened(text, SECRET)
    except EffaceError:
        return False
    return True


@cache
def signature(folder: Path, kind: str) -> tuple[str, bytes]:
    key, certificate = certified(kind)
    (folder / "k").write_bytes(key)
    (folder / "c").write_bytes(certificate)
    return ReplySigner(folder / "k", folder / "c", "x").sign(PAYLOAD), certificate


def cases(folder: Path, kind: str) -> tuple[str, Callable[[str], bool]]:
    """A text that is accepted, and who decides that."""
    if kind == "meta":
        return sign(PAYLOAD, SECRET), accepts_meta
    if kind == "cookie":
        return SESSIONS.cookie(SESSION), lambda text: SESSIONS.read(text) is not None
    if kind == "token":
        return SESSIONS.token(SESSION), lambda text: SESSIONS.accepts(SESSION, text)
    if kind == "key":
        ring = ApiKeys(Ledger.open(folder / "ledger.sqlite", create=True))
        return ring.new("crm", Role.READ), lambda text: ring.holder(text) is not None
    made, certificate = signature(folder, kind)
    return made, lambda text: is_signed(PAYLOAD, text, certificate)


@pytest.mark.parametrize("kind", ["meta", "cookie", "token", "key", "ec", "rsa"])
def test_no_mutation_is_accepted(tmp_path: Path, kind: str) -> None:
    text, accepts = cases(tmp_path, kind)
    assert accepts(text)
    draw = random.Random(f"mutations of {kind}")
    taken = [new for _ in range(MUTATIONS) if accepts(new := mutated(text, draw))]
    assert taken == []
    assert accepts(text)


def test_no_mutation_of_a_signed_body_is_accepted(tmp_path: Path) -> None:
    made, certificate = signature(tmp_path, "ec")
    draw = random.Random("bodies")
    bodies = (mutated(PAYLOAD.decode(), draw).encode() for _ in range(MUTATIONS))
    assert not any(is_signed(body, made, certificate) for body in bodies)


def test_an_old_session_is_over() -> None:
    cookie = SESSIONS.cookie(SESSION)
    assert SESSIONS.read(cookie, now=3_999_999_999) == SESSION
    assert SESSIONS.read(cookie, now=4_000_000_000) is None


def test_a_token_is_of_one_session() -> None:
    other = SESSIONS.begin("crm")
    assert not SESSIONS.accepts(SESSION, SESSIONS.token(other))
    assert not SESSIONS.accepts(SESSION, SESSIONS.cookie(SESSION).partition(".")[2])
