"""A service to try things on: a workspace of five people, all adapters, a key of each role."""

from __future__ import annotations

import datetime
import io
import json
import shutil
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from fastapi.testclient import TestClient
from PIL import Image
from tests.workspaces import CORE, OWNER

from efface.service.app import make_app
from efface.service.keys import Role
from efface.service.office import Office
from efface.service.place import Place
from efface.service.settings import ServiceSettings
from efface.service.worker import Worker

SECRET = b"0123456789abcdef0123456789abcdef"
EMAIL = "three@example.com"
CORE_OWNER = CORE[0].owner
PUBLIC = "https://privacy.example.com"


@cache
def certified(kind: str = "ec") -> tuple[bytes, bytes]:
    """A key and its certificate, PEM; made once."""
    key: Any = (
        ec.generate_private_key(ec.SECP256R1())
        if kind == "ec"
        else rsa.generate_private_key(65537, 2048)
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "privacy.example.com")])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, start, start.replace(year=2036))
    ).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(made["compact"], tmp_path / "workspace")


@pytest.fixture
def settings(tmp_path: Path) -> ServiceSettings:
    """Everything is on, nothing is waited for."""
    key, certificate = certified()
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "meta-secret").write_bytes(SECRET + b"\n")
    listed = [{"identity_type": "email", "identity_value": EMAIL}]
    listed += [{"identity_type": "meta_user_id", "identity_value": "218471"}]
    mapping = {"schema": "efface.identities/1", "owners": {OWNER: listed}}
    (tmp_path / "identities.json").write_text(json.dumps(mapping))
    return ServiceSettings.model_validate(
        {
            "public_url": PUBLIC,
            "identities": tmp_path / "identities.json",
            "retry_seconds": 0.01,
            "batch": {"window_seconds": 0},
            "limits": {"per_minute": 100_000, "strangers_per_minute": 100_000},
            "callbacks": {"hosts": ["127.0.0.1:*"], "backoff_seconds": 0.01},
            "opendsr": {
                "key": tmp_path / "key.pem",
                "certificate": tmp_path / "certificate.pem",
                "domain": "privacy.example.com",
                "controller_id": "acme",
            },
            "meta": {"app_secret_file": tmp_path / "meta-secret"},
        }
    )


@pytest.fixture
def place(folder: Path, settings: ServiceSettings) -> Iterator[Place]:
    with Place.open(folder, settings) as place:
        yield place


@pytest.fixture
def office(place: Place) -> Office:
    return Office(place)


@pytest.fixture
def worker(place: Place) -> Worker:
    return Worker(place)


@pytest.fixture
def client(office: Office) -> TestClient:
    """With a key that may do everything. No server thread runs: a release is loaded when a test says so."""
    return spoken(office, Role.OPERATE)


def spoken(office: Office, role: Role, name: str = "") -> TestClient:
    key = office.keys.new(name or f"tester-{role}", role)
    client = TestClient(make_app(office), raise_server_exceptions=True)
    client.headers["Authorization"] = f"Bearer {key}"
    return client


def native(value: str = OWNER, number: str = "1", **others: Any) -> dict[str, Any]:
    identity = {"identity_type": "owner", "identity_value": value, "identity_format": "raw"}
    return {"external_id": number, "identities": [identity], **others}


def dsr(value: str = OWNER, **others: Any) -> dict[str, Any]:
    """A request as the specification's own example has it."""
    identity = {
        "identity_type": "controller_customer_id",
        "identity_value": value,
        "identity_format": "raw",
    }
    return {
        "regulation": "gdpr",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2026-10-02T15:00:00Z",
        "subject_identities": [identity],
        "api_version": "2.0",
        **others,
    }


def picture(value: int = 100) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def states(client: TestClient, name: str) -> list[str]:
    history = client.get(f"/v1/requests/{name}").json()["history"]
    return [step["state"] for step in history]


def everything(folder: Path) -> bytes:
    """All bytes of all files of a folder, names included."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return b"\n".join(str(path).encode() + path.read_bytes() for path in found)
