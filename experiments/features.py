"""Features of the compact part, and baselines beside it: accuracy and time of a request at one setting.

    python experiments/features.py --data ../shared/data/cub40 --seeds 0 1 2 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

Every method is fitted on all training images (core data replayed) of the network in integers, and
chooses what it has to choose on core data alone; test images are scored once. `covariances` at 288 pixels
(--resize 320 --crop 288) is the package's default. The request is timed on that very model: one record is
forgotten in process, digests and certificate included. The baselines have no digests: their floats are
what anybody would write. Prints a table and writes experiments/results/features-NAME.json
(--crop 288 --mirror: …-288-mirror.json).
"""

from __future__ import annotations

import copy
import time
import warnings
from typing import Any

import numpy as np
from accuracy import Setting
from common import RESULTS, Results, name_of, parser
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from efface import MixedLinear
from efface.arithmetic.choice import Arithmetic, Choice, choose_form
from efface.data.records import Records
from efface.guarantee.certificates import ExactCertificate
from efface.linear.projection import COVARIANCES, GRADIENTS, MAPS, MOMENTS
from efface.parts.compact.calibration import RIDGES, folds_of
from efface.parts.compact.rows import Rows
from efface.parts.compact.user import CompactUser

REQUESTS = 5
COMPACT: dict[str, dict[str, Any]] = {
    "last layer": {"features": 0, "bits": 16, "power": 1.0},
    "last layer, √": {"features": 0, "bits": 16, "power": 0.5},
    "gradients": {"layer_features": GRADIENTS, "power": 1.0},
    "gradients, √": {"layer_features": GRADIENTS, "power": 0.5},
    "moments": {"layer_features": MOMENTS, "power": 1.0},
    "moments, √": {"layer_features": MOMENTS, "power": 0.5},
    "maps, √": {"layer_features": MAPS, "power": 0.5},
    "covariances": {"layer_features": COVARIANCES, "power": 0.5},  # the default
}
LIFTS = (4096, 10000)
BASELINES = ("logistic regression", *(f"random lift, {m:,}" for m in LIFTS))


class Prepared(Setting):
    """One split with a trained core. Activations in float32 are computed of core images only."""

    def __init__(self, args: Any, seed: int) -> None:
        super().__init__(args, seed, train_core=False)
        self._fit(self.core, self.data.core)
        self.form = choose_form(self.core, Arithmetic.AUTO, self.data.core).form

    def model(self, options: dict[str, Any]) -> MixedLinear:
        """Calibrated on core data, as ``MixedLinear.calibrate`` does; the form's steps are found once."""
        model = MixedLinear(self.core, "compact", cache=self.cache, **options)
        assert isinstance(model.user, CompactUser)
        model.user.take_form(Choice(copy.copy(self.form)))
        model.user.calibrate(model.activations(self.data.core), self.core.labels(self.data.core))
        return model


def run_compact(setting: Prepared, options: dict[str, Any]) -> dict[str, Any]:
    begin = time.monotonic()
    model = setting.model(options)
    model.fit(setting.data.user, replay=setting.data.core)
    seconds, user = time.monotonic() - begin, model.user
    assert isinstance(user, CompactUser)
    assert user.projection is not None
    assert model.data is not None
    assert isinstance(model.data.rows, Rows)
    found = {
        "accuracy": model.accuracy(setting.data.test),
        "seconds": seconds,
        "features": user.projection.num_features,
        "total_ridge": user.total_ridge,
        "saturated": user.num_saturated(model.data.rows),
        "arithmetic": user.form.arithmetic,
    }
    return found | request_seconds(model, setting.data.user)


def request_seconds(model: MixedLinear, records: Records) -> dict[str, list[float]]:
    """Of each of some requests for one record, by the clock and of all processors together (which other
    work on the machine disturbs less); afterwards the model is without them."""
    clock, processors = [], []
    for record in records[:REQUESTS]:
        begin, spent = time.monotonic(), time.process_time()
        certificate = model.forget(ids=[record.id])
        clock.append(round(time.monotonic() - begin, 4))
        processors.append(round(time.process_time() - spent, 4))
        assert isinstance(certificate, ExactCertificate)
        assert certificate.statistics_digest == model.user.statistics_digest
    return {"request_seconds": clock, "request_cpu_seconds": processors}


class Pooled:
    """The network's pooled features in integers, centred and scaled by core statistics."""

    def __init__(self, setting: Prepared) -> None:
        self.setting, self.model = setting, setting.model(COMPACT["last layer"])
        core, user, test = (
            self._rows(r) for r in (setting.data.core, setting.data.user, setting.data.test)
        )
        self.core_labels, user_labels, self.test_labels = (
            setting.core.labels(r).numpy()
            for r in (setting.data.core, setting.data.user, setting.data.test)
        )
        self.core, self.test, self.train = core, test, np.concatenate([user, core])
        self.labels = np.concatenate([user_labels, self.core_labels])

    def _rows(self, records: Records) -> np.ndarray:
        user = self.model.user
        assert isinstance(user, CompactUser)
        activations, labels = self.model.activations(records), self.model.core.labels(records)
        rows = user.rows(activations, labels).features
        assert user.quantiser is not None
        return rows[:, :-1] * user.quantiser.scale[:-1]

    def score(self, guess: np.ndarray) -> float:
        return float((guess == self.test_labels).mean())


