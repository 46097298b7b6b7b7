"""Grids of small pictures as SVG text, the pictures inside it as PNG."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from efface.report.svg import GRID, READABLE, SERIES, SOFT, Ink

SMALLEST = 440  # pixels; on narrower screens the page scrolls the grid sideways
GAP, LINE = 10, 15  # pixels between pictures, and a caption's height


@dataclass(frozen=True)
class Thumbnail:
    """A small picture, uint8 (h, w) or (h, w, channels); ``marked`` gives it a coloured frame."""

    pixels: np.ndarray
    caption: str = ""
    marked: bool = False


def image_grid(
    pictures: Sequence[Thumbnail], *, columns: int = 10, side: int = 56, title: str = ""
) -> str:
    """Pictures in rows of ``columns``, each drawn ``side`` pixels high with its caption below.

    They are not smoothed: of an 8 × 8 digit one wants to see the 64 pixels. No pictures: "".
    """
    if not pictures:
        return ""
    captioned = any(picture.caption for picture in pictures)
    step_x, step_y = side + GAP, side + GAP + (LINE if captioned else 0)
    num_columns = max(1, min(columns, len(pictures)))
    width, height = num_columns * step_x, max(1, -(-len(pictures) // num_columns)) * step_y
    cells = [
        _cell(picture, GAP / 2 + i % num_columns * step_x, 2 + i // num_columns * step_y, side)
        for i, picture in enumerate(pictures)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{html.escape(title)}" style="width:100%;max-width:{width}px;'
        f"min-width:{max(min(width, SMALLEST), round(READABLE * width))}px;height:auto;"
        f'font-family:inherit">{"".join(cells)}</svg>'
    )


def png_uri(pixels: np.ndarray) -> str:
    """``data:image/png;base64,…`` of an image, uint8 (h, w) or (h, w, 1 or 3)."""
    array = np.asarray(pixels)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _cell(picture: Thumbnail, x: float, y: float, side: int) -> str:
    at = f'x="{x:g}" y="{y:g}" width="{side}" height="{side}"'
    frame, stroke = (_css(SERIES[1]), 3) if picture.marked else (_css(GRID), 1)
    text = (
        f'<image {at} href="{png_uri(picture.pixels)}" style="image-rendering:pixelated"/>'
        f'<rect {at} rx="3" fill="none" style="stroke:{frame};stroke-width:{stroke}"/>'
    )
    if picture.caption:
        text += (
            f'<text x="{x + side / 2:g}" y="{y + side + LINE - 2:g}" text-anchor="middle" '
            f'style="font-size:11px;fill:{_css(SOFT)}">{html.escape(picture.caption)}</text>'
        )
    return text


def _css(ink: Ink) -> str:
    return f"var({ink.variable}, {ink.light})"
