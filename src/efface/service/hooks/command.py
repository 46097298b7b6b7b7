"""Any command: exit code 0 means that the copies it cares for are replaced. No shell is involved."""

from __future__ import annotations

import subprocess

from efface.service.hooks.hook import Hook, HookError, PublicModel


class CommandHook(Hook):
    """``{model}`` and ``{release}`` in its words are filled in."""

    def __init__(self, argv: tuple[str, ...], timeout: float) -> None:
        self.argv, self.timeout = argv, timeout
        self.name = f"command {argv[0]}"

    def run(self, model: PublicModel) -> None:
        values = {"{model}": str(model.workspace), "{release}": str(model.release)}
        words = [_filled(word, values) for word in self.argv]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=self.timeout
            )
        except subprocess.TimeoutExpired:
            message = f"the command took longer than {self.timeout:g} s."
            raise HookError(message, "mend it, or allow more time.") from None
        except OSError as problem:
            message = f"the command cannot be started ({problem.strerror})."
            raise HookError(message, "check its path.") from problem
        if done.returncode:
            raise HookError(
                f"the command ended with exit code {done.returncode}.", "run it by hand."
            )


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
