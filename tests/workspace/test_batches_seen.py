"""How many images a network is really given: one is not padded to a batch, and good ones go together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests import cases
from torch.utils._python_dispatch import TorchDispatchMode

from efface import Core, MixedLinear, Records, Serving
from efface.data.preprocess import Preprocess
from efface.workspace.serving import Prediction

CONVOLUTION = torch.ops.aten.convolution.default
FORMS = {
    "integer": ("resnet-bottleneck", "auto"),
    "float32": ("convnext", "float"),
    "exact": ("vit", "auto"),
}


class Seen(TorchDispatchMode):
    """The number of images in every tensor of images or of boundary activations, and in every convolution."""

    def __init__(self, core: Core) -> None:
        super().__init__()
        side = core.image_side
        image = (core.backbone.preprocess.channels, side, side)
        self.shapes, self.sizes = {image, tuple(core.boundary_shape)}, set[int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for value in args:
            if isinstance(value, torch.Tensor) and tuple(value.shape[1:]) in self.shapes:
                self.sizes.add(len(value))
        if func is CONVOLUTION:
            self.sizes.add(len(args[0]))
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=FORMS)
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> Serving:
    kind, arithmetic = FORMS[request.param]
    images, labels = cases.blobs(24, 0, 16, 3)
    data = Records.from_arrays(images, labels, classes=[0, 1, 2])
    cases.randomised(cases.tiny(kind)).save_pretrained(tmp_path / "net")
    side = cases.TINY[kind][1]
    core = Core(f"hf:{tmp_path / 'net'}", classes=data.classes, preprocess=Preprocess(side, side))
    model = MixedLinear(core, features=40, arithmetic=arithmetic).fit(data)
    assert model.user.form.kind == request.param
    model.save(tmp_path / "model")
    made = Serving(tmp_path / "model", top=3)
    made.predict(images[:1])  # what is made once is made
    return made


def images(n: int) -> np.ndarray:
    return cases.blobs(n, 5, 16, 3)[0]


def sizes(serving: Serving, act: Any) -> set[int]:
    model = serving._loaded.model
    with Seen(model.core) as seen:
        act(model)
    return seen.sizes


def test_one_image_is_computed_alone(serving: Serving) -> None:
    """Padded to a batch of 32 it once took as long as 32 images."""
    one = images(1)
    assert sizes(serving, lambda _: serving.predict(one)) == {1}
    assert sizes(serving, lambda _: serving.predict(one, skip_bad=True)) == {1}
    assert sizes(serving, lambda model: model.predict(one)) == {1}


def test_padding_would_be_seen(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    form = type(serving._loaded.model.user.form)
    plain = form.boundary_of

    def padded(self: Any, shown: torch.Tensor) -> torch.Tensor:
        more = torch.zeros(32 - len(shown), *shown.shape[1:], dtype=shown.dtype)
        return plain(self, torch.cat([shown, more]))[: len(shown)]

    monkeypatch.setattr(form, "boundary_of", padded)
    assert 32 in sizes(serving, lambda _: serving.predict(images(1)))


def calls(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of the network's first half is given, from now on."""
    form, seen = type(serving._loaded.model.user.form), []
    plain = form.boundary_of

    def boundary_of(self: Any, shown: torch.Tensor) -> torch.Tensor:
        seen.append(len(shown))
        return plain(self, shown)

    monkeypatch.setattr(form, "boundary_of", boundary_of)
    return seen


def test_good_images_are_computed_together_and_bad_ones_left_out(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pixels = images(5)
    path = tmp_path / "one.png"
    Image.fromarray(pixels[0]).save(path)
    cut = path.read_bytes()[:-40]
    given = [path, b"no image", *pixels[1:4], "nowhere.png", cut, pixels[4]]
    want = serving.predict(list(pixels))
    seen = calls(serving, monkeypatch)
    found = serving.predict(given, skip_bad=True)
    assert seen == [5]
    assert [p for p in found if p.problem is None] == want
    assert [i for i, p in enumerate(found) if p.problem is not None] == [1, 5, 6]
    assert {p.release for p in found} == {None}


def test_many_are_computed_some_at_a_time(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = calls(serving, monkeypatch)
    found = serving.predict([*images(40), b"bad"], skip_bad=True)
    assert seen == [32, 8]
    assert len(found) == 41
    assert serving.predict([], skip_bad=True) == []
    assert all(p.problem for p in serving.predict([b"bad", b"worse"], skip_bad=True))


def test_images_that_do_not_fit_together_are_computed_one_by_one(tmp_path: Path) -> None:
    """Without a size in the preprocessing each image may have its own."""
    data = cases.tiny_records(12, 0)
    core = Core("cnn", classes=data.classes, preprocess=Preprocess(0, 0, 1, (0.5,), (0.5,)))
    MixedLinear(core, features=20, arithmetic="float").fit(data).save(tmp_path / "model")
    serving = Serving(tmp_path / "model")
    small, large = np.zeros((8, 8), dtype=np.uint8), np.ones((12, 12), dtype=np.uint8)
    alone: list[Prediction] = [serving.predict([image])[0] for image in (small, large)]
    assert serving.predict([small, b"bad", large], skip_bad=True)[::2] == alone
