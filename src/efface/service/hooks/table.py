"""The hooks of the settings."""

from __future__ import annotations

from collections.abc import Iterable

from efface.service.hooks.command import CommandHook
from efface.service.hooks.hook import Hook
from efface.service.hooks.registry import MlflowHook
from efface.service.hooks.shelves import FolderShelf, ShelfHook, StoreShelf
from efface.service.settings import (
    CommandHookSettings,
    FolderHookSettings,
    HookSettings,
    MlflowHookSettings,
    StoreHookSettings,
)


def hook_of(settings: HookSettings) -> Hook:
    match settings:
        case FolderHookSettings():
            return ShelfHook(f"folder {settings.path.name}", FolderShelf(settings.path))
        case StoreHookSettings():
            scheme = settings.url.partition("://")[0]
            return ShelfHook(f"store {scheme}", StoreShelf(settings.url))
        case CommandHookSettings():
            return CommandHook(settings.argv, settings.timeout_seconds)
        case MlflowHookSettings():
            return MlflowHook(settings.tracking_uri, settings.model, settings.alias)


def hooks_of(settings: Iterable[HookSettings]) -> list[Hook]:
    """In order; two of one name are told apart by their places."""
    made = [hook_of(entry) for entry in settings]
    for i, hook in enumerate(made, 1):
        hook.name = f"{i} {hook.name}"
    return made
