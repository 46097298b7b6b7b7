"""Verification: a workspace checked against its certificate, its ledger and itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from efface.data.records import Records
from efface.data.remarks import Note, unheard
from efface.environment import environment
from efface.files import locked, read_json
from efface.guarantee.certificates import (
    Certificate,
    ExactCertificate,
    ShiftCertificate,
)
from efface.guarantee.check import Check
from efface.model.mixed_linear import MixedLinear
from efface.parts.compact.plausible import objection
from efface.parts.table import place_for
from efface.progress import Progress, part
from efface.receipts.receipt import WHOLE
from efface.workspace import Workspace
from efface.workspace.steps import Action, Milestone
from efface.workspace.superseded import CERTIFICATE_SCHEMA

RETRAINED = (
    0.3  # of the time, about, is over when what is kept was checked, and rows from images begin
)


def all_checks(
    workspace: Workspace,
    *,
    retrain: bool = False,
    images: str | Records | None = None,
    absolute_paths: bool = False,
    device: str | None = None,
    note: Note = unheard,
    progress: Progress | None = None,
) -> Iterator[Check]:
    """The checks, one after the other, with no request running in between. Nothing is changed.

    ``device`` is where the rows of ``images`` are computed; all else is the CPU's.
    A file that cannot be read as what it should be raises FormatError, a ledger LedgerError.
    """
    with locked(workspace.path / "lock"):
        workspace.inventory.check_ledger()
        yield _files(workspace)
        yield _ledger(workspace)
        yield from _receipts(workspace)
        yield _leftovers(workspace)
        model = workspace.model()
        yield _core(workspace, model)
        yield _certificate(workspace, model)
        if workspace.data.num_from_partners:
            yield _partners(workspace)
        part(progress, 0, RETRAINED / 2)(1, "files, ledger and certificate")
        if retrain:
            yield from _retrain(workspace, model)
        part(progress, 0, RETRAINED)(1, "what is kept")
        if images is not None:
            if device is not None:
                model.core.place = place_for(model.user.kind, device)
                model.user.settle()
            known = _opened(model, images, absolute_paths)
            for text in known.remarks:
                note(text)
            yield _from_images(workspace, model, known, part(progress, RETRAINED, 1))
        part(progress, 0, 1)(1, "done")


# Without computing anything anew.


def _files(workspace: Workspace) -> Check:
    """SHA-256 of every file that the workspace owns, as written down when it was made."""
    manifest, cache = workspace.inventory.manifest, workspace.inventory.cache
    changed = list(manifest.wrong(workspace.path))
    if cache is not None:
        retained = workspace.data.digests
        there = set(retained) <= cache.digests
        if not there or manifest.activations != cache.digest_of(retained):
            changed.append("activations")
    detail = f"changed or missing: {', '.join(changed)}" if changed else ""
    return Check("files", not changed, detail or f"{len(manifest.files)} digests")


def _leftovers(workspace: Workspace) -> Check:
    """An unfinished request, old releases, and what only looks like a free place."""
    found = [
        path.relative_to(workspace.path).as_posix()
        for path in (*workspace.inventory.strays(), *workspace.store.forbidden())
    ]
    if workspace.inventory.cache is not None and not workspace.inventory.cache.is_tidy():
        found.append("rows of no record in activations")
    detail = ", ".join(found) or "none"
    if workspace.inventory.ledger.pending() is not None:
        found.append("the request in flight")
        advice = f"`efface resume {workspace.path}` or `efface cancel {workspace.path}`"
        detail = f"an unfinished request ({advice}): {detail}"
    return Check("no leftovers", not found, detail)


def _ledger(workspace: Workspace) -> Check:
    """Its last word is about the published release, and about the files that the release has."""
    ledger = workspace.inventory.ledger
    entries = ledger.entries()
    done = [entry.number for entry in entries if entry.step is Milestone.DONE]
    last = f"the last finished is {done[-1]}" if done else "none is finished"
    detail = f"{len(entries)} steps; {last}, {workspace.number} is published"
    told = [row.values for row in ledger.rows() if "manifest" in row.values]
    ours = [values["manifest"] for values in told if values["number"] == workspace.number]
    same = ours[-1:] in ([], [workspace.store.signature(workspace.number)])
    ok = bool(done) and done[-1] == workspace.number and same
    return Check("ledger", ok, detail if same else f"{detail}; its files are not the ledger's")


def _receipts(workspace: Workspace) -> Iterator[Check]:
    """Those that the ledger knows are there, as they were written; signatures: ``efface verify RECEIPT``."""
    signing = workspace.protocol.signing
    if told := signing.told():
        wrong = ", ".join(signing.wrong())
        yield Check(
            "receipts", not wrong, f"changed or missing: {wrong}" if wrong else f"{len(told)}"
        )


def receipt_check(workspace: Workspace, release: int, subjects: Mapping[str, str]) -> Check:
    """Whether a receipt is about what is published here; its signature was checked before."""
    if release != workspace.number:
        there = f"it is about release {release}, and {workspace.number} is published"
        return Check("receipt and model", None, f"{there}: digests of earlier ones are not kept")
    found = workspace.protocol.signing.subjects()
    other = sorted(name for name, digest in subjects.items() if found.get(name, digest) != digest)
    missing = sorted(set(found) - set(subjects) - {WHOLE}) if WHOLE not in subjects else []
    wrong = ", ".join((*other, *missing))
    detail = f"{len(subjects)} digests" if not wrong else f"other digests: {wrong}"
    return Check("receipt and model", not wrong, detail)


def _core(workspace: Workspace, model: MixedLinear) -> Check:
    same = model.core.digest == workspace.settings["core_digest"]
    return Check("core", same, model.core.digest if same else "not the core it was made with")


def _certificate(workspace: Workspace, model: MixedLinear) -> Check:
    """What follows from the certificate's inputs is computed anew; digests are compared with the files."""
    certificate = workspace.certificate
    if certificate is None:
        ok = not workspace.store.shifts and not _made_by_forgetting(workspace)
        return Check("certificate", ok, "none: nothing to hide" if ok else "it is missing")
    problems = [
        f"{name}.json is not what follows from its inputs"
        for name, values in (("private", certificate.private()), ("public", certificate.public()))
        if _stored(workspace, name) != json.loads(json.dumps(values))
    ]
    if not certificate.passed:
        problems.append("the guarantee is not met")
    problems += _mismatches(workspace, model)
    problems += _other_givens(certificate, model)
    holds = f"{certificate.kind}, {'consistent' if _unchecked(certificate) else 'holds'}"
    return Check("certificate", not problems, "; ".join(problems) or holds)


