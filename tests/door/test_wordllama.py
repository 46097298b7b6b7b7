"""The sentence encoder of docs/networks.md, where it is installed: pip install wordllama==0.4.0.post1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.docs.pages import blocks
from tests.places import ROOT

wordllama = pytest.importorskip("wordllama")
PAGE = ROOT / "docs/networks.md"


def test_a_sentence_encoder_from_the_registry_forgets() -> None:
    """The page's code runs, and its module gives the vectors that wordllama itself gives."""
    names: dict[str, Any] = {"__name__": "example"}
    code = [block.text for block in blocks(PAGE) if block.language == "python"]
    shown = [text for text in code if "zlib" in text or "wordllama" in text]
    assert len(shown) == 2
    for text in shown:
        exec(text, names)
    texts, core = names["texts"], names["clf"]._home.model.core
    ours = core.boundary(names["torch"].from_numpy(names["tokens"](texts)).long()).numpy()
    np.testing.assert_allclose(ours, names["small"].embed(texts), atol=1e-5)  # float32, other order
    model = names["clf"]._home.model
    assert model.user.summary(model.data)["form"] == "exact"
