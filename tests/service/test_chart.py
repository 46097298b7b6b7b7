"""The drawing of accuracy over releases: its ends have their numbers, and nothing lies outside."""

from __future__ import annotations

import re

import pytest

from efface.service.evaluations import Evaluation
from efface.service.page.chart import HEIGHT, WIDTH, accuracy_chart


def entries(*values: float) -> list[Evaluation]:
    return [Evaluation(release, value, 100, 0.0) for release, value in enumerate(values, 3)]


def test_one_release_is_no_line() -> None:
    assert accuracy_chart(entries(0.9)) == ""


@pytest.mark.parametrize("values", [(0.9, 0.9), (0.5, 0.95, 0.6), (1.0, 0.0), (0.0, 0.01, 1.0)])
def test_the_ends_have_their_numbers_and_all_is_inside(values: tuple[float, ...]) -> None:
    text = str(accuracy_chart(entries(*values)))
    said = re.findall(r">([^<]+)</text>", text)
    last = 3 + len(values) - 1
    first_number, last_number = f"{100 * values[0]:.1f} %", f"{100 * values[-1]:.1f} %"
    assert said == [first_number, "release 3", last_number, f"release {last}"]
    assert text.count("<circle") == len(values)
    for name, most in (("x", WIDTH), ("y", HEIGHT)):
        places = [float(v) for v in re.findall(rf' c?{name}="([-\d.]+)"', text)]
        assert places
        assert all(5 <= place <= most - 2 for place in places)
