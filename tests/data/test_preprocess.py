"""Image arrays in, normalised tensors out, as Pillow and the formula have it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from efface.data.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from efface.errors import FormatError

GRAY = Preprocess(0, 0, 1, (0.5,), (0.5,))


def picture(h: int, w: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (h, w, channels), dtype=np.uint8)


def test_the_formula() -> None:
    """x = (pixel / 255 − mean) / std, channel by channel, in float32."""
    image = picture(4, 5)
    got = Preprocess(0, 0)(image)
    for c in range(3):
        want = (image[:, :, c] / 255 - IMAGENET_MEAN[c]) / IMAGENET_STD[c]
        np.testing.assert_allclose(got[c], want, atol=1e-6)  # float32 has 7 digits of about 2
    assert got.dtype == np.float32
    assert got.flags.c_contiguous


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resize_and_crop_are_pillows(interpolation: str) -> None:
    image = picture(20, 31)
    prep = Preprocess(10, 8, 3, (0.0,) * 3, (1.0,) * 3, interpolation)
    how = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
    resized = Image.fromarray(image).resize((16, 10), how[interpolation])  # 31 · 10/20, rounded
    want = np.asarray(resized.crop((4, 1, 12, 9)), dtype=np.float32) / 255
    assert np.array_equal(prep(image), want.transpose(2, 0, 1))


@settings(max_examples=30, deadline=None)
@given(st.integers(9, 40), st.integers(9, 40), st.sampled_from([1, 3]))
def test_every_image_comes_out_at_the_crops_size(h: int, w: int, channels: int) -> None:
    assert Preprocess(9, 8)(picture(h, w, channels)).shape == (3, 8, 8)
    one = Preprocess(9, 8, 1, (0.5,), (0.5,))
    assert one(picture(h, w, channels)).shape == (1, 8, 8)


def test_sizes_are_kept_when_none_is_asked_for() -> None:
    assert GRAY(picture(5, 7, 1)).shape == (1, 5, 7)
    assert Preprocess(0, 0)(picture(5, 7)).shape == (3, 5, 7)


def test_gray_images_may_lack_their_channel() -> None:
    image = picture(5, 7, 1)
    assert np.array_equal(GRAY(image[:, :, 0]), GRAY(image))


def test_gray_becomes_three_equal_channels() -> None:
    prep = Preprocess(0, 0, 3, (0.5,) * 3, (0.5,) * 3)
    got = prep(picture(4, 4, 1))
    assert np.array_equal(got[0], got[1])
    assert np.array_equal(got[0], got[2])
    assert np.array_equal(got[:1], GRAY(picture(4, 4, 1)))


def test_colour_becomes_gray_by_luminance() -> None:
    image = picture(4, 4)
    want = np.asarray(Image.fromarray(image).convert("L"))[:, :, None]
    assert np.array_equal(GRAY(image), GRAY(want))


def test_alpha_is_dropped() -> None:
    image = picture(4, 4, 4)
    assert np.array_equal(Preprocess(0, 0)(image), Preprocess(0, 0)(image[:, :, :3]))
    assert np.array_equal(GRAY(image), GRAY(image[:, :, :3]))


def test_settings_survive_a_round_trip_through_json() -> None:
    prep = Preprocess(17, 13, 3, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), "bicubic")
    as_json = {**prep.to_dict(), "mean": list(prep.mean), "std": list(prep.std)}
    assert Preprocess.from_dict(as_json) == prep


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(FormatError, match=r"3 and 3 values for 1 channels.*one value per channel"):
        Preprocess(channels=1)
    with pytest.raises(FormatError, match=r"unknown interpolation 'cubic'.*bicubic"):
        Preprocess(interpolation="cubic")
