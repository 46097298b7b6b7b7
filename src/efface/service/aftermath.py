"""After a release: hooks, servers that have it, the mapping file without those who are gone.

Then a request is done.
"""

from __future__ import annotations

import time
from pathlib import Path

from efface.errors import EffaceError
from efface.ledger import Ledger
from efface.service.hooks.hook import Hook, PublicModel
from efface.service.identities import prune_mapping, read_mapping
from efface.service.served import lagging
from efface.workspace import Workspace

ROW = "service.hook"


class Aftermath:
    """What stands between a published release and a request that is done."""

    def __init__(
        self, path: Path, ledger: Ledger, hooks: list[Hook], mapping: Path | None = None
    ) -> None:
        self.path, self.ledger, self.hooks, self.mapping = path, ledger, hooks, mapping

    def carry_out(self, since: float) -> str | None:
        """Run what is still to be run for the served release; what failed, or None. Empty: only wait."""
        model = PublicModel.of(self.path)
        for hook in self.hooks:
            if not self._is_done(model.release, hook.name):
                problem = self._try(hook, model)
                if problem is not None:
                    return f"hook {hook.name}: {problem}"
        if lagging(self.ledger, model.release, since):
            return ""
        if self.mapping is not None:
            self._prune(self.mapping)
        return None

    def _try(self, hook: Hook, model: PublicModel) -> str | None:
        problem: str | None = None
        try:
            hook.run(model)
        except EffaceError as error:
            problem = error.message
        except Exception as error:  # whatever a registry or a store may raise
            problem = f"{type(error).__name__}: {error}"[:300]
        told = {"release": model.release, "hook": hook.name}
        with self.ledger.transaction() as tx:
            tx.append(ROW, told | {"outcome": "failed" if problem else "done"})
            if problem is None:
                tx.execute("DELETE FROM service_hooks WHERE release < ?", (model.release,))
                values = (model.release, hook.name)
                tx.execute("INSERT INTO service_hooks (release, hook) VALUES (?, ?)", values)
        return problem

    def _is_done(self, release: int, name: str) -> bool:
        sql = "SELECT hook FROM service_hooks WHERE release = ? AND hook = ?"
        return bool(self.ledger.query(sql, (release, name)))

    def _prune(self, mapping: Path) -> None:
        """Nobody who is gone is named there; those with core images stay, to be told why they are refused."""
        workspace = Workspace.open(self.path, recover=False)
        listed = list(read_mapping(mapping))
        in_core = workspace.core_index.owners_among(listed)
        prune_mapping(mapping, [*workspace.records.owners, *in_core])


def scrub(ledger: Ledger, patience: float = 5.0) -> bool:
    """Take what was deleted out of the database's files; False if somebody reads all the time."""
    end = time.monotonic() + patience
    while True:
        try:
            ledger.scrub()
            return True
        except EffaceError:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
