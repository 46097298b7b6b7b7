"""Random crops: inside the image, functions of (seed, epoch, place) and the image alone."""

from __future__ import annotations

import numpy as np
import pytest

from efface.data.preprocess import Preprocess
from efface.network.augmentation import FLIP, RATIOS, Augmentation, Box, draws, random_box, shuffled

PREPROCESS = Preprocess(0, 0, 1, (0.5,), (0.5,))
MIDDLE = (0.5,) * 8
LAST = (1 - 2.0**-53,) * 8


def picture(height: int, width: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def test_draws_are_uniform_and_depend_on_seed_epoch_and_place() -> None:
    many = np.array([draws(0, 1, place) for place in range(2000)])
    assert many.min() >= 0
    assert many.max() < 1
    # standard deviations of a mean and a correlation of 2,000: 0.0065 and 0.022
    np.testing.assert_allclose(many.mean(0), 0.5, atol=0.03)
    assert np.abs(np.corrcoef(many.T) - np.eye(8)).max() < 0.1
    assert len({draws(*key) for key in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0))}) == 4


def test_draws_never_change() -> None:
    """A checkpoint begun with one version goes on with the next."""
    assert draws(0, 0, 0)[:2] == (0.7620672717501645, 0.7467977732193615)


def test_every_place_comes_once_an_epoch_in_an_order_of_its_own() -> None:
    first, second = shuffled(0, 0, 50), shuffled(0, 1, 50)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert first != shuffled(1, 0, 50)


@pytest.mark.parametrize("shape", [(240, 320), (320, 240), (1, 1), (1, 500), (8, 8)])
def test_boxes_lie_in_the_image(shape: tuple[int, int]) -> None:
    height, width = shape
    for place in range(300):
        box = random_box(height, width, (0.25, 1.0), draws(3, 0, place))
        assert 0 <= box.left < box.left + box.width <= width
        assert 0 <= box.top < box.top + box.height <= height


def test_boxes_have_the_area_and_the_ratio_that_were_drawn() -> None:
    shares, ratios = [], []
    for place in range(2000):
        box = random_box(1000, 1000, (0.1, 0.5), draws(0, 0, place))  # always fits
        shares.append(box.width * box.height / 1e6)
        ratios.append(box.width / box.height)
    assert 0.099 < min(shares) < 0.11
    assert 0.49 < max(shares) < 0.501
    assert np.mean(shares) == pytest.approx(0.3, abs=0.01)
    assert min(ratios) == pytest.approx(RATIOS[0], abs=0.02)
    assert max(ratios) == pytest.approx(RATIOS[1], abs=0.02)


def test_boxes_reach_every_edge() -> None:
    assert random_box(100, 200, (0.25, 0.25), (0.5, 0.5, 0, 0)) == Box(0, 0, 71, 71)
    box = random_box(100, 200, (0.25, 0.25), (0.5, 0.5, *LAST[:2]))
    assert (box.left + box.width, box.top + box.height) == (200, 100)


def test_a_view_without_a_crop_is_the_image_or_its_mirror_image() -> None:
    image = picture(6, 6)
    view = Augmentation(PREPROCESS, 6, (1.0, 1.0))
    plain, mirrored = view(image, MIDDLE), view(image, (*MIDDLE[:FLIP], 0.4))
    np.testing.assert_array_equal(plain, PREPROCESS(image))
    np.testing.assert_array_equal(mirrored, PREPROCESS(image[:, ::-1]))
    still = Augmentation(PREPROCESS, 6, (1.0, 1.0), flip=False)
    np.testing.assert_array_equal(still(image, (*MIDDLE[:FLIP], 0.4)), plain)


def test_a_view_shows_nothing_from_outside_its_box() -> None:
    """Black where the box is, white elsewhere: resizing must not mix the two."""
    drawn = draws(0, 0, 0)
    box = random_box(90, 120, (0.25, 0.5), drawn)
    image = np.full((90, 120, 3), 255, dtype=np.uint8)
    image[box.top : box.top + box.height, box.left : box.left + box.width] = 0
    view = Augmentation(Preprocess(), 32, (0.25, 0.5))(image, drawn)
    black = Preprocess()(np.zeros((224, 224, 3), dtype=np.uint8))
    np.testing.assert_array_equal(view, black[:, :32, :32])


@pytest.mark.parametrize("channels", [1, 3])
def test_views_have_the_size_and_the_channels_of_the_network(channels: int) -> None:
    drawn = draws(0, 0, 1)
    wide = picture(40, 60, channels)
    assert Augmentation(Preprocess(), 16)(wide, drawn).shape == (3, 16, 16)
    assert Augmentation(PREPROCESS, 0)(wide, drawn).shape == (1, 40, 60)  # 0: as the image
    assert Augmentation(PREPROCESS, 16)(wide, drawn).dtype == np.float32
