"""Commands that take settings of the config as options: ``train``, ``compare``, ``trial``.

The options are built from the config's fields (``efface.pipeline.options`` says how to add one), so that a
command does not list them: it has one parameter, ``given``, where they go, and gets what was typed as dotted
keys, ``{"user.mu": 0.1}``, ready for ``load_config``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import BaseModel

from efface.pipeline.config import Config
from efface.pipeline.options import Option, options_of

Given = Mapping[str, Any]  # what was typed, by dotted key
Command = Callable[..., None]
GIVEN = "given"  # the parameter of a command in whose place the options stand


def takes_settings(
    texts: Mapping[str, str] | None = None, *, config: type[BaseModel] = Config
) -> Callable[[Command], Command]:
    """Options for the settings that ``texts`` names, with help of their own, in its order; else for all.

    >>> @takes_settings({"user.mu": "The ridge, as for train."})
    ... def small(given: Given) -> None:
    ...     print(given)
    >>> small(mu=0.5)
    {'user.mu': 0.5}
    """
    known = options_of(config)
    shown = {name: option.help() for name, option in known.items()}
    if texts is not None:
        by_key = {key: option for option in known.values() for key in option.keys}
        shown = {by_key[key].name: by_key[key].help(text) for key, text in texts.items()}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**words: Any) -> None:
            given: dict[str, Any] = {}
            for name in shown:
                given |= known[name].given(words.pop(name, None))
            command(given=given, **words)

        own = inspect.signature(command).parameters
        hints = get_type_hints(command, include_extras=True)
        mine = [own[name].replace(annotation=hints[name]) for name in own]
        alone = "config" not in own  # no file could say what is not given
        new = [_parameter(known[name], text, required=alone) for name, text in shown.items()]
        _sign(run, _inserted(mine, new))
        return run

    return decorate


def _parameter(option: Option, text: str, *, required: bool) -> inspect.Parameter:
    """The option as typer reads it from a signature; None, or False for a switch, is "not given"."""
    needed = option.required and required
    info: Any
    if option.flag.argument:
        info = typer.Argument(help=text, show_default=False)
    elif option.type is bool:
        name = option.name.replace("_", "-")
        info = typer.Option(
            f"--{name}" if option.flag.switch else f"--{name}/--no-{name}", help=text
        )
    else:
        info = typer.Option(help=text)
    kind: Any = option.type if needed or option.flag.switch else option.type | None
    default: Any = inspect.Parameter.empty if needed else False if option.flag.switch else None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, info],
    )


def _inserted(
    mine: Iterable[inspect.Parameter], new: Iterable[inspect.Parameter]
) -> list[inspect.Parameter]:
    """The command's own parameters with ``new`` in the place of ``given``."""
    found: list[inspect.Parameter] = []
    for parameter in mine:
        keyword = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        found += new if parameter.name == GIVEN else [keyword]
    return found


def _sign(run: Any, parameters: list[inspect.Parameter]) -> None:
    run.__signature__ = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
