"""Text through the front door: token ids and vectors are owned, forgotten and verified as photos are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.door.places import IMAGES, digests
from tests.shell import efface, values_of
from torch import Tensor, nn

from efface import ForgettingClassifier, Tokens, Vectors
from efface.arithmetic.exact.form import ExactForm
from efface.arithmetic.form import FloatForm, Form
from efface.data.records import Records
from efface.errors import BackboneError, EffaceError, FormatError, RecordError
from efface.network.core import Core

READ = Tokens(10, 50)
RNG = np.random.default_rng(0)
OWNERS = np.array([f"u{i // 4}" for i in range(40)])
NUMBERS = np.arange(40) % 2
LABELS = np.array(["day", "night"])[NUMBERS]


def texts(numbers: np.ndarray, seed: int) -> np.ndarray:
    """Token ids of two kinds of text: each has favourite words, a few of them; the rest is padding."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(1 + 22 * kind, 27 + 22 * kind, rng.integers(2, 10)) for kind in numbers]
    return READ.padded(row.tolist() for row in rows)


IDS, TEST = texts(NUMBERS, 1), texts(NUMBERS, 2)
CORE = (texts(NUMBERS, 3), LABELS)


class MeanOfTokens(nn.Module):
    """The mean of the embeddings of all ids but the padding, (n, length) -> (n, p)."""

    def __init__(self, vocabulary: int = 50, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids != 0).unsqueeze(-1)
        return (self.table(ids) * there).sum(1) / there.sum(1).clamp(min=1)


def seeded(*modules: nn.Module) -> nn.Sequential:
    network = nn.Sequential(*modules)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return network


def encoder() -> nn.Sequential:
    return seeded(MeanOfTokens())


def deep() -> nn.Sequential:
    """Embedding, mean, and a layer that the user part's gradients go through."""
    return seeded(MeanOfTokens(), nn.Linear(16, 12), nn.Tanh())


NETWORKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "head": (encoder, {"linearize": "head"}),
    "last block": (deep, {"features": 60}),
    "tangent": (deep, {"user": "tangent"}),
}


def classifier(network: str = "head", **more: Any) -> ForgettingClassifier:
    build, options = NETWORKS[network]
    given = {"classes": ["day", "night"], "preprocess": READ, **options, **more}
    return ForgettingClassifier(build(), **given)


def fitted(keep: Any = slice(None), **options: Any) -> ForgettingClassifier:
    return classifier(**options).fit(IDS[keep], LABELS[keep], owners=OWNERS[keep])


@pytest.mark.parametrize("network", ["head", "last block"])
@pytest.mark.parametrize("core", [None, CORE], ids=["no core", "core"])
def test_forgetting_a_writer_is_never_having_read_them(network: str, core: Any) -> None:
    stay = OWNERS != "u3"
    clf = classifier(network).fit(IDS, LABELS, owners=OWNERS, core=core)
    before = clf.decision_function(TEST)
    assert clf.forget(owner="u3").num_forgotten == 4
    never = classifier(network).fit(IDS[stay], LABELS[stay], owners=OWNERS[stay], core=core)
    assert digests(clf) == digests(never)
    np.testing.assert_array_equal(clf.decision_function(TEST), never.decision_function(TEST))
    assert not np.array_equal(before, never.decision_function(TEST))
    assert clf.score(TEST, LABELS) > 0.8


def test_adding_is_having_read_at_once() -> None:
    clf = fitted(slice(20))
    clf.add(IDS[20:].tolist(), LABELS[20:], owners=OWNERS[20:])
    assert digests(clf) == digests(fitted())
    clf.forget(owner="u3")
    with pytest.raises(RecordError, match="was forgotten here"):
        clf.add(IDS[12:13], LABELS[12:13])


def test_the_tangent_part_learns_from_text() -> None:
    clf = classifier("tangent").fit(IDS, LABELS, owners=OWNERS, core=CORE)
    assert clf.score(TEST, LABELS) > 0.8
    assert clf.forget(owner="u3").num_forgotten == 4


