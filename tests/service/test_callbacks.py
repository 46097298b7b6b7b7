"""Callbacks: signed, at least once, again after a failure, and never into the network around the service."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import PUBLIC, certified, dsr
from tests.workspaces import OWNER

from efface.service import addresses
from efface.service.addresses import AddressError, Target, check_url, is_public, post, resolve
from efface.service.callbacks import Messenger
from efface.service.office import Office
from efface.service.signing import SIGNATURE, is_signed
from efface.service.worker import Worker


class Controller:
    """Somebody on loopback who is told; ``answers`` are the statuses to come, then 200."""

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.told.append((self.path, dict(self.headers), body))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Location", "http://169.254.169.254/")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/told"

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.told]


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def messenger(office: Office) -> Messenger:
    return Messenger(office.desk, office.settings, office.place.signer)


def test_every_change_is_told_and_signed(
    client: TestClient, worker: Worker, controller: Controller, messenger: Messenger
) -> None:
    asked = dsr(status_callback_urls=[controller.url])
    client.post("/v2/requests", json=asked)
    worker.step()
    assert messenger.deliver() == 3
    statuses = [body["request_status"] for body in controller.bodies()]
    assert sorted(statuses) == ["completed", "in_progress", "pending"]
    for path, headers, body in controller.told:
        values = json.loads(body)
        assert path == "/told"
        assert is_signed(body, headers[SIGNATURE], certified()[1])
        wanted = {"controller_id", "status_callback_url", "subject_request_id", "request_status"}
        assert set(values) >= wanted | {"expected_completion_time"}
        assert values["status_callback_url"] == controller.url
        assert values["subject_request_id"] == asked["subject_request_id"]
        assert OWNER not in body.decode()
    [done] = [b for b in controller.bodies() if b["request_status"] == "completed"]
    assert done["results_count"] == 6
    assert done["results_url"].startswith(PUBLIC)
    assert messenger.deliver() == 0
    assert not messenger.is_needed()


def test_what_did_not_arrive_is_told_again_later(
    office: Office, client: TestClient, controller: Controller, messenger: Messenger
) -> None:
    controller.answers = [500, 302]
    client.post("/v2/requests", json=dsr(status_callback_urls=[controller.url]))
    now = time.time() + 1
    assert messenger.deliver(now) == 0
    assert messenger.deliver(now) == 0  # not yet: the wait has not passed
    assert len(controller.told) == 1
    assert messenger.deliver(now + 100) == 0  # a redirect is a failure, and not followed
    assert messenger.deliver(now + 200) == 1
    assert len(controller.told) == 3


def test_given_up_after_so_many_attempts(
    office: Office, client: TestClient, controller: Controller, messenger: Messenger
) -> None:
    attempts = office.settings.callbacks.attempts
    controller.answers = [500] * attempts
    client.post("/v2/requests", json=dsr(status_callback_urls=[controller.url]))
    now = time.time() + 1
    for i in range(attempts + 3):
        messenger.deliver(now + i * 1e6)
    assert len(controller.told) == attempts
    told = [row.values for row in office.place.ledger.rows() if row.kind == "service.callback"]
    assert [entry["outcome"] for entry in told] == ["given up"]


def test_fides_is_told_to_go_on(
    client: TestClient, worker: Worker, controller: Controller, messenger: Messenger
) -> None:
    asked = {"privacy_request_id": "1", "direction": "two_way", "identity": {"x": OWNER}}
    headers = {"reply-to": controller.url, "reply-to-token": "a-token"}
    client.post("/fides/webhook", json=asked, headers=headers)
    worker.step()
    assert messenger.deliver() == 1
    [(_, headers, body)] = controller.told
    assert (headers["Authorization"], body) == ("Bearer a-token", b"{}")


# --- where they may go ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0"),
        *("fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressError):
        check_url(f"https://{host}/", ())


def test_public_addresses() -> None:
    assert is_public("93.184.216.34")
    assert is_public("2606:2800:220:1:248:1893:25c8:1946")


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/", "ftp://example.com/", "file:///etc/passwd", "https://", "//x"),
        *("https://a:b@example.com/", "https://exa mple.com/", "https://example.com:99999/"),
        *(
            "https://example.com/\r\nX: 1",
            "javascript:alert(1)",
            "https://[::1/",
            "https://ex\tample/",
        ),
        "https://example.com/" + "x" * 3000,
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(AddressError):
        check_url(url, ())


def test_listed_hosts_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    check_url("http://127.0.0.1:80/", ("127.0.0.1:*",))
    check_url("http://crm.internal/", ("*.internal",))
    with pytest.raises(AddressError):
        check_url("http://127.0.0.1.example.com/", ("127.0.0.1",))


def test_a_name_that_points_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def inside(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", ("93.184.216.34", 443)), (2, 1, 6, "", ("10.0.0.1", 443))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", inside)
    with pytest.raises(AddressError, match="private"):
        resolve("https://evil.example.com/", ())


def test_the_connection_goes_to_the_address_that_was_checked(controller: Controller) -> None:
    """Whatever the name has come to mean since: it is only sent along."""
    port = controller.server.server_port
    target = Target(False, "name.that.does.not.exist.example", port, "/x", "127.0.0.1")
    assert post(target, b"{}", {}, 5) == 200
    assert controller.told[0][1]["Host"].startswith("name.that.does.not.exist.example")
