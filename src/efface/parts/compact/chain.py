"""The compact part as one plain module, for other programs: pixels in, logits and the integers of ψ out.

The same operations as ``CompactUser.logits``: ψ, its integers, and their product with Θ in slices whose sums
are exact. Added with one rounding each, so that logits of an integer form have the same bits everywhere.
Roots of other programs need not be correctly rounded: the integers they lead to are set right by a table of
the numbers at which they change (``levels``).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from efface.parts.compact.exact_product import SlicedWeights
from efface.parts.compact.levels import MOST_BITS, levels
from efface.parts.compact.power_map import ENERGY_POWER, PowerMap, places_of
from efface.parts.compact.quantiser import Quantiser
from efface.parts.exported import CORE_LOGITS, LOGITS, ROWS

EXACT_TERMS = 3  # so many slices are added with one rounding
NO_ROUNDING = "none: the logits have the same bits, every sum being one of integers"
ROUNDING = (
    "that of float32 in the network and, where a feature lies between two integers, one step of that "
    "feature: the check says what it came to"
)


class CompactChain(nn.Module):
    """Pixels (n, c, h, w) uint8 -> α f_core + Θᵀψ (n, classes) float32, and ψ's integers (n, k).

    Args:
        features: from pixels to ψ and f_core, a form's ``chain``.
        quantiser, power_map: from ψ to integers.
        theta: Θ (k, c); None or zeros: the model is its core.
        kept: α.
    """

    centre: Tensor
    scale: Tensor
    slices: Tensor
    divisors: Tensor | None
    levels: Tensor | None

    def __init__(
        self,
        features: nn.Module,
        quantiser: Quantiser,
        power_map: PowerMap | None,
        theta: np.ndarray | None,
        kept: float,
    ) -> None:
        super().__init__()
        self.features, self.kept, self.limit = features, kept, quantiser.limit
        self.dtype = torch.int8 if quantiser.bits <= 8 else torch.int16
        self.register_buffer("centre", torch.from_numpy(quantiser.centre.copy()))
        self.register_buffer("scale", torch.from_numpy(quantiser.scale.copy()))
        self.parts = [] if power_map is None else power_map.parts
        divisors = None if power_map is None else torch.from_numpy(_divisors(power_map))
        self.register_buffer("divisors", divisors)
        few = power_map is not None and quantiser.bits <= MOST_BITS
        table = torch.from_numpy(levels(quantiser, power_map)).flatten() if few else None  # type: ignore[arg-type]
        self.register_buffer("levels", table)
        first = torch.arange(quantiser.num_features) * (2 * quantiser.limit + 2) if few else None
        self.register_buffer("first", first)
        self.num_slices, self.exact = 0, power_map is None or few
        self.outputs: tuple[str, ...] = (LOGITS, ROWS)
        if kept:
            self.outputs += (CORE_LOGITS,)
        if theta is not None and theta.any():
            self._take(theta, quantiser)

    def _take(self, theta: np.ndarray, quantiser: Quantiser) -> None:
        if theta.dtype == np.float32:
            slices = SlicedWeights(theta, quantiser.scale, quantiser.limit).slices
        else:
            slices = [theta.astype(np.float64) * quantiser.scale[:, None]]
        self.num_slices, self.num_classes = len(slices), theta.shape[1]
        rounded_once = theta.dtype == np.float32 and len(slices) <= EXACT_TERMS
        self.exact = self.exact and rounded_once
        self.register_buffer("slices", torch.from_numpy(np.concatenate(slices, axis=1)))

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        psi, core = self.features(pixels)
        q = self._integers(psi)
        logits = core
        if self.num_slices:
            products = q @ self.slices
            logits = summed(self._cut(products)).float()
            if self.kept:
                logits = self.kept * core + logits
        both = (logits, q.to(self.dtype))
        return (*both, core.clone()) if self.kept else both

    def _raised(self, x: Tensor) -> Tensor:
        """Every part to its power; the constant feature stands between the first two."""
        raised = [_signed_power(x[:, at], power) for at, power in self.parts]
        bias = self.parts[0][0].stop
        return torch.cat([raised[0], x[:, bias : bias + 1], *raised[1:]], dim=1)

    def _cut(self, products: Tensor) -> list[Tensor]:
        c = self.num_classes
        return [products[:, i * c : (i + 1) * c] for i in range(self.num_slices)]

    def _integers(self, psi: Tensor) -> Tensor:
        x = psi.double()
        if self.divisors is not None:
            x = self._raised(x) / self.divisors
        q = ((x - self.centre) / self.scale).round().clamp(-self.limit, self.limit)
        if self.levels is None:
            return q
        at = q.to(torch.int64) + (self.limit + self.get_buffer("first"))
        psi = psi.float()
        return q - (psi < self.levels[at]).double() + (psi >= self.levels[at + 1]).double()


def _divisors(power_map: PowerMap) -> np.ndarray:
    """One a feature; 1 for the constant one."""
    found = np.ones(sum(power_map.sizes) + 1)
    for at, divisor in zip(places_of(power_map.sizes), power_map.divisors, strict=True):
        found[at] = divisor
    return found


def _signed_power(x: Tensor, power: float) -> Tensor:
    if power == 1.0:
        return x
    root = x.abs().sqrt()
    if power == ENERGY_POWER:
        root = root.sqrt()
        root = root * root.sqrt()
    elif power != 0.5:
        fourth = root.sqrt()
        root = fourth if power == 0.25 else root * fourth
    return torch.where(x < 0, -root, root)


def summed(terms: list[Tensor]) -> Tensor:
    """The sum rounded once, of up to three terms; of more, up to the rounding of the third and later ones."""
    if len(terms) <= 2:
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]
    first, second, third = terms[0], terms[1], sum(terms[2:], torch.zeros_like(terms[0]))
    high, low = _two_sum(second, third)
    total, rest = _two_sum(first, high)
    # first + second + third = total + (rest + low) exactly; what is left is small beside ``total``.
    small, dust = _two_sum(rest, low)
    result, off = _two_sum(total, small)
    # ``result`` is the right neighbour unless it was a tie, which ``dust`` decides then.
    other = result + 2 * off
    tie = (off != 0) & (other - result == 2 * off)
    return torch.where(tie & (dust * off > 0), other, result)


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b rounded, and what rounding left out, exactly (Knuth)."""
    total = a + b
    seen = total - a
    return total, (a - (total - seen)) + (b - seen)
