"""``efface cancel``: call off a request that was accepted and then cut short."""

from __future__ import annotations

from typing import Any

from efface.commands.forget import WorkspacePath, open_workspace
from efface.commands.output import JsonFlag, TrustModule, finish

EXAMPLES = "Example: [bold]efface cancel model[/bold]"


def cancel(
    workspace: WorkspacePath, trust_module: TrustModule = None, json: JsonFlag = False
) -> None:
    """Call off the request that was interrupted, if it is not published yet; else finish it (efface resume).

    The model is then as it was before the request. Other commands that change the workspace would carry it
    out first.
    """
    opened = open_workspace(workspace, trust_module, recover=False)
    intent = opened.cancel()
    values: dict[str, Any] = {
        "workspace": str(workspace),
        "action": None if intent is None else str(intent.action),
        "num_records": 0 if intent is None else len(intent.digests),
        "release": opened.number,
    }
    text = f"release {opened.number} is published"
    if intent is None:
        text = f"nothing to cancel: {text}"
    else:
        text = f"the request to {intent.action} is called off: {text}, as before"
    finish(values, as_json=json, render=lambda console: console.print(text))