def _other_givens(certificate: Certificate, model: MixedLinear) -> list[str]:
    """The core, class list, calibration and ridge must be those that the certificate is relative to."""
    if not isinstance(certificate, ExactCertificate) or certificate.given is None:
        return []
    stated, found = asdict(certificate.given), asdict(model.user.given)
    names = [name for name in stated if name != "environment" and stated[name] != found[name]]
    return [f"it was given another {name.replace('_', ' ')}" for name in names]


def _partners(workspace: Workspace) -> Check:
    """Sums that rows can have, of as many records as there are tags; that these are images' is their word."""
    guests = [guest for guest in workspace.data.guests if guest.num_rows]
    wrong = [
        guest.name
        for guest in guests
        if objection(guest.sums) or not guest.num_rows == guest.sums.num_rows == len(guest.tags)
    ]
    names, number = ", ".join(guest.name for guest in guests), workspace.data.num_from_partners
    detail = f"{number} records of {names}: sums that rows can have; whose rows is their word"
    return Check("partners", not wrong, f"no sums: {', '.join(wrong)}" if wrong else detail)


def _unchecked(certificate: Certificate) -> bool:
    """Whether part of it rests on what nobody has any more: weights without noise, sums before."""
    if isinstance(certificate, ShiftCertificate):
        return certificate.keeps_no_secret
    return certificate.difference is not None


