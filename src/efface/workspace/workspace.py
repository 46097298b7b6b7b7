"""The workspace: one opened or created, and the requests that it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from efface import files
from efface.data.looks import looks_of
from efface.data.record import Split
from efface.data.records import Records
from efface.errors import RecordError, RequestError
from efface.guarantee.apriori import StatePolicy
from efface.guarantee.certificates import Certificate
from efface.guarantee.promise import Guarantee
from efface.model.core_index import CoreIndex
from efface.model.request import Request, Whom, meant
from efface.parts.part import require_training_data
from efface.parts.tangent.procedure import ProcedureChoice
from efface.parts.training_set import TrainingSet
from efface.progress import Progress
from efface.workspace.building import Beginning, build
from efface.workspace.disk import explaining_the_disk
from efface.workspace.earlier import explained
from efface.workspace.founding import check_folder
from efface.workspace.inventory import Inventory
from efface.workspace.partners import elsewhere, refuse_guests
from efface.workspace.preview import Preview
from efface.workspace.protocol import RequestProtocol, Result
from efface.workspace.published import current, load
from efface.workspace.steps import Action, Intent, Milestone, reach
from efface.workspace.store import Store

if TYPE_CHECKING:
    from torch import nn

    from efface.model.mixed_linear import MixedLinear


class Workspace:
    """The model in a directory. ``open`` one that is there, or ``create`` one from a fitted model.

    ``inventory`` tells which files there are, ``store`` reads and writes them, ``protocol`` carries requests
    out so that a crash is no harm.
    """

    def __init__(self, path: Path | str, module: nn.Module | None = None) -> None:
        self.path, self.inventory = Path(path), Inventory(path, module)
        self.store = Store(self.inventory)
        self.protocol = RequestProtocol(self.store)

    @classmethod
    def open(
        cls, path: Path | str, *, module: nn.Module | None = None, recover: bool = True
    ) -> Workspace:
        """Open a workspace and finish what a crash left unfinished; ``recover=False`` only looks.

        ``module`` is needed only if the core was built from an nn.Module object, or by code.
        """
        workspace = cls(path, module)
        _ = workspace.inventory.current  # an error if it is none
        workspace.inventory.only_looks = not recover
        with explaining_the_disk("the ledger cannot be read.", "free some space, then try again."):
            if recover and not workspace.inventory.settled():
                workspace.resume()
        return workspace

    @classmethod
    def create(
        cls,
        path: Path | str,
        model: MixedLinear,
        *,
        config: str = "",
        module: nn.Module | None = None,
        overwrite: bool = False,
        allow_reingest: bool = False,
        forgotten: Sequence[str] = (),
        certificate: Certificate | None = None,
        instead_of: int | None = None,
    ) -> Workspace:
        """Write a fitted model, and what later requests need of its training records.

        ``overwrite`` replaces the workspace that is there, by one rename once the new one is on disk; what
        was forgotten in it stays refused, unless ``allow_reingest``, and a request in flight is carried
        out first. A folder that holds anything else is refused, and so is one whose release is no longer
        ``instead_of``, if that is given: then the model is made of what somebody has changed since.
        ``forgotten`` are digests of images that the model forgot before, ``certificate`` is its last one.
        """
        self = cls(path, module)
        check_folder(self.path, overwrite=overwrite)
        data = model.complete(require_training_data(model.data))
        seen = model.core.loader.seen
        data = replace(data, looks=data.looks or looks_of(data.records, seen))
        files.make_folder(self.path, files.PUBLIC_FOLDER)
        with files.locked(self.store.paths.lock), self.inventory.ledger.held():
            check_folder(self.path, overwrite=overwrite)
            if current(self.path) is None:
                self.inventory.ledger.take_over()
            else:
                self.protocol.recover(None)
            if instead_of is not None and self.number != instead_of:
                raise RequestError("somebody has changed the model in between.", "try again.")
            sets = (data.records, data.replay, model.core.records)
            restored = self.check_forgotten(*sets, allow_reingest=allow_reingest)
            fix = "free some space, train again."
            with explaining_the_disk("the folder is as it was.", fix):
                beginning = Beginning(config, tuple(forgotten), restored, certificate)
                build(self.protocol, model, data, beginning)
        return self

    # --- what is there ----------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """Of the published release."""
        return self.inventory.number

    @property
    def settings(self) -> dict[str, Any]:
        return self.inventory.settings

    @property
    def data(self) -> TrainingSet:
        """The training records without images, and their rows; activations are in a cache."""
        return self.store.data

    @property
    def records(self) -> Records:
        """The user records that are retained, without their images."""
        return self.store.data.records

    @property
    def core_index(self) -> CoreIndex:
        """Who and what is in core, and what bases and scales came from."""
        return self.store.core_index

    @property
    def guarantee(self) -> Guarantee | None:
        """What later requests promise, if that has been planned."""
        return self.store.guarantee

    @property
    def certificate(self) -> Certificate | None:
        """Of the published release; None where nothing was promised."""
        return self.store.certificate

    def model(self, device: str | None = None) -> MixedLinear:
        """The published model with its training data and private state, ready to forget in memory."""
        return self.store.model(device)

    # --- requests ---------------------------------------------------------------------------------

    def preview(
        self,
        request: Request | None = None,
        *,
        user_part_only: bool = False,
        **whom: Unpack[Whom],
    ) -> Preview:
        """What :meth:`forget` would do, from the records alone; nothing is changed."""
        with self.store.holding():
            request, notes = meant(Request.one(request, whom), self.records.owners)
            staying = self.core_index.check(request, user_part_only=user_part_only)
            gone = self._named(request)
            retained, people = self.data.num_retained - len(gone), len(set(gone.owners))
            notes += self.core_index.still_known(request)
            return Preview(len(gone), retained, gone.ids, staying, people, notes)

    def forget(
        self,
        request: Request | None = None,
        *,
        guarantee: Guarantee | None = None,
        procedure: ProcedureChoice | None = None,
        user_part_only: bool = False,
        tell: Callable[[str], None] = lambda text: None,
        references: tuple[str, ...] = (),
        together: Sequence[Request] = (),
        progress: Progress | None = None,
        **whom: Unpack[Whom],
    ) -> Result:
        """Forget some records, publish the new release, delete what is left of them.

        ``whom`` is one of ``ids=``, ``owner=``, ``cohort=``, ``label=`` or ``everything=True``, or give a
        :class:`Request`. An owner or cohort with core records is refused, since these stay;
        ``user_part_only`` forgets the others, and the certificate says how many stay.

        An error before the release is published changes nothing. Once the intent is on disk a crash
        does not lose the request: opening the workspace finishes it. ``guarantee`` takes the place of
        the planned one for this request; ``procedure`` says how to get there (tangent), and ``tell`` hears,
        before work starts, what is known about that. ``references``: digests of the request, for the receipt;
        ``together``: the requests that this one is made of, so that each is known when it comes again.
        """
        request = Request.one(request, whom)
        with self.protocol.working():
            request, notes = meant(request, self.records.owners)
            self.core_index.check(request, user_part_only=user_part_only)
            gone = self._named(request)
            guarantee = guarantee or self.guarantee
            if len(gone) == len(self.records) and not self.data.num_from_partners:
                guarantee = None  # the weights will be 0
            elif guarantee is None and self.store.part.noisy:
                guarantee = self._planned(1.0, 1e-5, None)
            if procedure is not None:
                self._foretell(gone, procedure, tell)
            number = self.inventory.number + 1
            notes += self.core_index.still_known(request) + elsewhere(self.data.guests)
            intent = Intent(number, Action.FORGET, gone.digests, request, guarantee)
            intent = replace(intent, procedure=procedure, references=references)
            each = [meant(asked, self.records.owners)[0] for asked in together]
            result = self.protocol.accept(intent, progress, each)
            return replace(result, notes=(*notes, *result.notes))

    def _foretell(
        self, gone: Records, procedure: ProcedureChoice, tell: Callable[[str], None]
    ) -> None:
        model = self.store.model()
        data, names = require_training_data(model.data), set(gone.ids)
        at = np.flatnonzero([record_id in names for record_id in data.records.ids])
        for text in model.user.outlook.of_request(model.user, data, at, procedure):
            tell(text)

    def add(
        self,
        records: Records,
        *,
        allow_reingest: bool = False,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Take in new user records, under the same protocol as :meth:`forget`.

        ``device`` is where what is kept of their images is computed; the request itself is the CPU's.
        """
        with self.protocol.working():
            restored = self._check_new(records, allow_reingest)
            model = load(self.path, module=self.inventory.module, device=device)
            part = model.stage(Records(records, model.classes), looks=True, progress=progress)
            return self._take_in(part, restored, progress)

    def merge(
        self, part: TrainingSet, *, allow_reingest: bool = False, progress: Progress | None = None
    ) -> Result:
        """Take in new user records whose rows were made elsewhere, for this model."""
        with self.protocol.working():
            restored = self._check_new(part.records, allow_reingest)
            return self._take_in(part, restored, progress)

    def _take_in(
        self, part: TrainingSet, restored: tuple[str, ...], progress: Progress | None
    ) -> Result:
        with explaining_the_disk("nothing was changed.", "free some space, add them again."):
            self.store.stage(part)
        reach(Milestone.STAGED)
        guarantee = self.guarantee
        if self.store.part.noisy:  # nothing to hide before the first request
            shifts = self.store.shifts
            guarantee = (guarantee or self._planned(1.0, 1e-5, None)) if shifts else None
        digests, number = part.records.digests, self.inventory.number + 1
        intent = Intent(number, Action.ADD, digests, None, guarantee, restored)
        return self.protocol.accept(intent, progress)

    def plan(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        sigma: float | None = None,
        state: StatePolicy | str = StatePolicy.SECRET,
    ) -> Guarantee:
        """Fix what later requests promise; σ comes from core data unless it is given (tangent).

        ``state="noisy"``: from the next request on no weights without noise are kept. Compact: with
        ``sigma``, the difference between a release and the one before it is hidden by noise.
        """
        with self.protocol.working():
            guarantee = self._planned(epsilon, delta, sigma, state)
            intent = Intent(self.inventory.number, Action.PLAN, (), None, guarantee)
            self.protocol.accept(intent, None)
        return guarantee

    def retire_plan(self) -> Guarantee | None:
        """Later requests promise what they do without a plan; returns it. What it released stays counted."""
        with self.protocol.working():
            planned = self.guarantee
            if planned is not None:
                self.protocol.accept(Intent(self.inventory.number, Action.PLAN, ()), None)
        return planned

    def warm(self, on: bool = True) -> bool:
        """Keep a factor of the sums in ``private/``, so that requests are served sooner; or no longer.

        Each request uses it once, publishes, deletes it with the state before, and makes that of the new
        sums before it is done. Returns whether there is one now.
        """
        with self.protocol.working():
            return self.store.start_keeping() if on else self.store.drop_factor()

    def guarantee_with(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        sigma: float | None = None,
    ) -> Guarantee | None:
        """The planned guarantee with some numbers changed; None if none is given."""
        if epsilon is None and delta is None and sigma is None:
            return None
        planned, state = self.guarantee, StatePolicy.SECRET
        if planned is not None:
            epsilon = planned.epsilon if epsilon is None else epsilon
            delta = planned.delta if delta is None else delta
            sigma = planned.sigma if sigma is None else sigma
            state = planned.state
        epsilon, delta = 1.0 if epsilon is None else epsilon, 1e-5 if delta is None else delta
        return self._planned(epsilon, delta, sigma, state)

    def resume(self, progress: Progress | None = None) -> Result | None:
        """Finish what was cut short; None if there was no request in flight."""
        with self.protocol.alone():
            return self.protocol.recover(progress)

    def cancel(self) -> Intent | None:
        """Call off the request that was cut short, if it is not published yet; None if there is none."""
        with self.protocol.alone(), explaining_the_disk("it is kept.", "free some space, retry."):
            self.inventory.ledger.take_over()
            intent = self.inventory.ledger.pending()
            if intent is not None and self.protocol.is_published(intent):
                fix = f"run `efface resume {self.path}`: only deletions are left."
                raise RequestError(f"release {intent.number} is published already.", fix)
            if not self.inventory.settled():
                self.protocol.tidy()
        return intent

    # --- checks before anything is touched --------------------------------------------------------

    def _named(self, request: Request) -> Records:
        """The records a request is about; an unknown name may be one that is forgotten already."""
        data = self.data
        core = self.core_index.ids | data.core_ids
        try:
            positions = request.positions(data.records, core=core)
        except RequestError as error:
            raise explained(error, request, self.inventory, data.records.owners) from None
        return data.records[positions]

    def _check_new(self, records: Records, allow_reingest: bool) -> tuple[str, ...]:
        """Refuse what cannot be added; returns the digests that were forgotten before."""
        if len(records) == 0:
            raise RequestError("there are no records to add.", "check the data and its split.")
        known, index = {record.id for record in self.records}, self.core_index
        core_ids = index.ids
        for record in records:
            if record.split is not Split.USER:
                fix = "add user records only; core data is fixed when the core is trained."
                raise RecordError(record.id, f"is a {record.split} record.", fix)
            if record.id in known or record.id in core_ids:
                fix = "take it out of the data, or give it another id."
                raise RecordError(record.id, "is in the workspace already.", fix)
            if record.label not in self.inventory.settings["classes"]:
                fix = "train a new model with this class."
                raise RecordError(record.id, f"label {record.label!r} is none of the core's.", fix)
        index.check_new(records)
        refuse_guests(records, self.data.guests, self.inventory.key)
        return self.check_forgotten(records, allow_reingest=allow_reingest)

    def check_forgotten(self, *sets: Records | None, allow_reingest: bool) -> tuple[str, ...]:
        """Refuse images that were forgotten here; if they are allowed, returns their digests."""
        if current(self.path) is None:
            return ()
        forgotten = self.inventory.forgotten
        found = [r for records in sets for r in records or () if r.digest in forgotten]
        if found and not allow_reingest:
            raise RecordError(
                found[0].id,
                f"this image was forgotten here, as were {len(found) - 1} more of the data.",
                "take them out; if their owners want them in again, use --allow-reingest.",
            )
        return tuple(dict.fromkeys(record.digest for record in found))

    def _planned(
        self,
        epsilon: float,
        delta: float,
        sigma: float | None,
        state: StatePolicy | str = StatePolicy.SECRET,
    ) -> Guarantee:
        part, settings = self.store.part, self.inventory.settings
        if part.noisy and sigma is None:
            sigma = settings["sigma"]
        d = settings["num_weights"] or 0
        if not d and sigma is not None:
            d = self.store.num_weights
        return part.promise(epsilon, delta, sigma, d, state)
