"""An image that training reads is decoded once; its look, taken on the way, is that of decoding it again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.photos import write_photos
from tests.shell import efface

from efface.data import record as record_module
from efface.data.images import digest_of
from efface.data.looks import looks_of
from efface.data.record import Split
from efface.data.records import Records
from efface.workspace import Workspace

OPTIONS = (
    *("--core-fraction", "0.4", "--features", "60", "--seed", "1", "--user", "compact"),
    *("--classes", "disc,stripes,checks"),
)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the image with each digest was decoded."""
    found: Counter[str] = Counter()
    real = record_module.decode

    def counting(content: Any, *options: Any) -> Any:
        found[digest_of(content)] += 1
        return real(content, *options)

    monkeypatch.setattr(record_module, "decode", counting)
    return found


def run(*words: object) -> None:
    result = efface(*words)
    assert result.exit_code == 0, result.stderr


def test_training_and_adding_decode_an_image_once(tmp_path: Path, decoded: Counter[str]) -> None:
    photos = write_photos(tmp_path / "photos", num_owners=6, each=3, num_test=4)
    run("train", photos, *OPTIONS, "--out", tmp_path / "w")
    workspace = Workspace.open(tmp_path / "w")
    data = workspace.store.data
    assert set(map(decoded.__getitem__, data.records.digests)) == {1}
    assert data.looks == looks_of(Records.open(photos).where(lambda r: r.id in data.records.ids))
    assert len(set(data.looks or ())) > 1

    new = write_photos(tmp_path / "new", num_owners=2, each=2, num_test=0, seed=5)
    listed = (new / "metadata.csv").read_text()
    (new / "metadata.csv").write_text(listed.replace("000", "new-000"))
    for file in list(new.glob("*.png")):
        file.rename(file.with_name(f"new-{file.name}"))
    decoded.clear()
    run("add", tmp_path / "w", new)
    added = Records.open(new)
    assert [decoded[digest] for digest in added.digests] == [1] * 4
    looks = Workspace.open(tmp_path / "w").store.data.looks
    assert looks is not None
    assert looks[-4:] == looks_of(added)


def test_core_records_have_the_looks_of_their_images(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", num_owners=6, each=3, num_test=4)
    run("train", photos, *OPTIONS, "--out", tmp_path / "w")
    index = Workspace.open(tmp_path / "w").core_index
    config = Records.open(photos).with_core_fraction(0.4, 1)
    core = config.where(lambda record: record.split is Split.CORE)
    want = dict(zip(core.digests, looks_of(core), strict=True))
    assert want
    assert {record.digest: record.look for record in index.records} == want
