"""Errors a person can act on: each says what is wrong, where, and what to do about it.

Exit codes of the command line: 0 ok, 2 usage or bad input, 3 guarantee not met, 4 ledger invalid.
"""

from __future__ import annotations

import copy
from typing import Any, Self


class EffaceError(Exception):
    """Base of all errors raised on purpose. ``fix`` is the sentence that says what to do."""

    exit_code = 2

    def __init__(self, message: str, fix: str = "") -> None:
        self.message = message
        self.fix = fix
        super().__init__(f"{message} Fix: {fix}" if fix else message)

    @property
    def details(self) -> dict[str, Any]:
        """What programs are told besides, with ``--json``."""
        return {}

    def located(self, where: str) -> Self:
        """The same error, with the place it is about in front."""
        found = copy.copy(self)
        found.message = f"{where}: {self.message}"
        found.args = (f"{found.message} Fix: {self.fix}" if self.fix else found.message,)
        return found

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, however many arguments it was made of: it may come from another process."""
        return _again, (type(self), self.args, self.__dict__)


def _again(
    kind: type[EffaceError], arguments: tuple[object, ...], values: dict[str, object]
) -> EffaceError:
    made = kind.__new__(kind, *arguments)
    made.args = arguments
    made.__dict__.update(values)
    return made


class EffaceWarning(UserWarning):
    """Worth a look, and no error: a column that means nothing here, owners that look alike."""


class RecordError(EffaceError):
    """Something is wrong with one record (or one class); ``record`` names it."""

    def __init__(self, record: str, message: str, fix: str = "") -> None:
        self.record = record
        super().__init__(f"record {record!r}: {message}", fix)


class BackboneError(EffaceError):
    """The network cannot be loaded, cut or linearised as asked."""


class FormatError(EffaceError):
    """A file is not what it should be: wrong schema version, wrong shape, missing tensor."""


class RequestError(EffaceError):
    """A request that cannot be carried out: unknown owner, already forgotten, core record, empty."""


class GuaranteeError(EffaceError):
    """The asked-for guarantee was not reached on the final weights; nothing was published."""

    exit_code = 3


class Interrupted(KeyboardInterrupt):
    """Ctrl-C after a request was accepted: ``message`` says what becomes of it, ``fix`` what to do."""

    exit_code = 130

    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix
        super().__init__(f"{message} Fix: {fix}")


class LedgerError(EffaceError):
    """A ledger or digest does not check."""

    exit_code = 4
