"""The one way from data to a workspace: records → core → user part → workspace, as a config says.

``Training`` has a method for each step, and whoever trains from a config takes these: ``efface train``,
``compare``, ``trial`` and ``demo``. ``train`` walks the whole way: it refuses first what cannot end well, and
says what came out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efface.data.class_list import settled
from efface.data.listing import Listing
from efface.data.loading import Loader
from efface.data.records import Records
from efface.data.remarks import Note, remarks_on, tell, unheard
from efface.errors import EffaceError
from efface.linear.solution import Status
from efface.model.mixed_linear import MixedLinear
from efface.network.activations import Activations
from efface.network.backbone import Backbone
from efface.network.core import Core
from efface.network.in_turn import in_turn
from efface.parts.table import part_named, place_for
from efface.pipeline.config import Config, to_toml
from efface.pipeline.core_people import core_people
from efface.pipeline.how import How
from efface.pipeline.kept_core import KeptCore
from efface.pipeline.sharded import ShardedFit
from efface.pipeline.tuning import TuningFolder, choice_text, choice_values, fine_tuned
from efface.progress import Progress, part
from efface.shards import engine_named
from efface.workspace import Workspace
from efface.workspace.founding import check_folder, check_room, check_writable


def _unseen(step: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda fraction, message: None)


@dataclass(frozen=True)
class Watch:
    """Who looks on: ``step`` shows the progress of a named step while it runs, ``note`` gets sentences."""

    step: Callable[[str], AbstractContextManager[Progress]] = _unseen
    note: Note = unheard


class Training:
    """The steps of a training run. ``note`` is told what a person should know, a sentence at a time."""

    def __init__(self, config: Config, note: Note = unheard) -> None:
        self.config, self.note = config, note
        self.tuning: dict[str, Any] | None = None  # what fine-tuning tried and chose

    def records(self) -> Records:
        """The data, with a class list that stays the same whoever is forgotten."""
        return tell(settled(self.config.data.build()), self.note)

    def core(self, records: Records) -> Core:
        """The network with an output for each class, not trained yet."""
        return self._core(records)

    def _core(self, records: Records, backbone: Backbone | None = None) -> Core:
        larger = part_named(self.config.user.kind).larger_images
        core = self.config.core.build(records.classes, backbone, larger=larger)
        core.loader = Loader(self.config.data.decode_workers, seen={})
        core.place = place_for(self.config.user.kind, self.config.core.device)
        return core

    def fine_tuned(
        self,
        core: Core,
        records: Records,
        folder: Path | None = None,
        progress: Progress | None = None,
    ) -> Core:
        """The core on a network fine-tuned on core records, if the config says so and it was the best choice.

        What is needed to go on after a kill is kept in ``folder``.
        """
        if not self.config.core.finetune:
            return core
        backbone, choice = fine_tuned(self.config, core.backbone, records, folder, progress)
        self.note(choice_text(choice))
        self.tuning = choice_values(choice)
        if choice.best.settings is None:
            return core
        return self._core(records, backbone)

    def fit_core(self, core: Core, records: Records, progress: Progress | None = None) -> None:
        """Train the core on the core records; without any it stays the network that it is."""
        options, where = self.config.core.fit_options(), self.config.output.cache
        if len(records.core):
            first = (options["stages"] or core.default_stages())[0]
            # A stage that trains all changes the activations: what it would keep is of no use later.
            cache = None if where is None or first.train == "all" else core.cache(where)
            core.fit(records.core, **options, cache=cache, progress=progress)
        else:
            self.note(
                "no core records: the core is the pretrained network, and its new head says 0 for all"
            )
        if where is not None:
            self.note(
                f"activations in {where} are outside of the workspace: forgetting does not purge them"
            )

    def fit_user(
        self,
        core: Core,
        records: Records,
        progress: Progress | None = None,
        sharded: ShardedFit | None = None,
        listing: Listing | None = None,
    ) -> MixedLinear:
        """Fit the user part on the user records, and on the core records again if the config says so.

        With ``sharded`` the user records are those of the ``listing``, and others look at their images.
        """
        where = self.config.output.cache
        model = self.config.user.build(core, None if where is None else core.cache(where))
        self._foretell(model, core, records.core)
        replay = records.core if self.config.user.replay_core and len(records.core) else None
        calibration = self._calibration()
        if sharded is None or listing is None:
            return model.fit(
                records.user, replay=replay, calibration=calibration, progress=progress
            )
        model.calibrate(calibration)
        return sharded.fit(model, listing, records.core, replay, progress)

    def _foretell(self, model: MixedLinear, core: Core, records: Records) -> None:
        """What is known before the fit starts, from a few core records."""

        def sample() -> Activations | None:
            step = max(1, -(-len(records) // model.user.outlook.most_samples))
            return core.activations(records[::step], model.cache) if len(records) else None

        reading = self.config.user.reading_note(len(core.classes))
        for text in (reading, *model.user.outlook.of_fit(model.user, sample)):
            if text is not None:
                self.note(text)

    def _calibration(self) -> Records | None:
        """Public records for bases and scales, if the config names any and the user part wants them."""
        spec = self.config.user.calibration
        if spec is None or not part_named(self.config.user.kind).calibrates:
            return None
        options = {"spec": spec, "core_fraction": None, "core_data": None, "classes": None}
        return tell(self.config.data.model_copy(update=options).build(), self.note)

    def save(
        self,
        model: MixedLinear,
        folder: Path,
        *,
        overwrite: bool = False,
        allow_reingest: bool = False,
    ) -> Workspace:
        """The model's workspace, with the settings beside it."""
        settings = to_toml(self.config)
        return Workspace.create(
            folder, model, config=settings, overwrite=overwrite, allow_reingest=allow_reingest
        )


