"""Accuracy over releases: measured by the worker on the test records that the settings name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from efface.data.records import Records
from efface.ledger import Ledger
from efface.service.settings import EvaluationSettings
from efface.workspace.published import current, load

ROW = "service.evaluation"


@dataclass(frozen=True)
class Evaluation:
    """How often a release was right on the test records."""

    release: int
    accuracy: float
    num_records: int
    measured: float


class Evaluations:
    """What was measured, one entry a release."""

    def __init__(
        self, path: Path, ledger: Ledger, settings: EvaluationSettings | None = None
    ) -> None:
        self.path, self.ledger, self.settings = path, ledger, settings

    def all(self) -> list[Evaluation]:
        sql = "SELECT release, accuracy, num_records, measured FROM service_evaluations ORDER BY release"
        return [Evaluation(*row) for row in self.ledger.query(sql)]

    def is_needed(self) -> bool:
        """Whether the served release is to be measured, and is not yet."""
        published = current(self.path)
        if self.settings is None or published is None:
            return False
        return all(found.release != published.release for found in self.all())

    def catch_up(self) -> None:
        """Measure the served release; one that is replaced meanwhile is not noted."""
        published = current(self.path)
        if self.settings is None or published is None or not self.is_needed():
            return
        model = load(self.path)
        channels = model.core.backbone.preprocess.reads
        test = Records(Records.open(self.settings.data, channels=channels).test, model.classes)
        accuracy = model.accuracy(test)
        if current(self.path) != published:
            return
        told = {"release": published.release, "accuracy": accuracy, "num_records": len(test)}
        with self.ledger.transaction() as tx:
            tx.append(ROW, told)
            tx.execute(
                "INSERT INTO service_evaluations (release, accuracy, num_records, measured) "
                "VALUES (?, ?, ?, ?)",
                (published.release, accuracy, len(test), time.time()),
            )
