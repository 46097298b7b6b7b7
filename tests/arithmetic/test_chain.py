"""Forms as plain modules: the same numbers as the forms themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests import cases

from efface.data.preprocess import Preprocess
from efface.data.record import Split
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.parts.compact.chain import summed

CLASSES = ("a", "b", "c")
CORE = cases.tiny_records(24, 0, split=Split.CORE)
USER = cases.tiny_records(40, 1)
TEST = cases.tiny_records(9, 2, split=Split.TEST)


def fitted(
    name: str, *, replay: bool = False, features: int = 150, **options: object
) -> MixedLinear:
    """A model on a tiny network of transformers with random weights."""
    core_options = {k: options.pop(k) for k in ("mirror", "fold_batchnorm") if k in options}
    side = cases.TINY[name][1]
    net = cases.randomised(cases.tiny(name)).eval()
    core = Core(net, classes=CLASSES, preprocess=Preprocess(side, side), **core_options)  # type: ignore[arg-type]
    model = MixedLinear(core.fit(CORE), features=features, **options)
    return model.fit(USER, replay=CORE if replay else None)


def run(model: MixedLinear, size: int) -> list[torch.Tensor]:
    """The exported module on the test images, so many at once."""
    module = model.user.exported().module
    with torch.no_grad():
        found = [module(batch) for batch in model.core.pixels(TEST).split(size)]
    return [torch.cat(parts) for parts in zip(*found, strict=True)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mirror": True},
        {"fold_batchnorm": False},
        {"replay": True},
        {"layer_features": "moments"},
        {"layer_features": "gradients", "power": 1.0},
        {"features": 4},
        {"power": 0.75},
        {"power": 0.5, "bits": 12},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["resnet-bottleneck", "resnet-basic"])
def test_integers_have_the_same_bits(name: str, options: dict[str, object]) -> None:
    model = fitted(name, **options)  # type: ignore[arg-type]
    assert model.user.form.kind == "integer"
    exported = model.user.exported()
    assert exported.bit_equal == ("bits" not in options)
    activations = model.activations(TEST)
    rows = model.user.rows(activations, torch.zeros(len(TEST), dtype=torch.int64)).features
    for size in (len(TEST), 1):
        logits, integers, *core = run(model, size)
        assert torch.equal(logits, model.logits(TEST))
        assert np.array_equal(integers.numpy(), rows)
        if core:
            assert torch.equal(core[0], model.core_logits(TEST))


@pytest.mark.parametrize("name", ["convnext", "vit", "dinov2", "swin"])
def test_floats_are_within_rounding(name: str) -> None:
    model = fitted(name)
    assert not model.user.exported().bit_equal
    psi, _ = next(iter(model.user.form.rows(model.user.projection, model.activations(TEST)[:1])))
    chain = model.user.form.chain(model.user.projection)
    with torch.no_grad():
        found, logits = chain(model.core.pixels(TEST))
    assert torch.allclose(found[:1], psi, atol=1e-4)
    assert torch.allclose(logits, model.core_logits(TEST), atol=1e-4)


def test_three_terms_are_added_with_one_rounding() -> None:
    """As math.fsum, ties and all: the last term decides on which side of the middle the sum is."""
    one, half, tiny = 1.0, 2.0**-53, 2.0**-140
    first = [one, one, one, one + 2**-52, -one, 3.7, 1e300, 0.0, one]
    second = [half, half, half, half, -half, -3.7, 1.0, 0.0, 2**-60]
    third = [tiny, -tiny, 0.0, -tiny, -tiny, 2**-90, -1.0, 0.0, half]
    terms = [torch.tensor(values, dtype=torch.float64) for values in (first, second, third)]
    import math

    expected = [math.fsum(values) for values in zip(first, second, third, strict=True)]
    assert summed(terms).tolist() == expected
    plain = (terms[0] + terms[1] + terms[2]).tolist()
    assert plain != expected  # so that the cases above ask for it
