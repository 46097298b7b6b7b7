"""The application: routes, limits, headers, and a log that names nobody."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.responses import RedirectResponse

from efface.service.api import fides, meta, native, opendsr
from efface.service.api.doors import only_known
from efface.service.api.replies import handle_errors
from efface.service.limits import App, BodyLimit, Receive, Scope, Send
from efface.service.office import Office
from efface.service.page import routes as page
from efface.service.page.visitors import NotSignedIn
from efface.version import VERSION

log = logging.getLogger("efface.service")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
EVERYWHERE = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
    b"x-frame-options": b"DENY",
    b"content-security-policy": POLICY.encode(),
}


def make_app(office: Office) -> FastAPI:
    """The application of one service; adapters that the settings do not mention are not there."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        office.served.start()
        yield
        office.served.stop()

    app = FastAPI(
        title="efface",
        version=VERSION,
        description="Ask a model to forget a person, follow the request, fetch the receipt.",
        lifespan=lifespan,
        docs_url=None,  # they would come from elsewhere: the page works offline
        redoc_url=None,
    )
    app.state.office = office
    routers = [native.router, fides.router]
    routers += [opendsr.router] if office.settings.opendsr is not None else []
    routers += [meta.router] if office.settings.meta is not None else []
    for router in routers:
        app.include_router(router, dependencies=[Depends(only_known)])
    app.include_router(page.router, include_in_schema=False)
    handle_errors(app)

    @app.exception_handler(NotSignedIn)
    async def not_signed_in(_: Request, problem: NotSignedIn) -> Response:
        return RedirectResponse("/login", 303)

    app.add_middleware(BodyLimit, limits=office.settings.limits)
    app.add_middleware(Observed, office=office)
    return app


class Observed:
    """An ASGI layer: counts and logs by the route's pattern, since paths, queries and bodies

    may name somebody.
    """

    def __init__(self, app: App, office: Office) -> None:
        self.app, self.office = app, office

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                given = {name.lower() for name, _ in message["headers"]}
                extra = [(n, v) for n, v in EVERYWHERE.items() if n not in given]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", "(none)")
            self.office.metrics.answered(scope["method"], route, status)
            milliseconds = 1000 * (time.perf_counter() - start)
            looked = scope["method"] in ("GET", "HEAD") and status < 400
            level = logging.DEBUG if looked else logging.INFO
            log.log(level, "%s %s %d %.0f ms", scope["method"], route, status, milliseconds)
