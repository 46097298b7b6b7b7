"""Every forgetting method on one data set, read out and attacked: what ``efface compare`` measures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from efface import files
from efface.audit.scene import Scene
from efface.audit.study import SCHEMA, Settings, Study, identity_of
from efface.data.class_list import settled
from efface.data.records import Records
from efface.data.remarks import Note, unheard
from efface.model.request import Request
from efface.pipeline.config import Config
from efface.pipeline.train import Training
from efface.progress import Progress, part
from efface.report.audit import audit_report


def run(
    config: Config,
    settings: Settings,
    out: Path,
    *,
    owner: str | None = None,
    records: Records | None = None,
    progress: Progress | None = None,
    note: Note = unheard,
) -> dict[str, Any]:
    """Train, measure, and write ``compare.json`` and ``report.html`` into ``out``.

    Forgotten are the records of ``owner``, or a random tenth, anew for each seed. The data are those of
    the config, or ``records``; the class list is that of ``efface train``.
    """
    training = Training(config, note)
    records = training.records() if records is None else settled(records)
    core = training.core(records)
    training.fit_core(core, records, part(progress, 0, 0.1, "core"))
    model = training.fit_user(core, records, part(progress, 0.1, 0.2, "user part"))
    positions = None
    if owner is not None:
        positions = torch.from_numpy(Request.of(owner=owner).positions(records.user))
    scene = Scene.of(model, np.zeros(0, dtype=np.int64), records.test)
    settled_by = config.model_dump_json(exclude={"output"})  # where things lie decides nothing
    identity = identity_of(core.digest, settled_by, records.digests)
    study = Study(scene, settings, request=positions, cache=out / "cache", identity=identity)
    values = {"data": config.data.spec, "owner": owner, **study.run(part(progress, 0.2, 1.0))}
    values["report"] = str(out / "report.html")
    files.write_json(out / "compare.json", {"schema": SCHEMA, **values})
    title = f"Forgetting methods compared on {config.data.spec}"
    much = f"--seeds {settings.seeds} --worlds {settings.worlds} --canaries {settings.canaries}"
    command = f"efface compare {config.data.spec} --user {config.user.kind} {much}"
    subject = f"{config.data.spec}, {len(records):,} images of {len(records.classes)} classes"
    audit_report(values, title, command, subject).write(out / "report.html")
    return values
