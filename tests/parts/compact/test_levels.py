"""The numbers at which a feature's integer changes, against the quantiser itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from efface.parts.compact import chain
from efface.parts.compact.chain import CompactChain
from efface.parts.compact.levels import levels
from efface.parts.compact.power_map import POWERS, PowerMap
from efface.parts.compact.quantiser import Quantiser

SIZES = (3, 4)


def made(
    power: float, bits: int = 5, seed: int = 0, energy: bool = False
) -> tuple[Quantiser, PowerMap, np.ndarray]:
    """With a feature that is always 0, and one of huge steps: some integers are never reached."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((50, 8)) * 10.0 ** rng.integers(-6, 6, 8)
    rows[:, 3], rows[:, 5] = 1.0, 0.0
    power_map = PowerMap.fit(rows, (0.375 if energy else power, power), SIZES)
    quantiser = Quantiser.fit(power_map(rows), bits, bias=3)
    scale = quantiser.scale.copy()
    scale[6] = 2.0**200
    return Quantiser(quantiser.centre, scale, bits), power_map, rows


def integers(quantiser: Quantiser, power_map: PowerMap, rows: np.ndarray) -> np.ndarray:
    return quantiser.quantise(power_map(rows.astype(np.float64)))[0]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("energy", [False, True])
def test_an_integer_begins_at_its_level_and_not_one_number_before(
    power: float, energy: bool
) -> None:
    quantiser, power_map, _ = made(power, energy=energy)
    table, limit = levels(quantiser, power_map), quantiser.limit
    assert table.shape == (8, 2 * limit + 2)
    reached = 0
    for j, m in np.ndindex(8, 2 * limit):
        x = table[j, m + 1]
        if not np.isfinite(x):
            continue
        row = np.ones((2, 8), dtype=np.float32)
        row[:, j] = x, np.nextafter(x, np.float32(-np.inf))
        q = integers(quantiser, power_map, row)[:, j]
        assert q[0] >= m + 1 - limit > q[1]
        reached += 1
    assert reached > 6 * limit  # most of them are somewhere


class Given(nn.Module):
    """In the place of a network: the pixels are ψ."""

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return pixels, torch.zeros(len(pixels), 2)


@pytest.mark.parametrize("power", [0.25, 0.5, 0.75])
@pytest.mark.parametrize("error", [-(2.0**-22), 2.0**-22])  # far more than any root has
@pytest.mark.parametrize("energy", [False, True])
def test_roots_that_are_off_lead_to_the_same_integers(
    power: float, error: float, energy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantiser, power_map, rows = made(power, energy=energy)
    table = levels(quantiser, power_map)
    edges = np.where(np.isfinite(table), table, 1.0).T  # the numbers that matter most
    below = np.nextafter(edges, np.float32(-np.inf))
    psi = np.concatenate([rows.astype(np.float32), edges, below])
    psi[:, 3] = 1.0
    plain = chain._signed_power

    def off(x: Tensor, power: float) -> Tensor:
        return plain(x, power) * (1 + error)

    module = CompactChain(Given(), quantiser, power_map, None, 0.0)
    monkeypatch.setattr(chain, "_signed_power", off)
    wanted = integers(quantiser, power_map, psi)
    assert np.array_equal(module(torch.from_numpy(psi))[1].numpy(), wanted)
    module.levels = None
    assert not np.array_equal(module(torch.from_numpy(psi))[1].numpy(), wanted)  # the table it is
