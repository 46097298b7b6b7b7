"""What ``--dry-run`` answers: the data that would be trained on, and what it would take."""

from __future__ import annotations

from typing import Any

from efface.pipeline.config import Config
from efface.pipeline.core_people import core_people
from efface.pipeline.estimate import estimate
from efface.pipeline.train import Training, counts


def forecast(config: Config) -> dict[str, Any]:
    """What training would take, for people and programs; nothing is trained or written."""
    training = Training(config)
    records = training.records()
    guess = estimate(config, training.core(records), records)
    drawn = core_people(config.data, records)
    return {
        "records": counts(records),
        "classes": len(records.classes),
        "weights": guess.num_weights,
        "activations_gib": round(guess.activations_gib, 3),
        "minutes_estimate": round(guess.minutes_estimate, 2),
        "form": guess.form,
        "passes_estimate": guess.num_passes,
        "skipped": len(records.skipped),
        "core_people": 0 if drawn is None else drawn.people,
        "notes": [*([] if drawn is None else [str(drawn)]), *records.notes],
    }