# The whole way, for ``efface train``.


def train(config: Config, watch: Watch | None = None, how: How | None = None) -> dict[str, Any]:
    """Train a workspace in ``config.output.dir``; returns what came out, for people and programs."""
    watch, how, folder = watch or Watch(), how or How(), Path(config.output.dir)
    check_folder(folder, overwrite=how.overwrite)
    check_writable(folder)
    kept = TuningFolder.of(config)
    training = Training(config, watch.note)
    sharded = _sharded(config, how, watch.note)
    listing = config.data.listing()
    apart = sharded is not None or how.core_only  # user images are looked at elsewhere
    records = listing.without_user() if apart else settled(listing.records())
    num_apart = len(listing.user) if apart and not how.core_only else 0
    _tell(records, watch.note, num_apart)
    drawn = core_people(config.data, records, listing.user if apart else ())
    listed = listing if apart else None
    del listing  # a row for each record: where images were looked at, these are enough
    if drawn is not None:
        watch.note(str(drawn))
    reingest = how.allow_reingest
    Workspace(folder).check_forgotten(records.core, records.user, allow_reingest=reingest)
    core = training.core(records)
    check_room(folder, _size(config, core, records, num_apart))
    _refuse_untrained(config, records)
    start = time.monotonic()
    if kept is not None:
        with watch.step("fine-tuning") as progress:
            core = training.fine_tuned(core, records, kept.path, progress)
    with watch.step("core") as progress:
        _fit_core(training, core, records, sharded, progress)
    for line in core.report:
        watch.note(line)
    with watch.step("user part") as progress:
        model = training.fit_user(core, records, progress, sharded if num_apart else None, listed)
        _refuse_diverged(model, watch.note)
    if num_apart and model.data is not None:
        records = _complete(records, model.data.records, watch.note)
    with watch.step("workspace") as progress:
        progress(0.0, f"writing {folder.name}")
        training.save(model, folder, overwrite=how.overwrite, allow_reingest=reingest)
        progress(1.0, f"{folder.name} is written")
    if kept is not None:
        kept.clear()
    if sharded is not None:
        sharded.clean()
    with watch.step("test") as progress:
        outcome = _outcome(model, records, progress) | {"finetuning": training.tuning}
    seconds = round(time.monotonic() - start, 1)
    people = 0 if drawn is None else drawn.people
    return {"model": str(folder), **outcome, "seconds": seconds, "core_people": people}


