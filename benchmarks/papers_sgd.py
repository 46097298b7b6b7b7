"""The paper's forgetting, three epochs of SGD on the tangent model, against one compact request: on digits.

    python benchmarks/papers_sgd.py

Core, records and the ten that go are the same. Retraining is the paper's fifty epochs, stated as fifty times
one that was measured. What either reaches is another question (``experiments/forgetting.py``): the paper's
way did not meet ε = 1 there, compact is exact.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from limits import Limits
from outcome import Outcome, medians, turns

from efface import SGD, Core, MixedLinear, Records
from efface.parts.tangent.forgetting import PaperForgetting
from efface.parts.tangent.user import TangentUser

RATE = 1e-6  # of SGD: it does not change the time
OURS, FORGETTING, EPOCH = "efface", "the paper's 3 epochs", "one epoch of its retraining"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = Records.digits(core_fraction=0.3)
    core = Core("cnn", classes=data.classes).fit(data.core)
    model = MixedLinear(core, "compact", features=args.features).fit(data.user, replay=data.core)
    user, ids = TangentUser(core, mu=1e-4), list(data.user.ids)
    x = core.activations(data.user)
    problem = user.problem(torch.as_tensor(x[slice(0, len(x))]), core.labels(data.user))
    forget = iter(range(0, len(ids), 10))

    def request() -> None:
        start = next(forget)
        model.forget(ids=ids[start : start + 10])

    ways = {
        OURS: request,
        FORGETTING: lambda: PaperForgetting(epochs=3, lr=RATE, momentum=0.9, dtype=None).solve(
            problem, problem.zeros()
        ),
        EPOCH: lambda: SGD(epochs=1, lr=RATE, momentum=0.9).solve(problem),
    }
    times = medians(turns(ways, args.rounds))
    peers = {FORGETTING: times[FORGETTING], "its 50 epochs, stated": 50 * times[EPOCH]}
    k, c = model.user.num_features, len(core.classes)
    bound = Limits.measured().request_seconds(k, c)
    Outcome(
        name="papers-sgd",
        question="How long does the paper's forgetting take beside an exact request?",
        setting={"data": "digits", "records": len(ids), "features": k, "weights": problem.d},
        ours={OURS: times[OURS]},
        peers=peers,
        ratios={f"{name} / ours": value / times[OURS] for name, value in peers.items()},
        limit={
            "what": "a new float32 factor at the speed of a product, sums read and written once",
            "seconds": bound,
            "fraction_reached": bound / times[OURS],
        },
    ).write(args.out)


if __name__ == "__main__":
    main()
