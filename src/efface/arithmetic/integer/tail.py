"""ψ on integers: features, gradients and projections of a tail, every sum of them exact.

For layer l with input integers a_l(s) and output gradient integers g_l(s),

    ψ_l = vec( Σ_s p_g(s) p_a(s)ᵀ ),     p_a = round(R_aᵀ a_l),  p_g = round(R_gᵀ g_l),

with bases rounded to 8 bits and projections to |p| ≤ √(2^24 / places), so that the last sum is exact,
too. Moments are triu( Σ_s p_a(s) p_a(s)ᵀ ), exact by the same bound, and need no gradients; roots of
covariances are made of the same sums in float64 (``linear/matrix_root.py``). Maps (what a step reads) may
have more than 8 bits, if only a mean reads them: they are rounded to 8 first. Energies Σ_s q(s)² are sums of
squares of such bytes.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from efface.arithmetic.integer.gradient import IntegerGradient
from efface.arithmetic.integer.graph import REACH, IntegerGraph, Kept
from efface.arithmetic.integer.ops import Affine, read
from efface.arithmetic.integer.sums import (
    EXACT,
    ExactAffine,
    integers,
    least_exponent,
    power,
    weight_exponents,
)
from efface.linear.projection import Energy, Projection, moments, roots
from efface.linear.taps import BEFORE

MOST_REACH = 1023
SQUARES = (EXACT - 1) // REACH**2  # so many squares of bytes add up exactly in float32
PERCENTILE = 0.9995


@dataclass(frozen=True, eq=False)
class Projected:
    """One layer's two projections: bases as integers, and the exponents of what they give.

    Without ``gradients`` its features are moments, and both exponents are that of the input. Of a map,
    ``number`` is the tensor's own, and ``gradient_exponent`` that of its 8 bits.
    """

    number: int
    inputs: ExactAffine  # R_aᵀ, in units of 2^input_exponent
    gradients: ExactAffine | None  # R_gᵀ, in units of 2^gradient_exponent
    input_exponent: int
    gradient_exponent: int
    roots: bool = False  # of covariances, for which no unit matters

    def to(self, device: torch.device) -> Projected:
        gradients = None if self.gradients is None else self.gradients.to(device)
        return replace(self, inputs=self.inputs.to(device), gradients=gradients)

    def row(self, x: Tensor, g: Tensor | None, samples: int) -> Tensor:
        """ψ_l of each sample, (n, r_g · r_a) or (n, r(r + 1)/2)."""
        if self.gradients is None or g is None:
            a = _by_sample(_places_last(self.inputs(x)), samples)
            reach = projection_reach(a.shape[1])
            a = a.round_().clamp_(-reach, reach)
            if self.roots:
                return roots(a.cpu())
            return moments(a).mul_(float(power(2 * self.input_exponent)))
        a, b = self.inputs(x), self.gradients(_places_last(g))
        a, b = _by_sample(_places_last(a), samples), _by_sample(b, samples)  # (n, s, r)
        reach = projection_reach(a.shape[1])
        a, b = (t.round_().clamp_(-reach, reach) for t in (a, b))
        unit = float(power(self.input_exponent + self.gradient_exponent))
        return (b.transpose(1, 2) @ a).flatten(1).mul_(unit)


@dataclass(frozen=True)
class ChannelEnergies:
    """Energies Σ_s q(s)² of the channels of an integer tensor, q in units of 2^exponent.

    Sums of 258 squares of bytes are exact in float32, sums of those in float64, rounded to float32 once.
    """

    number: int
    exponent: int

    def row(self, q: Tensor, samples: int) -> Tensor:
        """(n, channels), on the CPU; q has its places last, views of a sample one after the other."""
        blocks = [b.square().sum(1) for b in _by_sample(q, samples).split(SQUARES, dim=1)]
        total = torch.stack(blocks).cpu().double().sum(0)
        return (total * float(power(2 * self.exponent))).float()


def projection_reach(places: int) -> int:
    """The largest r with places · r² < 2^24."""
    return min(MOST_REACH, math.isqrt((EXACT - 1) // places))


def map_numbers(steps: Sequence[tuple[str, nn.Module]], names: Sequence[str]) -> dict[str, int]:
    """Of ``names`` those of maps -> number of the tensor: the last one of all steps before."""
    known = {f"{BEFORE}{step}": i for i, (step, _) in enumerate(steps)}
    return {
        name: len(read(nn.Sequential(OrderedDict(steps[: known[name]])), fold=False))
        for name in names
        if name in known
    }


class IntegerTail:
    """The tail's features and ψ on the integers at the boundary.

    Args:
        graph: the tail without its head, up to the pooled features.
        gradient: its backward pass; None where there are no gradient features.
        projection: bases and scales, in plain numbers.
        exponents: layer name -> exponents of its two projections.
        views: how many views of an image one sample has (mirrored images: 2).
        maps: name of a map -> number of its tensor.
    """

    def __init__(
        self,
        graph: IntegerGraph,
        gradient: IntegerGradient | None,
        projection: Projection,
        exponents: Mapping[str, tuple[int, int]],
        views: int = 1,
        maps: Mapping[str, int] | None = None,
    ) -> None:
        self.graph, self.gradient, self.projection = graph, gradient, projection
        self.exponents, self.views, self.maps = dict(exponents), views, dict(maps or {})
        numbers = {op.name: number for number, op in graph.numbered() if isinstance(op, Affine)}
        self.projected = [
            self._project_map(i, self.maps[name], *exponents[name])
            if name in self.maps
            else self._project(i, numbers[name], *exponents[name])
            for i, name in enumerate(projection.names)
        ]
        self.energies = [self._energy(e, numbers) for e in projection.energies]

    def _energy(self, energy: Energy, numbers: Mapping[str, int]) -> ChannelEnergies:
        """Of a map in the 8 bits that its moments have, or of the integers that a convolution reads."""
        if energy.name in self.maps:
            return ChannelEnergies(self.maps[energy.name], self.exponents[energy.name][1])
        at = self.graph.ops[numbers[energy.name] - 1].inputs[0]
        if self.graph.reach[at] > REACH:
            raise ValueError(f"{energy.name} reads no bytes")
        return ChannelEnergies(at, self.graph.exponent(at))

    def _project_map(self, i: int, number: int, e_input: int, e_map: int) -> Projected:
        basis = self.projection.inputs[i].double().T  # (r, channels)
        plain = Affine("basis", (), basis, torch.zeros(len(basis)).double(), None)
        inputs = _rounded_basis(plain, basis, e_map - e_input, REACH)
        return Projected(number, inputs, None, e_input, e_map, self.projection.roots)

    def _project(self, i: int, number: int, e_input: int, e_gradient: int) -> Projected:
        op = self.graph.ops[number - 1]
        assert isinstance(op, Affine)
        kernel = self.projection.inputs[i].double().T.reshape(-1, *op.weight.shape[1:])
        e_in = self.graph.exponent(op.inputs[0])
        inputs = _rounded_basis(op, kernel, e_in - e_input, self.graph.reach[op.inputs[0]])
        gradients = None
        if self.projection.has_gradients:
            gradients = self._gradient_basis(i, number, e_gradient)
        elif e_input != e_gradient:
            raise ValueError(f"moments have one step, not {e_input} and {e_gradient}")
        return Projected(number, inputs, gradients, e_input, e_gradient)

    def _gradient_basis(self, i: int, number: int, e_gradient: int) -> ExactAffine:
        assert self.gradient is not None
        basis = self.projection.gradients[i].double().T  # (r, outputs)
        plain = Affine("basis", (), basis, torch.zeros(len(basis)).double(), None)
        return _rounded_basis(plain, basis, self.gradient.exponents[number] - e_gradient, REACH)

    def to(self, graph: IntegerGraph) -> IntegerTail:
        """The same where ``graph`` is, which is this one's on another device."""
        made = copy.copy(self)
        made.graph = graph
        made.gradient = None if self.gradient is None else self.gradient.to(graph)
        made.projected = [projected.to(graph.device) for projected in self.projected]
        return made

    def _input(self, q: Tensor) -> Tensor:
        return _flat(q.to(self.graph.device), self.views)

    @torch.no_grad()
    def features(self, q: Tensor) -> Tensor:
        """Pooled features h, (n, p) float32, on the CPU."""
        return self._pooled(self.graph(self._input(q)), len(q)).cpu()

    @torch.no_grad()
    def rows(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """ψ (n, k) and h (n, p), float32, of boundary integers (n, …); both on the CPU."""
        kept, n = (self._kept() if self.projected and not self.maps else None), len(q)
        features, read = self._run(self._input(q), kept)
        h = self._pooled(features, n)
        gradients = dict[int, Tensor]()
        if kept is not None:
            gradients, read = self._gradients(kept, features), kept.inputs
        parts = [e.row(read[e.number], n) for e in self.energies] or [h]
        parts += [p.row(read[p.number], gradients.get(p.number), n) for p in self.projected]
        scaled = [p.cpu() / c for p, c in zip(parts, self.projection.part_scales, strict=True)]
        return torch.cat([scaled[0], torch.ones(n, 1), *scaled[1:]], dim=1), h.cpu()

    def _run(self, q: Tensor, kept: Kept | None) -> tuple[Tensor, dict[int, Tensor]]:
        """The last tensor; and the maps by number, places last, as integers of 8 bits in their steps."""
        pairs = zip(self.projected, self.projection.names, strict=True)
        steps = {p.number: p.gradient_exponent for p, name in pairs if name in self.maps}
        plain = {e.number for e in self.energies} - set(steps)  # integers of 8 bits as they are
        found: dict[int, Tensor] = {}

        def observe(number: int, y: Tensor) -> None:
            if number in plain:
                found[number] = _places_last(y.float())
            if number in steps:
                scaled = y * float(power(self.graph.units[number] - steps[number]))
                found[number] = _places_last(scaled.round_().clamp_(-REACH, REACH))

        observe(0, q)
        return self.graph(q, kept, observe), found

    def _kept(self) -> Kept:
        return Kept(backward=self.projection.has_gradients)

    def _gradients(self, kept: Kept, features: Tensor) -> dict[int, Tensor]:
        """Of all layers by number; none where they are not wanted."""
        if not self.projection.has_gradients:
            return {}
        assert self.gradient is not None
        return self.gradient(kept, features, 1.0 / self.views)

    def _pooled(self, features: Tensor, n: int) -> Tensor:
        h = features * float(power(self.graph.units[len(self.graph.ops)]))
        if self.views == 1:
            return h
        h = h.unflatten(0, (n, self.views))
        return (h[:, 0] + h[:, 1]) * 0.5


def projection_exponents(
    graph: IntegerGraph,
    gradient: IntegerGradient | None,
    projection: Projection,
    q: Tensor,
    views: int = 1,
    maps: Mapping[str, int] | None = None,
) -> dict[str, tuple[int, int]]:
    """Exponents such that all but a few in ten thousand of the projections of these samples fit."""
    if not projection.names:
        return {}
    if maps:
        return _map_exponents(graph, projection, q, views, maps)
    trial = IntegerTail(graph, gradient, projection, dict.fromkeys(projection.names, (0, 0)), views)
    kept = trial._kept()
    gradients = trial._gradients(kept, graph(_flat(q, views), kept))
    found = {}
    for name, p in zip(projection.names, trial.projected, strict=True):
        a = _places_last(p.inputs(kept.inputs[p.number]))
        reach = projection_reach(_by_sample(a, len(q)).shape[1])
        b = a if p.gradients is None else p.gradients(_places_last(gradients[p.number]))
        found[name] = (_fitting(a, reach), _fitting(b, reach))
    return found


def _map_exponents(
    graph: IntegerGraph, projection: Projection, q: Tensor, views: int, maps: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """The same for maps: of the projections, and of the 8 bits that they are taken of."""
    wanted = {maps[name] for name in projection.names}
    steps = {0: graph.source.exponent} if 0 in wanted else {}

    def observe(number: int, y: Tensor) -> None:
        if number in wanted:
            steps[number] = graph.units[number] + _fitting(y, REACH)

    flat = _flat(q, views)
    graph(flat, observe=observe)
    trials = {name: (0, steps[maps[name]]) for name in projection.names}
    trial = IntegerTail(graph, None, projection, trials, views, maps)
    seen, found = trial._run(flat, None)[1], {}
    for name, p in zip(projection.names, trial.projected, strict=True):
        a = _by_sample(p.inputs(seen[p.number]), len(q))
        found[name] = (_fitting(a, projection_reach(a.shape[1])), steps[p.number])
    return found


def _fitting(values: Tensor, reach: int) -> int:
    size = values.abs().flatten()
    largest = size.kthvalue(max(1, math.ceil(PERCENTILE * len(size)))).values
    return int(least_exponent(largest if largest > 0 else size.max(), reach))


def _rounded_basis(op: Affine, basis: Tensor, unit: int, reach: int) -> ExactAffine:
    """A basis as integers, a step for each column; the product comes out in units of 2^−unit."""
    exponent = weight_exponents(basis)
    step = power(exponent).reshape(-1, *[1] * (basis.dim() - 1))
    return ExactAffine.build(op, integers(basis, step), None, exponent + unit, reach)


def _flat(q: Tensor, views: int) -> Tensor:
    """Boundary integers, every view a sample of its own, float32."""
    flat = q.flatten(0, 1) if views > 1 else q
    layout = torch.channels_last if flat.dim() == 4 else torch.contiguous_format
    return flat.to(torch.float32).contiguous(memory_format=layout)


def _places_last(x: Tensor) -> Tensor:
    """(n, c, h, w) -> (n, h · w, c); (n, …, c) stays."""
    return x.flatten(2).transpose(1, 2) if x.dim() == 4 else x


def _by_sample(x: Tensor, n: int) -> Tensor:
    return x.reshape(n, -1, x.shape[-1])
