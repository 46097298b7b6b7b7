"""Classes that nobody has any more: where the list came from user data, a class leaves with its last record.

A class list that was read off people's labels is itself something of these people: if only Anna had "iguana",
a model that still has an output called so remembers her. So the output goes, too, and what is left is the
model that would have been trained without her: the same core with one output fewer, the same bases and scales
(they come from the network, not from data), sums with one column fewer.

Only where there is no core data and the user part is the compact one; else the list is not read off labels.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from efface.data.records import Records
from efface.model.mixed_linear import MixedLinear
from efface.network.core import Core
from efface.network.device import Placement
from efface.parts.compact.rows import Rows
from efface.parts.part import require_training_data
from efface.parts.table import part_named


def classes_left(model: MixedLinear) -> tuple[str, ...]:
    """The classes that some record of the model has, in their order."""
    present = set(require_training_data(model.data).records.column("label"))
    return tuple(name for name in model.classes if name in present)


def only_with(model: MixedLinear, classes: tuple[str, ...]) -> MixedLinear:
    """The model with these of its classes alone, fitted on the same records; they have no others."""
    index = [model.classes.index(name) for name in classes]
    core = _core_with(model.core, index)
    kept = {name: tensor for name, tensor in model.user.tensors.items() if name != "theta"}
    part = part_named(model.user.kind).load(core, model.user.settings, kept)
    made = MixedLinear(core, part)
    data = require_training_data(model.data)
    assert data.rows is not None
    rows = data.rows.whole()
    rows = Rows(rows.features, np.ascontiguousarray(rows.targets[:, index]))
    records = Records(data.records, classes)
    made.data = replace(data, records=records, indices=records.labels, rows=rows)
    made.solution, made.forgotten = made.user.learn(made.data), model.forgotten
    return made


def _core_with(core: Core, index: list[int]) -> Core:
    """The core with some of its outputs."""
    made = Core(
        core.backbone,
        classes=[core.classes[i] for i in index],
        linearize=core.linearize,
        leaky_slope=core.leaky_slope,
        fold_batchnorm=core.fold,
        mirror=core.mirror,
        seed=core.seed,
    )
    made.place = Placement(core.place.device)
    tensors = {**core.tensors, **core.statistics}
    head = next(name for name, module in core.tail.named_modules() if module is core.tail.head)
    for name in (f"tail.{head}.weight", f"tail.{head}.bias"):
        tensors[name] = tensors[name][index]
    made.load_tensors(tensors)
    return made
