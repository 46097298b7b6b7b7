"""``efface worker``: carries out what a service without a worker has taken in."""

from __future__ import annotations

from efface.commands.serve import Config, WorkspacePath, needed

EXAMPLES = "Example: [bold]efface worker model --config service.toml[/bold]"


def worker(workspace: WorkspacePath, config: Config = None) -> None:
    """Carry out the requests of a service, until a signal.

    Several may run: one has the lease and works, the others wait. Killed at any point, the next one goes on.
    """
    needed()
    import signal
    import threading

    from efface.service.server import work

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    work(workspace, config, stop)
