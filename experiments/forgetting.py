"""Ten requests of 1 % each: the paper's SGD, the solved procedure and compact, in one table.

    python experiments/forgetting.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

For each method and request: passes over the data, seconds, the certificate at (ε = 1, δ = 1e-5) with σ
planned from core data, the distance to an exact retrain (an estimate: the reference is solved to a
thirtieth of the tolerance) and the test accuracy. A method that misses the guarantee releases nothing; its
weights are still carried on here, without noise, so that the table can say how far off it ends.
"""

from __future__ import annotations

import json
import time
from functools import cached_property
from typing import Any

import numpy as np
import torch
from accuracy import Setting
from common import RESULTS, Results, name_of, parser

from efface import ConjugateGradient, MixedLinear
from efface.audit.methods import METHODS, PaperSgd
from efface.guarantee import bounds
from efface.guarantee.certificates import ShiftCertificate
from efface.guarantee.promise import Guarantee
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.sgd import largest_eigenvalue
from efface.parts.tangent.user import PRECONDITIONERS, TangentUser

SHOWN = ("compact", "solved", "paper-0.9", "paper-0.999")  # all but compact by the table of methods


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


class TrainedTangent:
    """The tangent model before any request, and after all of them when retrained: for all methods."""

    def __init__(self, setting: Setting, sets: list[np.ndarray], args: Any) -> None:
        self.user, self.x, self.labels = _tangent_user(setting, args)
        self.sets, self.args = sets, args
        public = setting.tensor(setting.data.core)
        self.guarantee = self.user.plan(1.0, 1e-5, None, "secret", lambda: public)
        self.tolerance = self.guarantee.gradient_tolerance(self.user.mu, self.user.operator.d)
        self.preconditioner = self.user.preconditioner(args.preconditioner, public)
        everyone = self.user.problem(self.x, self.labels)
        start = self.user.best_head(self.x, self.labels)
        solution = self.cg(self.tolerance, args.train_passes).solve(everyone, start)
        print(f"training: {solution}", flush=True)
        self.weights, self.lr = solution.value, 1.0 / largest_eigenvalue(everyone, 6)

    def cg(self, tolerance: float, passes: int) -> ConjugateGradient:
        return ConjugateGradient(
            absolute=tolerance, max_passes=passes, preconditioner=self.preconditioner
        )

    def retained(self, requests: int) -> RidgeProblem:
        """What is left after so many requests."""
        keep = np.ones(len(self.labels), dtype=bool)
        keep[np.concatenate(self.sets[:requests])] = False
        index = torch.from_numpy(np.flatnonzero(keep))
        return self.user.problem(self.x[index], self.labels[index])

    @cached_property
    def retrained(self) -> torch.Tensor:
        problem = self.retained(len(self.sets))
        solver = self.cg(self.tolerance / 30, self.args.reference_passes)
        return solver.solve(problem, self.weights).value


def run_tangent(setting: Setting, trained: TrainedTangent, method: str) -> list[dict[str, Any]]:
    """All requests by one method. SGD's residual is in float64 for the last request alone, to save passes;
    float32 has five digits of it, and it is nowhere near a guarantee."""
    user, w, rows = trained.user, trained.weights, []
    for k, positions in enumerate(trained.sets):
        solver, problem = (
            _solver(method, trained, k + 1 == len(trained.sets)),
            trained.retained(k + 1),
        )
        begin = time.monotonic()
        solution = solver.solve(problem, w)
        rows.append({"seconds": time.monotonic() - begin, "passes": solution.passes})
        norm, guarantee = solution.residual_norm, trained.guarantee
        rows[-1] |= _certified(user, guarantee, problem, norm, len(positions))
        print(f"  {method} {k + 1}: {json.dumps(rows[-1])}", flush=True)
        w = solution.value
    rows[-1]["distance_estimate"] = float((trained.retrained - w).norm())
    user.weights = w
    rows[-1]["accuracy"] = setting.score(user.logits(setting.tensor(setting.data.test)))
    return rows


def _tangent_user(setting: Setting, args: Any) -> tuple[TangentUser, torch.Tensor, torch.Tensor]:
    operator = TangentOperator(setting.core.tail)
    scales = balanced_scales(operator, setting.tensor(setting.data.core), probes=1)
    user = TangentUser(setting.core, mu=args.mu, scales=scales)
    return user, setting.tensor(setting.user), setting.core.labels(setting.user)


def _solver(
    method: str, trained: TrainedTangent, last: bool
) -> ConjugateGradient | PaperForgetting:
    chosen = METHODS[method]
    if isinstance(chosen, PaperSgd):
        return chosen.having(dtype=torch.float64 if last else None).solver(trained.lr)
    return trained.cg(trained.tolerance, trained.args.max_passes)


def _certified(
    user: TangentUser, guarantee: Guarantee, problem: RidgeProblem, norm: float, gone: int
) -> dict[str, Any]:
    certificate = ShiftCertificate(
        guarantee, user.mu, user.operator.d, problem.n, gone, min(norm, 1e30), 0.0
    )
    m = certificate.distance_bound / guarantee.sigma
    shown = certificate.epsilon_bound
    if (
        shown == float("inf") and m < 1e6
    ):  # δ has no room for the sampler's error: that of an ideal one
        shown = bounds.grid_epsilon_bound(guarantee.delta, m)
    return {
        "certificate": "a-posteriori",
        "sigma": guarantee.sigma,
        "gradient_norm": norm,
        "shift_bound": m,
        "epsilon_bound": shown,
        "information_bound_nats": bounds.information_bound(m),
        "passed": certificate.passed,
    }


def table(results: dict[str, Any]) -> str:
    head = "| method | passes | seconds a request | ε reached | met ε = 1 | distance | accuracy |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for method in SHOWN:
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
    options = parser(__doc__)
    options.add_argument("--methods", nargs="+", default=list(SHOWN), choices=SHOWN)
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
        trained = None
        for method in wanted:
            if method == "compact":
                rows = run_compact(setting, sets, args.features)
            else:
                trained = trained or TrainedTangent(setting, sets, args)
                rows = run_tangent(setting, trained, method)
            results.put(f"{method}/{seed}", {"requests": rows})
    print(table(results.values["results"]))


if __name__ == "__main__":
    main()