def test_a_folder_keeps_how_it_reads_and_verifies(tmp_path: Path) -> None:
    clf = fitted()
    want = clf.decision_function(TEST)
    clf.save(tmp_path / "model")
    again = ForgettingClassifier.load(tmp_path / "model", module=encoder())
    np.testing.assert_array_equal(again.decision_function(TEST), want)
    assert again._home.model.core.backbone.preprocess == READ
    again.forget(owner="u3")
    assert digests(again) == digests(fitted(OWNERS != "u3"))
    checks = again.verify(retrain=True, images=IDS)
    assert checks["ok"]
    assert any("36 of 36 are equal" in check["detail"] for check in checks["checks"])
    assert again.scan(IDS[OWNERS == "u3"], owner="u3")["clean"]
    assert not again.scan(IDS[OWNERS == "u4"], owner="u4")["clean"]


def test_a_text_that_lies_around_in_the_folder_is_found(tmp_path: Path) -> None:
    rows = RNG.integers(1, 30000, (8, 40)).astype(np.int32)
    read = Tokens(40, 30000)
    network = seeded(MeanOfTokens(30000))
    clf = ForgettingClassifier(network, linearize="head", classes=["a", "b"], preprocess=read)
    clf.fit(rows, ["a", "b"] * 4, owners=[str(i) for i in range(8)]).save(tmp_path / "model")
    clf.forget(owner="3")
    assert clf.scan(rows[3:4])["clean"]
    for width in ("int16", "int32", "int64"):
        np.save(tmp_path / "model" / "notes.npy", rows.astype(width))
        found = clf.scan(rows[3:4])["findings"]
        assert any("the numbers of" in finding["what"] for finding in found)


# --- arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [encoder, deep])
def test_embeddings_are_exact_and_near_float32(build: Any) -> None:
    """The exact form's rows are the same bits alone or among others; float32 is their twin up to rounding."""
    core = Core(build(), classes=["a", "b"], linearize="head", preprocess=READ)
    assert ExactForm.problem(core) is None
    records = Records.from_images(IDS, LABELS)
    forms: tuple[Form, Form] = ExactForm(core), FloatForm(core)
    exact, plain = (form.boundary(records) for form in forms)
    alone = torch.cat([forms[0].boundary(records[i : i + 1]) for i in range(len(records))])
    assert torch.equal(exact, alone)
    torch.testing.assert_close(exact, plain, rtol=1e-5, atol=1e-5)  # float32 has 7 digits
    table = core.prefix[0].table.weight.double()
    for row, ids in zip(exact, IDS, strict=True):
        slow = table[torch.from_numpy(ids[ids != 0].astype(np.int64))].mean(0)
        if build is encoder:
            torch.testing.assert_close(row.double(), slow, rtol=1e-5, atol=1e-5)


def test_the_summary_says_which_arithmetic_it_is() -> None:
    model = fitted()._home.model
    said = model.user.summary(model.data)
    assert (said["arithmetic"], said["form"]) == ("integer", "exact")
    bag = nn.Sequential(nn.EmbeddingBag(50, 16, mode="mean"))
    clf = ForgettingClassifier(bag, linearize="head", preprocess=READ, classes=["day", "night"])
    model = clf.fit(IDS, LABELS, owners=OWNERS)._home.model
    said = model.user.summary(model.data)
    assert (said["arithmetic"], said["form"]) == ("float32", "float32")
    assert any("embedding_bag" in reason for reason in said["why_not_better"])
    stay = OWNERS != "u3"
    clf.forget(owner="u3")
    never = ForgettingClassifier(bag, linearize="head", preprocess=READ, classes=["day", "night"])
    never.fit(IDS[stay], LABELS[stay], owners=OWNERS[stay])
    np.testing.assert_array_equal(clf.decision_function(TEST), never.decision_function(TEST))


def test_vectors_are_forgotten_too() -> None:
    vectors = np.where(NUMBERS[:, None] == 1, 40, -40) + RNG.integers(-60, 60, (40, 12))

    def build() -> ForgettingClassifier:
        given: dict[str, Any] = {"classes": ["day", "night"], "preprocess": Vectors(12)}
        return ForgettingClassifier(nn.Sequential(nn.Identity()), linearize="head", **given)

    clf = build().fit(vectors.astype(np.int8), LABELS, owners=OWNERS)
    assert clf.score(vectors, LABELS) > 0.9
    clf.forget(owner="u3")
    stay = OWNERS != "u3"
    never = build().fit(vectors[stay], LABELS[stay], owners=OWNERS[stay])
    assert digests(clf) == digests(never)


