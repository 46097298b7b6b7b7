"""Ten requests of 1 % each: the paper's SGD, the solved procedure and compact, in one table.

    python experiments/forgetting.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

For each method and request: passes over the data, seconds, the certificate at (ε = 1, δ = 1e-5) with σ
planned from core data, the distance to an exact retrain (an estimate: the reference is solved to a
hundredth of the tolerance) and the test accuracy. A method that misses the guarantee releases nothing; its
weights are still carried on here, without noise, so that the table can say how far off it ends.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from accuracy import Setting
from common import RESULTS, Results, name_of, parser

from efface import ConjugateGradient, MixedLinear, bounds
from efface.certificates import Guarantee, ShiftCertificate
from efface.forgetting import plan
from efface.tangent.forgetting import PaperForgetting, SolvedForgetting
from efface.tangent.operator import TangentOperator
from efface.tangent.preconditioners import Preconditioner
from efface.tangent.problem import RidgeProblem
from efface.tangent.scales import balanced_scales
from efface.tangent.sgd import largest_eigenvalue
from efface.tangent.user import PRECONDITIONERS, TangentUser

METHODS = ("compact", "paper-0.9", "paper-0.999", "solved")


def batches(n: int, requests: int, share: float, seed: int) -> list[np.ndarray]:
    """Disjoint random sets of user records, ``share`` of all of them each."""
    order = np.random.default_rng(seed).permutation(n)
    size = max(1, round(share * n))
    return [np.sort(order[k * size : (k + 1) * size]) for k in range(requests)]


def run_compact(setting: Setting, sets: list[np.ndarray], features: int) -> list[dict[str, Any]]:
    model = MixedLinear(setting.core, "compact", features=features, cache=setting.cache)
    model.fit(setting.data.user, replay=setting.data.core)
    rows = []
    for positions in sets:
        ids = [setting.data.user[int(i)].id for i in positions]
        begin = time.monotonic()
        certificate = model.forget(ids=ids)
        rows.append({"seconds": time.monotonic() - begin, "passes": 0.0, "certificate": "exact"})
        rows[-1] |= {"distance_estimate": 0.0, "epsilon_bound": 0.0, "passed": certificate.passed}
    gone = {setting.data.user[int(i)].id for s in sets for i in s}
    twin = MixedLinear(setting.core, "compact", features=features, cache=setting.cache)
    begin = time.monotonic()
    twin.fit(setting.data.user.without(gone), replay=setting.data.core)
    equal = twin.user.statistics_digest == model.user.statistics_digest
    rows[-1] |= {"equals_retrained": equal, "retrain_seconds": time.monotonic() - begin}
    rows[-1]["accuracy"] = model.accuracy(setting.data.test)
    return rows


def run_tangent(
    setting: Setting, sets: list[np.ndarray], method: str, args: Any
) -> list[dict[str, Any]]:
    user, x, labels = _tangent_user(setting, args)
    public = setting.tensor(setting.data.core)
    guarantee = plan(user, public)
    tolerance = guarantee.gradient_tolerance(user.mu, user.operator.d)
    preconditioner = user.preconditioner(args.preconditioner, public)
    everyone = user.problem(x, labels)
    start = ConjugateGradient(1e-4, max_passes=args.train_passes, preconditioner=preconditioner)
    trained = start.solve(everyone, user.best_head(x, labels))
    print(f"training: {trained}", flush=True)
    lr = 1.0 if method == "solved" else 1.0 / largest_eigenvalue(everyone, 6)
    solver = _solver(method, lr, tolerance, args.max_passes, preconditioner)
    w, keep, rows = trained.value, np.ones(len(labels), dtype=bool), []
    for positions in sets:
        keep[positions] = False
        index = torch.from_numpy(np.flatnonzero(keep))
        problem = user.problem(x[index], labels[index])
        begin = time.monotonic()
        solution = solver.solve(problem, w)
        rows.append({"seconds": time.monotonic() - begin, "passes": solution.passes})
        rows[-1] |= _certified(user, guarantee, problem, solution.residual_norm, len(positions))
        w = solution.value
    reference = ConjugateGradient(
        absolute=tolerance / 100, max_passes=args.reference_passes, preconditioner=preconditioner
    )
    rows[-1]["distance_estimate"] = float((reference.solve(problem, w).value - w).norm())
    user.weights = w
    rows[-1]["accuracy"] = setting.score(user.logits(setting.tensor(setting.data.test)))
    return rows


def _tangent_user(setting: Setting, args: Any) -> tuple[TangentUser, torch.Tensor, torch.Tensor]:
    operator = TangentOperator(setting.core.tail)
    scales = balanced_scales(operator, setting.tensor(setting.data.core), probes=1)
    user = TangentUser(setting.core, mu=args.mu, scales=scales)
    return user, setting.tensor(setting.user), setting.core.labels(setting.user)


def _solver(
    method: str, lr: float, tolerance: float, max_passes: int, preconditioner: Preconditioner
) -> Any:
    if method == "solved":
        return SolvedForgetting(max_passes, preconditioner).solver(tolerance)
    return PaperForgetting(epochs=3, lr=lr, momentum=float(method.split("-")[1]))


def _certified(
    user: TangentUser, guarantee: Guarantee, problem: RidgeProblem, norm: float, gone: int
) -> dict[str, Any]:
    certificate = ShiftCertificate(
        guarantee, user.mu, user.operator.d, problem.n, gone, min(norm, 1e30), 0.0
    )
    m = certificate.distance_bound / guarantee.sigma
    shown = certificate.epsilon_bound if m < 1e6 else float("inf")
    return {
        "certificate": "a-posteriori",
        "sigma": guarantee.sigma,
        "gradient_norm": norm,
        "shift_bound": m,
        "epsilon_bound": shown,
        "information_bound_nats": bounds.information_bound(m),
        "passed": bool(shown <= guarantee.epsilon),
    }


def table(results: dict[str, Any]) -> str:
    head = "| method | passes | seconds a request | ε reached | met ε = 1 | distance | accuracy |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for method in METHODS:
        for name, value in results.items():
            if name.split("/")[0] == method:
                rows, last = value["requests"], value["requests"][-1]
                passes = np.mean([r["passes"] for r in rows])
                seconds = np.median([r["seconds"] for r in rows])
                worst = max(r["epsilon_bound"] for r in rows)
                met = sum(r["passed"] for r in rows)
                lines.append(
                    f"| {method} | {passes:.0f} | {seconds:.2f} | {worst:.3g} | {met}/{len(rows)} | "
                    f"{last['distance_estimate']:.2g} | {100 * last['accuracy']:.1f} % |"
                )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    options.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options.add_argument("--requests", type=int, default=10)
    options.add_argument("--share", type=float, default=0.01)
    options.add_argument("--features", type=int, default=4096)
    options.add_argument("--mu", type=float, default=1e-4, help="of the tangent model")
    options.add_argument(
        "--preconditioner", default="none", choices=PRECONDITIONERS, help="of CG, from core data"
    )
    options.add_argument("--train-passes", type=int, default=500)
    options.add_argument("--max-passes", type=int, default=1000)
    options.add_argument("--reference-passes", type=int, default=3000)
    args = options.parse_args()
    keys = ("core_fraction", "linearize", "leaky_slope", "requests", "share", "features", "mu")
    path = args.out or RESULTS / f"forgetting-{name_of(args.data)}.json"
    kept = {} if args.preconditioner == "none" else {"preconditioner": args.preconditioner}
    results = Results(path, {k: getattr(args, k) for k in keys} | kept)
    for seed in args.seeds:
        wanted = [m for m in args.methods if f"{m}/{seed}" not in results]
        if not wanted:
            continue
        setting = Setting(args, seed)
        sets = batches(len(setting.data.user), args.requests, args.share, seed)
        for method in wanted:
            if method == "compact":
                rows = run_compact(setting, sets, args.features)
            else:
                rows = run_tangent(setting, sets, method, args)
            results.put(f"{method}/{seed}", {"requests": rows})
    print(table(results.values["results"]))


if __name__ == "__main__":
    main()
