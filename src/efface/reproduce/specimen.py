"""A specimen: one trained tangent model on the bench, the requests it gets, and what is read from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface.audit.methods import Method, NewWeights, normal
from efface.audit.readouts import error
from efface.audit.scene import Scene
from efface.data.records import Records
from efface.guarantee import bounds
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.parts.tangent.forgetting import SolvedForgetting
from efface.parts.tangent.preconditioners import Preconditioner
from efface.parts.tangent.sgd import largest_eigenvalue
from efface.parts.tangent.user import TangentUser
from efface.parts.view import Samples
from efface.reproduce.bench import Bench, Spot, part_of

Choice = Callable[["Specimen"], Method]  # a forgetting method, with what it takes from the specimen


@dataclass(frozen=True, eq=False)
class Run:
    """A method after all requests: ``state`` is before noise, ``steps`` has one entry per request."""

    state: Tensor
    release: Tensor
    steps: tuple[dict[str, float], ...]


class Specimen:
    """A tangent model trained on everything (core part included, as in the paper), and its requests."""

    def __init__(self, bench: Bench, spot: Spot) -> None:
        self.bench, self.spot = bench, spot
        core, data = bench.core_and_data(spot)
        user = part_of(data.user, spot.size)
        # Scales and σ come from the usual core images, without labels, also where the core saw fewer.
        # They are never asked to be forgotten: scales and preconditioner would remember them.
        shown = bench.split(bench.preset.core_fraction, spot.seed, spot.whole_class).core
        self.public = bench.tensor(core, shown)
        scales = balanced_scales(TangentOperator(core.tail), self.public)
        self.user = TangentUser(core, mu=spot.mu, scales=scales)
        self.guarantee = self.user.plan(1.0, 1e-5, None, "secret", lambda: self.public)
        known = set(shown.ids)
        self.private = np.array([r.id not in known for r in user])
        self.scene = Scene(
            self.user,
            self.user.operator,
            self._samples(user + data.core),
            self._samples(data.test),
            forget=torch.zeros(0, dtype=torch.int64),
            num_user=len(user),
            mu=spot.mu,
            total_ridge=None,
            guarantee=self.guarantee,
        )

    def _samples(self, records: Records) -> Samples:
        core = self.user.core
        offset = torch.zeros(len(records), len(core.classes), dtype=torch.float64)
        return Samples(self.bench.tensor(core, records), core.labels(records), offset)

    def _key(self, **more: Any) -> dict[str, Any]:
        return {"spot": repr(self.spot), **more}

    @property
    def tolerance(self) -> float:
        """Of the gradient's norm, as the guarantee asks it of a request."""
        return self.guarantee.gradient_tolerance(self.spot.mu, self.user.operator.d)

    @property
    def solving(self) -> SolvedForgetting:
        """Conjugate gradients with the preset's budget, preconditioned from core images."""
        return SolvedForgetting(self.bench.preset.passes, self.preconditioner)

    @cached_property
    def preconditioner(self) -> Preconditioner:
        return self.user.preconditioner("nystrom", self.public, rank=self.bench.preset.rank)

    @cached_property
    def training(self) -> dict[str, Any]:
        """The minimiser on everything, from the best head on."""

        def make() -> dict[str, Any]:
            self.bench.say(f"training at {self.spot}")
            begin, problem = time.monotonic(), self.scene.problem(self.scene.everyone)
            start = self.user.best_head(self.scene.train.inputs, self.scene.train.labels)
            solution = self.solving.solver(self.tolerance).solve(problem, start)
            rate = 1.0 / largest_eigenvalue(problem, 10)
            return {
                "weights": solution.value,
                "passes": solution.passes,
                "seconds": time.monotonic() - begin,
                "status": str(solution.status),
                "residual_norm": solution.residual_norm,
                "rate": rate,
            }

        return self.bench.kept(self._key(what="training"), make)

    @property
    def weights(self) -> Tensor:
        return self.training["weights"]

    @property
    def rate(self) -> float:
        """1/λmax(H): the largest step that SGD is sure to survive; one for all requests."""
        return self.training["rate"]

    @cached_property
    def sets(self) -> list[Tensor]:
        """Disjoint random sets of user records, ``share`` of all training records each; or a class."""
        p, labels = self.bench.preset, self.scene.train.labels[: self.scene.num_user]
        if self.spot.whole_class:
            return [(labels == 0).nonzero()[:, 0]]
        order = np.random.default_rng(self.spot.seed).permutation(np.flatnonzero(self.private))
        size = max(1, round(p.share * len(self.scene.train)))
        cut = [np.sort(order[k * size : (k + 1) * size]) for k in range(p.requests)]
        return [torch.from_numpy(positions) for positions in cut]

    @cached_property
    def forgotten(self) -> Scene:
        """The scene in which all requests are one."""
        return self.scene.forgetting(torch.cat(self.sets))

    @cached_property
    def retrained(self) -> Tensor:
        """The minimiser without all that was asked to be forgotten."""
        return self.minimiser(self.forgotten, "retrained")

    def minimiser(self, scene: Scene, what: str) -> Tensor:
        """Of a scene's retained samples, ten times nearer than the guarantee asks a request to come; with
        twice the budget."""

        def make() -> dict[str, Any]:
            self.bench.say(f"retraining ({what}) at {self.spot}")
            passes = 2 * self.bench.preset.passes
            solver = replace(self.solving, max_passes=passes).solver(self.tolerance / 10)
            return {"weights": solver.solve(scene.retained_problem, self.weights).value}

        return self.bench.kept(self._key(what=what), make)["weights"]

    def run(self, name: str, choice: Choice) -> Run:
        """All requests, one after the other, each on the weights that the last one left.

        ``name`` is what the finished run is kept under.
        """

        def make() -> dict[str, Any]:
            self.bench.say(f"{name}: {len(self.sets)} requests at {self.spot}")
            done, steps = self._one_by_one(choice(self))
            norm = self.gradient_norm(done.state)
            return {"state": done.state, "release": done.weights, "steps": steps, "norm": norm}

        kept = self.bench.kept(self._key(what="run", name=name), make)
        steps = [*kept["steps"][:-1], kept["steps"][-1] | {"gradient_norm": kept["norm"]}]
        return Run(kept["state"], kept["release"], tuple(steps))

    def _one_by_one(self, method: Method) -> tuple[NewWeights, list[dict[str, float]]]:
        keep = torch.ones(len(self.scene.train), dtype=torch.bool)
        done, steps = NewWeights(self.weights, self.weights), []
        for positions in self.sets:
            scene = self.scene.restricted(keep.nonzero()[:, 0], positions)
            begin = time.monotonic()
            done = method(scene, done.state, self.spot.seed)
            seconds = time.monotonic() - begin
            passes = scene.retained_problem.passes if "retained_problem" in vars(scene) else 0.0
            steps.append({"seconds": seconds, "passes": passes})
            keep[positions] = False
        return done, steps

    def at_once(self, choice: Choice) -> Run:
        """All requests as one, from the trained weights."""
        method, scene, begin = choice(self), self.forgotten, time.monotonic()
        before = scene.retained_problem.passes
        done = method(scene, self.weights, self.spot.seed)
        step = {
            "seconds": time.monotonic() - begin,
            "passes": scene.retained_problem.passes - before,
            "gradient_norm": self.gradient_norm(done.state),
        }
        return Run(done.state, done.weights, (step,))

    # --- what is read -----------------------------------------------------------------------------

    def gradient_norm(self, state: Tensor) -> float:
        """‖g_r(w)‖ in float64 on what stays after all requests."""
        if not bool(state.isfinite().all()):
            return float("inf")
        return float(self.forgotten.retained_problem.gradient(state, torch.float64).norm())

    def information(self, run: Run, sigma: float) -> dict[str, float]:
        """½(‖w − w*_r‖/σ)²: measured to the retrained model, and bounded through the gradient."""
        distance = float((run.state - self.retrained).norm())
        bound = bounds.distance_bound(run.steps[-1]["gradient_norm"], self.spot.mu)
        return {
            "information_nats_estimate": bounds.kl(min(distance / sigma, 1e150)),
            "information_nats_bound": bounds.information_bound(min(bound / sigma, 1e150)),
            "distance_estimate": distance,
            "distance_bound": bound,
        }

    def test_errors(self, state: Tensor, sigma: float = 0.0) -> list[float]:
        """Of w + σξ for some draws of ξ; one draw without noise."""
        draws = self.bench.preset.noise_draws if sigma else 1
        found = []
        for seed in range(draws):
            noisy = state + sigma * normal(len(state), seed)
            logits = self.scene.logits(noisy, self.scene.test)
            found.append(error(logits, self.scene.test.labels))
        return found


@lru_cache(maxsize=1)
def specimen_of(bench: Bench, spot: Spot) -> Specimen:
    """The specimen at a spot; the last one is kept, since the parts of a figure come one after another."""
    return Specimen(bench, spot)