def _sharded(config: Config, how: How, note: Callable[[str], None]) -> ShardedFit | None:
    if how.engine is None:
        return None
    folder = Path(config.output.dir)
    home = folder.with_name(f"{folder.name}.shards")  # outside of the workspace: it can be resumed
    device = config.core.device
    engine = engine_named(how.engine, device)
    return ShardedFit(engine, home, config.data, how.shards, how.trusted, note, device)


def _fit_core(
    training: Training,
    core: Core,
    records: Records,
    sharded: ShardedFit | None,
    progress: Progress,
) -> None:
    """Train the core, or with an engine take the one that a run which was killed has left."""
    if sharded is None or not len(records.core):
        training.fit_core(core, records, progress)
        return
    kept = KeptCore.of(sharded.folder, training.config, core, records)
    if kept.into(core, records):
        training.note(f"goes on with the core that was trained before ({kept.folder})")
        return
    training.fit_core(core, records, progress)
    kept.save(core)


def _size(config: Config, core: Core, records: Records, num_apart: int) -> int:
    """Bytes of the core and of what forgetting needs of the records: rows and sums, or activations."""
    size = sum(t.numel() * t.element_size() for t in core.tensors.values())
    n = num_apart + len(records.user) + (len(records.core) if config.user.replay_core else 0)
    return size + part_named(config.user.kind).kept_bytes(core, n, config.user.given())


def _complete(records: Records, user: Records, note: Note) -> Records:
    """With user records that were looked at elsewhere; what can be told of them only now is told."""
    everything = records + user
    known = set(remarks_on(records))
    for text in remarks_on(everything):
        if text not in known:
            note(text)
    return everything


def _tell(records: Records, note: Note, num_apart: int) -> None:
    tell(records, note)
    if not len(records.user) and not num_apart:
        note("no user records: the model is the core model, with nothing to forget")


def _refuse_untrained(config: Config, records: Records) -> None:
    if not len(records.core) and config.core.backbone == "cnn":
        fix = (
            "start from a pretrained --backbone, or give it a public set: --core-data public/. "
            "--core-fraction 0.3 takes some of your people, who can then never be forgotten."
        )
        raise EffaceError("no core records, and the built-in network knows nothing yet.", fix)


def _refuse_diverged(model: MixedLinear, note: Note) -> None:
    if model.solution is not None and model.solution.status is Status.DIVERGED:
        raise EffaceError("the solver diverged; nothing was saved.", model.solution.advice)
    if model.solution is not None and not model.solution.ok:
        note(f"the solver {model.solution}")


# What came out.


def counts(records: Records) -> dict[str, int]:
    """How many records each split has."""
    return {"core": len(records.core), "user": len(records.user), "test": len(records.test)}


def _outcome(
    model: MixedLinear, records: Records, progress: Progress | None = None
) -> dict[str, Any]:
    return {
        "core_digest": model.core.digest,
        "records": counts(records),
        "classes": len(records.classes),
        "weights": model.user.num_weights,
        "part": {"kind": model.user.kind, **(model.user.summary(model.data) or {})},
        "accuracy": _accuracy(model, records, progress),
        "solution": _solution(model),
        "skipped": len(records.skipped),
    }


def _accuracy(
    model: MixedLinear, records: Records, progress: Progress | None
) -> dict[str, float | None]:
    """Of the test records. Where there is no core data the core's head is zero: it is not asked."""
    test = records.test
    if not len(test):
        part(progress, 0, 1)(1.0, "no test records")
        return {"core": None, "user": None}
    if not len(records.core):
        return {"core": None, "user": model.accuracy(test, progress=part(progress, 0, 1))}
    logits = in_turn(model.core.logits, test, part(progress, 0, 0.5, "core"))
    core = float((logits.argmax(1) == model.core.labels(test)).float().mean())
    user = model.accuracy(test, progress=part(progress, 0.5, 1, "core + user"))
    return {"core": core, "user": user}


def _solution(model: MixedLinear) -> dict[str, Any] | None:
    """How an iterative solver ended; None where there was none."""
    solution = model.solution
    if solution is None:
        return None
    return {
        "status": str(solution.status),
        "residual_norm": solution.residual_norm,
        "passes": round(solution.passes, 1),
        "advice": solution.advice,
    }
