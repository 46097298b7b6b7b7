"""A partner's message taken into a model, or a partner taken out: requests like any other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from efface.data.records import Records
from efface.errors import EffaceError
from efface.guarantee.certificates import Given
from efface.parts.compact.guest import Guest
from efface.parts.compact.statistics import Statistics
from efface.parts.training_set import TrainingSet
from efface.progress import Progress
from efface.receipts.keys import PublicKeys
from efface.shards.same_model import given_of
from efface.shards.share import NAME, Share
from efface.shards.statement import unsealed
from efface.workspace import Result, Workspace
from efface.workspace.disk import explaining_the_disk
from efface.workspace.partners import (
    Admitted,
    Invitation,
    admit,
    dismiss,
    partner_named,
    tags_of,
)
from efface.workspace.steps import Action, Intent, Milestone, reach


def invite(workspace: Workspace, name: str, ring: PublicKeys | None = None) -> Invitation:
    """Admit a partner; what it is given is a secret of the two."""
    with workspace.protocol.working():
        _given(workspace)
        return admit(workspace.inventory, name, ring)


def take(
    workspace: Workspace,
    folder: Path,
    *,
    allow_reingest: bool = False,
    progress: Progress | None = None,
) -> Result:
    """The sums in a message in the place of those that the partner has here; on any error nothing changes.

    The weights are then those of training on all records, the partner's as they are now included.
    """
    with workspace.protocol.working():
        known = _sender(workspace, folder)
        share = Share.load(folder, known.ring)
        notes = share.check_model(*_given(workspace))
        before = workspace.data.guest(known.admission)
        share.check_after(before)
        references = (share.statement.digest,)
        if before is not None and before.num_rows:
            gone = before.tags - share.tags
            intent = _intent(workspace, Action.PARTNER_FORGET, gone, references)
        else:
            if not share.tags:
                raise EffaceError(f"the message of {known.name} has no records.", "leave it.")
            restored = _refuse_overlaps(workspace, share, allow_reingest)
            intent = _intent(workspace, Action.PARTNER_ADD, share.tags, references, restored)
        result = _host(workspace, share.guest, intent, progress)
        return replace(result, notes=(*notes, *result.notes))


def drop(workspace: Workspace, name: str, progress: Progress | None = None) -> Result | None:
    """Take a partner's sums out, and take no more messages from it; None if it had sent none."""
    with workspace.protocol.working():
        known = partner_named(workspace.inventory, name)
        before = workspace.data.guest(known.admission)
        result = None
        if before is not None and before.num_rows:
            _, empty = _given(workspace)
            gone = replace(before, num_rows=0, num_people=0, kept=(empty, frozenset()))
            reference = hashlib.sha256(f"drop {known.admission}".encode()).hexdigest()
            intent = _intent(workspace, Action.PARTNER_FORGET, before.tags, (reference,))
            result = _host(workspace, gone, intent, progress)
        dismiss(workspace.inventory, name)
        return result


def _sender(workspace: Workspace, folder: Path) -> Admitted:
    """Who is known under the name and admission that the message carries."""
    if not (folder / NAME).is_file():
        raise EffaceError(f"{folder} is no partner's message.", "`efface partner` makes them.")
    said, _ = unsealed((folder / NAME).read_bytes(), None)
    known = partner_named(workspace.inventory, said.partner)
    if known.admission != said.admission:
        message = f"this message is from before {said.partner} was admitted as it is now."
        raise EffaceError(message, "the partner has to join again, with its new invitation.")
    return known


def _given(workspace: Workspace) -> tuple[Given, Statistics]:
    """What sums for this model are relative to, and the sums of no rows."""
    model = workspace.store.kept_model()
    return given_of(model), model.user.no_statistics()


def _intent(
    workspace: Workspace,
    action: Action,
    tags: Iterable[str],
    references: tuple[str, ...],
    restored: Iterable[str] = (),
) -> Intent:
    numbers, guarantee = workspace.number + 1, workspace.guarantee
    back = tuple(sorted(restored))
    made = Intent(numbers, action, tuple(sorted(tags)), None, guarantee, back)
    return replace(made, references=references)


def _host(workspace: Workspace, guest: Guest, intent: Intent, progress: Progress | None) -> Result:
    nobody = Records([], workspace.settings["classes"])
    part = TrainingSet(nobody, None, np.zeros(0, np.int64), guests=(guest,))
    with explaining_the_disk("nothing was changed.", "free some space, then try again."):
        workspace.store.stage(part)
    reach(Milestone.STAGED)
    return workspace.protocol.accept(intent, progress)


def _refuse_overlaps(workspace: Workspace, share: Share, allow_reingest: bool) -> frozenset[str]:
    """No image counts twice, and none that is core comes in as a partner's. Returns the tags of those that
    were forgotten here, if they are allowed in again."""
    key, data = workspace.inventory.key, workspace.data
    own = tags_of(data.records.digests, key).keys()
    fixed = tags_of((*workspace.core_index.digests, *data.digests), key).keys() - own
    _refuse(share, own, "are kept here, too: they would count twice")
    _refuse(share, fixed, "are core data here, which is not forgotten")
    for guest in data.guests:
        if guest.num_rows:
            _refuse(share, guest.tags, f"are {guest.name}'s, too: they would count twice")
    forgotten = share.tags & workspace.inventory.forgotten.tags
    if not allow_reingest:
        again = "; --allow-reingest takes them in, if their owners want that"
        _refuse(share, forgotten, f"were forgotten here{again}")
    return forgotten


def _refuse(share: Share, tags: Iterable[str], why: str) -> None:
    both = share.tags.intersection(tags)
    if both:
        message = f"{len(both)} of {share.statement.partner}'s images {why}."
        fix = f"the partner finds the first with `efface partner find FOLDER {min(both)}`."
        raise EffaceError(message, fix)
