"""A small web server, and data sets that it offers."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import tarfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from efface.data.named import catalog
from efface.data.named.catalog import CATALOG, Dataset


class Server(ThreadingHTTPServer):
    """Files by name; ``cut`` ends a response after so many bytes, ``ranges`` says whether it resumes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.cut: int | None = None
        self.ranges = True

    def url(self, name: str, content: bytes) -> str:
        self.files[name] = content
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.server.asked.append((name, wanted))
        content = self.server.files.get(name)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted[6:-1]) if wanted and self.server.ranges else 0
        if start >= len(content):
            self._head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": "0"})
            return
        rest = content[start:]
        span = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        self._head(
            206 if start else 200, {"Content-Length": str(len(rest)), **(span if start else {})}
        )
        self.wfile.write(rest if self.server.cut is None else rest[: self.server.cut])

    def _head(self, code: int, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def sha256(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tar_of(folder: Path, mode: str = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:  # type: ignore[call-overload]
        tar.add(folder, folder.name)
    return buffer.getvalue()


def offer(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> Dataset:
    """The catalog with this entry changed."""
    entry = dataclasses.replace(catalog.dataset(name), **changes)
    entries = tuple(entry if other.name == name else other for other in CATALOG)
    monkeypatch.setattr(catalog, "CATALOG", entries)
    return entry
