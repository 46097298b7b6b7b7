"""``efface resume``: finish what a crash has cut short."""

from __future__ import annotations

from efface.commands.display import mode_for, show
from efface.commands.forget import WorkspacePath, open_workspace
from efface.commands.outcome import report
from efface.commands.output import JsonFlag, TrustModule, finish

EXAMPLES = "Example: [bold]efface resume model[/bold]"


def resume(
    workspace: WorkspacePath, trust_module: TrustModule = None, json: JsonFlag = False
) -> None:
    """Finish the request that was running when the machine stopped, if there is one.

    Every other command that changes a workspace does so first, too. efface cancel calls it off instead.
    """
    opened = open_workspace(workspace, trust_module, recover=False)
    with show("resume", mode_for(as_json=json)) as progress:
        result = opened.resume(progress)
    if result is not None:
        report(result, opened, as_json=json)
        return
    values = {"workspace": str(workspace), "action": None, "release": opened.number}
    text = f"nothing to resume: release {opened.number} is published"
    finish(values, as_json=json, render=lambda console: console.print(text))
