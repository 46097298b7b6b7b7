"""Limits: how often somebody may ask, and how much a body may hold."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from efface.service.settings import LimitSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_NAMES = 10_000
BODY_SECONDS = 30.0
IMAGES = ("/v1/predict", "/page/predict")


class RateLimiter:
    """So many requests a minute for each name, a minute's worth at once.

    In memory, for the latest names only.
    """

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, name: str, per_minute: int, now: float | None = None) -> float:
        """0 if it may go on, else the seconds to wait."""
        now = time.monotonic() if now is None else now
        rate = per_minute / 60
        with self._lock:
            tokens, last = self._buckets.pop(name, (float(per_minute), now))
            tokens = min(float(per_minute), tokens + (now - last) * rate)
            allowed = tokens >= 1
            self._buckets[name] = (tokens - 1 if allowed else tokens, now)
            if len(self._buckets) > MOST_NAMES:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - tokens) / rate


class BodyLimit:
    """An ASGI layer that takes the whole body in: 413 as soon as it is too much, 408 if it does not end."""

    def __init__(self, app: App, limits: LimitSettings) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self.limits.image_bytes if scope["path"] in IMAGES else self.limits.body_bytes
        try:
            body = await asyncio.wait_for(_body(scope, receive, most), BODY_SECONDS)
        except TimeoutError:
            await refuse(send, 408, "the body did not arrive in time.", "timeout")
            return
        if body is None:
            await refuse(send, 413, f"a body may have {most} bytes.", "too_large")
            return
        given = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> MutableMapping[str, Any]:
            return given.pop() if given else await receive()

        await self.app(scope, replayed, send)


async def _body(scope: Scope, receive: Receive, most: int) -> bytes | None:
    """All of it; None if there is more than may be."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if lengths and (not lengths[0].isdigit() or int(lengths[0]) > most):
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""  # the sender has gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


async def refuse(send: Send, status: int, message: str, reason: str) -> None:
    """A reply in the one shape that all errors have."""
    detail = {"domain": "service", "reason": reason, "message": message}
    error = {"code": status, "message": message, "errors": [detail]}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
