"""Forms: which arithmetic a core computes in, and that a row is a function of its image in each."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import cases
from torch import Tensor, nn

from efface.arithmetic.choice import Arithmetic, choose_form, choose_form_without_data, load_form
from efface.arithmetic.exact.form import ExactForm
from efface.arithmetic.form import FloatForm
from efface.arithmetic.integer.form import IntegerForm
from efface.data.preprocess import Preprocess
from efface.data.records import Records
from efface.errors import BackboneError, EffaceError, FormatError
from efface.model.mixed_linear import MixedLinear
from efface.network.blocks import GlobalMean
from efface.network.core import Core
from efface.workspace.published import load

CLASSES = ["a", "b", "c"]
RECORDS = cases.tiny_records(10, 1)
CORE = cases.tiny_records(12, 5)


class Wave(nn.Module):
    """What neither form knows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


def convolutions(activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), activation()),
        nn.Sequential(nn.Conv2d(8, 9, 3, stride=2), nn.BatchNorm2d(9), activation()),
        nn.Sequential(nn.Conv2d(9, 7, 3), activation()),
        GlobalMean(),
        nn.Linear(7, 3),
    )


@cache
def core_of(name: str, mirror: bool = False) -> Core:
    kinds = {"relu": nn.ReLU, "gelu": nn.GELU, "strange": Wave}
    net = convolutions(kinds[name]) if name in kinds else cases.tiny(name)
    side = 12 if name in kinds else cases.TINY[name][1]
    torch.manual_seed(0)
    prep = Preprocess(resize=side, crop=side)
    core = Core(cases.randomised(net), classes=CLASSES, preprocess=prep, mirror=mirror)
    nn.init.normal_(core.tail.head.weight, generator=torch.Generator().manual_seed(0))
    core.records = CORE
    return core


@cache
def model_of(name: str, arithmetic: str = "auto", mirror: bool = False) -> MixedLinear:
    model = MixedLinear(core_of(name, mirror), "compact", features=120, arithmetic=arithmetic)
    return model.fit(RECORDS)


WANTED = [
    ("relu", IntegerForm),
    ("gelu", ExactForm),
    ("vit", ExactForm),
    ("resnet-basic", IntegerForm),
]


@pytest.mark.parametrize(("name", "kind"), WANTED)
def test_auto_takes_the_fastest_that_is_the_same_everywhere(name: str, kind: type) -> None:
    user = model_of(name).user
    assert type(user.form) is kind
    assert user.form.arithmetic == "integer"
    assert bool(user.form_reasons) == (kind is ExactForm)  # why it is not 8-bit integers


def test_a_network_that_has_no_exact_form_is_computed_in_floats_and_says_why() -> None:
    user = model_of("strange").user
    assert type(user.form) is FloatForm
    assert "sin" in user.form_reasons[-1]
    with pytest.raises(BackboneError, match=r"no integer form.*sin"):
        choose_form(core_of("strange"), Arithmetic.INTEGER, CORE)


@pytest.mark.parametrize("word", ["float", "float32"])
def test_floats_on_request(word: str) -> None:
    assert type(model_of("relu", word).user.form) is FloatForm


def test_an_unknown_arithmetic_is_refused() -> None:
    with pytest.raises(EffaceError, match=r"decimal.*integer, float or auto"):
        MixedLinear(core_of("relu"), "compact", arithmetic="decimal")


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize(
    ("name", "arithmetic"), [("relu", "auto"), ("relu", "float"), ("gelu", "auto")]
)
def test_a_row_is_a_function_of_its_image(name: str, arithmetic: str, mirror: bool) -> None:
    model = model_of(name, arithmetic, mirror)
    rows = model.stage(RECORDS).rows.whole()
    order = np.random.default_rng(0).permutation(len(RECORDS))
    again = model.stage(RECORDS[order]).rows.whole()
    assert np.array_equal(again.features, rows.features[order])
    assert np.array_equal(again.targets, rows.targets[order])
    alone = model.stage(RECORDS[[3]]).rows.whole()
    assert np.array_equal(alone.features[0], rows.features[3])


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_predictions_are_close_to_those_in_floats(name: str, mirror: bool) -> None:
    """The core's own logits; 8 bits a tensor against 20."""
    form, floats = model_of(name, mirror=mirror).user.form, FloatForm(core_of(name, mirror))
    got, want = (f.logits(f.activations(RECORDS)) for f in (form, floats))
    assert float((got - want).norm() / want.norm()) < (0.05 if name == "relu" else 1e-4)


