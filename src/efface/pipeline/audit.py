"""Is it really forgotten? A workspace after a request, read out and attacked, for ``efface audit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from efface import files
from efface.audit.differencing import identify_in
from efface.audit.influence import influence_left, strongest
from efface.audit.methods import REFERENCE, UNTOUCHED, own_method
from efface.audit.scene import Scene
from efface.audit.served import beside, hold, promised_sigma, scene_of, served_weights
from efface.audit.study import SCHEMA, Reader, Settings, Study, identity_of
from efface.data.record import Split
from efface.data.records import Records
from efface.data.remarks import Note, tell, unheard
from efface.errors import EffaceError, GuaranteeError
from efface.guarantee.certificates import Certificate
from efface.model.request import Request
from efface.progress import Progress, part
from efface.report.audit import audit_report
from efface.workspace import Workspace


def run(
    workspace: Workspace,
    asked: Records,
    test: Records,
    settings: Settings,
    out: Path,
    progress: Progress | None = None,
    *,
    owners: Sequence[str] = (),
    device: str | None = None,
) -> dict[str, Any]:
    """Audit a workspace; writes ``audit.json`` and ``report.html`` into ``out``.

    ``owners`` are looked for in core too, by their keyed hashes, and so are the images of ``asked``.
    ``device`` is where the network is computed.
    """
    model, certificate = workspace.model(device), workspace.certificate
    weights = served_weights(model)  # before the scene puts the records in again
    present = sum(d in set(workspace.records.digests) for d in asked.digests)
    in_core = _in_core(workspace, asked, owners)
    asked = _forgettable(workspace, asked)
    scene = scene_of(model, asked, test, certificate)
    identity = identity_of(str(workspace.number), model.core.digest, asked.digests, test.digests)
    study = _study(scene, settings, out, identity)
    values = study.run(part(progress, 0.0, 0.9))
    spoken = None if present else certificate  # it is not about records that are still in
    served, kept = _served(study, weights, spoken, promised_sigma(certificate))
    values["served"] = served | {"num_still_in": present, "num_in_core": in_core}
    attack = strongest(values["methods"][own_method(scene.kind).name])
    values["headline"] = {"influence": served["influence"]["share"], "attack": attack}
    shown = identify_in(scene, study.trained, weights)
    values["differencing"] = asdict(shown) | {"by_chance": shown.by_chance}
    values |= {"workspace": str(workspace.path), "release": workspace.number}
    values["ok"] = kept and not (present or in_core or values["contradictions"])
    values["report"] = str(out / "report.html")
    files.write_json(out / "audit.json", {"schema": SCHEMA, **values})
    much = f"--worlds {settings.worlds} --canaries {settings.canaries}"
    command = f"efface audit {workspace.path} DATA --owner NAME {much}"
    subject = f"the model in {workspace.path}, release {workspace.number}"
    page = audit_report(values, f"Audit of release {workspace.number}", command, subject)
    page.write(out / "report.html")
    return values


def _forgettable(workspace: Workspace, asked: Records) -> Records:
    """Those of the records that are not core data."""
    digests = workspace.core_index.digests
    mine = asked.where(lambda record: record.digest not in digests)
    if not len(mine):
        fix = "train again without them: there is no user part of them to audit."
        raise GuaranteeError("all of these images are core data, which is never forgotten.", fix)
    return mine


def _study(scene: Scene, settings: Settings, out: Path, identity: str) -> Study:
    """The model's own way of forgetting beside doing nothing and training anew."""
    names = (UNTOUCHED, REFERENCE, own_method(scene.kind).name)
    return Study(
        scene,
        replace(settings, methods=names),
        request=scene.forget,
        cache=out / "cache",
        identity=identity,
    )


def _served(
    study: Study, weights: Tensor, certificate: Certificate | None, sigma: float
) -> tuple[dict[str, Any], bool]:
    """What the served weights themselves show, and whether that is what was claimed."""
    scene = study.scene
    reader = Reader(scene, study.trained, study._relearn(0))
    held = hold(scene, weights, study.trained, reader.retrained, certificate)
    left = influence_left(scene, weights, study.trained, reader.retrained, sigma)
    values = {
        "readouts": reader.values(weights, weights),
        "held": None if held is None else asdict(held),
        "influence": asdict(left) | {"found": left.found},
    }
    return values, not left.found and (held is None or held.kept)


def _in_core(workspace: Workspace, asked: Records, owners: Sequence[str]) -> int:
    """How many images of these people, or of these records, are core data."""
    index, digests = workspace.core_index, set(asked.digests)
    named = {name for owner in owners for name in index.matching(Request.of(owner=owner))}
    shown = {record.id for record in index.records if record.digest in digests}
    return len(named | shown)


def read(
    workspace: Workspace,
    data: str | Records,
    owner: list[str] | None,
    ids: list[str] | None,
    *,
    absolute_paths: bool = False,
    note: Note = unheard,
) -> tuple[Records, Records]:
    """The records in question, with the model's classes, and the test records."""
    if (owner is None) == (ids is None):
        raise EffaceError("whose records?", "give --owner or --id, either repeated as needed.")
    found = data
    if not isinstance(found, Records):
        found = tell(Records.open(found, absolute_paths=absolute_paths), note)
    mine = found.where(lambda record: record.split is not Split.TEST)
    asked = mine.select(owner=owner) if owner is not None else found.select(ids=ids)
    classes = workspace.settings["classes"]
    if not len(asked) or not len(found.test):
        raise EffaceError(
            f"{data} holds {len(asked)} of these records and {len(found.test)} test records.",
            "an audit needs both; check the spelling and the split.",
        )
    return beside(Records(asked, classes)), Records(found.test, classes)
