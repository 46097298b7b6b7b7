"""``efface serve``: the deletion service of a model, with its page and its worker."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """\
Example: [bold]efface serve model[/bold]

Example: [bold]efface serve model --config service.toml --host 0.0.0.0 --port 8443[/bold]

Example: [bold]efface serve model --no-worker[/bold], and [bold]efface worker model[/bold] elsewhere"""

WorkspacePath = Annotated[Path, typer.Argument(help="A folder written by `efface train`.")]
Config = Annotated[Path | None, typer.Option(help="The service's settings, a TOML file.")]


def serve(
    workspace: WorkspacePath,
    config: Config = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Only take requests in; see efface worker.")
    ] = False,
) -> None:
    """Take deletion requests over HTTP, carry them out, and show them on a page.

    A new service prints a key to sign in with, once. Requests survive kill -9 of everything. Needs
    efface\\[service].
    """
    needed()
    from efface.service.server import serve as run

    def told(key: str | None) -> None:
        print(f"http://{host}:{port}", flush=True)
        if key is not None:
            print(f"key to sign in with, shown once: {key}", flush=True)

    run(workspace, config, host=host, port=port, worker=not no_worker, told=told)


def needed() -> None:
    """An error that says what to install, where the extra is missing."""
    from importlib.util import find_spec

    from efface.errors import EffaceError

    missing = [name for name in ("fastapi", "uvicorn", "cryptography") if find_spec(name) is None]
    if missing:
        message = f"the service needs {', '.join(missing)}."
        raise EffaceError(message, 'pip install "efface[service]".')