@pytest.mark.parametrize("mirror", [False, True])
def test_mirrored_images_give_the_features_of_the_mean(mirror: bool) -> None:
    """An image and its mirror image have one row where images are read mirrored, too; else two."""
    model = model_of("relu", mirror=mirror)
    image = RECORDS[0].image()
    pair = cases.records_of(np.stack([image, image[:, ::-1]]), np.zeros(2, dtype=int))
    pair = Records(list(pair), model.classes)
    psi = [p for p, _ in model.user.form.rows(model.user.projection, model.activations(pair))]
    h = torch.cat(psi)[:, :7]
    assert torch.equal(h[0], h[1]) == mirror


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_a_form_is_loaded_as_it_was(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save(tmp_path)
    again = load(tmp_path, module=copy.deepcopy(_net(name)))
    assert again.user.form.settings == model.user.form.settings
    assert torch.equal(again.logits(RECORDS), model.logits(RECORDS))


def _net(name: str) -> nn.Module:
    return convolutions({"relu": nn.ReLU, "gelu": nn.GELU}[name])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "quantum"},
        {"kind": "integer"},
        {
            "kind": "integer",
            "image": [3, 12, 12],
            "prefix": {"x": 1},
            "tail": {},
            "gradients": None,
            "projections": {},
        },
        "integer",
    ],
)
def test_settings_that_are_none_are_refused(settings: object) -> None:
    with pytest.raises(FormatError):
        load_form(core_of("relu"), settings)  # type: ignore[arg-type]


def test_activations_of_both_forms_lie_side_by_side(tmp_path: Path) -> None:
    core = core_of("relu")
    cache_ = core.cache(tmp_path)
    form = model_of("relu").user.form
    direct = form.activations(RECORDS)
    cached = form.activations(RECORDS, cache_)
    assert direct.dtype == torch.uint8
    assert torch.equal(cached[slice(0, 10)], direct)
    floats = FloatForm(core).activations(RECORDS, cache_)
    assert floats[slice(0, 10)].dtype == torch.float32
    assert len(list(tmp_path.iterdir())) == 2
    assert torch.equal(form.activations(RECORDS, cache_)[slice(0, 10)], direct)  # now read back


def test_steps_without_any_data() -> None:
    """From synthetic images: nothing of anybody's, and still usable."""
    core = core_of("relu")
    choice, activations, matched = choose_form_without_data(core, Arithmetic.AUTO)
    assert type(choice.form) is IntegerForm
    assert matched > 0
    assert activations.dtype == torch.uint8
    got, want = choice.form.activations(RECORDS), FloatForm(core).activations(RECORDS)
    error = (choice.form.plain(got) - want).norm() / want.norm()
    assert float(error) < 0.1


def test_another_size_of_image_is_refused() -> None:
    form = model_of("relu").user.form
    broken = IntegerForm(form.core, replace(form.exponents, image=(3, 14, 14)))
    with pytest.raises(FormatError, match="made for"):
        broken.boundary(RECORDS[:1])


def test_errors_are_listed_by_layer() -> None:
    form = model_of("relu").user.form
    found = dict(form.errors(form.core.pixels(RECORDS)))
    assert len(found) == len(form.prefix_graph.summed) + len(form.tail_graph.summed)
    assert all(0 < error < 0.2 for error in found.values())


class Block(nn.Module):
    """As torchvision writes it: one ReLU used twice, the sum in place, a projection on the shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.downsample(x)
        return self.relu(out)


class TorchvisionStyle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layer1, self.layer2 = Block(8, 8, 1), Block(8, 12, 2)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(x, 1))


def test_a_network_as_torchvision_writes_it_has_an_integer_form() -> None:
    """Traced, BatchNorms not folded beforehand."""
    net = cases.randomised(TorchvisionStyle().eval())
    prep = Preprocess(resize=32, crop=32)
    core = Core(net, classes=CLASSES, linearize="layer2", preprocess=prep)
    core.records = CORE
    options = {"features": 120, "layer_features": "gradients"}
    model = MixedLinear(core, "compact", **options).fit(RECORDS)
    assert type(model.user.form) is IntegerForm
    assert len(model.user.projection.names) == 3  # both convolutions and the shortcut's
    floats = FloatForm(core)
    got = model.user.form.plain(model.activations(RECORDS))
    want = floats.activations(RECORDS)
    assert float((got - want).norm() / want.norm()) < 0.1
    # Gradients are those at the convolutions' outputs, before their BatchNorm: ψ follows the float one.
    rows = torch.cat(
        [psi for psi, _ in model.user.form.rows(model.user.projection, model.activations(RECORDS))]
    )
    plain = model.user.projection.rows(core.tail, got)
    assert float((rows - plain).norm() / plain.norm()) < 0.25
