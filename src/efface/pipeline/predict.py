"""What a model sees in images: the likeliest classes of each, with their scores."""

from __future__ import annotations

from typing import Any

from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.progress import Progress


def ranked(
    model: MixedLinear, records: Records, top: int, progress: Progress | None = None
) -> list[dict[str, Any]]:
    """For each record its id, the class, and the ``top`` classes with their softmax, best first."""
    logits = model.logits(records, progress=progress)
    scores, order = logits.softmax(1).sort(dim=1, descending=True, stable=True)
    return [
        {
            "id": record.id,
            "label": model.classes[ranked[0]],
            "scores": {model.classes[i]: round(s, 6) for s, i in zip(row, ranked, strict=True)},
        }
        for record, row, ranked in zip(
            records, scores[:, :top].tolist(), order[:, :top].tolist(), strict=True
        )
    ]