def _made_by_forgetting(workspace: Workspace) -> bool:
    actions = {
        e.action for e in workspace.inventory.ledger.entries() if e.number == workspace.number
    }
    return Action.FORGET in actions


def _stored(workspace: Workspace, form: str) -> dict[str, Any]:
    path = workspace.path / "certificates" / f"{workspace.number}.{form}.json"
    values = read_json(path, CERTIFICATE_SCHEMA)
    return {key: value for key, value in values.items() if key != "schema"}


def _mismatches(workspace: Workspace, model: MixedLinear) -> Iterator[str]:
    certificate = workspace.certificate
    assert certificate is not None
    user, retained = model.user, workspace.data.num_retained
    if certificate.num_retained != retained:
        yield f"{retained} records are retained, not {certificate.num_retained}"
    if not isinstance(certificate, ExactCertificate):
        return
    if user.statistics_digest != certificate.statistics_digest:
        yield "the statistics are not the certificate's"
    if user.weights_digest != certificate.weights_digest:
        yield "the weights are not the certificate's"


# Computing it anew.


def _retrain(workspace: Workspace, model: MixedLinear) -> Iterator[Check]:
    if workspace.data.num_retained == 0:
        zero = not any(t.any() for n, t in model.user.tensors.items() if n in ("weights", "theta"))
        yield Check("retrain", zero, "no user records: the weights are 0" if zero else "not 0")
    else:
        assert model.data is not None
        yield from model.user.verify(model.data, workspace.certificate)


def _opened(model: MixedLinear, images: str | Records, absolute_paths: bool) -> Records:
    if isinstance(images, Records):
        return images
    channels = model.core.backbone.preprocess.reads
    return Records.open(images, channels=channels, absolute_paths=absolute_paths)


def _from_images(
    workspace: Workspace, model: MixedLinear, known: Records, progress: Progress | None = None
) -> Check:
    """Compute rows from images, found by content digest, and count how many agree."""
    data = model.data
    assert data is not None
    retained = data.records if data.replay is None else data.records + data.replay
    source = {record.digest: record for record in known}
    at = np.array([i for i, r in enumerate(retained) if r.digest in source], dtype=np.int64)
    if not len(at):
        return Check("rows from images", False, "none of the retained records is in the data")
    found = [replace(source[retained[int(i)].digest], id=retained[int(i)].id) for i in at]
    labelled = [replace(r, label=retained[int(i)].label) for r, i in zip(found, at, strict=True)]
    model.cache = None
    staged = model.stage(Records(labelled, model.classes), progress=progress)
    found_again = model.user.agreement(data, at, staged)
    missing = f"{len(retained) - len(at)} are not in the data"
    if not found_again.everywhere:
        detail = f"{found_again.num_equal} of {len(at)} agree bit for bit; {missing}"
        far = "" if found_again.ok else "; others are far off"
        return Check("rows from images", found_again.ok, detail + far)
    detail = (
        f"{found_again.num_equal} of {len(at)} are equal, as they are on every machine; {missing}"
    )
    if found_again.first is not None:
        detail += f"; differs: {labelled[found_again.first].id}{_other_decoder(workspace)}"
    return Check("rows from images", found_again.ok, detail)


def _other_decoder(workspace: Workspace) -> str:
    """Pixels come from a decoder, and those of another build may be off by one here and there."""
    certificate, here = workspace.certificate, environment(integer=True)["decoder"]
    given = getattr(certificate, "given", None)
    if given is None or given.environment["decoder"] == here:
        return ""
    return f" (images were decoded by {given.environment['decoder']}, here by {here})"