def run_logistic(pooled: Pooled) -> dict[str, Any]:
    """C by cross-validation on core data."""
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a C that has not converged is not chosen, or good enough
        search = GridSearchCV(LogisticRegression(max_iter=300), {"C": [1, 10, 100, 1000]}, cv=5)
        best = search.fit(pooled.core, pooled.core_labels).best_params_["C"]
        fitted = LogisticRegression(max_iter=1000, C=best).fit(pooled.train, pooled.labels)
    accuracy = pooled.score(fitted.predict(pooled.test))
    return {"accuracy": accuracy, "seconds": time.monotonic() - begin, "C": best}


def run_lift(pooled: Pooled, size: int, seed: int) -> dict[str, Any]:
    """RanPAC: ridge on relu(Wᵀh), W Gaussian; λ of least squared error on held-out core data."""
    begin = time.monotonic()
    weights = np.random.default_rng(seed).standard_normal((pooled.core.shape[1], size))
    core, train, test = (_lifted(x, weights) for x in (pooled.core, pooled.train, pooled.test))
    scale = np.sqrt(np.square(core).sum(1).mean())
    core, train, test = core / scale, train / scale, test / scale
    ridge = _chosen_ridge(core, pooled.core_labels)
    targets = 5.0 * np.eye(pooled.labels.max() + 1)[pooled.labels]
    dual = np.linalg.solve(train @ train.T + ridge * np.eye(len(train)), targets)
    accuracy = pooled.score((test @ (train.T @ dual)).argmax(1))
    return {"accuracy": accuracy, "seconds": time.monotonic() - begin, "total_ridge": ridge}


def _lifted(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    lifted = np.maximum(x @ weights, 0)
    return np.concatenate(
        [lifted, np.full((len(x), 1), np.sqrt(np.square(lifted).sum(1).mean()))], 1
    )


def _chosen_ridge(rows: np.ndarray, labels: np.ndarray) -> float:
    """As the compact part chooses its λ."""
    kernel, targets = rows @ rows.T, 5.0 * np.eye(labels.max() + 1)[labels]
    error, fold = np.zeros(len(RIDGES)), folds_of(labels, 5)
    for held_out in np.unique(fold):
        seen, unseen = fold != held_out, fold == held_out
        for i, ridge in enumerate(RIDGES):
            inside = kernel[np.ix_(seen, seen)] + ridge * np.eye(int(seen.sum()))
            dual = np.linalg.solve(inside, targets[seen])
            error[i] += np.square(kernel[np.ix_(unseen, seen)] @ dual - targets[unseen]).sum()
    return RIDGES[int(error.argmin())]


def run_baseline(pooled: Pooled, name: str, seed: int) -> dict[str, Any]:
    if name == "logistic regression":
        return run_logistic(pooled)
    return run_lift(pooled, LIFTS[BASELINES.index(name) - 1], seed)


def table(results: dict[str, Any]) -> str:
    """Mean ± standard deviation over splits; of a request the median, its digests included."""
    lines = ["| method | features | test accuracy | splits | a request |", "|---|---|---|---|---|"]
    for name in (*BASELINES, *COMPACT):
        rows = [v for k, v in results.items() if k.rpartition("/")[0] == name]
        if not rows:
            continue
        scores = 100 * np.array([r["accuracy"] for r in rows])
        spread = f" ± {scores.std(ddof=1):.1f}" if len(scores) > 1 else ""
        times = [t for r in rows for t in r.get("request_seconds", [])]
        request = f"{np.median(times):.2f} s" if times else ""
        size = f"{rows[0]['features']:,}" if "features" in rows[0] else ""
        lines.append(
            f"| {name} | {size} | {scores.mean():.1f}{spread} % | {len(rows)} | {request} |"
        )
    return "\n".join(lines)


def main() -> None:
    options = parser(__doc__.splitlines()[0])
    names = (*COMPACT, *BASELINES)
    options.add_argument("--methods", nargs="+", default=list(names), choices=names)
    args = options.parse_args()
    keys = ("core_fraction", "linearize", "leaky_slope", "resize", "mirror")
    settings = {key: getattr(args, key) for key in keys}
    settings |= {"crop": args.crop} if args.crop else {}
    suffix = (f"-{args.crop}" if args.crop else "") + ("-mirror" if args.mirror else "")
    path = args.out or RESULTS / f"features-{name_of(args.data)}{suffix}.json"
    results = Results(path, settings)
    for seed in args.seeds:
        wanted = [m for m in args.methods if f"{m}/{seed}" not in results]
        if not wanted:
            continue
        setting, pooled = Prepared(args, seed), None
        for method in wanted:
            if method in COMPACT:
                value = run_compact(setting, COMPACT[method])
            else:
                pooled = pooled or Pooled(setting)
                value = run_baseline(pooled, method, seed)
            results.put(f"{method}/{seed}", value)
    print(table(results.values["results"]))


if __name__ == "__main__":
    main()
