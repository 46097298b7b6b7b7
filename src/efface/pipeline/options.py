"""Options of the command line, declared where the setting is: at its field in the config.

**How to add an option: one edit.** Give the setting a field in its section (``sections.py``) with a ``Flag``:

    bits: Annotated[int, Flag("Of a compact feature. Default: {default}.")] = Field(default=8, ge=2)

This is the key ``user.bits`` of the config file with its default and its limits, the option ``--bits`` of
``efface train`` with its help, and the way of what is typed there into ``Config.user.bits``. Another command
takes the option, too, once it names the key (``efface.commands.settings``).

Nothing here knows of typer: this is what an option is, not how it is parsed.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

PLAIN = (bool, int, float)  # what the command line parses itself; all else it takes as text


class ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Misplaced(ValueError):
    """A setting that does nothing beside the others; ``beside`` are the options with which it does."""

    def __init__(self, text: str, beside: str) -> None:
        super().__init__(text)
        self.beside = beside


@dataclass(frozen=True)
class Flag:
    """Says that a field is an option, and how it is shown; ``{default}`` in ``help`` is the field's default.

    ``name`` is the option's if it is not the field's; fields with equal flags of one name are set together.
    ``argument``: given by position, without a name. ``switch``: it can be turned on, but not off.
    ``path``: the text is a path. ``read`` turns the text into what the field holds.
    """

    help: str
    name: str | None = None
    argument: bool = False
    switch: bool = False
    path: bool = False
    read: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Option:
    """An option, and the dotted keys of the config that it sets.

    ``type`` is that of its value on the command line. Text is checked by the config, not while it is
    parsed, so that a wrong value is the same error from a file and from the command line.
    """

    name: str
    keys: tuple[str, ...]
    type: type
    flag: Flag
    default: Any
    required: bool

    def help(self, text: str | None = None) -> str:
        """Its help, or ``text``, with the default filled in."""
        return (text or self.flag.help).replace("{default}", _shown(self.default))

    def given(self, value: Any) -> dict[str, Any]:
        """What the config gets, by dotted key; nothing if the option was not given."""
        if value is None or (self.flag.switch and not value):
            return {}
        if self.flag.read is not None:
            value = self.flag.read(value)
        return dict.fromkeys(self.keys, str(value) if self.flag.path else value)


def options_of(config: type[BaseModel]) -> dict[str, Option]:
    """The options of a config made of sections, by name, in the order of their fields."""
    found: dict[str, Option] = {}
    for section, table in config.model_fields.items():
        fields = getattr(table.annotation, "model_fields", {})
        for key, field in fields.items():
            for flag in (item for item in field.metadata if isinstance(item, Flag)):
                option = _option(f"{section}.{key}", key, field, flag)
                found[option.name] = _together(found.get(option.name), option)
    return found


def _option(dotted: str, key: str, field: FieldInfo, flag: Flag) -> Option:
    kind = Path if flag.path else _parsed(field.annotation)
    required = field.is_required()
    default = None if required else field.get_default(call_default_factory=True)
    return Option(flag.name or key, (dotted,), kind, flag, default, required)


def _together(first: Option | None, second: Option) -> Option:
    if first is None:
        return second
    if first.flag != second.flag:
        raise TypeError(f"{first.keys[0]} and {second.keys[0]} both want --{second.name}")
    return replace(first, keys=(*first.keys, *second.keys))


def _parsed(annotation: Any) -> type:
    """bool, int or float, with None or without; text for anything else."""
    united = get_origin(annotation) in (Union, types.UnionType)
    kinds = [k for k in (get_args(annotation) if united else (annotation,)) if k is not type(None)]
    return kinds[0] if len(kinds) == 1 and kinds[0] in PLAIN else str


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    return str(getattr(default, "kind", default))  # a table of options goes by its kind
