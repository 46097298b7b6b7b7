"""Where a callback may go: https to a public address, or a host that the operator has listed.

A URL that somebody else gave must not make the service speak to the machines around it. So the name
is resolved once, every address it has must be public, the connection goes to that very address, and
redirects are not followed.
"""

from __future__ import annotations

import fnmatch
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from efface.errors import EffaceError

LONGEST_URL = 2048
LARGEST_REPLY = 64 * 1024


class AddressError(EffaceError):
    """A place that must not be called."""


@dataclass(frozen=True)
class Target:
    """A URL in its parts, and the address to connect to."""

    secure: bool
    host: str
    port: int
    path: str
    address: str


def check_url(url: str, listed: Sequence[str]) -> None:
    """What can be told without asking the network; at intake, so that a bad URL is refused at once."""
    _parts(url, listed)


def _parts(url: str, listed: Sequence[str]) -> tuple[bool, str, int, str, bool]:
    fix = "use https and a public host, or have the operator list it in [callbacks] hosts."
    try:
        found = urlsplit(url)
        host, port = (found.hostname or "").rstrip("."), found.port
    except ValueError as problem:
        raise AddressError("a callback URL cannot be read.", fix) from problem
    clean = url.isascii() and url.isprintable() and " " not in url and len(url) <= LONGEST_URL
    if (
        not (clean and host and found.scheme in ("http", "https"))
        or found.username
        or found.password
    ):
        raise AddressError("a callback URL is not a plain https URL.", fix)
    trusted = any(
        fnmatch.fnmatch(f"{host}:{port}" if ":" in rule else host, rule) for rule in listed
    )
    if found.scheme == "http" and not trusted:
        raise AddressError("a callback URL is not https, and its host is not listed.", fix)
    if not trusted and is_address(host) and not is_public(host):
        raise AddressError("a callback URL is an address inside a private network.", fix)
    path = (found.path or "/") + (f"?{found.query}" if found.query else "")
    secure = found.scheme == "https"
    return secure, host, port or (443 if secure else 80), path, trusted


def resolve(url: str, listed: Sequence[str]) -> Target:
    """The address to call; AddressError if one of those that the host has is not public."""
    secure, host, port, path, trusted = _parts(url, listed)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise AddressError(
            "the host of a callback is not known.", "it is tried again."
        ) from problem
    addresses = [str(entry[4][0]) for entry in found]
    if not trusted and not all(is_public(address) for address in addresses):
        fix = "have the operator list it in [callbacks] hosts."
        raise AddressError("the host of a callback is in a private network.", fix)
    return Target(secure, host, port, path, addresses[0])


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether it is one of the internet's, an IPv4 address within IPv6 included."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour
        if inner is not None:
            return is_public(str(inner))
        if found in ipaddress.ip_network("64:ff9b::/96"):  # the same by translation
            return is_public(str(ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)))
    return found.is_global and not found.is_multicast


def post(target: Target, body: bytes, headers: Mapping[str, str], timeout: float) -> int:
    """POST to that very address, whatever the name says by now; returns the status. No redirects."""
    raw = socket.create_connection((target.address, target.port), timeout)
    try:
        if target.secure:
            raw = ssl.create_default_context().wrap_socket(raw, server_hostname=target.host)
        connection = http.client.HTTPConnection(target.host, target.port, timeout=timeout)
        connection.sock = raw
        connection.request("POST", target.path, body, dict(headers))
        answer = connection.getresponse()
        answer.read(LARGEST_REPLY)
        return answer.status
    finally:
        raw.close()
