"""A specimen: one trained tangent model on the bench, the requests it gets, and what is read from it."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from efface.audit.methods import METHODS, Method, NewWeights, normal
from efface.audit.readouts import error
from efface.audit.scene import Scene
from efface.data.records import Records
from efface.guarantee import bounds
from efface.linear.last_layer import LastLayer
from efface.linear.solution import Solution
from efface.network.targets import one_hot
from efface.parts.tangent.preconditioners import Preconditioner
from efface.parts.tangent.primal import Primal, SharedRows
from efface.parts.tangent.problem import RidgeProblem
from efface.parts.tangent.stability import Stability, stability
from efface.parts.tangent.user import TangentUser
from efface.parts.view import Samples
from efface.reproduce.bench import Bench, Spot, dots, part_of
from efface.reproduce.method_run import Run
from efface.reproduce.minimiser import dense_factor, minimise, told
from efface.reproduce.multipliers import Multipliers
from efface.reproduce.solved import SolvedByDistance

STABILITY_SAMPLES = 256
SOLVE = 100  # passes that a solve takes on photos, about: for expected times
T = TypeVar("T")
Choice = Callable[["Specimen"], Method]  # a forgetting method, with what it takes from the specimen


class Specimen:
    """A tangent model trained on everything (core part included, as in the paper), and its requests."""

    def __init__(self, bench: Bench, spot: Spot) -> None:
        self.bench, self.spot = bench, spot
        core, data = bench.core_and_data(spot)
        user = part_of(data.user, spot.size)
        # σ comes from the usual core images, without labels, also where the core saw fewer: they are never
        # asked to be forgotten.
        shown = bench.split(bench.preset.core_fraction, spot.seed, spot.whole_class).core
        self.user = TangentUser(core, mu=spot.mu, layers=bench.preset.layers)
        public = partial(bench.tensor, core, shown)
        self.guarantee = self.user.plan(1.0, 1e-5, None, "secret", public)
        self.multipliers = Multipliers()
        self._seen: dict[str, Tensor] = {}  # logits on the test samples, by weights
        self._beside: dict[str, Any] = {}
        known = set(shown.ids)
        self.private = np.array([r.id not in known for r in user])
        self.scene = Scene(
            self.user,
            self.user.operator,
            self._shared(user + data.core),
            self._samples(data.test),
            forget=torch.zeros(0, dtype=torch.int64),
            num_user=len(user),
            mu=spot.mu,
            total_ridge=None,
            guarantee=self.guarantee,
            solver=_by(ref(self)),
        )

    def beside(self, name: str, make: Callable[[], T]) -> T:
        """``make()``, or what it gave before under this name: what a figure keeps of the specimen goes with
        it."""
        if name not in self._beside:
            self._beside[name] = make()
        found: T = self._beside[name]
        return found

    def minimiser_of(self, problem: RidgeProblem) -> Tensor:
        """For worlds with canaries: solved as training is."""
        p = self.bench.preset
        return self._minimise(problem, precision=p.precision, max_passes=p.passes).value

    def _minimise(
        self, problem: RidgeProblem, start: Tensor | None = None, **options: Any
    ) -> Solution:
        solution = minimise(
            problem,
            start,
            preconditioner=self.preconditioner,
            multipliers=self.multipliers.near(problem),
            progress=self._dots,
            **options,
        )
        self.multipliers.keep(problem, solution)
        return solution

    @cached_property
    def preconditioner(self) -> Preconditioner | None:
        """For problems between weights: the Hessian of everybody, near enough for those of some. It would
        remember the forgotten ones, and nothing is released here."""
        return dense_factor(self.scene.problem(self.scene.everyone))

    def _samples(self, records: Records, inputs: SharedRows | None = None) -> Samples:
        core = self.user.core
        offset = torch.zeros(len(records), len(core.classes), dtype=torch.float64)
        shown = self.bench.rows(core, records) if inputs is None else inputs
        return Samples(shown, core.labels(records), offset)

    def _shared(self, records: Records) -> Samples:
        """Training samples: retrained models, requests and attacks are problems on some of them, and share
        what is prepared of all."""
        spot, core = self.spot, self.user.core
        whose = (spot.fraction, spot.seed, spot.size, spot.whole_class)  # not the ridge
        if self.bench.primal[0] != whose:
            if self.bench.primal[1] is not None:
                self.bench.primal[1].drop()  # somebody may still hold it
            self.bench.primal = (), None  # before the next one's activations are read
            inputs = self.bench.rows(core, records)
            made = Primal(self.user.operator, inputs, cache_bytes=self.bench.memory)
            # Where they do not fit otherwise, SGD too steps with J rounded to 11 bits; what is proved, and
            # the retrained model that others are held against, is in float64.
            made.pool(half=True)
            self.bench.primal = whose, made
        primal = self.bench.primal[1]
        assert primal is not None
        self.primal = primal
        return self._samples(records, SharedRows(primal))

    def _key(self, **more: Any) -> dict[str, Any]:
        return {"spot": repr(self.spot), **more}

    @property
    def _dots(self) -> Callable[[float, str], None]:
        return dots(self.bench.say)

    @property
    def largest_distance(self) -> float:
        """To the retrained model."""
        return self.guarantee.shift(self.user.operator.d) * self.guarantee.sigma

    @cached_property
    def training(self) -> dict[str, Any]:
        """The minimiser on everything, to the preset's precision."""

        def make() -> dict[str, Any]:
            self.bench.say(f"training at {self.spot}")
            begin, problem = time.monotonic(), self.scene.problem(self.scene.everyone)
            goal: dict[str, Any] = {
                "precision": self.bench.preset.precision,
                "max_passes": self.passes,
            }
            state = self.bench.solve_state(self._key(what="training"))
            solution = self._minimise(problem, state=state, **goal)
            seconds = time.monotonic() - begin
            return {"weights": solution.value, "seconds": seconds} | told(solution)

        return self.bench.kept(self._key(what="training"), make)

    @property
    def passes(self) -> int:
        """The budget of a training: the preset's at the ridge of the forgetting figures, and more at a
        smaller one, since conjugate gradients take about 1/√μ."""
        return round(self.bench.preset.passes * max(1.0, self.bench.mu / self.spot.mu) ** 0.5)

    @property
    def weights(self) -> Tensor:
        return self.training["weights"]

    @cached_property
    def stability(self) -> Stability:
        """λmax(H), from some of the images."""

        def make() -> dict[str, Any]:
            every = self.scene.everyone
            some = self.scene.problem(every[:: max(1, len(every) // STABILITY_SAMPLES)])
            found = stability(some, momentum=0.9)
            return {"value": found.eigenvalue_estimate, "samples": found.num_samples}

        kept = self.bench.kept(self._key(what="stability"), make)
        return Stability(kept["value"], kept["samples"], 0.9)

    @property
    def rate(self) -> float:
        """Of SGD: 1/λmax(H), the largest step that it is sure to survive; one for all requests.

        The printed rates belong to the paper's own problems; on small networks they would leave SGD where it
        starts. ``standing`` has both.
        """
        return 1.0 / self.stability.eigenvalue_estimate

    @property
    def printed_rate(self) -> float:
        """Of a request's first epoch, as the paper prints it, for our loss."""
        return self.bench.rate(self.bench.preset.paper_rate(self.bench.name))

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
    def reference(self) -> dict[str, Any]:
        """The minimiser without all that was asked to be forgotten, ``nearer`` than a request has to come;
        from what the solved procedure leaves, which is near already."""

        def make() -> dict[str, Any]:
            near = self.at_once("solved", lambda specimen: specimen.solving)
            self.bench.say(f"retraining at {self.spot}")
            p, problem = self.bench.preset, self.forgotten.retained_problem
            goal: dict[str, Any] = {
                "distance": self.largest_distance / p.nearer,
                "max_passes": 2 * p.passes,
            }
            solution = self._minimise(problem, near.state, **goal)
            return {"weights": solution.value} | told(solution)

        return self.bench.kept(self._key(what="retrained"), make)

    @property
    def solving(self) -> Method:
        """The solved procedure, with the budget of the preset."""
        return SolvedByDistance(
            "solved",
            METHODS["solved"].title,
            max_passes=2 * self.bench.preset.passes,
            preconditioner=self.preconditioner,
            progress=self._dots,
            multipliers=self.multipliers,
        )

    @property
    def retrained(self) -> Tensor:
        return self.reference["weights"]

    @cached_property
    def standing(self) -> dict[str, Any]:
        """Whether a verdict may rest on this model: solved, and better than its last layer alone."""
        return {
            "training_status": self.training["status"],
            "training_passes": self.training["passes"],
            "reference_status": self.reference["status"],
            "reference_distance_bound": self.reference["distance_bound"],
            "trained_error": self.test_errors(self.weights)[0],
            "last_layer_error": self.last_layer_error,
            "slopes_in_half": self.primal.half,
            "rate": self.rate,
            "printed_rate": self.printed_rate,
            "largest_eigenvalue_estimate": self.stability.eigenvalue_estimate,
        }

    @cached_property
    def last_layer_error(self) -> float:
        """Of ridge on the pooled features of all training images, at the same ridge."""
        train, test = self.scene.train, self.scene.test
        targets = one_hot(train.labels, len(self.user.core.classes), self.user.target_scale)
        data = self.bench.core_and_data(self.spot)[1]
        own = part_of(data.user, self.spot.size) + data.core
        features, shown = (self.bench.features(self.spot, r) for r in (own, data.test))
        model = LastLayer.fit(features, targets, self.spot.mu)
        return error(model.logits(shown), test.labels)

    def run(self, name: str, choice: Choice) -> Run:
        """All requests, one after the other, each on the weights that the last one left.

        ``name`` is what the finished run is kept under.
        """

        def make() -> dict[str, Any]:
            self.bench.say(f"{name}: {len(self.sets)} requests at {self.spot}")
            done, steps = self._one_by_one(choice(self))
            bound = self.distance_bound(done)
            return {"state": done.state, "release": done.weights, "steps": steps, "bound": bound}

        kept = self.bench.kept(self._key(what="run", name=name), make)
        return Run(kept["state"], kept["release"], tuple(kept["steps"]), kept["bound"])

    def _one_by_one(self, method: Method) -> tuple[NewWeights, list[dict[str, float]]]:
        keep = torch.ones(len(self.scene.train), dtype=torch.bool)
        done, steps = NewWeights(self.weights, self.weights), []
        for positions in self.sets:
            scene = self.scene.restricted(keep.nonzero()[:, 0], positions)
            begin = time.monotonic()
            with self.multipliers.unused():
                done = method(scene, done.state, self.spot.seed)
            seconds, known = time.monotonic() - begin, "retained_problem" in vars(scene)
            passes = scene.retained_problem.passes if known else 0.0
            steps.append({"seconds": seconds, "passes": passes})
            keep[positions] = False
        return done, steps

    def at_once(self, name: str, choice: Choice) -> Run:
        """All requests as one, from the trained weights."""

        def make() -> dict[str, Any]:
            self.bench.say(f"{name}: all requests as one at {self.spot}")
            method, scene, weights = choice(self), self.forgotten, self.weights
            begin, before = time.monotonic(), scene.retained_problem.passes
            with self.multipliers.unused():
                done = method(scene, weights, self.spot.seed)
            step = {
                "seconds": time.monotonic() - begin,
                "passes": scene.retained_problem.passes - before,
            }
            bound = self.distance_bound(done)
            return {"state": done.state, "release": done.weights, "steps": [step], "bound": bound}

        kept = self.bench.kept(self._key(what="at once", name=name), make)
        return Run(kept["state"], kept["release"], tuple(kept["steps"]), kept["bound"])

    # --- what is read -----------------------------------------------------------------------------

    def distance_bound(self, done: NewWeights) -> float:
        """≥ ‖w − w*_r‖: what the method proved, or ‖g_r(w)‖/μ in float64 on what stays."""
        if done.distance_bound is not None:
            return done.distance_bound
        if not bool(done.state.isfinite().all()):
            return float("inf")
        gradient = self.forgotten.retained_problem.gradient(done.state, torch.float64)
        return bounds.distance_bound(float(gradient.norm()), self.spot.mu)

    def information(self, run: Run, sigma: float) -> dict[str, float]:
        """½(‖w − w*_r‖/σ)²: measured to the retrained model, and bounded."""
        distance = float((run.state - self.retrained).norm().nan_to_num(nan=torch.inf))
        return {
            "information_nats_estimate": bounds.kl(min(distance / sigma, 1e150)),
            "information_nats_bound": bounds.information_bound(min(run.bound / sigma, 1e150)),
            "distance_estimate": distance,
            "distance_bound": run.bound,
        }

    def test_errors(self, state: Tensor, sigma: float = 0.0) -> list[float]:
        """Of w + σξ for some draws of ξ; one draw without noise."""
        logits, labels = self._test_logits(state), self.scene.test.labels
        if not sigma:
            return [error(logits, labels)]
        draws = range(self.bench.preset.noise_draws)
        return [error(logits + sigma * self._test_noise(seed), labels) for seed in draws]

    def _test_logits(self, state: Tensor) -> Tensor:
        """Kept: many figures look at the same weights."""
        key = hashlib.sha256(state.numpy().tobytes()).hexdigest()
        if key not in self._seen:
            self._seen[key] = self._test_outputs(state)
        return self._seen[key]

    def _test_noise(self, seed: int) -> Tensor:
        """J ξ: outputs are linear in the weights, so that one product serves all σ."""
        zero = self._test_logits(torch.zeros_like(self.weights))
        return self._test_logits(normal(len(self.weights), seed)) - zero

    @cached_property
    def _test_outputs(self) -> Callable[[Tensor], Tensor]:
        return self.scene.outputs(self.scene.test)


def _by(specimen: ref[Specimen]) -> Callable[[RidgeProblem], Tensor]:
    """Its solver, for its own scenes. They must not hold it: a ring of objects as large as these would wait
    for the garbage collector, which counts objects and not bytes."""

    def solve(problem: RidgeProblem) -> Tensor:
        found = specimen()
        assert found is not None
        return found.minimiser_of(problem)

    return solve


_last: list[Specimen] = []  # one at most


def specimen_of(bench: Bench, spot: Spot) -> Specimen:
    """The specimen at a spot; the last one is kept, since the parts of a figure come one after another.

    It is let go before the next one is made: two of them may not fit into memory.
    """
    if not (_last and _last[0].bench is bench and _last[0].spot == spot):
        _last.clear()
        gc.collect()  # libraries leave rings behind, too (tracebacks of imports that failed)
        _last.append(Specimen(bench, spot))
    return _last[0]
