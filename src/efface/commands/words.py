"""What was typed, where a word or a path is asked for: taken as it is.

typer checks every option by a validation library, whose loading takes longer than all else before a short
command begins. A word that is asked for as a word needs no check; nor does a path of which nothing is asked,
nor an option that was left out. Whatever else there is goes the usual way: numbers, choices, lists, files
that may not be read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from typer.core import TyperCommand
from typer.models import ParameterInfo

CHECKS = ("parser", "click_type", "callback", "exists", "writable", "resolve_path", "path_type")
ALLOWS = ("file_okay", "dir_okay")  # a path that may be neither is checked, too


class TakesWords:
    """Mixed into typer's commands and groups; ``kinds`` are the plain types of the parameters, by name."""

    kinds: ClassVar[Mapping[str, type | None]] = {}

    def get_params(self, ctx: Any) -> list[Any]:
        """typer adds ``--help`` and ``--install-completion`` here, which have types, too."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in found:
            if "process_value" not in vars(param):
                _take_words(param, self.kinds.get(param.name))
        return found


def taking_words(command: Callable[..., Any]) -> type[TyperCommand]:
    """The class of command whose parameters have the types that ``command`` gives them."""
    hints = get_type_hints(command, include_extras=True)

    class WordCommand(TakesWords, TyperCommand):
        """See the module."""

        kinds: ClassVar = {name: _kind(hint) for name, hint in hints.items()}

    return WordCommand


def _kind(hint: Any) -> type | None:
    """The plain type behind ``Annotated[… | None, …]``, if nothing is asked of its values that is checked."""
    asked: list[ParameterInfo] = []
    if get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        asked = [info for info in more if isinstance(info, ParameterInfo)]
    if get_origin(hint) in (UnionType, Union):
        left = [part for part in get_args(hint) if part is not NoneType]
        hint = left[0] if len(left) == 1 else None
    checked = any(getattr(info, name, None) for info in asked for name in CHECKS)
    refused = any(not getattr(info, name, True) for info in asked for name in ALLOWS)
    return None if checked or refused or not isinstance(hint, type) else hint


def _take_words(param: Any, kind: type | None) -> None:
    usual, single = param.process_value, not param.multiple and param.nargs == 1

    @functools.wraps(usual)
    def process_value(context: Any, value: Any) -> Any:
        taken: Any
        if value is None and not param.required:
            taken = None if single else ()
        elif single and type(value) is kind and value == param.default:
            taken = value
        elif single and kind in (str, Path) and isinstance(value, str) and _is_plain(value, kind):
            taken = kind(value)
        else:
            return usual(context, value)
        return taken if param.callback is None else param.callback(context, param, taken)

    param.process_value = process_value


def _is_plain(value: str, kind: type | None) -> bool:
    """Neither bytes that only look like text (a name in another encoding) nor a file that may not be read."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    if kind is str:
        return True
    return "\0" not in value and (os.access(value, os.R_OK) or not os.path.lexists(value))
