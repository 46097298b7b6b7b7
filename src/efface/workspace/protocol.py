"""The protocol: a request in steps, such that a kill between any two of them is no harm.

Intent → compute → new files → CURRENT → purge → done; ``ledger.Step`` has every step. Until CURRENT is
replaced the request can be computed anew from the intent; after it, only deletions are left.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from safetensors import SafetensorError

from efface import files
from efface.certificates import Certificate
from efface.errors import EffaceError
from efface.ledger import Action, Intent, Step, reach, sync_directory
from efface.model import CURRENT, CURRENT_SCHEMA, MixedLinear
from efface.progress import Progress
from efface.requests import Request, RequestKind
from efface.workspace.disk import explaining_a_full_disk, is_full, remove
from efface.workspace.store import LASTING, Store


@dataclass(frozen=True)
class Result:
    """What a request did. ``num_records`` were forgotten or added; ``release`` is served now."""

    action: Action
    release: int
    num_records: int
    certificate: Certificate | None
    seconds: float


class RequestProtocol(Store):
    """A store whose requests either happen or do not."""

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Alone in the workspace, nothing left unfinished."""
        with files.locked(self.path / "lock"):
            reach(Step.LOCKED)
            self._recover(None)
            with self._holding():
                yield

    def _accept(self, intent: Intent, progress: Progress | None) -> Result:
        """From the saved intent on, the request will be carried out, by this process or another."""
        try:
            with explaining_a_full_disk("nothing was changed.", "free some space, ask again."):
                intent.save(self.path / "pending.json")
                reach(Step.INTENT)
                self._mark(intent, Step.ACCEPTED)
        except EffaceError:
            self._tidy()
            raise
        return self._carry_out(intent, progress)

    def _carry_out(self, intent: Intent, progress: Progress | None) -> Result:
        start = time.monotonic()
        try:
            if self.number < intent.number:
                self._discard(intent.number)
                self._prepare(intent, progress)
                self._switch(intent.number)
            self._held = None  # of the release before
            self._finish(intent)
        except (OSError, SafetensorError) as problem:
            if not is_full(problem):
                raise
            raise self._kept(intent) from problem
        seconds = time.monotonic() - start
        certificate = self.certificate
        return Result(intent.action, intent.number, len(intent.digests), certificate, seconds)

    def _prepare(self, intent: Intent, progress: Progress | None) -> None:
        """Compute the new release and write all of it; on an error the request is called off."""
        try:
            model, certificate = self._compute(intent, progress)
            reach(Step.COMPUTED)
            self._write(intent.number, model, certificate)
        except Exception as problem:
            if not is_full(problem):
                self._tidy()
            raise
        self._mark(intent, Step.PREPARED)

    def _compute(
        self, intent: Intent, progress: Progress | None
    ) -> tuple[MixedLinear, Certificate | None]:
        model = self.model()
        if intent.action is Action.FORGET:
            assert intent.request is not None
            named = arguments(intent.request)
            named["user_part_only"] = True  # whether that was agreed to was checked when it came
            return model, model.forget(**named, guarantee=intent.guarantee, progress=progress)
        part = self._staged()
        if model.cache is not None:
            assert part.activations is not None
            model.cache.put(part.records.digests, part.activations[slice(0, len(part))])
        return model, model.absorb(part, guarantee=intent.guarantee, progress=progress)

    def _switch(self, number: int) -> None:
        """Publish: readers see the release before, or this one."""
        files.write_json(self.path / CURRENT, {"schema": CURRENT_SCHEMA, "release": number})
        sync_directory(self.path)
        reach(Step.SWITCHED)

    def _finish(self, intent: Intent) -> None:
        """After the switch: record it, delete what is older, and the intent last."""
        number = intent.number
        seen = {(entry.number, entry.step) for entry in self.journal.entries()}
        if (number, Step.PUBLISHED) not in seen:
            forgotten = intent.digests if intent.action is Action.FORGET else ()
            restored = intent.restored
            self._mark(intent, Step.PUBLISHED, forgotten=forgotten, restored=restored)
        self._purge()
        self._mark(intent, Step.PURGED)
        (self.path / "pending.json").unlink()
        sync_directory(self.path)
        reach(Step.CLEARED)
        self._mark(intent, Step.DONE)

    def _purge(self) -> None:
        """Delete whatever the published release does not need. Files that readers may have open are
        unlinked, not overwritten: a reader keeps what it has mapped."""
        number = str(self.number)
        for folder, step in (
            ("releases", Step.OLD_RELEASES_GONE),
            ("private", Step.OLD_STATE_GONE),
        ):
            for path in (self.path / folder).iterdir():
                if path.name not in (number, *LASTING):
                    remove(path)
            sync_directory(self.path / folder)
            reach(step)
        self._purge_rows()
        reach(Step.OLD_ROWS_GONE)

    def _purge_rows(self) -> None:
        self._remove_unused_buckets()
        cache = self.cache
        if cache is not None:
            cache.purge(sorted(cache.digests - set(self.data.digests)))

    def _recover(self, progress: Progress | None) -> Result | None:
        if self.settled():
            return None
        self.journal.repair()
        intent = Intent.load(self.path / "pending.json")
        if intent is None:
            self._tidy()
            return None
        return self._carry_out(intent, progress)

    def _tidy(self) -> None:
        """Back to the published release: no intent, no half-made files, the journal's last word said."""
        (self.path / "pending.json").unlink(missing_ok=True)
        for path in self.strays():
            remove(path)
        self._purge_rows()
        entries = self.journal.entries()
        last = entries[-1] if entries else None
        if last is not None and last.step not in (Step.DONE, Step.ABORTED):
            ended = Step.DONE if last.step is Step.PURGED else Step.ABORTED
            self.journal.append(last.number, last.action, ended)

    def _kept(self, intent: Intent) -> EffaceError:
        """The error for a full disk once the request is accepted."""
        if self.number < intent.number:
            self._discard(intent.number)
            state = "the old release is still served, and the request is kept."
        else:
            state = "the new release is served, but not all old files are deleted."
        fix = f"free some space, then run `efface resume {self.path}`."
        return EffaceError(f"the disk is full; {state}", fix)

    def _mark(self, intent: Intent, step: Step, **digests: Iterable[str]) -> None:
        self.journal.append(intent.number, intent.action, step, **digests)
        reach(step)


def arguments(request: Request) -> dict[str, Any]:
    """The request as keyword arguments of ``forget``."""
    if request.kind is RequestKind.EVERYTHING:
        return {"everything": True}
    if request.kind is RequestKind.IDS:
        return {"ids": request.values, "in_core": request.in_core}
    return {str(request.kind): request.values[0]}
