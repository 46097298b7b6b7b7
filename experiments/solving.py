"""How many passes it takes to solve the paper's model at the paper's ridges: the dual form, and plain CG.

    python experiments/solving.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations --each 3 10

BatchNorm kept, weights as they are, targets × 5, the core's head trained on 30 % of the images, user
weights in `--layers`. The ridges are the printed weight decays in the reading `paper` of the loss
(docs/errata.md, 28): λ c/2. `--each` takes so many training images of every class (0: all). The dual form
is over when ‖w − w*‖ is *proved* to be at most `--precision` of ‖w‖. Plain conjugate gradients, from the
best head on, cannot prove it: they are over when it is so, by the distance to a minimiser that the dual
form has found a hundred times more precisely. Passes count everything, building a preconditioner and
checking gradients included. Each solve is kept as soon as it ends, and what is kept is not computed
again: a killed run goes on with the next. Writes experiments/results/solving-NAME.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from common import RESULTS, Results, name_of, parser
from torch import Tensor

from efface import Core, Records
from efface.parts.tangent.dual import DualConjugateGradient
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.reading import Reading
from efface.parts.tangent.user import TangentUser


class Setting:
    """The core, and the activations and labels of the training and test images."""

    def __init__(self, args: Any) -> None:
        self.data = Records.open(args.data, core_fraction=args.core_fraction, seed=args.seeds[0])
        self.core = Core(
            args.backbone,
            classes=self.data.classes,
            linearize=args.linearize,
            leaky_slope=args.leaky_slope,
            fold_batchnorm=False,
        )
        self.cache = self.core.cache(args.cache) if args.cache else None
        self.core.fit(self.data.core, cache=self.cache)
        self.records = self.data.user + self.data.core
        self.labels = self.core.labels(self.records)
        rows = self.core.activations(self.records, self.cache, progress=say)
        self.x = rows[slice(0, len(rows))]

    def some(self, each: int) -> Tensor:
        """Positions of the first ``each`` images of every class; all for 0."""
        if not each:
            return torch.arange(len(self.labels))
        every = [(self.labels == k).nonzero()[:each, 0] for k in range(len(self.data.classes))]
        return torch.cat(every).sort().values

    def score(self, user: TangentUser) -> float | None:
        if not len(self.data.test):
            return None
        rows = self.core.activations(self.data.test, self.cache, progress=say)
        guess = user.logits(rows).argmax(1)
        return float((guess == self.core.labels(self.data.test)).float().mean())


def say(fraction: float, message: str) -> None:
    print(f"\r{100 * fraction:5.1f} % {message}", end="", file=sys.stderr, flush=True)


def by_dual(setting: Setting, args: Any, user: TangentUser, index: Tensor) -> dict[str, Any]:
    problem = problem_of(setting, args, user, index)
    begin, cpu = time.monotonic(), time.process_time()
    dual = DualConjugateGradient(precision=args.precision, max_passes=args.passes)
    solution = dual.solve(problem, progress=say)
    user.weights = solution.value
    return {
        "status": str(solution.status),
        "passes": solution.passes,
        "distance_bound": solution.distance_bound,
        "norm": float(solution.value.norm()),
        "seconds": time.monotonic() - begin,
        "cpu_seconds": time.process_time() - cpu,
        "accuracy": setting.score(user) if args.score else None,
    }


def by_cg(setting: Setting, args: Any, user: TangentUser, index: Tensor) -> dict[str, Any]:
    """Conjugate gradients written out, because the distance is looked at after every pass."""
    problem = problem_of(setting, args, user, index)
    dual = DualConjugateGradient(precision=args.precision / 100, max_passes=args.passes)
    wanted = dual.solve(problem, progress=say).value
    w = user.best_head(setting.x[index], setting.labels[index])
    first = float((w - wanted).norm() / wanted.norm())
    begin, cpu, before = time.monotonic(), time.process_time(), problem.passes
    r = -problem.gradient(w)
    p, rr = r.clone(), float(r @ r)
    away = first
    while away > args.precision and problem.passes - before < args.passes:
        hp = problem.product(p)
        step = rr / float(p @ hp)
        w, r = w + step * p, r - step * hp
        rr, old = float(r @ r), rr
        p = r + (rr / old) * p
        away = float((w - wanted).norm() / wanted.norm())
        say(0.0, f"distance {away:.2e}")
    return {
        "status": "converged" if away <= args.precision else "stopped short",
        "passes": problem.passes - before,
        "distance_estimate": away,
        "distance_estimate_of_best_head": first,
        "seconds": time.monotonic() - begin,
        "cpu_seconds": time.process_time() - cpu,
    }


def problem_of(setting: Setting, args: Any, user: TangentUser, index: Tensor) -> RidgeProblem:
    x, labels = setting.x[index], setting.labels[index]
    return user.problem(x, labels, cache_bytes=args.memory << 30)


def solve(setting: Setting, args: Any, each: int, decay: float, name: str) -> dict[str, Any]:
    index, c = setting.some(each), len(setting.core.classes)
    mu = Reading.PAPER.ridge(decay, c)
    user = TangentUser(setting.core, mu=mu, layers=args.layers)
    found = SOLVERS[name](setting, args, user, index)
    return {"images": len(index), "weights": user.num_weights, "mu": mu, **found}


SOLVERS: dict[str, Callable[..., dict[str, Any]]] = {"dual": by_dual, "cg": by_cg}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--each", type=int, nargs="+", default=[0], help="images a class, 0: all")
    options.add_argument("--decays", type=float, nargs="+", default=[1e-5, 1e-3])
    options.add_argument("--layers", choices=("all", "final"), default="final")
    options.add_argument("--passes", type=int, default=1000)
    options.add_argument("--precision", type=float, default=1e-2)
    options.add_argument("--memory", type=int, default=6, help="GiB for the primal side")
    options.add_argument("--score", action="store_true", help="test accuracy, too")
    args = options.parse_args()
    names = ("core_fraction", "linearize", "layers", "precision", "leaky_slope", "passes")
    kept = {name: getattr(args, name) for name in names}
    results = Results(args.out or RESULTS / f"solving-{name_of(args.data)}.json", kept)
    todo = [(each, decay) for each in args.each for decay in args.decays]
    label = "each {}, decay {:g}, {}"
    if all(label.format(e or "all", d, by) in results for e, d in todo for by in SOLVERS):
        return
    setting = Setting(args)
    for each, decay in todo:
        for by in SOLVERS:
            name = label.format(each or "all", decay, by)
            if name not in results:
                results.put(name, solve(setting, args, each, decay, by))


if __name__ == "__main__":
    main()
