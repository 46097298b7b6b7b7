"""Two partners from images to receipts on the command line, against a model trained on what is left."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.shell import efface, values_of

from efface.data.records import Records
from efface.guarantee.certificates import PARTNERS
from efface.receipts.keys import PublicKeys
from efface.receipts.receipt import opened
from efface.shards import Partner

OPTIONS = ("--core-fraction", "0.3", "--features", "150", "--seed", "1")
SIZES = {"ours": 60, "clinic": 50, "school": 40}


def save(path: Path, records: Records) -> None:
    images = np.stack([np.asarray(record.image()) for record in records])
    columns = {name: np.array(records.column(name)) for name in ("label", "owner", "id")}
    arrays = {f"{name}s": column for name, column in columns.items()}
    np.savez(path, images=images.astype(np.uint8), **arrays, classes=np.array(records.classes))


def run(*words: object) -> dict[str, Any]:
    result = efface(*words, "--json")
    assert result.exit_code == 0, result.output
    return values_of(result)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A core, and three sets of user images that nobody has together but ``left.npz``."""
    home = tmp_path_factory.mktemp("federated")
    run("train", "digits", *OPTIONS, "--core-only", "--out", home / "model")
    shutil.copytree(home / "model", home / "together")
    user = Records.digits(core_fraction=0.3, seed=1).user
    start, parts = 0, {}
    for name, size in SIZES.items():
        parts[name] = user[start : start + size]
        save(home / f"{name}.npz", parts[name])
        start += size
    gone = parts["clinic"][0].owner
    (home / "gone").write_text(gone)
    left = parts["clinic"].where(lambda record: record.owner != gone)
    save(home / "left.npz", parts["ours"] + left + parts["school"])
    return home


def test_two_partners_from_images(home: Path) -> None:
    model, gone = home / "model", (home / "gone").read_text()
    run("keys", "new", home / "ours.key")
    run("keys", "new", home / "clinic.key")
    run("add", model, home / "ours.npz")
    for name, more in (("clinic", ("--key", home / "clinic.key.pub")), ("school", ())):
        run("partner", "admit", model, "--name", name, "--out", home / f"{name}.json", *more)
    public = home / "public"  # what a partner is given of the model: nothing private
    public.mkdir()
    for part in ("core", "releases"):
        shutil.copytree(model / part, public / part)
    shutil.copy(model / "CURRENT", public)
    for name, more in (("clinic", ("--key", home / "clinic.key")), ("school", ())):
        made = run(
            *("partner", "join", home / f"{name}.npz", "--model", public),
            *("--invitation", home / f"{name}.json", "--out", home / name),
            *("--message", home / f"{name}-sums", *more),
        )
        assert made["num_records"] == SIZES[name]
        run("partner", "take", home / f"{name}-sums", "--into", model)
    less = home / "clinic-less"
    words = ("partner", "forget", home / "clinic", "--owner", gone, "--message", less)
    said = efface(*words, "--key", home / "clinic.key")
    assert said.exit_code == 0
    assert "whoever has the message before" in " ".join(said.stderr.split())
    taken = run("partner", "take", less, "--into", model, "--key", home / "ours.key")
    together = run("add", home / "together", home / "left.npz")
    for name in ("statistics_digest", "weights_digest", "num_retained"):
        assert taken["certificate"][name] == together["certificate"][name]
    assert efface("verify", model, "--retrain").exit_code == 0
    listed = run("partner", "list", model)["partners"]
    left = SIZES["clinic"] - taken["num_records"]
    assert [one["num_records"] for one in listed] == [left, SIZES["school"]]
    checked = efface("verify", taken["receipt"], "--key", home / "ours.key.pub")
    assert checked.exit_code == 0, checked.output
    receipt = opened(Path(taken["receipt"]).read_bytes(), PublicKeys.load(home / "ours.key.pub"))
    assert receipt.action == "partner-forget"
    assert (
        digest_of(home / "clinic") in receipt.request
    )  # so that the partner knows that it is about this
    assert PARTNERS in receipt.not_covered
    run("partner", "drop", model, "--name", "school")
    again = efface("partner", "take", home / "school-sums", "--into", model)
    assert again.exit_code == 2
    assert "no partner of this model" in " ".join(again.stderr.split())


def digest_of(folder: Path) -> str:
    return Partner.open(folder).statement.digest
