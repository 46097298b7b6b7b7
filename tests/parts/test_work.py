"""The work of each step, counted: what `make bench` measures in seconds, here without a clock.

Each limit that the benchmarks hold times against has a guard here: how much is done for the least that must
be. Counts are the same on a busy machine as on a quiet one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import cases
from tests.workspaces import CORE, as_in_other_processes, core, fitted, people  # noqa: F401 (a fixture)
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from efface.arithmetic.integer.gradient import IntegerGradient
from efface.arithmetic.integer.graph import IntegerGraph
from efface.linear import pooled
from efface.linear.frozen import final_names
from efface.linear.operator import TangentOperator
from efface.linear.pooled import PooledLayer
from efface.network.core import Core
from efface.parts.compact import summed, sums_file
from efface.parts.compact.exact import ExactArray
from efface.parts.compact.factor import DOUBLE, SINGLE, Factor
from efface.parts.compact.integer_system import IntegerSystem
from efface.parts.compact.kept_factor import KeptFactor
from efface.parts.compact.ridge import factor_of, solve
from efface.parts.compact.statistics import STRIP, Statistics
from efface.parts.compact.stored_rows import StoredRows
from efface.workspace import Workspace
from efface.workspace.store import Store

KEPT = "resnet bottleneck"  # BatchNorm kept, a shortcut, (Leaky)ReLU and pooling


def flops(run: Callable[[], object]) -> int:
    """Of matrix products and convolutions; torch counts them by their shapes."""
    with FlopCounterMode(display=False) as counted:
        run()
    return int(counted.get_total_flops())


# --- rows: the network's own flops -----------------------------------------------------------------


def test_a_row_is_one_pass_through_the_network_and_one_back_through_its_tail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = fitted("compact", people())
    form, passed = model.user.form, {"prefix": 0, "tail": 0, "back": 0}
    run, back = IntegerGraph.__call__, IntegerGradient.__call__

    def counted(self: IntegerGraph, q: Tensor, *rest: Any, **named: Any) -> Tensor:
        passed["prefix" if self is form.prefix_graph else "tail"] += len(q)
        return run(self, q, *rest, **named)

    def pulled(self: IntegerGradient, kept: Any, features: Tensor, *rest: Any) -> Any:
        passed["back"] += len(features)
        return back(self, kept, features, *rest)

    monkeypatch.setattr(IntegerGraph, "__call__", counted)
    monkeypatch.setattr(IntegerGradient, "__call__", pulled)
    model.stage(people(20, seed=8))
    assert passed == {"prefix": 20, "tail": 20, "back": 20 * model.user.projection.has_gradients}


def test_rows_take_hardly_more_flops_than_the_network_alone() -> None:
    """At least 80 % of what a row multiplies is the network's own forward pass."""
    model, records, network = fitted("compact", people()), people(20, seed=8), core()
    model.stage(records[:2])  # tested and prepared once
    images = network.images(records)
    with torch.no_grad():
        alone = flops(lambda: network.tail(network.prefix(images)))
    assert alone >= 0.8 * flops(lambda: model.stage(records))


# --- the Gram update: a triangle of products --------------------------------------------------------


