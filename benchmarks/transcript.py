"""A page of the docs as a transcript: what a reader saves, types and sees, in order.

Blocks of ``sh`` are command lines; ``# exit code 3`` after one says that it is meant to fail. A block of
``text`` has what they print, line by line, ``…`` standing for anything. A block of ``python`` is run or saved
where the words before it say "Save this as `NAME`". Blocks without a language are command lines if they begin
like one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SAVED = re.compile(r"Save this as `([\w.-]+)`")
FAILS = re.compile(r"# exit code (\d+)")


@dataclass(frozen=True)
class Command:
    """A command line; ``to`` is the file that its output goes to, if it does."""

    line: int
    words: tuple[str, ...]
    exit_code: int = 0
    to: str | None = None

    @property
    def text(self) -> str:
        return shlex.join(self.words) + (f" > {self.to}" if self.to else "")


@dataclass(frozen=True)
class Script:
    """Python; ``name`` is the file to save it as, None: it is run."""

    line: int
    text: str
    name: str | None = None


@dataclass(frozen=True)
class Expected:
    """What the block before has printed, among other things."""

    line: int
    lines: tuple[str, ...]

    def missing(self, output: str) -> list[str]:
        """The lines that are not in the output; blanks and line breaks do not count."""
        seen = " ".join(output.split())
        return [line for line in self.lines if not re.search(_pattern(line), seen)]


@dataclass(frozen=True)
class Printed:
    """What came of a command."""

    exit_code: int
    output: str


Step = Command | Script | Expected


def steps(text: str) -> Iterator[Step]:
    """All of a page's, in order."""
    end = 0
    for match in FENCE.finditer(text):
        line, words = text.count("\n", 0, match.start()) + 2, text[end : match.start()]
        end = match.end()
        language, body = match[1], match[2]
        if language == "python":
            name = SAVED.search(words)
            yield Script(line, body, name[1] if name else None)
        elif language == "sh" or (not language and body.startswith("efface ")):
            yield from commands(body, line)
        elif language == "text":
            yield Expected(line, tuple(part for part in body.splitlines() if part.strip()))


def commands(block: str, first: int = 1) -> Iterator[Command]:
    for number, line in enumerate(block.splitlines(), first):
        words = shlex.split(line, comments=True)
        if not words:
            continue
        fails, to = FAILS.search(line), None
        if ">" in words:
            words, (to,) = words[: words.index(">")], words[words.index(">") + 1 :]
        yield Command(number, tuple(words), int(fails[1]) if fails else 0, to)


class Difference(AssertionError):
    """A page and the programs do not say the same."""


def follow(
    page: Path,
    run: Callable[[Command], Printed],
    script: Callable[[Script], None],
    told: Callable[[Step], None] = lambda step: None,
) -> None:
    """Do all that the page says, in the working directory; Difference if something else comes out."""
    printed: list[str] = []
    for step in steps(page.read_text(encoding="utf-8")):
        where = f"{page.name}, line {step.line}"
        if isinstance(step, Script):
            if step.name is not None:
                Path(step.name).write_text(step.text, encoding="utf-8")
            else:
                script(step)
        elif isinstance(step, Expected):
            missing = step.missing("\n".join(printed))
            if missing:
                raise Difference(f"{where}: not printed: {missing}; but: {printed}")
            printed = []
        else:
            came = run(step)
            printed.append(came.output)
            if came.exit_code != step.exit_code:
                raise Difference(f"{where}: {step.text}: {came}")
        told(step)


def _pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in " ".join(line.split()).split("…"))
