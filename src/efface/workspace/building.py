"""A workspace is built beside the one that is there, and takes its place by one rename."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from efface import files
from efface.guarantee.certificates import Certificate
from efface.parts.training_set import TrainingSet
from efface.workspace.disk import explaining_the_disk
from efface.workspace.forgotten import KEY, Forgotten, new_key, save_key
from efface.workspace.founding import clear_folder
from efface.workspace.inventory import FOLDERS
from efface.workspace.paths import BASE_MODEL
from efface.workspace.protocol import RequestProtocol
from efface.workspace.published import Current, current
from efface.workspace.steps import Action, Milestone, reach, sync_directory
from efface.workspace.store import fill_cache, settings_of

if TYPE_CHECKING:
    from efface.model.mixed_linear import MixedLinear


@dataclass(frozen=True)
class Beginning:
    """What a new workspace begins with beside its model and records.

    ``config`` are the settings of the training; ``forgotten`` are digests of images that the model had
    forgotten before it came here, ``restored`` of those that were forgotten here and are allowed in again;
    ``certificate`` is the release's, if it is not that of a model that has forgotten nothing.
    """

    config: str = ""
    forgotten: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    certificate: Certificate | None = None


def build(
    protocol: RequestProtocol, model: MixedLinear, data: TrainingSet, beginning: Beginning
) -> None:
    """Write a workspace beside the one that is there, publish it by one rename, delete the other.

    Hold the lock.
    """
    store = protocol.store
    root = store.paths.root
    before = current(root)
    number = 1 if before is None else before.release + 1
    try:
        store.inventory.ledger.append(number, Action.TRAIN, Milestone.ACCEPTED)
        reach(Milestone.ACCEPTED)
        _write(protocol, number, model, data, beginning)
        store.inventory.ledger.append(
            number, Action.TRAIN, Milestone.PREPARED, manifest=store.signature(number)
        )
        reach(Milestone.PREPARED)
        protocol.switch(Current(number, number))
    except (Exception, KeyboardInterrupt):
        if current(root) == before:
            with contextlib.suppress(OSError, SafetensorError):
                _abandon(protocol, number)
        raise
    with explaining_the_disk("the new model is served.", "free some space, then resume."):
        store.drop()
        protocol.purge()
        store.inventory.ledger.append(number, Action.TRAIN, Milestone.DONE)
        reach(Milestone.DONE)


def _write(
    protocol: RequestProtocol,
    number: int,
    model: MixedLinear,
    data: TrainingSet,
    beginning: Beginning,
) -> None:
    store = protocol.store
    root = store.paths.root
    for name, mode in FOLDERS.items():
        files.make_folder(root / name, mode)
    if current(root) is None:
        clear_folder(root)  # of a training that was cut short
        save_key(root / "private" / KEY, new_key())
        forgotten = Forgotten(store.inventory.key)
    else:
        forgotten = store.inventory.forgotten
    forgotten = forgotten.changed(beginning.forgotten, beginning.restored)
    core, folder = model.core, store.paths.core(number)
    files.make_folder(folder)
    core.save(folder)
    store.write_core_records(folder, model, data)
    files.write_json(folder / "model.json", {**settings_of(model), **_origin(model)})
    if model.guarantee is not None:
        store.write_guarantee(number, model.guarantee)
    if beginning.config:
        files.write_bytes(folder / "config.toml", beginning.config.encode())
    cache = None
    if model.user.keeps_activations:
        cache = core.cache(store.paths.activations)
        fill_cache(cache, data)
    sync_directory(folder)
    sync_directory(folder.parent)
    model.data, mine = data, model.cache
    try:
        model.cache = cache  # what the manifest covers
        first = beginning.certificate or model.user.first_certificate(data, model.solution)
        store.write(number, model, first, forgotten, number)
    finally:
        model.cache = mine


def _origin(model: MixedLinear) -> dict[str, str]:
    """Of a network from a hub, its name there, for the card of a copy."""
    hub = model.core.backbone.hub
    return {BASE_MODEL: hub} if hub else {}


def _abandon(protocol: RequestProtocol, number: int) -> None:
    """Delete what was built of a workspace that could not be published."""
    store = protocol.store
    root = store.paths.root
    if current(root) is None:
        clear_folder(root)
    else:
        protocol.tidy()
        return
    store.inventory.ledger.append(number, Action.TRAIN, Milestone.ABORTED)
