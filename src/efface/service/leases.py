"""A lease: who may work on the model. It runs out unless it is renewed, so a killed worker blocks
nobody for long.

The workspace's own lock keeps two processes from changing a model at once whatever happens here;
the lease keeps two workers from taking the same requests.
"""

from __future__ import annotations

import secrets
import threading
import time
from types import TracebackType

from efface.ledger import Ledger

WORKER = "worker"


class Lease:
    """Held by one worker at a time; ``hold`` renews it in the background until the block ends."""

    def __init__(self, ledger: Ledger, seconds: float, name: str = WORKER) -> None:
        self.ledger, self.seconds, self.name = ledger, seconds, name
        self.holder = secrets.token_hex(8)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, now: float | None = None) -> bool:
        """Take or renew it; False while another worker's has not run out."""
        now = time.time() if now is None else now
        with self.ledger.transaction() as tx:
            rows = tx.execute(
                "SELECT holder, until FROM service_leases WHERE name = ?", (self.name,)
            )
            if not rows:
                tx.execute(
                    "INSERT INTO service_leases (name, holder, until) VALUES (?, ?, ?)",
                    (self.name, self.holder, now + self.seconds),
                )
                return True
            holder, until = rows[0]
            if holder != self.holder and until > now:
                return False
            tx.execute(
                "UPDATE service_leases SET holder = ?, until = ? WHERE name = ?",
                (self.holder, now + self.seconds, self.name),
            )
            return True

    def give_back(self) -> None:
        with self.ledger.transaction() as tx:
            tx.execute(
                "DELETE FROM service_leases WHERE name = ? AND holder = ?", (self.name, self.holder)
            )

    def __enter__(self) -> Lease:
        """Renew it until the end of the block."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()
        return self

    def _renew(self) -> None:
        while not self._stop.wait(self.seconds / 3):
            if not self.take():
                return  # it ran out while this process stood still, and another worker has it

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
