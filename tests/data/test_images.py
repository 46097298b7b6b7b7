"""Images: decoding as a person sees them, and digests of content."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from tests.cases import encoded

from efface.data.images import Channels, decode, digest_of, is_whole, num_channels
from efface.data.records import Records
from efface.errors import RecordError

RAMP = np.arange(48, dtype=np.uint8).reshape(4, 4, 3) * 5


def test_rgb_png_decodes_to_its_pixels() -> None:
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(RAMP))), RAMP)


def test_gray_stays_gray_and_converts_both_ways() -> None:
    gray = encoded(Image.fromarray(RAMP[:, :, 0]))
    np.testing.assert_array_equal(decode(gray), RAMP[:, :, :1])
    np.testing.assert_array_equal(decode(gray, Channels.RGB), RAMP[:, :, :1].repeat(3, axis=2))
    luma = decode(encoded(Image.fromarray(RAMP)), Channels.GRAY)
    expected = RAMP @ np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(luma[:, :, 0], expected, atol=1)  # 1: Pillow rounds


@pytest.mark.parametrize("alpha", [0, 128, 255])
def test_alpha_is_dropped_not_blended(alpha: int) -> None:
    rgba = np.dstack([RAMP, np.full((4, 4), alpha, np.uint8)])
    np.testing.assert_array_equal(decode(encoded(Image.fromarray(rgba))), RAMP)
    np.testing.assert_array_equal(decode(rgba), RAMP)
    gray_alpha = Image.fromarray(rgba[:, :, [0, 3]], "LA")
    np.testing.assert_array_equal(decode(encoded(gray_alpha)), RAMP[:, :, :1])


def test_palette_becomes_its_colours() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    data = encoded(image, transparency=bytes([0, 255]))
    assert num_channels(data) == 3
    assert decode(data).tolist() == [[[10, 20, 30], [200, 100, 50]]]


def test_bilevel_spans_the_whole_range() -> None:
    image = Image.new("1", (2, 1))
    image.putpixel((1, 0), 1)
    assert decode(encoded(image)).ravel().tolist() == [0, 255]


DEEP = np.array([[0, 128, 129, 257], [32768, 65278, 65407, 65535]], np.uint16)
DEEP_AS_8_BITS = [0, 0, 1, 1, 128, 254, 255, 255]  # round(v · 255 / 65535)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_are_scaled_not_clipped(kind: str) -> None:
    assert decode(encoded(Image.fromarray(DEEP), kind)).ravel().tolist() == DEEP_AS_8_BITS


def test_16_bit_arrays_are_scaled_like_files() -> None:
    assert decode(DEEP).ravel().tolist() == DEEP_AS_8_BITS
    rgb = np.full((2, 2, 3), 65535, np.uint16)
    assert (decode(rgb) == 255).all()


def test_32_bit_pixels_without_a_range_are_refused() -> None:
    floats = encoded(Image.fromarray(np.ones((2, 2), np.float32)), "TIFF")
    with pytest.raises(ValueError, match="no agreed range"):
        num_channels(floats)
    integers = encoded(Image.fromarray(np.full((2, 2), 70_000, np.int32)), "TIFF")
    with pytest.raises(ValueError, match="no agreed range"):
        decode(integers)


def test_exif_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90° clockwise
    data = encoded(Image.fromarray(RAMP[:2]), exif=exif)
    np.testing.assert_array_equal(decode(data), np.rot90(RAMP[:2], k=-1))


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((2, 2), np.float32), "float32"),
        (np.zeros((2, 2), bool), "bool"),
        (np.zeros((3, 4, 5), np.uint8), "5 channels"),
        (np.zeros(4, np.uint8), r"shape \(4,\)"),
        (np.zeros((0, 4, 3), np.uint8), r"shape \(0, 4, 3\)"),
    ],
)
def test_arrays_that_are_no_images(pixels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        num_channels(pixels)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([1, 3]), st.integers(0, 2**32))
def test_array_and_lossless_file_decode_alike(h: int, w: int, channels: int, seed: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, channels), dtype=np.uint8)
    file = encoded(Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels))
    for wanted in (None, Channels.GRAY, Channels.RGB):
        np.testing.assert_array_equal(decode(pixels, wanted), decode(file, wanted))
    assert decode(pixels).shape == (h, w, channels)


# digests


def test_digest_of_bytes_is_plain_sha256() -> None:
    assert digest_of(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_digest_of_arrays_tells_shape_and_dtype_apart() -> None:
    flat = np.arange(16, dtype=np.uint8)
    shapes = [flat.reshape(4, 4), flat.reshape(2, 8), flat.view(np.uint16).reshape(2, 4)]
    assert len({digest_of(array) for array in shapes}) == 3
    strided = np.arange(32, dtype=np.uint8).reshape(4, 8)[:, ::2]
    assert digest_of(strided) == digest_of(strided.copy())


SAVED: dict[str, dict[str, Any]] = {
    "JPEG": {},
    "progressive": {"format": "JPEG", "progressive": True},
    "PNG": {},
    "GIF": {},
    "JPEG2000": {},
    "BMP": {},
    "WEBP": {},
}


def saved(name: str) -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    options = {"format": name, **SAVED[name]}
    thumbnail = Image.fromarray(noise[:8, :8].copy())
    if options["format"] == "JPEG":  # a whole picture in its header, as cameras write
        options["exif"] = b"Exif\0\0" + encoded(thumbnail, "JPEG")
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


@pytest.mark.parametrize("name", SAVED)
def test_a_whole_image_is_taken_for_whole(name: str) -> None:
    """Or every image of this kind would be decoded twice."""
    assert is_whole(saved(name))


@pytest.mark.parametrize("name", ["JPEG", "progressive", "PNG", "GIF", "JPEG2000"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_an_image_that_was_cut_off_is_refused_exactly_if_it_cannot_be_decoded(
    name: str, share: float
) -> None:
    """Where the cut is in the header the thumbnail in it is whole, and opening fails."""
    data = saved(name)
    cut = data[: int(share * len(data))]
    try:
        decode(cut)
    except Exception:
        with pytest.raises(RecordError):
            Records.from_images([cut], ["a"])
    else:
        assert len(Records.from_images([cut], ["a"])) == 1


@pytest.mark.parametrize("name", ["JPEG", "PNG", "GIF"])
def test_bytes_after_the_end_do_no_harm(name: str) -> None:
    """They are not taken for whole, or they are: either way the image is read."""
    file = io.BytesIO(saved(name) + b"\0" * 20)
    (made,) = Records.from_images([file.getvalue()], ["a"])
    np.testing.assert_array_equal(made.image(), decode(saved(name)))


def test_pixels_are_whole() -> None:
    assert is_whole(np.zeros((4, 4), dtype=np.uint8))
