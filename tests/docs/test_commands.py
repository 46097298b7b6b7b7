"""Docs and command line tell the same: every command is documented, every command that is shown parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache

import pytest
import typer
from tests.docs.pages import PAGES, blocks, inline, name
from tests.places import ROOT

from efface import errors
from efface.cli import EPILOG, app

ROW = re.compile(r"^\| `efface ([a-z -]+)` \| (.+?) \| (.*) ?\|$", re.MULTILINE)
OF_OTHERS = {"--no-deps"}  # pip's
COMMANDS_PAGE = (ROOT / "docs/commands.md").read_text(encoding="utf-8")


@cache
def commands() -> dict[str, typer.core.TyperCommand]:
    """By name, as it is typed: ``train``, ``data get``."""

    def walk(
        group: object, start: tuple[str, ...]
    ) -> Iterator[tuple[str, typer.core.TyperCommand]]:
        for word, command in group.commands.items():  # type: ignore[attr-defined]
            if hasattr(command, "commands"):
                yield from walk(command, (*start, word))
            else:
                yield " ".join((*start, word)), command

    return dict(walk(typer.main.get_command(app), ()))


def options(command: str) -> set[str]:
    found = {"--help", "-h"}
    for parameter in commands()[command].params:
        found.update(parameter.opts, parameter.secondary_opts)
    return found


def first_sentence(help_text: str | None) -> str:
    return " ".join((help_text or "").split("\n\n")[0].split())


def test_every_command_is_documented_in_its_own_words() -> None:
    documented = {command: text for command, text, _ in ROW.findall(COMMANDS_PAGE)}
    assert documented == {name: first_sentence(c.help) for name, c in commands().items()}


def test_exit_codes_are_those_of_the_errors() -> None:
    codes = {kind.exit_code for kind in vars(errors).values() if hasattr(kind, "exit_code")}
    for text in (COMMANDS_PAGE, EPILOG):
        listed = text.partition("Exit codes:")[2].partition(". ")[0]
        assert {int(number) for number in re.findall(r"\d+", listed)} == codes | {0, 1}


# --- what is shown --------------------------------------------------------------------------------


def shown() -> list[tuple[str, str]]:
    """(page, line) of every command line in blocks and in backticks."""
    found = []
    for page in PAGES:
        lines = [line.strip() for b in blocks(page) for line in b.text.splitlines()]
        for line in [*lines, *inline(page)]:
            found += [(name(page), line)] if line.startswith("efface ") else []
    return found


def problem(line: str) -> str | None:
    """What is wrong with a command line as it is shown, or None."""
    words = shlex.split(line.partition("  #")[0].replace("…", " "), comments=True)[1:]
    if not words or words[0].startswith("-") or words[0].isupper():  # efface --help, efface COMMAND
        return None
    for length in (2, 1):
        command = " ".join(words[:length])
        if command in commands():
            known = options(command)
            given = [w.partition("=")[0] for w in words[length:] if w.startswith("-")]
            unknown = [option for option in given if option not in known]
            return f"{command} has no {unknown}" if unknown else None
    is_group = any(command.startswith(f"{words[0]} ") for command in commands())
    return None if is_group and len(words) == 1 else f"there is no command {words[0]}"


@pytest.mark.parametrize(("page", "line"), sorted(set(shown())))
def test_command_lines_parse(page: str, line: str) -> None:
    assert problem(line) is None


def test_enough_is_shown() -> None:
    assert len(shown()) > 50


@pytest.mark.parametrize("command", sorted(commands()))
def test_examples_of_the_help_parse(command: str) -> None:
    examples = re.findall(r"\[bold\](efface .+?)\[/bold\]", commands()[command].epilog or "")
    assert examples
    assert [problem(line) for line in examples if problem(line)] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("efface forget model --owner u17", None),
        ("efface forget model --onwer u17", "forget has no ['--onwer']"),
        ("efface forgive model", "there is no command forgive"),
        ("efface data got cub200", "there is no command data"),
    ],
)
def test_a_wrong_line_is_seen(line: str, wrong: str | None) -> None:
    assert problem(line) == wrong


def test_options_in_prose_exist() -> None:
    """An option in backticks, `--core-fraction 0.3`, is one of some command, or of a script that is named."""
    known = set().union(*(options(command) for command in commands()))
    scripts = {
        option
        for folder in ("experiments", "benchmarks")
        for script in (ROOT / folder).glob("*.py")
        for option in re.findall(r'"(--[a-z-]+)"', script.read_text(encoding="utf-8"))
    }
    pages = [page for page in PAGES if page.parent.name not in ("experiments", "benchmarks")]
    unknown = {
        (name(page), code)
        for page in pages
        for code in inline(page)
        if code.startswith("--")
        and code.split()[0].partition("=")[0] not in known | scripts | OF_OTHERS
    }
    assert unknown == set()
