"""Time of one Gauss–Newton product H v of a linearised tail, over one primal forward of the same tail.

    python benchmarks/hessian_product.py --backbone hf:../shared/weights/resnet50-imagenet

Ours (cached primal side, products as GEMMs) against plain torch.func jvp + vjp and against curvlinops'
GGN, on the network as transformers ships it (BatchNorm unfolded, NCHW): what a user would run instead.
Beside it, torch.func on our own folded, channels-last tail: the strongest plain version; and ours with
BatchNorm kept in the parametrisation, as the paper has it (products on folded weights all the same); and
ours with slopes by layer (`linear/slopes.py`), which pay where many products follow: `details` says what it
takes to make them. With
`--layers final` user weights are in the last convolution with its BatchNorm and in the head alone, and
torch.func differentiates by these parameters, too (what lies below runs all the same). One process,
interleaved rounds, the best of each; JSON out.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path

import torch
from limits import Limits
from outcome import Outcome, turns
from torch import Tensor, nn

from efface.linear.frozen import final_names
from efface.linear.operator import TangentOperator
from efface.network.core import Core
from efface.network.tail import Tail

OURS = "efface"
SLOPES = "efface, slopes by layer"


def tail_of(
    backbone: str, linearize: str, classes: int, *, ours: bool, folded: bool | None = None
) -> Core:
    names = [str(i) for i in range(classes)]
    slope = 0.01 if ours else None
    fold = ours if folded is None else folded
    core = Core(
        backbone, classes=names, linearize=linearize, leaky_slope=slope, fold_batchnorm=fold
    )
    nn.init.normal_(core.tail.head.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    return core


def plain(tail: nn.Module, x: Tensor, v: dict[str, Tensor]) -> Callable[[], object]:
    """torch.func.jvp then torch.func.vjp on the module as it is, by the parameters that ``v`` has."""
    params = {k: p.detach() for k, p in tail.named_parameters() if k in v}
    others = {k: p.detach() for k, p in tail.named_parameters() if k not in v}
    others |= dict(tail.named_buffers())

    def run(p: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(tail, (p, others), (x,))

    def product() -> object:
        u = torch.func.jvp(run, (params,), (v,))[1]
        pull = torch.func.vjp(run, params)[1]
        return pull(u)

    return product


def curvlinops_ggn(tail: Tail, x: Tensor, v: dict[str, Tensor]) -> Callable[[], object] | None:
    try:
        from curvlinops import GGNLinearOperator
    except ImportError:
        return None
    tail = copy.deepcopy(tail).requires_grad_(True)
    names, params = zip(*tail.named_parameters(), strict=True)
    data = [(x, torch.zeros(len(x), tail.head.out_features))]
    loss = nn.MSELoss(reduction="sum")
    operator = GGNLinearOperator(tail, loss, list(params), data, check_deterministic=False)
    flat = torch.cat([v[k].reshape(-1) for k in names])
    return lambda: operator @ flat


def forward_of(tail: nn.Module, x: Tensor) -> Callable[[], object]:
    def forward() -> Tensor:
        with torch.no_grad():
            return tail(x)

    return forward


def product_of(operator: TangentOperator, x: Tensor, *, many: bool = False) -> Callable[[], object]:
    """H v with the primal side at hand."""
    prepared, flat = operator.prepare(x, many=many), torch.randn(operator.d)
    return lambda: operator.product(prepared, flat)


def making(operator: TangentOperator, x: Tensor) -> tuple[float, int]:
    """Seconds to make slopes by layer of ``x``, and their bytes."""
    begin = time.perf_counter()
    prepared = operator.prepare(x, many=True)
    return time.perf_counter() - begin, prepared.num_bytes


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--backbone", default="cnn")
    options.add_argument("--linearize", default="last-block")
    options.add_argument("--layers", choices=("all", "final"), default="all")
    options.add_argument("--classes", type=int, default=40)
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--out", type=Path)
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    raw = tail_of(args.backbone, args.linearize, args.classes, ours=False)
    mine = tail_of(args.backbone, args.linearize, args.classes, ours=True)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(args.batch, *raw.boundary_shape, generator=generator).relu()
    xl = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    v = {k: torch.randn(p.shape, generator=generator) for k, p in raw.tail.named_parameters()}
    vm = {k: torch.randn(p.shape, generator=generator) for k, p in mine.tail.named_parameters()}
    runs: dict[str, Callable[[], object] | None] = {"forward": forward_of(mine.tail, xl)}
    if args.layers == "final":
        slope = tail_of(args.backbone, args.linearize, args.classes, ours=True, folded=False)
        names = final_names(slope.tail)
        operator = TangentOperator(slope.tail, names=names)
        few = {k: t for k, t in v.items() if k in names}
        channels_last = copy.deepcopy(slope.tail).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        runs |= {
            OURS: product_of(operator, x),
            "torch.func, network as shipped": plain(raw.tail, x, few),
            "torch.func, channels-last": plain(channels_last, xl, few),
        }
    else:
        operator = TangentOperator(mine.tail)
        runs |= {
            OURS: product_of(operator, x),
            SLOPES: product_of(operator, x, many=True),
            "efface, BatchNorm kept": product_of(TangentOperator(raw.tail), x),
            "torch.func, network as shipped": plain(raw.tail, x, v),
            "torch.func, folded channels-last": plain(mine.tail, xl, vm),
            "curvlinops GGN, network as shipped": curvlinops_ggn(raw.tail, x, v),
        }
    there = {name: run for name, run in runs.items() if run is not None}
    best = {name: min(times) for name, times in turns(there, args.rounds).items()}
    ours = {name: best[name] for name in (OURS, SLOPES) if name in best}
    peers = [name for name in best if name != "forward" and name not in ours]
    details: dict[str, object] = {"over_forward": {n: t / best["forward"] for n, t in best.items()}}
    ratios = {f"{name} / ours": best[name] / best[OURS] for name in peers}
    if SLOPES in best:
        seconds, size = making(operator, x)
        ratios |= {f"{name} / {SLOPES}": best[name] / best[SLOPES] for name in peers}
        details |= {"slopes_made_in_seconds": seconds, "slopes_bytes_a_sample": size // len(x)}
    limits = Limits.measured()
    Outcome(
        name="hessian-product",
        question="How long does a product H v of a linearised tail take, beside one forward pass?",
        setting={
            "backbone": args.backbone.split("/")[-1],
            "linearize": args.linearize,
            "layers": args.layers,
            "batch": args.batch,
            "threads": args.threads,
            "weights": operator.d,
        },
        ours=ours,
        peers={name: best[name] for name in peers},
        ratios=ratios,
        limit={
            "what": "two forward passes of the same tail, a jvp and a vjp with nothing kept",
            "seconds": 2 * best["forward"],
            "fraction_reached": 2 * best["forward"] / best[OURS],
            "gemm_gflops": limits.float32 / 1e9,
        },
        guards={"torch.func, network as shipped / ours": 1.0},
        details=details,
    ).write(args.out)


if __name__ == "__main__":
    main()
