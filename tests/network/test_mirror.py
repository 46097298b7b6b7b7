"""A mirrored core reads an image twice and averages the features; all else follows from that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests import cases
from torch import Tensor

from efface.data.record import Split
from efface.data.records import Records
from efface.errors import EffaceError
from efface.guarantee.certificates import ShiftCertificate
from efface.linear.projection import Projection
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.training import Stage

CLASSES = ("a", "b", "c")
CORE, USER = cases.tiny_records(24, 0, split=Split.CORE), cases.tiny_records(30, 1)
TEST = cases.tiny_records(30, 9)


def trained(mirror: bool = True) -> Core:
    core = Core("cnn", classes=CLASSES, mirror=mirror)
    return core.fit(CORE, [Stage("all", epochs=8, batch_size=8)])


@pytest.fixture(scope="module")
def core() -> Core:
    return trained()


def plain_twin(core: Core) -> Core:
    """The same weights in a core that reads an image once."""
    twin = Core("cnn", classes=CLASSES)
    twin.load_tensors(core.tensors)
    return twin


def flipped(records: Records) -> Tensor:
    return Core("cnn", classes=CLASSES).images(records).flip(-1)


def close(have: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


# --- what it computes -----------------------------------------------------------------------------


def test_boundary_activations_are_those_of_both_views(core: Core) -> None:
    twin, both = plain_twin(core), core.activations(TEST)[:]
    assert tuple(both.shape[1:]) == core.boundary_shape
    close(both[:, 0], twin.activations(TEST)[:])
    with torch.no_grad():
        close(both[:, 1], twin.boundary(flipped(TEST)))


def test_features_are_the_mean_of_both_views(core: Core) -> None:
    twin = plain_twin(core)
    with torch.no_grad():
        other = twin.features_of(twin.boundary(flipped(TEST)))
    want = (twin.features_of(twin.activations(TEST)) + other) / 2
    close(core.features_of(core.activations(TEST)), want)
    close(core.logits(TEST), core.tail.head(want).detach())


def test_a_mirrored_image_is_the_same_to_it(core: Core) -> None:
    with torch.no_grad():
        straight = core.logits_of(core.activations(TEST))
        turned = core.logits_of(core.boundary(flipped(TEST)))
        plain = plain_twin(core)
        assert not torch.allclose(
            plain.logits(TEST), plain.logits_of(plain.boundary(flipped(TEST)))
        )
    close(turned, straight)


def test_compact_features_are_the_mean_of_both_views(core: Core) -> None:
    """ψ_l is linear in the layer's gradient, and the gradient of a mean is the mean of gradients."""
    twin, n = plain_twin(core), len(TEST)
    projection = Projection.build(core.tail, core.activations(CORE), 200)
    views = core.activations(TEST)[:].flatten(0, 1)
    with_means = projection.rows(core.tail, core.activations(TEST))
    each = projection.rows(twin.tail, views)
    close(with_means, each.unflatten(0, (n, 2)).mean(1))


# --- what users do with it ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["compact", "tangent"])
def test_forgetting_is_retraining_without(core: Core, kind: str) -> None:
    options = {"compact": {"features": 200}, "tangent": {"mu": 0.1}}[kind]
    make = lambda: MixedLinear(core, kind, **options)  # type: ignore[arg-type]  # noqa: E731
    model = make().fit(USER, replay=CORE)
    assert model.accuracy(TEST) > 0.8
    certificate = model.forget(ids=list(USER.ids[:5]))
    twin = make().fit(USER[np.arange(5, len(USER))], replay=CORE)
    if kind == "compact":
        assert model.user.statistics_digest == twin.user.statistics_digest
        assert model.user.weights_digest == twin.user.weights_digest
    else:
        assert isinstance(certificate, ShiftCertificate)
        # Both are within their residual over mu of the minimiser.
        near = certificate.distance_bound + twin.solution.residual_norm / 0.1  # type: ignore[union-attr]
        assert float((model.user.state - twin.user.state).norm()) <= near
        assert near < 0.1 * float(twin.user.state.norm())


def test_it_is_saved_with_the_core(core: Core, tmp_path: Path) -> None:
    core.save(tmp_path)
    again = Core.load(tmp_path)
    assert again.mirror
    assert again.digest == core.digest
    assert torch.equal(again.logits(TEST), core.logits(TEST))


def test_a_core_without_it_keeps_the_digest_it_has_always_had(core: Core) -> None:
    plain = plain_twin(core)
    assert "mirror" not in plain.settings
    assert plain.digest != core.digest


def test_activations_of_the_two_are_not_mixed_up(core: Core, tmp_path: Path) -> None:
    plain = plain_twin(core)
    cache = plain.cache(tmp_path)
    plain.activations(TEST, cache)
    assert plain.prefix_digest != core.prefix_digest
    with pytest.raises(EffaceError, match="another core"):
        core.activations(TEST, cache)