def test_a_gram_update_multiplies_one_triangle_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per row k(k + 1)/2 products are needed; whole strips of the lower triangle make k(k + STRIP)/2."""
    k, c, b, done = 2048, 3, 8, []
    add = ExactArray.add_product

    def counted(self: ExactArray, left: Any, right: Any, *rest: Any) -> None:
        done.append(left.shape[0] * left.shape[1] * right.shape[1])
        add(self, left, right, *rest)

    monkeypatch.setattr(ExactArray, "add_product", counted)
    rows, targets = np.ones((b, k), np.int8), np.ones((b, c), np.int16)
    Statistics(k, c).add(rows, targets)
    assert sum(done) == b * (k * (k + STRIP) // 2 + k * c)


# --- factor and refinement --------------------------------------------------------------------------

SCALES = {"scale": 2.0**-7, "target_scale": 2.0**-10}


@dataclass
class Solving:
    """Factors that were made, and exact products with the sums."""

    factors: list[np.dtype[Any]]
    products: int = 0


@pytest.fixture
def solving(monkeypatch: pytest.MonkeyPatch) -> Solving:
    seen, make, after = Solving([]), Factor.of, IntegerSystem.residual_after

    def made(*given: Any) -> Factor | None:
        seen.factors.append(np.dtype(given[-1]))
        return make(*given)

    def multiplied(self: IntegerSystem, residual: Any, parts: list[Any]) -> Any:
        seen.products += len(parts)
        return after(self, residual, parts)

    monkeypatch.setattr(Factor, "of", made)
    monkeypatch.setattr(IntegerSystem, "residual_after", multiplied)
    return seen


def drawn(n: int = 600, k: int = 200, c: int = 5) -> tuple[np.ndarray, np.ndarray, Statistics]:
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (n, k), dtype=np.int8)
    targets = rng.integers(-4000, 4000, (n, c)).astype(np.int16)
    sums = Statistics(k, c)
    sums.add(rows, targets)
    return rows, targets, sums


@pytest.mark.parametrize("ridge", [0.1, 1.0, 60.0])
def test_weights_take_one_float32_factor_and_three_exact_products(
    ridge: float, solving: Solving
) -> None:
    """k³/3 flops and two or three times k² c: the least is the factor and one product that proves it."""
    solution = solve(drawn()[2], ridge=ridge, **SCALES)
    assert solution.proved
    assert solving.factors == [SINGLE]
    assert solving.products <= 3


@pytest.mark.parametrize("ridge", [0.1, 1.0, 60.0])
def test_with_a_kept_factor_weights_take_none(ridge: float, solving: Solving) -> None:
    """So a request costs some k² (b + c), not k³."""
    rows, targets, sums = drawn()
    before = solve(sums, ridge=ridge, **SCALES).theta.astype(np.float64)
    factor, gone = factor_of(sums, ridge, **SCALES), rows[:10] * SCALES["scale"]
    assert factor is not None
    way = KeptFactor(factor, ridge).without(gone, ridge)
    assert way is not None
    sums.remove(rows[:10], targets[:10])
    solving.factors, solving.products = [], 0
    errors = gone @ before - targets[:10] * SCALES["target_scale"]
    solution = solve(sums, ridge=ridge, near=way.after(before, errors), **SCALES)
    assert solution.proved
    assert solving.factors == []
    assert solving.products <= 3


# --- a request ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [30, 60])
def test_a_request_sums_its_own_records_whatever_stays(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training sums all rows; a request those that go, and no other."""
    summed_rows: list[int] = []
    update = Statistics._update

    def counting(self: Statistics, rows: Any, targets: Any, sign: int) -> None:
        summed_rows.append(len(rows))
        update(self, rows, targets, sign)

    monkeypatch.setattr(Statistics, "_update", counting)
    records = people(n)
    model = fitted("compact", records)
    assert sum(summed_rows) == n + len(CORE)
    summed_rows.clear()
    model.forget(ids=records.ids[:3])
    assert sum(summed_rows) == 3


