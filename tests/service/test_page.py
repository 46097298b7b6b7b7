"""The page: who gets in, forms that cannot be forged, texts that cannot become code,

nothing from elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from tests.service.offices import CORE_OWNER, picture
from tests.workspaces import OWNER

from efface.service.app import make_app
from efface.service.keys import Role
from efface.service.office import Office
from efface.service.page import routes
from efface.service.sessions import COOKIE
from efface.service.states import State
from efface.service.worker import Worker

ATTACK = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Browser:
    """Somebody at the page, as far as that goes without a browser."""

    def __init__(self, office: Office, role: Role = Role.OPERATE, name: str = "anna") -> None:
        self.key = office.keys.new(name, role)
        app = make_app(office)
        self.client = TestClient(app, base_url="https://testserver", follow_redirects=False)

    def sign_in(self) -> Browser:
        answer = self.client.post("/login", data={"key": self.key})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        return self

    @property
    def token(self) -> str:
        found = re.search(r'name="token" value="([0-9a-f]{64})"', self.client.get("/").text)
        assert found
        return found[1]

    def submit(self, value: str, **others: str) -> object:
        form = {"token": self.token, "identity_value": value, "identity_type": "owner", **others}
        return self.client.post("/requests", data=form)


@pytest.fixture
def browser(office: Office) -> Browser:
    return Browser(office).sign_in()


def test_nobody_gets_in_without_a_key(office: Office) -> None:
    browser = Browser(office)
    for path in (
        "/",
        "/live",
        "/about",
        "/requests/1",
        "/requests/1/live",
        "/requests/1/receipt",
        "/requests/1/page",
    ):
        answer = browser.client.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    wrong = browser.client.post("/login", data={"key": "efk_" + "x" * 43})
    assert wrong.status_code == 401
    assert COOKIE not in wrong.cookies
    assert browser.client.post("/page/predict", content=picture()).status_code == 303


def test_the_cookie_is_for_this_site_and_no_script(office: Office) -> None:
    browser = Browser(office)
    answer = browser.client.post("/login", data={"key": browser.key})
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "secure" in cookie  # the service is at an https address
    assert browser.key not in cookie


def test_a_revoked_key_ends_its_sessions(office: Office, browser: Browser) -> None:
    browser.client.headers["cookie"] = "; ".join(
        f"{k}={v}" for k, v in browser.client.cookies.items()
    )
    assert browser.client.get("/").status_code == 200
    office.keys.revoke("anna")
    assert browser.client.get("/").status_code == 303


@pytest.mark.parametrize("token", ["", "0" * 64, None])
def test_forms_of_other_pages_do_nothing(
    office: Office, browser: Browser, token: str | None
) -> None:
    ticket_page = browser.submit(OWNER).headers["location"]  # type: ignore[attr-defined]
    other = Browser(office, name="mallory").sign_in()
    token = other.token if token is None else token  # of another session
    before = office.place.ledger.head()
    for path in ("/requests", f"{ticket_page}/cancel", "/logout"):
        form = {"token": token, "identity_value": "person-one"}
        answer = browser.client.post(path, data=form)
        assert answer.status_code == 403
    headers = {"x-token": token}
    assert (
        browser.client.post("/page/predict", content=picture(), headers=headers).status_code == 403
    )
    assert office.place.ledger.head() == before


def test_submit_follow_cancel(office: Office, browser: Browser) -> None:
    answer = browser.submit(OWNER)
    where = answer.headers["location"]  # type: ignore[attr-defined]
    page = browser.client.get(where).text
    assert "Cancel this request" in page
    assert "waits for others" in page
    assert OWNER not in page
    browser.client.post(f"{where}/cancel", data={"token": browser.token})
    assert "called off" in browser.client.get(where).text
    again = browser.client.post(f"{where}/cancel", data={"token": browser.token})
    assert again.status_code == 303  # twice is once


def test_submit_and_receipt(office: Office, browser: Browser, worker: Worker) -> None:
    where = browser.submit(OWNER).headers["location"]  # type: ignore[attr-defined]
    assert browser.client.get(f"{where}/receipt").status_code == 409
    worker.step()
    page = browser.client.get(f"{where}/live").text
    assert "Download receipt" in page
    assert "Cancel" not in page
    assert {"Deutsch", "Français", "Español"} <= set(re.findall(">([^<>]+)</a>", page))
    paper = browser.client.get(f"{where}/page?language=es")
    assert '<html lang="es">' in paper.text
    assert "attachment" in paper.headers["content-disposition"]
    receipt = browser.client.get(f"{where}/receipt")
    assert receipt.status_code == 200
    assert "attachment" in receipt.headers["content-disposition"]
    late = browser.client.post(f"{where}/cancel", data={"token": browser.token})
    assert late.status_code == 409


def test_what_cannot_be_done_is_said(office: Office, browser: Browser) -> None:
    unknown = browser.submit("mallory")
    assert unknown.status_code == 400  # type: ignore[attr-defined]
    assert "nobody in the model" in unknown.text  # type: ignore[attr-defined]
    where = browser.submit(CORE_OWNER).headers["location"]  # type: ignore[attr-defined]
    assert "core data, which the model cannot forget" in browser.client.get(where).text


def test_who_may_only_look_has_no_buttons(office: Office, browser: Browser) -> None:
    where = browser.submit(OWNER).headers["location"]  # type: ignore[attr-defined]
    reader = Browser(office, Role.READ, "reader").sign_in()
    assert "Forget somebody" not in reader.client.get("/").text
    assert "Cancel this request" not in reader.client.get(where).text
    form = {"token": reader.token, "identity_value": OWNER}
    assert reader.client.post("/requests", data=form).status_code == 403
    assert reader.client.post(f"{where}/cancel", data=form).status_code == 403


def test_who_submits_sees_their_own(office: Office, browser: Browser) -> None:
    where = browser.submit(OWNER).headers["location"]  # type: ignore[attr-defined]
    other = Browser(office, Role.SUBMIT, "other").sign_in()
    assert where not in other.client.get("/").text
    assert other.client.get(where).status_code == 404


def test_texts_stay_texts(office: Office, browser: Browser) -> None:
    """What was typed, what a hook said, what a model's class is called."""
    assert "<script>alert" not in browser.submit(ATTACK).text  # type: ignore[attr-defined]
    where = browser.submit(OWNER).headers["location"]  # type: ignore[attr-defined]
    ticket = office.desk.in_state(State.WAITING)
    office.desk.postpone(ticket, ATTACK, 0.0)
    for path in ("/", "/live", where, f"{where}/live"):
        page = browser.client.get(path).text
        assert "&lt;script&gt;alert(1)" in page
        assert "<script>alert" not in page
        assert "<img src=x" not in page


