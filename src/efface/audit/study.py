"""A study: every method, every readout and every attack on one model; measured here, drawn elsewhere.

Parts are small JSON files in a cache, keyed by everything they depend on, so a study that was cut short
goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from efface import files
from efface.audit.attacks import ATTACKS, Worlds, build_worlds, play
from efface.audit.influence import strongest
from efface.audit.methods import Method, methods_for
from efface.audit.readouts import (
    Relearn,
    Spread,
    activation_distance,
    entropy_attack,
    error,
    relearn_threshold,
)
from efface.audit.scene import Scene
from efface.guarantee import bounds
from efface.parts.tangent.sgd import largest_eigenvalue
from efface.progress import Progress, part
from efface.version import VERSION

SCHEMA = "efface.audit/1"
PART_SCHEMA = "efface.audit-part/1"


@dataclass(frozen=True)
class Settings:
    """How much is measured. ``worlds`` 0 leaves out the attacks that need many models."""

    seeds: int = 3
    worlds: int = 48
    targets: int = 50
    canaries: int = 200
    fraction: float = 0.1
    relearn: int = 300
    methods: tuple[str, ...] | None = None
    seed: int = 0


class Study:
    """``request`` are the user positions to forget; None draws a ``fraction`` of them anew for each seed."""

    def __init__(
        self,
        scene: Scene,
        settings: Settings,
        *,
        request: Tensor | None = None,
        cache: Path | None = None,
        identity: str = "",
    ) -> None:
        self.scene, self.settings, self.request = scene, settings, request
        self.cache, self.identity = cache, identity
        names = None if settings.methods is None else list(settings.methods)
        self.methods = methods_for(scene.kind, names)
        self._scenes: dict[int, Scene] = {}

    def run(self, progress: Progress | None = None) -> dict[str, Any]:
        """All values of the report, as one dictionary that JSON can hold."""
        start = time.monotonic()
        readouts = self._readouts(part(progress, 0.0, 0.4, "readouts"))
        canary = self._attacks("canary", part(progress, 0.4, 0.6, "canaries"))
        shadow = self._attacks("shadow", part(progress, 0.6, 1.0, "attacks"))
        methods = {
            m.name: {
                "title": m.title,
                "claim": str(m.claim),
                "claimed_epsilon": m.epsilon(self.scene),
                "readouts": readouts[m.name],
                "canary": canary.get(m.name, {}),
                "attacks": shadow.get(m.name, {}),
            }
            for m in self.methods
        }
        return {
            "user": self.scene.kind,
            "settings": asdict(self.settings),
            "num_train": len(self.scene.train),
            "num_user": self.scene.num_user,
            "num_forgotten": len(self.scene_for(0).forget),
            "num_test": len(self.scene.test),
            "num_weights": self.scene.operator.d,
            "guarantee": asdict(self.scene.guarantee),
            "methods": methods,
            "strongest": {name: strongest(method) for name, method in methods.items()},
            "contradictions": contradictions(methods),
            "environment": {
                "efface": VERSION,
                "python": platform.python_version(),
                "torch": torch.__version__,
            },
            "seconds": round(time.monotonic() - start, 1),
        }

    # --- readouts ---------------------------------------------------------------------------------

    def scene_for(self, seed: int) -> Scene:
        """The scene with the request, or with a random one of this seed."""
        if seed not in self._scenes:
            forget = self.request
            if forget is None:
                rng = np.random.default_rng((self.settings.seed, seed))
                size = max(1, round(self.settings.fraction * self.scene.num_user))
                chosen = rng.choice(self.scene.num_user, size, replace=False)
                forget = torch.from_numpy(np.sort(chosen))
            self._scenes = {seed: self.scene.forgetting(forget)}  # caches are large: keep one
        return self._scenes[seed]

    @cached_property
    def trained(self) -> Tensor:
        """The weights before any request."""
        return self.scene.solve(self.scene.everyone)

    def _readouts(self, progress: Progress) -> dict[str, dict[str, Any]]:
        taken: dict[str, list[dict[str, float]]] = {m.name: [] for m in self.methods}
        done, total = 0, self.settings.seeds * len(self.methods)
        for seed in range(self.settings.seeds):
            judge = Lazy(
                lambda seed=seed: Reader(self.scene_for(seed), self.trained, self._relearn(seed))
            )
            for method in self.methods:
                key = {"part": "readouts", "method": method.name, "seed": seed}
                taken[method.name].append(
                    self._cached(key, lambda m=method, s=seed, j=judge: j.value.read(m, s))
                )
                done += 1
                progress(done / total, f"{method.name}, seed {seed}")
        return {name: _spreads(rows) for name, rows in taken.items()}

    def _relearn(self, seed: int) -> Relearn:
        return Relearn(max_iterations=self.settings.relearn, seed=seed)

    # --- attacks ----------------------------------------------------------------------------------

    def _attacks(self, game: str, progress: Progress) -> dict[str, dict[str, Any]]:
        settings = self.settings
        num = {"canary": int(settings.canaries > 0), "shadow": settings.worlds}[game]
        if num == 0:
            return {}
        worlds = Lazy(lambda: self._worlds(game, part(progress, 0.0, 0.3, "training")))
        result = {}
        for i, method in enumerate(self.methods):
            key = {"part": game, "method": method.name}
            result[method.name] = self._cached(
                key,
                lambda m=method: self._attack(worlds.value, m),
            )
            progress(0.3 + 0.7 * (i + 1) / len(self.methods), method.name)
        return result

    def _worlds(self, game: str, progress: Progress) -> Worlds:
        settings = self.settings
        if game == "canary":
            return build_worlds(
                self.scene,
                1,
                settings.canaries,
                seed=settings.seed + 1,
                mislabelled=True,
                base_share=1.0,
                progress=progress,
            )
        seed = settings.seed + 2
        return build_worlds(
            self.scene, settings.worlds, settings.targets, seed=seed, progress=progress
        )

    def _attack(self, worlds: Worlds, method: Method) -> dict[str, Any]:
        seen, delta = play(worlds, method), self.scene.guarantee.delta
        delta = delta if method.epsilon(self.scene) else 0.0
        return {
            attack.name: attack.verdict(seen, delta).to_dict() | {"covered": attack.covered}
            for attack in ATTACKS.values()
            if len(worlds.worlds) >= attack.min_worlds
        }

    # --- cache ------------------------------------------------------------------------------------

    def _cached(self, key: Mapping[str, Any], measure: Any) -> dict[str, Any]:
        if self.cache is None:
            return measure()
        settings = asdict(self.settings) | {"methods": None, "seeds": None}
        request = None if self.request is None else self.request.tolist()
        whole = [VERSION, self.identity, settings, request, dict(key)]
        name = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:24]
        path = self.cache / f"{name}.json"
        if path.is_file():
            return files.read_json(path, PART_SCHEMA)["values"]
        self.cache.mkdir(parents=True, exist_ok=True)
        values = measure()
        files.write_json(path, {"schema": PART_SCHEMA, "key": dict(key), "values": values})
        return values


class Lazy:
    """A value computed when it is first asked for: a study from the cache trains nothing."""

    def __init__(self, make: Any) -> None:
        self._make = make

    @cached_property
    def value(self) -> Any:
        return self._make()


class Reader:
    """Takes the readouts of methods on one scene; the retrained model is what they are compared with.

    ``retrained`` is for callers who have it already.
    """

    def __init__(
        self, scene: Scene, trained: Tensor, relearn: Relearn, retrained: Tensor | None = None
    ) -> None:
        self.scene, self.trained, self.relearn = scene, trained, relearn
        self.sets = {
            "retained": scene.train.select(scene.retained),
            "forgotten": scene.train.select(scene.forget),
            "test": scene.test,
        }
        self.retrained = scene.solve(scene.retained) if retrained is None else retrained
        self.reference = {k: scene.logits(self.retrained, s) for k, s in self.sets.items()}

    @cached_property
    def _relearning(self) -> tuple[Any, float, float]:
        """Problem, step size and threshold: the forgotten samples and as many retained ones."""
        scene, forgotten = self.scene, self.sets["forgotten"]
        generator = torch.Generator().manual_seed(self.relearn.seed)
        order = torch.randperm(len(scene.retained), generator=generator)[: len(forgotten)]
        problem = scene.problem(torch.cat([scene.forget, scene.retained[order]]))
        losses = (scene.loss(w, forgotten) for w in (self.trained, self.retrained))
        return problem, 1.0 / largest_eigenvalue(problem), relearn_threshold(*losses)

    def relearn_time(self, weights: Tensor) -> int:
        problem, rate, threshold = self._relearning
        forgotten = self.sets["forgotten"]
        loss = lambda w: self.scene.loss_of(self._forgotten_outputs(w), forgotten)  # noqa: E731
        return self.relearn.iterations(problem, weights, loss, threshold, rate)

    @cached_property
    def _forgotten_outputs(self) -> Callable[[Tensor], Tensor]:
        """Looked at after every step of relearning."""
        return self.scene.outputs(self.sets["forgotten"])

    @cached_property
    def _retrained_time(self) -> int:
        return self.relearn_time(self.retrained)

    def read(self, method: Method, seed: int = 0) -> dict[str, float]:
        """All readouts of one method."""
        start = time.monotonic()
        result = method(self.scene, self.trained, seed)
        seconds = time.monotonic() - start
        return self.values(result.weights, result.state) | {"seconds": seconds}

    def values(self, weights: Tensor, state: Tensor) -> dict[str, float]:
        """All readouts of some weights; ``state`` are these before noise, for the information."""
        logits = {k: self.scene.logits(weights, s) for k, s in self.sets.items()}
        distance = float((state - self.retrained).norm())
        time_ = self.relearn_time(weights)
        sigma = self.scene.guarantee.sigma
        return {
            **{f"error_{k}": error(logits[k], s.labels) for k, s in self.sets.items()},
            **{
                f"distance_{k}": activation_distance(logits[k], self.reference[k])
                for k in self.sets
            },
            "entropy_attack": entropy_attack(
                *(logits[k] for k in ("retained", "test", "forgotten"))
            ),
            "relearn": float(time_),
            "relearn_relative": time_ / max(self._retrained_time, 1),
            "weight_distance": float((weights - self.retrained).norm()),
            "information_nats_estimate": bounds.kl(distance / sigma),
        }


def _spreads(rows: list[dict[str, float]]) -> dict[str, Any]:
    return {key: asdict(Spread.of([row[key] for row in rows])) for key in rows[0]}


def contradictions(methods: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Where an attack that a claim covers proves more than the claim allows."""
    return [
        {
            "method": name,
            "game": game,
            "attack": attack,
            "claimed_epsilon": values["claimed_epsilon"],
            "refuted_epsilon_bound": verdict["refuted_epsilon_bound"],
        }
        for name, values in methods.items()
        for game in ("canary", "attacks")
        for attack, verdict in values[game].items()
        if values["claimed_epsilon"] is not None
        and verdict["covered"]
        and verdict["refuted_epsilon_bound"] > values["claimed_epsilon"]
    ]


def identity_of(*parts: Iterable[str] | str) -> str:
    """A digest of what a study was made of."""
    flat = [item for p in parts for item in ([p] if isinstance(p, str) else [*p, "|"])]
    return hashlib.sha256("\n".join(flat).encode()).hexdigest()
