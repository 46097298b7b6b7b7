"""Pages of a running deletion service, as files: for the gallery (tools/gallery.py).

The server is started as people start it. A visitor signs in, asks for one person, and then for two
at once, waits, and keeps the pages with their style inside of them. Tokens and scripts are left out, and
links lead to the other pages of the gallery or nowhere.
"""

from __future__ import annotations

import http.cookiejar
import re
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

ASKED = (("u25",), ("u26", "u27"))  # people, together and one after the other
PATIENCE = 180.0  # seconds, for busy machines
REQUEST = re.compile(r'href="(/requests/[\w-]+)"')
MEASURED = 'data-label="Release">{}</td><td data-label="Accuracy"'
PAGES = {"home": "service.html", "request": "service-request.html"}  # what they are in the gallery


@dataclass
class Visitor:
    """Somebody with a browser: cookies are kept, redirections are followed."""

    url: str
    opener: urllib.request.OpenerDirector = field(init=False)

    def __post_init__(self) -> None:
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(jar)

    def see(self, path: str, **form: str) -> str:
        data = urllib.parse.urlencode(form).encode() if form else None
        with self.opener.open(self.url + path, data, timeout=60) as answer:
            return str(answer.read().decode())

    def until(self, path: str, pattern: str) -> str:
        """The page, once it has what matches."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                text = self.see(path)
                if re.search(pattern, text):
                    return text
            except urllib.error.HTTPError as problem:
                if problem.code != 429:  # asked too often
                    raise
            except urllib.error.URLError:
                pass  # it is not up yet
            time.sleep(1)
        raise SystemExit(f"{path} never had {pattern}")


@contextmanager
def served(
    command: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> Iterator[Visitor]:
    """Somebody who is signed in at the server that the command starts."""
    server = subprocess.Popen(
        command, cwd=folder, env=dict(environment), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        url, key = server.stdout.readline().strip(), server.stdout.readline().split()[-1]
        visitor = Visitor(url)
        visitor.until("/health", ".")
        visitor.see("/login", key=key)
        yield visitor
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE)


def pages(visitor: Visitor) -> dict[str, str]:
    """The list of requests, and the story of the first that is done."""
    release = int(re.findall(r'id="release">(\d+)', visitor.see("/"))[0])
    home = visitor.until("/", MEASURED.format(release))
    for people in ASKED:
        for who in people:
            visitor.see("/requests", token=_token(home), identity_value=who)
        release += 1
        home = visitor.until("/", MEASURED.format(release))
    done = [row for row in re.findall(r"(?s)<tr>.*?</tr>", home) if "state done" in row]
    found = REQUEST.search(done[-1])
    assert found is not None
    return {
        PAGES["home"]: kept(visitor, home, found[1]),
        PAGES["request"]: kept(visitor, visitor.see(found[1]), found[1]),
    }


def _token(text: str) -> str:
    found = re.search(r'name="token" value="([^"]+)"', text)
    assert found is not None
    return found[1]


def kept(visitor: Visitor, text: str, request: str) -> str:
    """A page as one file that asks nobody for anything."""
    style = f"<style>\n{visitor.see('/static/style.css')}</style>"
    text = text.replace('<link rel="stylesheet" href="/static/style.css">', style)
    text = re.sub(r"\s*<script[^>]*></script>", "", text)
    text = re.sub(r'\s*<input type="hidden"[^>]*>', "", text)
    text = re.sub(r' data-(?:token|live)="[^"]*"', "", text)
    text = re.sub(r' (?:method="post" )?action="/[^"]*"', "", text)
    text = text.replace(f'href="{request}"', f'href="{PAGES["request"]}"')
    text = text.replace('href="/"', f'href="{PAGES["home"]}"')
    text = re.sub(r' href="/[^"]*"(?: lang="\w+" hreflang="\w+")?(?: download)?', "", text)
    return text.replace("<button", '<button type="button"')