def test_nothing_comes_from_elsewhere() -> None:
    """No address of another server, no inline script or style: the policy forbids them anyway."""
    folder = Path(routes.__file__).parent
    texts = [p.read_text() for p in folder.rglob("*") if p.suffix in (".html", ".css", ".js")]
    assert len(texts) >= 8
    for text in texts:
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text)
        assert not re.search(r"<script>|<style|\sstyle=|\son[a-z]+=", text)


def test_predictions_on_the_page(office: Office, browser: Browser) -> None:
    headers = {"x-token": browser.token, "content-type": "image/png"}
    answer = browser.client.post("/page/predict", content=picture(), headers=headers)
    assert answer.json()["release"] == 1
    wrong = browser.client.post("/page/predict", content=b"x", headers=headers)
    assert wrong.status_code == 400


def test_guarantee_and_accuracy_are_told(office: Office, browser: Browser) -> None:
    page = browser.client.get("/").text
    assert "to the last bit" in page
    assert "whoever has both can tell which" in page
    assert "Not measured" in page
    with office.place.ledger.transaction() as tx:
        for release, accuracy in ((1, 0.5), (2, 0.75)):
            tx.execute(
                "INSERT INTO service_evaluations VALUES (?, ?, ?, ?)", (release, accuracy, 30, 0.0)
            )
    for path in ("/", "/about"):
        page = browser.client.get(path).text
        assert "75.0 %" in page
        assert "<polyline" in page


def test_only_two_files_are_static(browser: Browser) -> None:
    for name in ("style.css", "page.js"):
        assert browser.client.get(f"/static/{name}").status_code == 200
    code = "routes" + ".py"
    for name in (code, f"..%2f{code}", f"%2e%2e/{code}"):
        assert browser.client.get(f"/static/{name}").status_code == 404
