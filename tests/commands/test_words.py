"""Words are taken as typed, as typer takes them: the same values, the same refusals, without its library."""

from __future__ import annotations

import os
import subprocess
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from tests.workspaces import OWNER, fitted, people
from typer.testing import CliRunner, Result

from efface.commands.words import taking_words
from efface.workspace import Workspace


class Size(StrEnum):
    SMALL = "small"
    LARGE = "large"


def taken(
    folder: Annotated[Path, typer.Argument(help="A folder.")],
    name: Annotated[str | None, typer.Option(help="A name.")] = None,
    other: str = "none",
    one: Annotated[list[str] | None, typer.Option(help="Several.")] = None,
    file: Annotated[Path | None, typer.Option(exists=True, dir_okay=False)] = None,
    place: Annotated[Path | None, typer.Option()] = None,
    upper: Annotated[str | None, typer.Option(callback=lambda v: v and v.upper())] = None,
    parsed: Annotated[str | None, typer.Option(parser=lambda v: v[::-1])] = None,
    count: Annotated[int, typer.Option(min=1)] = 1,
    rate: float | None = None,
    size: Size = Size.SMALL,
    really: Annotated[bool, typer.Option("--really")] = False,
) -> None:
    """A command with an option of each kind."""
    print(locals())


def run(command: type | None, *words: str) -> Result:
    app = typer.Typer(add_completion=False)
    app.command(cls=command)(taken)
    return CliRunner().invoke(app, list(words))


WORDS = {
    "nothing else": ["place"],
    "a name": ["place", "--name", "Zoë 7", "--other", ""],
    "several": ["place", "--one", "a", "--one", "b,c"],
    "a file": ["place", "--file", sys.executable, "--place", "~/x/../y"],
    "no such file": ["place", "--file", "nowhere"],
    "a folder for a file": ["place", "--file", "/"],
    "changed": ["place", "--upper", "word", "--parsed", "word"],
    "numbers": ["place", "--count", "3", "--rate", "1e-3", "--size", "large", "--really"],
    "too small": ["place", "--count", "0"],
    "no number": ["place", "--rate", "much"],
    "no size": ["place", "--size", "medium"],
    "not text": ["place", "--name", "\udcff"],
    "missing": [],
    "unknown": ["place", "--nam"],
    "help": ["--help"],
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS.keys())
def test_values_and_refusals_are_typers(words: list[str]) -> None:
    ours, theirs = run(taking_words(taken), *words), run(None, *words)
    assert ours.exit_code == theirs.exit_code
    assert ours.output == theirs.output


@pytest.mark.needs("posix")
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0)
    ours, theirs = run(taking_words(taken), str(tmp_path)), run(None, str(tmp_path))
    assert (ours.exit_code, ours.output) == (theirs.exit_code, theirs.output)
    assert ours.exit_code == 2


def loaded(path: Path, *words: str) -> Any:
    code = (
        f"import sys; sys.argv = {['efface', 'forget', str(path), *words]!r}\n"
        "import efface.cli as cli\n"
        "cli._leave = lambda code: print(code, sorted({'pydantic', 'torch'} & set(sys.modules)))\n"
        "cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout.splitlines()[-1]


def test_a_request_loads_no_validation_library_and_a_number_does(tmp_path: Path) -> None:
    path = Workspace.create(tmp_path / "model", fitted("compact", people())).path
    assert loaded(path, "--owner", OWNER, "--dry-run") == "0 []"
    assert loaded(path, "--owner", OWNER, "--minimum-batch", "2", "--dry-run") == "0 ['pydantic']"
    assert loaded(path, "--owner", "nobody") == "2 []"
    assert loaded(path, "--owner", OWNER) == "0 []"