# --- refusals -------------------------------------------------------------------------------------


def test_ids_outside_the_vocabulary_name_the_record() -> None:
    bad = IDS.copy()
    bad[7, 2] = 50
    with pytest.raises(RecordError, match="'x7': number 2 is 50, not 0 to 49"):
        classifier().fit(bad, LABELS, ids=[f"x{i}" for i in range(40)])
    clf = fitted()
    with pytest.raises(RecordError, match="image 7"):
        clf.predict(bad)
    with pytest.raises(RecordError, match="number 2 is 50"):
        clf.add(bad[7:8], LABELS[7:8])
    assert digests(clf) == digests(fitted())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (IDS[:, :6], "6 numbers, where 10 token ids"),
        (IDS / 2, "not whole"),
        (IMAGES[:40], "an image, where 10 token ids"),
        ([row[: 5 + i % 3].tolist() for i, row in enumerate(IDS)], "where most records have"),
    ],
    ids=["short", "floats", "images", "ragged"],
)
def test_other_contents_are_refused(given: Any, message: str) -> None:
    with pytest.raises(EffaceError, match=message):
        classifier().fit(given, LABELS)


def test_token_ids_are_no_images() -> None:
    with pytest.raises(RecordError, match="a row of 10 numbers is no image"):
        ForgettingClassifier("cnn", features=40).fit(IDS, LABELS, core=(IMAGES[:40], LABELS))


def test_networks_that_do_not_fit_are_refused_before_any_work() -> None:
    with pytest.raises(BackboneError, match="begin at token ids"):
        classifier(linearize="last-block").fit(IDS, LABELS)
    with pytest.raises(BackboneError, match="does not run on 10 token ids below 51"):
        classifier(preprocess=Tokens(10, 51)).fit(IDS, LABELS)  # the table has 50 rows
    with pytest.raises(BackboneError, match="for images only"):
        classifier(mirror=True).fit(IDS, LABELS)


def test_a_file_that_claims_another_preparation_is_refused(tmp_path: Path) -> None:
    core = Core(encoder(), classes=["a", "b"], linearize="head", preprocess=READ)
    core.save(tmp_path)
    values = json.loads((tmp_path / "core.json").read_text())
    for prep in ({"kind": "tokens", "length": -1, "vocabulary": 9}, {"kind": "vectors"}):
        (tmp_path / "core.json").write_text(json.dumps(values | {"preprocess": prep}))
        with pytest.raises(FormatError):
            Core.load(tmp_path, encoder())


# --- from the shell -------------------------------------------------------------------------------

MODULE = """
import torch
from torch import nn
from efface import Tokens

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)
        generator = torch.Generator().manual_seed(0)
        nn.init.normal_(self.table.weight, generator=generator)

    def forward(self, ids):
        return self.table(ids).mean(1)

def build():
    network = nn.Sequential(Encoder())
    network.preprocess = Tokens(10, 50)
    return network
"""


def test_commands_train_forget_and_verify_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mytext").with_suffix(".py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    splits = ["train"] * 36 + ["test"] * 4
    np.savez("texts.npz", tokens=IDS, labels=LABELS, owners=OWNERS, splits=splits)
    own = ("--trust-module", "mytext:build")
    train = ("--backbone", "torch:mytext:build", "--linearize", "head", "--out", "model")
    values_of(efface("train", "texts.npz", *train, "--classes", "day,night", "--json"))
    told = values_of(efface("forget", "model", "--owner", "u3", "--json"))
    assert told["certificate"]["num_forgotten"] == 4
    checked = values_of(
        efface("verify", "model", "--retrain", "--from-images", "texts.npz", *own, "--json")
    )
    assert checked["ok"]
    assert efface("predict", "model", "texts.npz", *own, "--json").exit_code == 0
    exported = efface("export", "model", "--onnx", "--out", "elsewhere", *own)
    assert exported.exit_code == 2
    assert "for images only" in exported.stderr
    assert not Path("elsewhere").exists()
    looked = efface("init", "texts.npz", "--core-fraction", "0", "--out", "run.toml")
    assert looked.exit_code == 2
    assert "a row of 10 numbers is no image" in looked.stderr
