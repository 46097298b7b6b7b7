"""The integer form of a core: pixels → prefix → tail → ψ, every sum one of integers.

Pixels are integers already: x = pixel − round(255 · mean), padded with 0, and the normalisation goes into
the first layer's weights. What is stored are exponents: the steps of all tensors. Weights are rounded
from the core's own when the form is built, each by a rule that is a function of the weights alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from efface.alone import one_by_one
from efface.arithmetic.form import Form
from efface.arithmetic.integer import scales
from efface.arithmetic.integer.byte_graph import ByteGraph, worth_bytes
from efface.arithmetic.integer.chain import IntegerChain
from efface.arithmetic.integer.exponents import Exponents, strings
from efface.arithmetic.integer.gradient import IntegerGradient
from efface.arithmetic.integer.graph import REACH, IntegerGraph, Source, evaluate, shapes_of
from efface.arithmetic.integer.head import exact_linear
from efface.arithmetic.integer.ops import NoIntegerForm, Op, read
from efface.arithmetic.integer.pixels import centre, centred, pixel_source, preprocess_of, views_of
from efface.arithmetic.integer.self_test import (
    check_gradient,
    check_graph,
    check_placed,
    check_placed_tail,
)
from efface.arithmetic.integer.sums import power
from efface.arithmetic.integer.tail import IntegerTail, map_numbers, projection_exponents
from efface.arithmetic.kinds import ARITHMETIC, INTEGER
from efface.data.loading import Prepare
from efface.errors import FormatError
from efface.linear.projection import Projection
from efface.linear.taps import tap, taps_of
from efface.network import synthetic
from efface.network.activations import Activations
from efface.network.core import Core
from efface.network.device import CPU, full_precision
from efface.network.families import Step
from efface.network.mirror import VIEWS
from efface.network.tail import Tail
from efface.progress import Progress

MOST_IMAGES = 96  # to find steps on
MOST_SAMPLES = 256  # to find the gradients' and projections' steps on
BATCH_NUMBERS = 2**15  # so many activations a batch, or one record: small networks gain by batches
BYTE_NUMBERS = 2**20  # the same on bytes
ENOUGH = 4  # images, before a network on bytes is worth the time it takes to make and test it
DEVICE_NUMBERS = 2**22  # the same where it is not the CPU that computes


class IntegerForm(Form):
    """See the module. ``find`` makes one; ``load`` makes the same again from its settings."""

    kind = INTEGER
    arithmetic = ARITHMETIC[kind]

    def __init__(self, core: Core, exponents: Exponents) -> None:
        super().__init__(core)
        self.exponents = exponents
        self.views = VIEWS if core.mirror else 1
        self._tail: tuple[Projection, IntegerTail] | None = None
        self._placed: dict[tuple[str, torch.device], IntegerGraph] = {}
        self._used = 0  # images and activations, so far

    # --- made once --------------------------------------------------------------------------------

    @classmethod
    def find(cls, core: Core, images: Tensor) -> IntegerForm:
        """From pixels (n, c, h, w) uint8 of core or public images."""
        some = images[:: max(1, -(-len(images) // MOST_IMAGES))]
        source, q = pixel_source(preprocess_of(core)), centred(some, preprocess_of(core))
        batches = (source.real(x) for x in views_of(q, core.mirror).split(8))
        return cls._find(core, tuple(images.shape[1:]), batches, False)[0]

    @classmethod
    def without_data(
        cls, core: Core, count: int = synthetic.COUNT, *, progress: Progress | None = None
    ) -> tuple[IntegerForm, Tensor, int]:
        """From synthetic images, matched to the network's own statistics: the form, its activations of
        them, and how many layers were matched."""
        source = pixel_source(preprocess_of(core))
        q = centred(torch.from_numpy(np.stack(synthetic.pixels(core, count))), preprocess_of(core))
        matched = sum(getattr(op, "statistics", None) is not None for op in _prefix_ops(core))
        views = views_of(q, core.mirror).split(synthetic.BATCH)
        batches = (source.real(x) for x in synthetic.told(views, progress))
        form, output = cls._find(core, tuple(q.shape[1:]), batches, matched > 0)
        e = form._boundary_source.exponent
        rounded = torch.round(output / 2.0**e).clamp(0 if form.dtype == "uint8" else -REACH, REACH)
        rounded = rounded.unflatten(0, (-1, form.views)) if form.views > 1 else rounded
        return form, rounded.to(getattr(torch, form.dtype)), matched

    @classmethod
    def _find(
        cls, core: Core, image: tuple[int, ...], batches: Iterator[Tensor], matched: bool
    ) -> tuple[IntegerForm, Tensor]:
        prefix, tail = _prefix_ops(core), _tail_ops(core)
        seen = scales.look(prefix, batches, output=True, matched=matched)
        boundary, at = seen.output, seen.exponents(prefix, output=True)
        seen_tail = scales.look(tail, boundary.split(32), output=False)
        exponents = Exponents(image, at, seen_tail.exponents(tail, output=False), None)  # type: ignore[arg-type]
        form = cls(core, exponents)
        _ = form._tested_prefix
        try:
            some = boundary[:: max(1, -(-len(boundary) // MOST_SAMPLES))]
            tapped = tap(_single_view(core), taps_of(_single_view(core)), some)
            gradients = scales.gradient_exponents(form.tail_graph, tapped)
            IntegerGradient(form.tail_graph, gradients)
        except NoIntegerForm:
            gradients = None
        form.exponents = replace(exponents, gradients=gradients)
        return form, boundary

    def fit_projection(self, projection: Projection, activations: Tensor) -> None:
        some = activations[:: max(1, -(-len(activations) // MOST_SAMPLES))]
        found = {}
        if projection.names:
            gradient = self.gradient if projection.has_gradients else None
            maps = self._maps_of(projection)
            found = projection_exponents(
                self.tail_graph, gradient, projection, some, self.views, maps
            )
        self.exponents = replace(self.exponents, projections=found)
        self._tail = None

    @property
    def has_gradients(self) -> bool:
        return self.exponents.gradients is not None

    # --- parts, built when they are needed --------------------------------------------------------

    @cached_property
    def prefix_graph(self) -> IntegerGraph:
        with _as_saved():
            return self._prefix_graph()

    def _prefix_graph(self) -> IntegerGraph:
        ops = _prefix_ops(self.core)
        shapes = shapes_of(ops, self.exponents.image)
        source = pixel_source(preprocess_of(self.core))
        return IntegerGraph(ops, source, self.exponents.prefix, output=True, shapes=shapes)

    @cached_property
    def tail_graph(self) -> IntegerGraph:
        ops, source = _tail_ops(self.core), self._boundary_source
        with _as_saved():
            shapes = shapes_of(ops, self.prefix_graph.shapes[-1])
            graph = IntegerGraph(ops, source, self.exponents.tail, output=False, shapes=shapes)
        check_graph(graph)
        return graph

    @cached_property
    def gradient(self) -> IntegerGradient:
        if self.exponents.gradients is None:
            raise NoIntegerForm("there is no way back through this tail in integers.")
        with _as_saved():
            gradient = IntegerGradient(self.tail_graph, self.exponents.gradients)
        check_gradient(self.tail_graph, gradient)
        return gradient

    @cached_property
    def _tested_prefix(self) -> IntegerGraph:
        check_graph(self.prefix_graph)
        return self.prefix_graph

    @property
    def _boundary_source(self) -> Source:
        graph = self.prefix_graph
        if not graph.ops:
            return graph.source
        number = len(graph.ops)
        return Source(graph.exponent(number), REACH, nonnegative=graph.nonnegative(number))

    def _maps_of(self, projection: Projection) -> dict[str, int]:
        return map_numbers(_tail_steps(self.core), projection.names)

    def _tail_of(self, projection: Projection) -> IntegerTail:
        kept, graph = self._tail, self._there("tail", self.tail_graph)
        if kept is None or kept[0] is not projection or kept[1].graph is not graph:
            gradient = self.gradient if projection.has_gradients else None
            exponents = self.exponents.projections
            if set(exponents) != set(projection.names):
                raise FormatError("the steps belong to another projection.", "calibrate again.")
            with _as_saved():
                maps = self._maps_of(projection)
                made = IntegerTail(
                    self.tail_graph, gradient, projection, exponents, self.views, maps
                )
            if graph is not self.tail_graph:
                placed = made.to(graph)
                check_placed_tail(made, placed)
                made = placed
            kept = self._tail = (projection, made)
        return kept[1]

    # --- on another device, or by other kernels ---------------------------------------------------

    def _there(self, name: str, graph: IntegerGraph) -> IntegerGraph:
        """The graph on the core's device; tested the first time, and refused where it is not the same.

        On the CPU it is computed on bytes where that can be done: the same integers, sooner.
        """
        device = self.core.place.device
        full_precision(device)
        if device == CPU and (self._used < ENOUGH or not worth_bytes(graph)):
            return graph
        if (name, device) not in self._placed:
            self._placed[name, device] = self._made_there(graph, device)
        return self._placed[name, device]

    def _made_there(self, graph: IntegerGraph, device: torch.device) -> IntegerGraph:
        if device == CPU:
            return ByteGraph.of(graph) or graph
        placed = graph.to(device)
        check_placed(graph, placed)
        return placed

    def settle(self, projection: Projection) -> None:
        self._used = max(self._used, ENOUGH)
        self._there("prefix", self._tested_prefix)
        self._tail_of(projection)

    # --- use --------------------------------------------------------------------------------------

    @property
    def image(self) -> tuple[int, int, int]:
        return self.exponents.image

    @property
    def dtype(self) -> str:  # type: ignore[override]
        graph = self.prefix_graph
        return "uint8" if graph.ops and graph.nonnegative(len(graph.ops)) else "int16"

    @property
    def boundary_shape(self) -> tuple[int, ...]:
        shape = self.prefix_graph.shapes[-1]
        return (self.views, *shape) if self.views > 1 else shape

    @property
    def prefix_digest(self) -> str:
        values = {"core": self.core.prefix_digest, "exponents": strings(self.exponents.prefix)}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    @property
    def settings(self) -> dict[str, Any]:
        values = asdict(self.exponents)
        for name in ("prefix", "tail", "gradients"):
            values[name] = None if values[name] is None else strings(values[name])
        return {"kind": self.kind, **json.loads(json.dumps(values))}

    @classmethod
    def load(cls, core: Core, settings: Mapping[str, Any]) -> IntegerForm:
        try:
            return cls(core, Exponents.from_json(settings))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(
                f"the steps of the integer form are not as they were saved: {error!r}.",
                "restore the model's files from a copy.",
            ) from error

    @property
    def prepare(self) -> Prepare:
        return self.core.backbone.preprocess.pixels

    def boundary_of(self, images: Tensor) -> Tensor:
        self._used += len(images)
        graph = self._there("prefix", self._tested_prefix)
        size = self._batch(graph, self.exponents.image, len(images))
        dtype = getattr(torch, self.dtype)
        if tuple(images.shape[1:]) != tuple(self.exponents.image):
            raise FormatError(
                f"images of {tuple(images.shape[1:])}; the model was made for "
                f"{tuple(self.exponents.image)}.",
                "set a resize and crop in the preprocessing.",
            )

        def run(i: int) -> Tensor:
            pixels = images[i * size : (i + 1) * size].to(graph.device)
            q = views_of(centred(pixels, preprocess_of(self.core)), self.core.mirror)
            y = graph(q).to(dtype).contiguous().cpu()
            return y.unflatten(0, (-1, self.views)) if self.views > 1 else y

        return torch.cat(list(one_by_one(lambda: run, -(-len(images) // size))))

    def plain(self, activations: Tensor) -> Tensor:
        if self.views == 1:
            return self._boundary_source.real(activations)
        flat = self._boundary_source.real(activations.flatten(0, 1))
        return flat.unflatten(0, (-1, self.views))

    def rows(
        self, projection: Projection, activations: Activations
    ) -> Iterator[tuple[Tensor, Tensor]]:
        self._used += len(activations)
        tail = self._tail_of(projection)

        def row(q: Tensor) -> tuple[Tensor, Tensor]:
            psi, h = tail.rows(q)
            return psi, self._head(h)

        return self._batches(tail.graph, row, activations)

    def chain(self, projection: Projection) -> nn.Module:
        tail, head = self._tail_of(projection).to(self.tail_graph), self.core.tail.head
        return IntegerChain(self._tested_prefix, tail, head, centre(preprocess_of(self.core)))

    def logits(self, activations: Activations) -> Tensor:
        empty = Projection((), (), (), torch.ones(1), self.core.tail.head.in_features)
        self._used += len(activations)
        tail = IntegerTail(self._there("tail", self.tail_graph), None, empty, {}, self.views)
        head = self._head
        found = list(self._batches(tail.graph, lambda q: head(tail.features(q)), activations))
        return torch.cat([torch.zeros(0, len(self.core.classes)), *found])

    def errors(self, images: Tensor) -> Iterator[tuple[str, float]]:
        """For every summed tensor ‖q · 2^e − x‖/‖x‖, x the same in float32, on pixels (n, c, h, w)."""
        q = views_of(centred(images, preprocess_of(self.core)), self.core.mirror)
        for part, graph in (("prefix", self.prefix_graph), ("tail", self.tail_graph)):
            x = graph.source.real(q)
            plain: dict[int, Tensor] = {}
            evaluate(graph.ops, x, plain.__setitem__)
            seen: dict[int, float] = {}

            def observe(n: int, y: Tensor, g: IntegerGraph = graph, at: Any = seen) -> None:
                if n in g.summed:
                    off = y.double() * float(power(g.exponent(n))) - plain[n].double()  # noqa: B023
                    at[n] = float(off.norm() / plain[n].double().norm().clamp(min=1e-30))  # noqa: B023

            q = graph(q.contiguous(memory_format=torch.channels_last), observe=observe)
            yield from ((f"{part}.{graph.name(n)}", error) for n, error in seen.items())

    def _head(self, h: Tensor) -> Tensor:
        return exact_linear(h, self.core.tail.head)

    def _batches(
        self, graph: IntegerGraph, f: Callable[[Tensor], Any], activations: Activations
    ) -> Iterator[Any]:
        size = self._batch(graph, self.boundary_shape, len(activations))

        def run(i: int) -> Any:
            return f(activations[slice(i * size, (i + 1) * size)])

        return one_by_one(lambda: run, -(-len(activations) // size))

    def _batch(self, graph: IntegerGraph, shape: tuple[int, ...], count: int) -> int:
        """Samples at once: not so many that a processor has none."""
        if self.core.place.device != CPU:
            return max(1, DEVICE_NUMBERS // max(1, int(np.prod(shape))))
        most = BYTE_NUMBERS if isinstance(graph, ByteGraph) else BATCH_NUMBERS
        each = -(-count // torch.get_num_threads())
        return max(1, min(each, most // max(1, int(np.prod(shape)))))


@contextmanager
def _as_saved() -> Iterator[None]:
    """Steps that do not fit the network: another's, or changed after saving."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise FormatError(
            f"the steps of the integer form do not fit the network: {error!r:.200}.",
            "restore the model's files from a copy.",
        ) from error


def _prefix_ops(core: Core) -> list[Op]:
    return read(nn.Sequential(*core.prefix.children()))


def _single_view(core: Core) -> Tail:
    """The tail of one view: what both views of a mirrored image go through."""
    if not core.mirror:
        return core.tail
    steps = [Step(name, m) for name, m in core.tail.named_children() if m is not core.tail.head]
    return Tail(steps, core.tail.head).eval()


def _tail_steps(core: Core) -> list[tuple[str, nn.Module]]:
    return [(n, m) for n, m in core.tail.named_children() if m is not core.tail.head]


def _tail_ops(core: Core) -> list[Op]:
    # Not folded: taps are at the convolutions' own outputs.
    return read(nn.Sequential(OrderedDict(_tail_steps(core))), fold=False)
