"""The command line: ``efface train``, ``predict``, ``evaluate``, ``check``, ``demo``, …

Each command is a function in its own file of ``efface.commands``. Exit codes are those of
``efface.errors``; a traceback is shown only with EFFACE_DEBUG=1.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from efface.commands import REGISTRY
from efface.commands.output import fail
from efface.commands.words import TakesWords, taking_words
from efface.errors import EffaceError, Interrupted
from efface.version import VERSION

EPILOG = """\
Exit codes: 0 ok · 1 an error in efface itself · 2 usage or bad input · 3 a guarantee was not met, nothing \
was published · 4 a ledger or digest does not check · 130 interrupted. EFFACE_DEBUG=1 shows tracebacks.

Start with: [bold]efface demo[/bold]"""

# Commands after which nothing is left to do: what they wrote is on disk, and they leave no thread behind.
AT_ONCE = ("forget",)


class Program(TakesWords, TyperGroup):
    """The commands; where JSON is asked for, words that are no options are an error in JSON, too."""

    def invoke(self, ctx: Any) -> Any:
        words = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            return super().invoke(ctx)
        except Exception as problem:
            if "--json" not in words or not hasattr(problem, "format_message"):
                raise
            asked = f"`efface {words[0]} --help` lists what it takes."
            fail(problem.format_message(), asked, exit_code=2, as_json=True)
            raise typer.Exit(2) from problem


def _version(asked: bool) -> None:
    if asked:
        print(f"efface {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    pass


def guarded(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with its errors turned into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as problem:
            # typer's own exceptions (BadParameter, …) know how to show themselves
            if hasattr(problem, "format_message") or os.environ.get("EFFACE_DEBUG") == "1":
                raise
            raise typer.Exit(_report(problem, as_json=bool(options.get("json")))) from problem

    return run


def _report(problem: BaseException, *, as_json: bool) -> int:
    """Print the problem; returns the exit code."""
    if isinstance(problem, EffaceError | Interrupted):
        details = problem.details if isinstance(problem, EffaceError) else {}
        code = problem.exit_code
        fail(problem.message, problem.fix, exit_code=code, as_json=as_json, details=details)
        return code
    known = _plain(problem)
    if known is not None:
        fail(*known, exit_code=known_code(problem), as_json=as_json)
        return known_code(problem)
    text = f"unexpected {type(problem).__name__}: {problem}"
    fix = "run again with EFFACE_DEBUG=1 and report the traceback; this is a bug in efface."
    fail(text, fix, exit_code=1, as_json=as_json)
    return 1


def known_code(problem: BaseException) -> int:
    return 130 if isinstance(problem, KeyboardInterrupt) else 2


def _plain(problem: BaseException) -> tuple[str, str] | None:
    """Conditions of the machine that are nobody's bug, as a message and a fix."""
    if isinstance(problem, KeyboardInterrupt):
        return "interrupted.", ""
    if isinstance(problem, MemoryError):
        return "there is not enough memory.", "use fewer features or smaller images."
    if not isinstance(problem, OSError):
        return None
    where = "" if problem.filename is None else f"{problem.filename}: "
    message = f"{where}{problem.strerror or problem}."
    if problem.errno in (errno.EACCES, errno.EPERM):
        return message, "run it as the user who owns the files, or ask for the permission."
    if problem.errno == errno.EROFS:
        return message, "choose a folder that can be written."
    if problem.errno in (errno.ENOSPC, errno.EDQUOT):
        return message, "free some space, then run it again."
    return message, "check the path and the disk."


def build(names: Sequence[str] = REGISTRY) -> typer.Typer:
    """The program with these of its commands."""
    app = typer.Typer(
        name="efface",
        cls=Program,
        help="Image classifiers that can forget: train on people's photos, take them out again, prove it.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name in names:
        module = importlib.import_module(f"efface.commands.{name}")
        if hasattr(module, "MEMBERS"):
            app.add_typer(_group(module), name=name)
            continue
        command = getattr(module, name)
        shown, kind = name.replace("_", "-"), taking_words(command)
        app.command(shown, cls=kind, epilog=module.EXAMPLES)(guarded(command))
    return app


def _group(module: ModuleType) -> typer.Typer:
    """A command with commands of its own; the first line of the module's docstring is its help."""
    summary = (module.__doc__ or "").partition(": ")[2].partition("\n")[0]
    group = typer.Typer(
        help=summary[:1].upper() + summary[1:],
        epilog=module.EXAMPLES,
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    for name, member in module.MEMBERS.items():
        kind = taking_words(member)
        group.command(name, cls=kind, epilog=module.EXAMPLES)(guarded(member))
    return group


def __getattr__(name: str) -> Any:
    """``app``: the program with all commands, made when it is asked for."""
    if name != "app":
        raise AttributeError(f"module 'efface.cli' has no attribute {name!r}")
    return _whole()


@functools.cache
def _whole() -> typer.Typer:
    return build()


def main() -> None:
    """The ``efface`` program. Of a command that is named first no others are loaded."""
    first = sys.argv[1].replace("-", "_") if len(sys.argv) > 1 else ""
    try:
        build([first] if first in REGISTRY else REGISTRY)()
    except SystemExit as ended:
        if first in AT_ONCE and isinstance(ended.code, int):
            _leave(ended.code)
        raise


def _leave(code: int) -> None:
    """End here and now: taking a Python program apart takes longer than many a thing that it did."""
    with contextlib.suppress(OSError, ValueError):  # a closed pipe is told of in the usual way
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
