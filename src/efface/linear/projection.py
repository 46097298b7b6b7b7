"""Compact features of a tail: pooled features, and what each layer saw, projected by fixed bases.

For layer l with inputs a_l(s) at places s and output gradients g_l(s) of 1ᵀh, ψ = (h / c_0, 1, ψ_1, ψ_2, …),

    ψ_l = triu( R_aᵀ [Σ_s a_l(s) a_l(s)ᵀ] R_a ) / c_l      moments: what occurs together, r(r + 1)/2 numbers
    ψ_l = vec( R_gᵀ [Σ_s g_l(s) a_l(s)ᵀ] R_a ) / c_l       gradients: of the tangent model, r² numbers
    ψ_l = triu( √cov_s(R_aᵀ a_l(s)) ) / c_l                covariances, see ``matrix_root``

Moments are second-order ("bilinear") pooling, and need no backward pass. As "moments" they are taken of
layers that look at one place at a time (linear layers, 1 × 1 convolutions: patches hold every channel nine
times), or of all where there are none; as "maps", a_l is what the first step of the tail reads, and what
the last one does that reads more than one place: the map that is pooled. Tails that read no places have
moments instead. "covariances" are roots of the covariances of these two maps, and come with *energies*,
Σ_s a(s)² channel by channel: those of the map that is pooled stand in the place of its means h, those of the
first map inside the tail that a convolution reads stand beside them.

R_a and R_g are the leading eigenvectors of the second moments of a_l and g_l **on core data**, each divided
by σ^q, σ the root mean square along it (a few directions would else drown the rest), or seeded random
orthonormal bases. c_l makes the mean squared norm of every part 1 on core data. Nothing here ever sees user
data, so nothing here ever has to be forgotten.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from efface.alone import one_by_one
from efface.errors import EffaceError
from efface.linear.matrix_root import covariance_roots
from efface.linear.taps import LayerTap, MapTap, Tap, Tapped, Tapper, maps_of, named_taps, taps_of
from efface.network.activations import Activations
from efface.network.tail import Tail

BASES = ("core", "random")
MOMENTS, GRADIENTS, MAPS, COVARIANCES = LAYER_FEATURES = (
    "moments",
    "gradients",
    "maps",
    "covariances",
)
WHITEN = 0.75  # q: 0 leaves the bases orthonormal, 1 gives all directions one variance; see docs/method.md
LEAST_SIGMA = (
    1e-3  # of the largest: directions that core data hardly have are not blown up any further
)


@dataclass(frozen=True)
class Energy:
    """Σ_s a(s)² of every channel of a map: of what a step reads, or a convolution."""

    name: str  # of the tap
    size: int  # how many channels


@dataclass(frozen=True)
class Projection:
    """Bases and scales, in the order of the tail's taps. No taps: plain last-layer features."""

    names: tuple[str, ...]
    inputs: tuple[Tensor, ...]  # R_a, (width, r_a) each
    gradients: tuple[Tensor, ...]  # R_g, (outputs, r_g) each; none: moments
    part_scales: Tensor  # (parts,): c_0, c_1, …
    num_pooled: int
    energies: tuple[Energy, ...] = ()  # of what is pooled, and of another map; none: means h
    roots: bool = False  # of covariances, in the place of moments

    @classmethod
    def build(
        cls,
        tail: Tail,
        calibration: Activations,
        num_features: int = 4096,
        *,
        layer_features: str = GRADIENTS,
        bases: str = "core",
        whiten: float = WHITEN,
        max_samples: int = 512,
        seed: int = 0,
    ) -> Projection:
        """About ``num_features`` features: the pooled ones, a constant, and those of each tapped layer.

        What is left after the pooled features is shared equally by the layers: r is the largest whose r²
        (gradients) or r(r + 1)/2 (moments) fit.
        ``num_features`` at or below the pooled size gives the last layer alone. ``whiten`` is q. Moments are
        taken on at most ``max_samples`` calibration samples, evenly spaced: records often come sorted
        by class.
        """
        if bases not in BASES:
            raise EffaceError(f"unknown bases {bases!r}.", f"use one of {', '.join(BASES)}.")
        pooled = tail.head.in_features
        samples = calibration[slice(None, None, max(1, -(-len(calibration) // max_samples)))]
        if len(samples) == 0:
            raise EffaceError("no samples to calibrate the projection on.", "give core records.")
        taps = layers_of(tail, layer_features, samples[:1])
        left = num_features - pooled - 1
        energies = energies_of(tail, samples[:1], left) if layer_features == COVARIANCES else ()
        side = side_of(left - sum(e.size for e in energies[1:]), len(taps), layer_features)
        taps, energies = (taps, energies) if side > 0 else ([], ())
        # Of layers, only those that the features depend on: their gradients tell.
        in_layers = any(isinstance(t, LayerTap) for t in taps)
        own = {t.name for t in taps}
        others = named_taps(tail, [e.name for e in energies if e.name not in own])
        seen = Tapper(tail, [*taps, *others], backward=in_layers)(samples)
        taps = [t for t in taps if t.name in seen.names]
        raw = cls(
            tuple(t.name for t in taps),
            tuple(
                _basis(t.rows(x, len(samples)), side, bases, whiten, seed + i)
                for i, (t, (x, _)) in _zip(taps, seen)
            ),
            tuple(
                _basis(t.gradient_rows(g, len(samples)), side, bases, whiten, seed + i + 1000)
                for i, (t, (_, g)) in _zip(taps, seen)
                if layer_features == GRADIENTS
            ),
            torch.ones(max(1, len(energies)) + len(taps)),
            pooled,
            energies,
            layer_features == COVARIANCES and bool(taps) and not in_layers,
        )
        norms = [part.square().sum(1).mean().sqrt() for part in raw._parts([*taps, *others], seen)]
        scales = torch.stack([n if n > 0 else torch.ones(()) for n in norms])
        return replace(raw, part_scales=scales)

    @property
    def has_gradients(self) -> bool:
        return bool(self.gradients)

    @property
    def layer_sizes(self) -> tuple[int, ...]:
        """How many features each tapped layer has."""
        if not self.has_gradients:
            return tuple(a.shape[1] * (a.shape[1] + 1) // 2 for a in self.inputs)
        pairs = zip(self.inputs, self.gradients, strict=True)
        return tuple(a.shape[1] * g.shape[1] for a, g in pairs)

    @property
    def part_sizes(self) -> tuple[int, ...]:
        """How many features each part has: the pooled ones, other energies, then each layer's."""
        return (self.num_pooled, *(e.size for e in self.energies[1:]), *self.layer_sizes)

    @property
    def tapped(self) -> tuple[str, ...]:
        """What is looked at: where there are bases, then what there are only energies of."""
        return tuple(dict.fromkeys((*self.names, *(e.name for e in self.energies))))

    @property
    def num_features(self) -> int:
        return sum(self.part_sizes) + 1

    @property
    def bias(self) -> int:
        """Index of the constant feature."""
        return self.num_pooled

    def rows(self, tail: Tail, activations: Activations) -> Tensor:
        """ψ of every sample, (n, k) float32."""
        rows = [psi for psi, _ in self.each(tail, activations)]
        return torch.cat([torch.zeros(0, self.num_features), *rows])

    def each(self, tail: Tail, activations: Activations) -> Iterator[tuple[Tensor, Tensor]]:
        """ψ and the pooled features h of one sample after the other: (1, k) and (1, p) float32.

        Computed where the tail is, and handed out on the CPU.
        """
        named_taps(tail, self.tapped)
        device = next(tail.parameters()).device
        there = self.to(device)

        def make() -> Callable[[int], tuple[Tensor, Tensor]]:
            # A tail of its own for every worker: taps are hooks, and would see each other's samples.
            own = copy.deepcopy(tail)
            tapper = Tapper(own, named_taps(own, self.tapped), backward=self.has_gradients)

            def row(i: int) -> tuple[Tensor, Tensor]:
                psi, h = there.row(tapper, activations[slice(i, i + 1)].to(device))
                return psi.cpu(), h.cpu()

            return row

        return one_by_one(make, len(activations))

    def row(self, tapper: Tapper, sample: Tensor) -> tuple[Tensor, Tensor]:
        """ψ and h of a batch seen through this tapper, in its type."""
        seen = tapper(sample)
        parts = self._parts(tapper.taps, seen)
        scaled = [p / c for p, c in zip(parts, self.part_scales, strict=True)]
        ones = scaled[0].new_ones(len(scaled[0]), 1)
        return torch.cat([scaled[0], ones, *scaled[1:]], dim=1), seen.features

    def _parts(self, taps: Sequence[Tap], seen: Tapped) -> list[Tensor]:
        n, at = len(seen.features), dict(zip(seen.names, seen.pairs, strict=True))
        known = {t.name: t for t in taps}
        parts = [known[e.name].energies(at[e.name][0], n) for e in self.energies]
        parts = parts or [seen.features]
        for i, name in enumerate(self.names):
            t, (x, g) = known[name], at[name]
            a = t.project(x, self.inputs[i], n)  # (n, s, r_a)
            if not self.has_gradients:
                parts.append(roots(a.cpu()).to(a) if self.roots else moments(a))
                continue
            assert isinstance(t, LayerTap)
            b = t.gradient_rows(g, n) @ self.gradients[i]  # (n, s, r_g)
            parts.append((b.transpose(1, 2) @ a).flatten(1))
        return parts

    def double(self) -> Projection:
        """The same in float64."""
        return self.to(torch.float64)

    def to(self, what: torch.device | torch.dtype) -> Projection:
        """The same on another device, or in another type."""
        return replace(
            self,
            inputs=tuple(a.to(what) for a in self.inputs),
            gradients=tuple(g.to(what) for g in self.gradients),
            part_scales=self.part_scales.to(what),
        )

    def to_tensors(self) -> dict[str, Tensor]:
        tensors = {"part_scales": self.part_scales}
        if self.energies:
            tensors["energies"] = torch.tensor([e.size for e in self.energies])
        for i in range(len(self.names)):
            tensors[f"inputs.{i}"] = self.inputs[i].contiguous()
            if self.has_gradients:
                tensors[f"gradients.{i}"] = self.gradients[i].contiguous()
        return tensors

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        names: tuple[str, ...],
        num_pooled: int,
        energies: Sequence[str] = (),
        roots: bool = False,
    ) -> Projection:
        sizes = [int(size) for size in tensors.get("energies", ())]
        found = tuple(Energy(n, size) for n, size in zip(energies, sizes, strict=True))
        if found and (found[0].size != num_pooled or min(sizes) < 1):
            raise ValueError("these are not the energies of what is pooled")
        sides = range(len(names) if any(key.startswith("gradients.") for key in tensors) else 0)
        return cls(
            names,
            tuple(tensors[f"inputs.{i}"] for i in range(len(names))),
            tuple(tensors[f"gradients.{i}"] for i in sides),
            tensors["part_scales"],
            num_pooled,
            found,
            roots,
        )


def energies_of(tail: Tail, sample: Tensor, left: int) -> tuple[Energy, ...]:
    """Of the map that is pooled, if each of its channels is one pooled feature; and of the first map inside
    of the tail that a convolution reads, if that takes at most half of the ``left`` features."""
    ends = ends_of(tail, sample)
    if not ends:
        return ()
    pooled, layers = ends[-1], [t for t in taps_of(tail) if isinstance(t.module, torch.nn.Conv2d)]
    seen = Tapper(tail, [pooled, *layers], backward=False)(sample)
    at = {name: x for name, (x, _) in zip(seen.names, seen.pairs, strict=True)}
    last = at[pooled.name]
    first = Energy(pooled.name, last.shape[1 if last.dim() == 4 else -1])
    if first.size != tail.head.in_features:
        return ()
    ends_read = (sample, last)
    inside = (t for t in layers if t.name in at and not _any_is(at[t.name], ends_read))
    for t in inside:
        second = Energy(t.name, at[t.name].shape[1])
        return (first, second) if 2 * second.size <= left else (first,)
    return (first,)


def _any_is(x: Tensor, maps: Sequence[Tensor]) -> bool:
    """Whether one of the maps is x (its views may be apart)."""
    return any(x.numel() == y.numel() and torch.equal(x.flatten(), y.flatten()) for y in maps)


def require_known(layer_features: str) -> None:
    if layer_features not in LAYER_FEATURES:
        known = ", ".join(LAYER_FEATURES)
        raise EffaceError(f"unknown layer features {layer_features!r}.", f"use one of {known}.")


def side_of(num_features: int, num_layers: int, layer_features: str) -> int:
    """r, of the r² or r(r + 1)/2 features that each of the layers gets."""
    share = max(num_features, 0) // max(num_layers, 1)
    if not num_layers or layer_features == GRADIENTS:
        return math.isqrt(share) if num_layers else 0
    return (math.isqrt(8 * share + 1) - 1) // 2


def layers_of(tail: Tail, layer_features: str, sample: Tensor) -> Sequence[Tap]:
    """What has features: all layers; those that look at one place at a time, if any do; or two maps, if
    there are any."""
    require_known(layer_features)
    wanted = layer_features in (MAPS, COVARIANCES)
    taps, maps = taps_of(tail), ends_of(tail, sample) if wanted else []
    if maps or layer_features == GRADIENTS:
        return maps or taps
    return [t for t in taps if t.one_place] or taps


def ends_of(tail: Tail, sample: Tensor) -> list[MapTap]:
    """What the first step reads, and what the last one does that reads more than one place."""
    taps = maps_of(tail)
    seen = Tapper(tail, taps, backward=False)(sample)
    pairs = zip(taps, seen.pairs, strict=True)
    wide = [t for t, (x, _) in pairs if t.num_places(x) > 1]
    return list(dict.fromkeys((wide[0], wide[-1]))) if wide else []


def moments(a: Tensor) -> Tensor:
    """Σ_s a(s) a(s)ᵀ of every sample, on and above the diagonal: (n, s, r) -> (n, r(r + 1)/2)."""
    return above(a.transpose(1, 2) @ a)


def roots(a: Tensor) -> Tensor:
    """√cov_s(a(s)) of every sample, on and above the diagonal: (n, s, r) -> (n, r(r + 1)/2) float32."""
    return above(covariance_roots(a)).float()


def above(square: Tensor) -> Tensor:
    """What is on and above the diagonal, (n, r, r) -> (n, r(r + 1)/2)."""
    size = square.shape[2]
    at = torch.from_numpy(np.ravel_multi_index(np.triu_indices(size), (size, size)))
    return square.flatten(1).index_select(1, at.to(square.device))


def _zip(taps: Sequence[Tap], seen: Tapped):  # type: ignore[no-untyped-def]
    return enumerate(zip(taps, seen.pairs, strict=False))  # behind them: taps of energies alone


def _basis(rows: Tensor, side: int, bases: str, whiten: float, seed: int) -> Tensor:
    """R for rows (n, s, width); no more columns than that width."""
    rows = rows.flatten(0, 1)
    if bases == "random":
        return _orthonormal(rows.shape[1], side, seed)
    return whitened(leading_directions(rows, side, seed), rows, whiten)


def whitened(basis: Tensor, rows: Tensor, exponent: float) -> Tensor:
    """Column j divided by σ_j^exponent, σ_j² the mean over ``rows`` of (row · column j)²."""
    sigma = (rows @ basis).square().mean(0).sqrt()
    largest = sigma.max()
    if not largest > 0:
        return basis
    return (basis / sigma.clamp(min=LEAST_SIGMA * float(largest)) ** exponent).contiguous()


def _orthonormal(size: int, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(size, min(count, size), generator=generator, dtype=torch.float64)
    return torch.linalg.qr(matrix).Q.float()


def leading_directions(rows: Tensor, count: int, seed: int, iterations: int = 4) -> Tensor:
    """Leading eigenvectors of rowsᵀrows by seeded subspace iteration, (width, min(count, width)).

    The basis need only be a good one, not an exact one: any fixed basis keeps forgetting exact.
    """
    width = rows.shape[1]
    count = min(count, width)
    basis = _orthonormal(width, min(count + 8, width), seed)
    for _ in range(iterations):
        basis = torch.linalg.qr(rows.T @ (rows @ basis)).Q
    small = rows @ basis
    values, vectors = torch.linalg.eigh(small.T @ small)
    return (basis @ vectors[:, values.argsort(descending=True)[:count]]).contiguous()
