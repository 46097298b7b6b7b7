"""The web server of docs/serving.md answers, and follows the releases."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from tests.docs.pages import blocks
from tests.places import ROOT

pytest.importorskip("httpx2", reason="the test client's")
BINARY = {"Content-Type": "application/octet-stream"}


def test_the_web_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient

    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "example"}
    for block in blocks(ROOT / "docs/serving.md"):
        if block.language == "python" and "app" not in names:
            exec(compile(block.text, "docs/serving.md", "exec"), names)
    encoded = io.BytesIO()
    Image.fromarray(names["image"][:, :, 0]).save(encoded, "PNG")
    client = TestClient(names["app"])
    first = client.post("/predict", content=encoded.getvalue(), headers=BINARY).json()
    assert first["label"] == names["answer"].label
    names["workspace"].forget(owner="u18")
    again = client.post("/predict", content=encoded.getvalue(), headers=BINARY).json()
    assert again["release"] == first["release"] + 1 == 3
    refused = client.post("/predict", content=b"no image", headers=BINARY)
    assert refused.status_code == 422
    assert "not an image" in refused.json()["detail"]
