"""The protocol: a request in steps, such that a kill between any two of them is no harm.

Intent → compute → new files → CURRENT → purge → done; ``steps.Milestone`` has every step. Until CURRENT is
replaced the request can be computed anew from the intent; after it, only deletions are left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from efface import files
from efface.environment import environment
from efface.errors import EffaceError, Interrupted, RequestError
from efface.guarantee.certificates import Certificate
from efface.model.request import Request
from efface.progress import Progress
from efface.workspace import superseded
from efface.workspace.disk import explaining_the_disk, is_disk, is_full, remove, told
from efface.workspace.earlier import hash_of, rows_of_several
from efface.workspace.forgotten import Forgotten
from efface.workspace.published import CURRENT, SCHEMA, Current
from efface.workspace.signing import Signing, among_others
from efface.workspace.steps import Action, Intent, Milestone, reach, sync_directory
from efface.workspace.store import Store

if TYPE_CHECKING:
    from efface.model.kept import KeptModel
    from efface.model.mixed_linear import MixedLinear


@dataclass(frozen=True)
class Result:
    """What a request did. ``num_records`` were forgotten or added; ``release`` is served now."""

    action: Action
    release: int
    num_records: int
    certificate: Certificate | None
    seconds: float
    notes: tuple[str, ...] = ()  # worth a look: names that look like the one that was given
    receipt: Path | None = None  # where it lies, if the workspace has a key


class RequestProtocol:
    """Requests to what is in a store: each happens or does not."""

    def __init__(self, store: Store) -> None:
        self.store, self.inventory, self.paths = store, store.inventory, store.paths
        self.signing, self.note = Signing(store), ""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else changes the workspace."""
        with files.locked(self.paths.lock):
            self.inventory.only_looks = False
            with self.inventory.ledger.held():
                yield

    @contextmanager
    def working(self) -> Iterator[None]:
        """Alone in the workspace, nothing left unfinished."""
        with self.alone():
            reach(Milestone.LOCKED)
            self.recover(None)
            with self.store.holding():
                yield

    def accept(
        self, intent: Intent, progress: Progress | None, together: Sequence[Request] = ()
    ) -> Result:
        """From the saved intent on, the request will be carried out, by this process or another."""
        if self._hides(intent):
            intent = replace(intent, references=among_others(intent.references))
        try:
            with explaining_the_disk("nothing was changed.", "free some space, ask again."):
                several = self._several(intent, together)
                self.inventory.ledger.accept(intent, several, **self._asked(intent))
                reach(Milestone.ACCEPTED)
        except EffaceError as problem:
            self._call_off(intent, problem)
            raise
        except KeyboardInterrupt as problem:
            raise self._interrupted(intent) from problem
        return self._carry_out(intent, progress)

    def _carry_out(self, intent: Intent, progress: Progress | None) -> Result:
        start = time.monotonic()
        try:
            if intent.action is Action.PLAN:
                self._replan(intent)
            else:
                made = None
                if self.inventory.number < intent.number:
                    self.store.discard(intent.number)
                    made = self._prepare(intent, progress)
                    self.switch(Current(intent.number, self.inventory.current.core))
                self.store.drop()
                self._finish(intent, made)
        except (OSError, SafetensorError) as problem:
            if not is_disk(problem):
                raise
            raise self._kept(intent, problem) from problem
        except KeyboardInterrupt as problem:
            raise self._interrupted(intent) from problem
        seconds = time.monotonic() - start
        certificate, notes = self.store.certificate, (self.note,) if self.note else ()
        return Result(
            *(intent.action, intent.number, len(intent.digests), certificate, seconds, notes),
            receipt=self.signing.receipt(),
        )

    def _prepare(self, intent: Intent, progress: Progress | None) -> MixedLinear | KeptModel:
        """Compute the new release and write all of it; on an error the request is called off."""
        try:
            forgotten = self._forgotten(intent)
            model, certificate = self._compute(intent, progress)
            reach(Milestone.COMPUTED)
            self.store.write(
                intent.number, model, certificate, forgotten, self.inventory.current.core
            )
        except Exception as problem:
            if not is_disk(problem):
                self._call_off(intent, problem)
            raise
        self._mark(intent, Milestone.PREPARED, manifest=self.store.signature(intent.number))
        return model

    def _forgotten(self, intent: Intent) -> Forgotten:
        known, forgets = self.inventory.forgotten, intent.action.forgets
        change = known.retagged if intent.action.is_partners else known.changed
        return change(intent.digests if forgets else (), intent.restored)

    def _asked(self, intent: Intent) -> dict[str, str]:
        """What is kept for ever of the request itself: a keyed hash."""
        if intent.request is None:
            return {}
        return {"request": hash_of(intent.request, self.inventory.key)}

    def _hides(self, intent: Intent) -> bool:
        """Whether noise hides the difference to the release before: then so must be how many asked."""
        return intent.guarantee is not None and not self.store.part.noisy

    def _several(self, intent: Intent, together: Sequence[Request]) -> list[dict[str, Any]]:
        """Rows by which each is known later; none where it is hidden how many there are."""
        return [] if self._hides(intent) else list(rows_of_several(together, self.inventory.key))

    def _compute(
        self, intent: Intent, progress: Progress | None
    ) -> tuple[MixedLinear | KeptModel, Certificate | None]:
        if intent.action is Action.FORGET:
            assert intent.request is not None
            # Whether the user part alone was agreed to was checked when the request came.
            options: dict[str, Any] = {"user_part_only": True, "progress": progress}
            if intent.procedure is not None:  # parts with one way to forget are asked without
                options["procedure"] = intent.procedure
            with ThreadPoolExecutor(
                1
            ) as beside:  # the certificate will ask for it: found meanwhile
                beside.submit(environment, integer=True)
                kept = self.store.kept_model()
                kept.user.save_ahead(self.paths.private(intent.number), self.paths.buckets)
                return kept, kept.carry_out(intent.request, intent.guarantee, **options)
        part = self.store.staged()
        if intent.action.is_partners:
            kept = self.store.kept_model()
            change = kept.user.host(kept.data, part.guests[0], intent.guarantee)
            kept.data = change.data
            return kept, change.certificate
        model = self.store.model()
        if model.cache is not None:
            assert part.activations is not None
            model.cache.put(part.records.digests, part.activations[slice(0, len(part))])
            model.cache.settle()
        return model, model.absorb(part, guarantee=intent.guarantee, progress=progress)

    def _replan(self, intent: Intent) -> None:
        if intent.guarantee is None:
            self.store.drop_guarantee()
        else:
            self.store.save_guarantee(intent.guarantee)
        self._end(intent, manifest=self.store.signature(self.inventory.number))

    def switch(self, to: Current) -> None:
        """Publish: readers see the release before, or this one."""
        values = {"schema": SCHEMA, **asdict(to)}
        files.write_json(self.paths.root / CURRENT, values, mode=files.PUBLIC)
        sync_directory(self.paths.root)
        reach(Milestone.SWITCHED)

    def _finish(self, intent: Intent, made: MixedLinear | KeptModel | None) -> None:
        """After the switch: record it, delete what is older, and the intent last. ``made`` is what was
        published, where it is this process that computed it."""
        number = intent.number
        seen = {(entry.number, entry.step) for entry in self.inventory.ledger.entries()}
        if (number, Milestone.PUBLISHED) not in seen:
            self._mark(intent, Milestone.PUBLISHED)
        self.purge()
        self.store.renew_factor(made)
        reach(Milestone.FACTOR_KEPT)
        self._mark(intent, Milestone.PURGED)
        receipt, self.note = self.signing.write(intent.references)
        reach(Milestone.RECEIPT)
        self._end(intent, receipt)

    def sign(self, key: Path | None = None) -> Path:
        """The receipt of the published release; signed now, if it was not when the release was made.

        ``key`` is used from now on; else the one that the workspace has.
        """
        with self.working():
            if key is not None:
                self.signing.use(key)
            if self.inventory.number not in self.signing.told():
                values, note = self.signing.write()
                if values is None:
                    fix = "`efface keys new FILE`, then give --key FILE."
                    raise RequestError(note or "this model has no key to sign receipts with.", fix)
                self.inventory.ledger.receipt(values)
        return self.signing.folder / f"{self.inventory.number}.json"

    def _end(self, intent: Intent, receipt: dict[str, Any] | None = None, **more: str) -> None:
        self.inventory.ledger.end(intent.number, intent.action, Milestone.DONE, receipt, **more)
        reach(Milestone.DONE)
        self.inventory.ledger.scrub()
        reach(Milestone.SCRUBBED)

    def purge(self) -> None:
        """Delete whatever the published release does not need. Files that readers may have open are
        unlinked, not overwritten: a reader keeps what it has mapped."""
        now = self.inventory.current
        for folder, number, step in (
            ("releases", now.release, Milestone.OLD_RELEASES_GONE),
            ("core", now.core, Milestone.OLD_CORE_GONE),
            ("private", now.release, Milestone.OLD_STATE_GONE),
        ):
            for path in (self.paths.root / folder).iterdir():
                if path.name.isdigit() and path.name != str(number):
                    remove(path)
            sync_directory(self.paths.root / folder)
            reach(step)
        superseded.supersede(self.paths.certificates, now.release)
        sync_directory(self.paths.certificates)
        self.signing.supersede()
        reach(Milestone.OLD_CERTIFICATES_GONE)
        remove(self.paths.staging)
        self._purge_rows()
        reach(Milestone.OLD_ROWS_GONE)

    def _purge_rows(self) -> None:
        self.store.remove_unused_buckets()
        for path in self.inventory.unused_activations():
            remove(path)
        cache = self.inventory.cache
        if cache is not None:
            cache.purge(sorted(cache.digests - set(self.store.data.digests)))

    def recover(self, progress: Progress | None) -> Result | None:
        fix = "free some space, then try again."
        with explaining_the_disk("what was cut short is not put right yet.", fix):
            if self.inventory.settled():
                return None
            self.inventory.ledger.take_over()
            self.inventory.check_ledger()
            intent = self.inventory.ledger.pending()
            if intent is None:
                self.tidy()
                return None
        return self._carry_out(intent, progress)

    def tidy(self) -> None:
        """Back to the published release: no intent, no half-made files, the ledger's last word said."""
        ledger = self.inventory.ledger
        entries = ledger.entries()
        last = entries[-1] if entries and not entries[-1].ended else None
        published = (
            last is not None
            and last.step in (Milestone.PREPARED, Milestone.PURGED)
            and last.number == self.inventory.number
        )
        if last is not None and not published:
            planned = last.action is Action.PLAN  # it may have got as far as the files
            more = {"manifest": self.store.signature(last.number)} if planned else {}
            ledger.end(last.number, last.action, Milestone.ABORTED, None, **more)
        self.purge()
        for path in self.inventory.strays():
            if path not in ledger.strays():
                remove(path)
        if last is not None and published:
            ledger.end(last.number, last.action, Milestone.DONE)
        ledger.scrub()

    def _call_off(self, intent: Intent, problem: Exception) -> None:
        """Undo a request that cannot be carried out. If not even that can be done, it is kept."""
        try:
            self.tidy()
        except (OSError, SafetensorError) as another:
            message = f"{getattr(problem, 'message', problem)} ({told(another)}: it is kept)"
            raise EffaceError(message, self._advice("mend the disk")) from problem

    def _kept(self, intent: Intent, problem: Exception) -> EffaceError:
        """The error when the disk fails once the request is accepted."""
        if self.is_published(intent):
            state = "the new release is served, but not all old files are deleted."
        elif intent.action is Action.PLAN:
            state = "the plan is kept, but not in force yet."
        else:
            with contextlib.suppress(OSError, SafetensorError):
                self.store.discard(intent.number)
            state = "the old release is still served, and the request is kept."
        first = "free some space" if is_full(problem) else "mend the disk"
        return EffaceError(f"{told(problem)}; {state}", self._advice(first))

    def _interrupted(self, intent: Intent) -> Interrupted:
        if self.inventory.ledger.pending() is None:
            return Interrupted("interrupted; nothing was changed.", "ask again.")
        if self.is_published(intent):
            message = "interrupted; the new release is served, but not all old files are deleted."
        else:
            message = (
                f"interrupted; the request to {intent.action} was accepted and is kept: the next "
                "command that changes the workspace carries it out."
            )
        return Interrupted(message, self._advice())

    def _advice(self, first: str = "") -> str:
        root = self.paths.root
        then = f"run `efface resume {root}` to finish it, `efface cancel {root}` to drop it."
        return f"{first}, then {then}" if first else then

    def is_published(self, intent: Intent) -> bool:
        return intent.action is not Action.PLAN and self.inventory.number >= intent.number

    def _mark(self, intent: Intent, step: Milestone, **more: str) -> None:
        self.inventory.ledger.append(intent.number, intent.action, step, **more)
        reach(step)
