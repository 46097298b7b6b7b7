"""What the ledger asks of a database, whichever it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

Params = Sequence[Any] | Mapping[str, Any]
Execute = Callable[
    [str, Params], list[tuple[Any, ...]]
]  # a statement with ``?`` or ``:name``, its rows


class Database(ABC):
    """One database with one writer at a time. Safe to share between threads."""

    name: str  # for messages: no password in it

    @abstractmethod
    def writing(self) -> AbstractContextManager[Execute]:
        """A transaction that nobody else writes beside; an exception within undoes all of it."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Execute]:
        """What is there at one moment; nothing can be written."""

    @abstractmethod
    def append_only(self, table: str) -> list[str]:
        """Statements after which rows of ``table`` can be added but neither changed nor deleted."""

    @abstractmethod
    def tables(self) -> set[str]:
        """The names of the tables that there are."""

    @abstractmethod
    def scrub(self) -> None:
        """See to it that the database's files hold nothing any more of what was deleted."""

    @abstractmethod
    def close(self) -> None:
        """Give up all connections; the next use makes new ones."""
