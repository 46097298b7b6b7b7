"""The bench that every figure works on: the data, a core, a trained tangent model, its requests.

Activations are computed once a data set; trained weights and finished sequences of requests are kept beside
them, so that figures share them and a run that was cut short goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import name_of
from presets import Preset
from torch import Tensor, nn

from efface import ConjugateGradient, Core, MixedLinear, Preprocess, Records, __version__
from efface.audit.baselines import Forgotten
from efface.audit.readouts import error
from efface.audit.scene import Samples, Scene
from efface.data.record import Split
from efface.guarantee import bounds
from efface.linear.operator import TangentOperator
from efface.linear.scales import balanced_scales
from efface.network.activations import ActivationCache
from efface.network.training import Stage
from efface.parts.tangent.preconditioners import Preconditioner
from efface.parts.tangent.sgd import largest_eigenvalue
from efface.parts.tangent.user import TangentUser

Procedure = Callable[["Trial", Scene, Tensor], Forgotten]


@dataclass(frozen=True)
class Spot:
    """What a trained model depends on besides the preset."""

    fraction: float
    mu: float
    seed: int = 0
    size: float = 1.0  # the share of the user records used
    whole_class: bool = False  # one request for a class that core data know nothing of


@dataclass(frozen=True, eq=False)
class Run:
    """A procedure after all requests: ``state`` is before noise, ``steps`` has one entry a request."""

    state: Tensor
    release: Tensor
    steps: tuple[dict[str, float], ...]


class Bench:
    """Args: as of ``efface reproduce``; ``cache`` keeps activations and weights (it may be deleted)."""

    def __init__(
        self,
        data: str,
        backbone: str,
        preset: Preset,
        cache: Path,
        *,
        linearize: str = "last-block",
        say: Callable[[str], None] = print,
    ) -> None:
        self.data, self.backbone, self.preset, self.linearize = data, backbone, preset, linearize
        self.cache, self.name, self.say = Path(cache), name_of(data), say
        self.paper_epochs = preset.paper_epochs(self.name)

    @cached_property
    def records(self) -> Records:
        """Equally many training images a class, ``limit`` in all; core ones are chosen among them."""
        found, p = Records.open(self.data), self.preset
        train = found.where(lambda r: r.split != Split.TEST)
        return _limited(train, p.limit) + _limited(found.test, p.test_limit)

    @property
    def settings(self) -> dict[str, Any]:
        return self.preset.to_dict() | {
            "data": self.name,
            "backbone": self.backbone.rpartition("/")[2],
            "linearize": self.linearize,
            "paper_epochs": self.paper_epochs,
            "num_train": len(self.records) - len(self.records.test),
            "num_test": len(self.records.test),
            "num_classes": len(self.records.classes),
        }

    def split(self, fraction: float, seed: int = 0, whole_class: bool = False) -> Records:
        """The data's own core split does not count. ``whole_class`` moves the core records of
        :attr:`forgotten_class` to the user ones."""
        plain = [  # every image its own owner: the paper draws images
            r if r.split == Split.TEST else replace(r, split=Split.USER, owner=r.id)
            for r in self.records
        ]
        records = Records(plain, self.records.classes).with_core_fraction(fraction, seed)
        if not whole_class:
            return records
        moved = [
            replace(r, split=Split.USER)
            if r.label == self.forgotten_class and r.split == Split.CORE
            else r
            for r in records
        ]
        return Records(moved, records.classes)

    @property
    def forgotten_class(self) -> str:
        return self.records.classes[0]

    def new_core(self, seed: int = 0) -> Core:
        side = self.preset.side
        prep = None
        if side is not None and self.backbone != "cnn":
            prep = Preprocess(resize=round(side * 8 / 7), crop=side)
        return Core(
            self.backbone,
            classes=self.records.classes,
            linearize=self.linearize,
            preprocess=prep,
            seed=seed,
        )

    @lru_cache(maxsize=16)  # noqa: B019 - one bench a process
    def core(self, fraction: float, seed: int = 0, whole_class: bool = False) -> Core:
        """Trained on this share of the task; with none, the generic core gets a random head.

        A zero head would make all tangents below it vanish.
        """
        core, records = self.new_core(seed), self.split(fraction, seed, whole_class).core
        if len(records):
            core.fit(records, self.stages, calibrate_to=5.0, cache=self._usable(core))
        else:
            torch.manual_seed(seed)
            core.tail.head.load_state_dict(
                nn.Linear(core.tail.head.in_features, len(core.classes)).state_dict()
            )
        return core

    @property
    def stages(self) -> tuple[Stage, ...] | None:
        return None if self.backbone == "cnn" else (Stage("head", epochs=60, lr=0.01),)

    def activation_cache(self, core: Core) -> ActivationCache | None:
        """Of the frozen pretrained prefix; a prefix trained here is small and run again."""
        return None if self.backbone == "cnn" else core.cache(self.cache / "activations")

    def _usable(self, core: Core) -> ActivationCache | None:
        cache = self.activation_cache(core)
        if cache is not None and len(cache.missing(self.records.digests)):
            self.say(f"activations of {len(self.records)} images, once for this data set")
            core.activations(self.records, cache, progress=_dots(self.say))
        return cache

    def tensor(self, core: Core, records: Records) -> Tensor:
        rows = core.activations(records, self._usable(core))
        return rows[slice(0, len(rows))]

    # --- models -----------------------------------------------------------------------------------

    def spot(self, **changes: Any) -> Spot:
        return replace(Spot(self.preset.core_fraction, self.preset.mu), **changes)

    @lru_cache(maxsize=1)  # noqa: B019
    def trial(self, spot: Spot) -> Trial:
        return Trial(self, spot)

    def core_and_data(self, spot: Spot) -> tuple[Core, Records]:
        key = (spot.fraction, spot.seed, spot.whole_class)
        return self.core(*key), self.split(*key)

    def compact_model(self, spot: Spot) -> MixedLinear:
        """The compact user part of the same core and data."""
        core, data = self.core_and_data(spot)
        features = self.preset.features
        model = MixedLinear(core, "compact", features=features, cache=self._usable(core))
        return model.fit(part_of(data.user, spot.size), replay=data.core)

    # --- what is kept -----------------------------------------------------------------------------

    def kept(self, key: dict[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """``make()`` or what it gave before for this key, settings and version; tensors and numbers."""
        whole = json.dumps([__version__, self.settings, key], sort_keys=True, default=str)
        path = self.cache / "weights" / f"{hashlib.sha256(whole.encode()).hexdigest()[:24]}.pt"
        if path.is_file():
            return torch.load(path, weights_only=True)
        value = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        torch.save(value, temporary)
        temporary.replace(path)
        return value


class Trial:
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
        train, classes, zeros = user + data.core, len(core.classes), torch.zeros
        self.scene = Scene(
            self.user,
            self.user.operator,
            *(
                Samples(
                    bench.tensor(core, part),
                    core.labels(part),
                    zeros(len(part), classes, dtype=torch.float64),
                )
                for part in (train, data.test)
            ),
            forget=torch.zeros(0, dtype=torch.int64),
            num_user=len(user),
            mu=spot.mu,
            total_ridge=None,
            guarantee=self.guarantee,
        )

    def _key(self, **more: Any) -> dict[str, Any]:
        return {"spot": repr(self.spot), **more}

    def solver(self, closer: float = 1.0) -> ConjugateGradient:
        """To what the guarantee asks of a request, or ``closer`` times that with as many more passes."""
        asked = self.guarantee.gradient_tolerance(self.spot.mu, self.user.operator.d)
        passes = self.bench.preset.passes * (2 if closer > 1 else 1)
        return ConjugateGradient(
            absolute=asked / closer, max_passes=passes, preconditioner=self.preconditioner
        )

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
            solution = self.solver().solve(problem, start)
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
        """Of a scene's retained samples, ten times nearer than the guarantee asks a request to come."""

        def make() -> dict[str, Any]:
            self.bench.say(f"retraining ({what}) at {self.spot}")
            solver = self.solver(closer=10)
            return {"weights": solver.solve(scene.retained_problem, self.weights).value}

        return self.bench.kept(self._key(what=what), make)["weights"]

    def run(self, name: str, procedure: Procedure) -> Run:
        """All requests, one after the other, each on the weights that the last one left."""

        def make() -> dict[str, Any]:
            self.bench.say(f"{name}: {len(self.sets)} requests at {self.spot}")
            gone, steps, done = (
                torch.zeros(0, dtype=torch.int64),
                [],
                Forgotten(*[self.weights] * 2),
            )
            for positions in self.sets:
                keep = torch.ones(len(self.scene.train), dtype=torch.bool)
                keep[gone] = False
                scene = self.scene.restricted(keep.nonzero()[:, 0], positions)
                begin = time.monotonic()
                done = procedure(self, scene, done.state)
                seconds = time.monotonic() - begin
                passes = scene.retained_problem.passes if "retained_problem" in vars(scene) else 0.0
                steps.append({"seconds": seconds, "passes": passes})
                gone = torch.cat([gone, positions])
            norm = self.gradient_norm(done.state)
            return {"state": done.state, "release": done.weights, "steps": steps, "norm": norm}

        kept = self.bench.kept(self._key(what="run", name=name), make)
        steps = [*kept["steps"][:-1], kept["steps"][-1] | {"gradient_norm": kept["norm"]}]
        return Run(kept["state"], kept["release"], tuple(steps))

    def at_once(self, procedure: Procedure) -> Run:
        """All requests as one, from the trained weights."""
        scene, begin = self.forgotten, time.monotonic()
        before = scene.retained_problem.passes
        done = procedure(self, scene, self.weights)
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
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(len(state), generator=generator, dtype=torch.float64)
            logits = self.scene.logits(state + sigma * noise, self.scene.test)
            found.append(error(logits, self.scene.test.labels))
        return found


def part_of(records: Records, share: float) -> Records:
    """The first ``share`` of them in a fixed random order."""
    order = np.random.default_rng(1).permutation(len(records))
    return records[np.sort(order[: round(share * len(records))])]


def _limited(records: Records, limit: int | None) -> Records:
    """The first ``limit`` records in a fixed random order, equally many a class as far as they go."""
    if limit is None or limit >= len(records):
        return records
    order = np.random.default_rng(0).permutation(len(records))
    rank, seen = np.empty(len(records), dtype=np.int64), np.zeros(len(records.classes), np.int64)
    for position in order:
        label = records.labels[position]
        rank[position] = seen[label]
        seen[label] += 1
    place = np.empty(len(records), dtype=np.int64)
    place[order] = np.arange(len(records))
    chosen = np.lexsort((place, rank))[:limit]
    return records[np.sort(chosen)]


def _dots(say: Callable[[str], None]) -> Callable[[float, str], None]:
    last = [-1]

    def progress(fraction: float, message: str) -> None:
        if int(10 * fraction) > last[0]:
            last[0] = int(10 * fraction)
            say(f"  {fraction:4.0%} {message}")

    return progress
