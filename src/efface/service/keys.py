"""API keys: who may submit, operate or only read. Stored as SHA-256; a key itself is shown once.

A key has 256 random bits, so that its plain hash cannot be guessed. It is compared with every
stored hash in constant time, whether or not one has matched.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum

from efface.errors import EffaceError
from efface.ledger import Ledger
from efface.service.tables import STATEMENTS

ROW = "service.key"
PREFIX = "efk_"
NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Role(StrEnum):
    """``read`` sees all requests, ``submit`` brings and cancels its own, ``operate`` may do everything."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"


LOOKING = (Role.READ, Role.OPERATE)
BRINGING = (Role.SUBMIT, Role.OPERATE)
ANYBODY = tuple(Role)


@dataclass(frozen=True)
class ApiKey:
    """What is known of a key; not the key."""

    name: str
    role: Role
    created: float


class ApiKeys:
    """The keys of a service, in the ledger's database: every change has a row."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        ledger.define(STATEMENTS)

    def new(self, name: str, role: Role) -> str:
        """Make a key; returned once, and not kept."""
        if not NAME.fullmatch(name):
            fix = "use up to 64 letters, digits, dots, dashes."
            raise EffaceError(f"{name!r:.80} is no name for a key.", fix)
        key = PREFIX + secrets.token_urlsafe(32)
        with self.ledger.transaction() as tx:
            if tx.execute("SELECT name FROM service_keys WHERE name = ?", (name,)):
                raise EffaceError(f"there is a key {name!r}.", "revoke it, or use another name.")
            tx.append(ROW, {"key": name, "role": str(role), "change": "made"})
            tx.execute(
                "INSERT INTO service_keys (name, role, digest, created) VALUES (?, ?, ?, ?)",
                (name, str(role), digest_of_key(key), time.time()),
            )
        return key

    def revoke(self, name: str) -> None:
        with self.ledger.transaction() as tx:
            if not tx.execute("SELECT name FROM service_keys WHERE name = ?", (name,)):
                raise EffaceError(f"there is no key {name!r}.", "`efface service keys` lists them.")
            tx.append(ROW, {"key": name, "change": "revoked"})
            tx.execute("DELETE FROM service_keys WHERE name = ?", (name,))

    def all(self) -> list[ApiKey]:
        rows = self.ledger.query("SELECT name, role, created FROM service_keys ORDER BY name")
        return [ApiKey(name, Role(role), created) for name, role, created in rows]

    def named(self, name: str) -> ApiKey | None:
        return next((key for key in self.all() if key.name == name), None)

    def holder(self, key: str) -> ApiKey | None:
        """Whose key this is; all stored ones are compared, so that time tells nothing."""
        given, found = digest_of_key(key), None
        rows = self.ledger.query("SELECT name, role, created, digest FROM service_keys")
        for name, role, created, digest in rows:
            if hmac.compare_digest(given, digest):
                found = ApiKey(name, Role(role), created)
        return found


def digest_of_key(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
