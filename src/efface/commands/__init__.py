"""One command a file. To add one: write ``commands/<name>.py`` with a function ``<name>`` and an
``EXAMPLES`` text, and put the name into ``REGISTRY``; its place there is its place in the help. A module with
``MEMBERS`` instead of the function is a group of commands, ``efface data list``.

A command parses and renders, and no more: what it computes is in ``efface.pipeline`` or in a room below,
where Python programs find it, too. Settings of the config become options by ``settings.takes_settings``;
``efface.pipeline.options`` says how to add one.

A command's docstring is its help. Heavy imports (torch, numpy, matplotlib) belong inside functions, so
that ``efface --help`` answers at once. Raise ``EffaceError`` for what a person can fix; ``efface.cli``
turns it into a line on stderr and the error's exit code.
"""

from __future__ import annotations

REGISTRY = (
    "init",
    "train",
    "predict",
    "evaluate",
    "export",
    "find",
    "forget",
    "add",
    "rows",
    "merge",
    "partner",
    "plan",
    "resume",
    "cancel",
    "warm",
    "verify",
    "ledger",
    "releases",
    "evidence",
    "keys",
    "timestamp",
    "scan",
    "audit",
    "compare",
    "trial",
    "reproduce",
    "serve",
    "worker",
    "service",
    "check",
    "data",
    "demo",
)
