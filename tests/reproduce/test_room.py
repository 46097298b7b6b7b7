from pathlib import Path

import pytest

from efface.reproduce.room import FALLBACK, room


def test_a_share_of_what_is_free(tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       24000000 kB\nMemAvailable:   10000000 kB\n")
    assert room(path) == 6 * 1024 * 10**6


@pytest.mark.parametrize("text", [None, "", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_system_that_does_not_tell(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "meminfo"
    if text is not None:
        path.write_text(text)
    assert room(path) == FALLBACK
