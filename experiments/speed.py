"""Seconds of one exact compact request against the paper's retraining and forgetting, on the same data.

    python experiments/speed.py --data ../shared/data/cub40 \
        --backbone hf:../shared/weights/resnet50-imagenet --cache /tmp/activations

Measured: fitting compact (rows, sums, solve), a request of 10 records, retraining compact from its cached
rows, one epoch of the paper's SGD on the tangent model, and its 3-epoch forgetting. 50 epochs are 50 times
the measured one: stated, not run. Requests and epochs take turns, because the machine's speed drifts; numbers
are medians over the turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from accuracy import Setting
from common import RESULTS, Results, name_of, parser, rows_of

from efface import SGD, MixedLinear
from efface.audit.methods import METHODS, PaperSgd
from efface.parts.tangent.user import TangentUser

RATE = 1e-6  # of SGD: it does not change the time


def seconds(run: Callable[[], object]) -> float:
    begin = time.monotonic()
    run()
    return time.monotonic() - begin


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--features", type=int, default=4096)
    options.add_argument("--turns", type=int, default=3)
    args = options.parse_args()
    path = args.out or RESULTS / f"speed-{name_of(args.data)}.json"
    results = Results(path, {"features": args.features, "linearize": args.linearize})
    setting = Setting(args, args.seeds[0])
    model = MixedLinear(setting.core, "compact", features=args.features, cache=setting.cache)
    model.calibrate()  # bases and scales come with the core: not part of fitting user data
    fit = seconds(lambda: model.fit(setting.data.user, replay=setting.data.core))
    rows = rows_of(model)
    retrain = seconds(lambda: (model.user.reset(), model.user.add_rows(rows)))
    ids = list(setting.data.user.ids)
    user = TangentUser(setting.core, mu=1e-4)
    x, labels = setting.tensor(setting.user), setting.core.labels(setting.user)
    problem = user.problem(x, labels)
    problem.gradient(problem.zeros())  # fills the cache: not part of an epoch
    requests, epochs = [], []
    for i in range(args.turns):
        three = [ids[10 * j : 10 * j + 10] for j in range(3 * i, 3 * i + 3)]
        requests += [seconds(partial(model.forget, ids=some)) for some in three]
        gradient = seconds(lambda: problem.gradient(problem.zeros()))  # its last, complete one
        epochs.append(
            seconds(lambda: SGD(epochs=1, lr=RATE, momentum=0.9).solve(problem)) - gradient
        )
    request, epoch = statistics.median(requests), statistics.median(epochs)
    keep = torch.from_numpy(np.arange(10, len(labels)))
    retained = user.problem(x[keep], labels[keep])
    retained.gradient(retained.zeros())
    paper = METHODS["paper-0.9"]
    assert isinstance(paper, PaperSgd)
    forgetting = seconds(lambda: paper.solver(RATE).solve(retained, problem.zeros()))
    results.put(
        f"speed/{args.seeds[0]}",
        {
            "compact_fit_seconds": fit,
            "compact_retrain_from_rows_seconds": retrain,
            "compact_request_seconds": request,
            "sgd_epoch_seconds": epoch,
            "all_request_seconds": requests,
            "all_sgd_epoch_seconds": epochs,
            "paper_forgetting_seconds": forgetting,
            "request_faster_than_50_epochs": 50 * epoch / request,
            "request_faster_than_paper_forgetting": forgetting / request,
            "request_faster_than_our_retraining": retrain / request,
            "fit_faster_than_50_epochs": 50 * epoch / fit,
        },
    )


if __name__ == "__main__":
    main()
