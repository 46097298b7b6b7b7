"""Processes of their own, to be killed or to work at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import torch
from tests.workspaces import ACTIONS, PER_BUCKET, UNSYNCED

from efface.ledger import sqlite
from efface.parts.compact import stored_rows
from efface.workspace import Workspace
from efface.workspace.steps import KILL_AT, Milestone

PROCESSES = multiprocessing.get_context("forkserver")  # clean children, torch loaded once
PROCESSES.set_forkserver_preload(["tests.workspaces"])


def quick() -> None:
    """For processes of a test: one thread, and no waiting for the disk, which a kill does not need."""
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # type: ignore[assignment]
    sqlite.PRAGMAS = UNSYNCED  # type: ignore[assignment]
    stored_rows.PER_BUCKET = PER_BUCKET


def killed_child(path: Path, action: str, step: str) -> None:
    quick()
    os.environ[KILL_AT] = step
    if action == "resume":
        Workspace.open(path)
    else:
        ACTIONS[action](Workspace.open(path))


def kill(path: Path, action: str, step: Milestone) -> None:
    """Run the action in a process of its own, which is killed at the step."""
    child = PROCESSES.Process(target=killed_child, args=(path, action, str(step)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "the step was not reached"