def test_a_request_reads_the_sums_once_one_bucket_of_rows_and_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk: k² numbers in, k² out, and the rows beside the one that goes, whatever stays."""
    records = people(60)
    workspace = Workspace.create(tmp_path / "model", fitted("compact", records))
    assert len(workspace.data.rows.buckets) == 8  # type: ignore[union-attr]
    seen = {"sums read": 0, "sums written": 0, "buckets read": 0}
    read, write, bucket = summed.read_sums, sums_file.write_sums, StoredRows._read

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            seen[name] += 1
            return real(*given, **named)

        return run

    monkeypatch.setattr(summed, "read_sums", counted("sums read", read))
    monkeypatch.setattr(sums_file, "write_sums", counted("sums written", write))
    monkeypatch.setattr(StoredRows, "_read", counted("buckets read", bucket))
    monkeypatch.setattr(Core, "load", None)  # would be an error
    Workspace.open(tmp_path / "model").forget(ids=records.ids[:1])
    assert seen == {"sums read": 1, "sums written": 1, "buckets read": 1}


def test_a_request_with_a_kept_factor_makes_the_next_one_after_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = people(60)
    workspace = Workspace.create(tmp_path / "model", fitted("compact", records))
    assert workspace.warm()
    seen: list[object] = []
    make, renew = Factor.of, Store.renew_factor

    def made(*given: Any) -> Factor | None:
        seen.append(np.dtype(given[-1]))
        return make(*given)

    def renewing(self: Store, *model: Any) -> bool:
        seen.append(f"release {self.inventory.number}")
        return renew(self, *model)

    monkeypatch.setattr(Factor, "of", made)
    monkeypatch.setattr(Store, "renew_factor", renewing)
    Workspace.open(tmp_path / "model").forget(ids=records.ids[:1])
    assert seen == ["release 2", DOUBLE]


# --- H v ------------------------------------------------------------------------------------------


def plain_product(tail: nn.Module, x: Tensor) -> Callable[[], object]:
    """torch.func.jvp then torch.func.vjp, by all parameters."""
    params = {name: p.detach() for name, p in tail.named_parameters()}
    others, v = dict(tail.named_buffers()), {k: torch.ones_like(p) for k, p in params.items()}

    def run(p: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(tail, (p, others), (x,))

    def product() -> object:
        u = torch.func.jvp(run, (params,), (v,))[1]
        return torch.func.vjp(run, params)[1](u)

    return product


def wide_tail() -> nn.Module:
    """A ResNet's last block with channels enough for Winograd's products."""
    options = {"embedding_size": 8, "hidden_sizes": [8, 256], "depths": [1, 2]}
    return cases.tail_of(cases.hf_model("ResNet", layer_type="bottleneck", **options))


@pytest.mark.parametrize(
    ("tail", "x", "most"),
    [
        (cases.tail(KEPT), cases.BY_NAME[KEPT].inputs(4), 4.0),  # two for J v, two for Jᵀu
        (wide_tail(), torch.rand(32, 256, 8, 8), 2.5),
    ],
    ids=["direct", "winograd"],
)
def test_a_product_of_the_block_takes_few_forward_passes(
    tail: nn.Module, x: Tensor, most: float
) -> None:
    """Two are the least, a jvp and a vjp with nothing kept; with Winograd's it is less than half of
    torch.func's work."""
    operator = TangentOperator(tail)
    prepared, v = operator.prepare(x, torch.float64), torch.ones(operator.d, dtype=torch.float64)
    ours = flops(lambda: operator.product(prepared, v))
    with torch.no_grad():
        forward = flops(lambda: tail(x))
    assert 2 * forward < ours <= most * forward
    assert ours <= most / 5 * flops(plain_product(tail, x))


def test_a_product_of_the_final_layers_reads_each_slope_twice_and_runs_nothing_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once for J v and once for Jᵀ u, which needs J v first: less cannot be."""
    read = {"J v": 0, "Jᵀ u": 0, "forward": 0}

    def counted(name: str, real: Callable[..., Any], which: int) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            read[name] += given[which].shape[0]
            return real(*given)

        return run

    for name, function in (("J v", "rows_times"), ("Jᵀ u", "weighted_sum")):
        monkeypatch.setattr(pooled, function, counted(name, getattr(pooled, function), 0))
    forward = counted("forward", PooledLayer.forward, 1)
    monkeypatch.setattr(PooledLayer, "forward", forward)
    tail, x = cases.tail(KEPT), cases.BY_NAME[KEPT].inputs(4)
    operator = TangentOperator(tail, names=final_names(tail))
    prepared = operator.prepare(x, torch.float64)
    for _ in range(5):
        operator.product(prepared, torch.ones(operator.d, dtype=torch.float64))
    assert read == {"J v": 5 * 4, "Jᵀ u": 5 * 4, "forward": 4}
