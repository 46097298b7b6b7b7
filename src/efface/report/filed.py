"""The page about a request, filed beside its receipt.

A page of the published release has its digests, which must not stay (``workspace/superseded.py``). So there
are two, as there are two receipts: ``receipts/n.html``, and ``n.kept.html``, which takes its place when the
next release is published. They are derived from receipt and ledger, and nothing reads them again.
"""

from __future__ import annotations

from pathlib import Path

from efface import files
from efface.report.accounts import account_of
from efface.report.evidence import Beside, page
from efface.report.language import Language
from efface.workspace import Workspace
from efface.workspace.steps import sync_directory


def file_page(workspace: Workspace, number: int, language: Language = Language.ENGLISH) -> Path:
    """Write the page about the request that made release ``number``; returns its path."""
    with workspace.protocol.alone():
        folder = workspace.protocol.signing.folder
        files.make_folder(folder, files.PUBLIC_FOLDER)
        if number == workspace.number:
            later = _page(workspace, number, language, kept=True)
            files.write_bytes(folder / f"{number}.kept.html", later, files.PUBLIC)
        out = folder / f"{number}.html"
        files.write_bytes(out, _page(workspace, number, language), files.PUBLIC)
        sync_directory(folder)
    return out


def _page(workspace: Workspace, number: int, language: Language, *, kept: bool = False) -> bytes:
    """The page, for a reader who has the receipt."""
    account = account_of(workspace, number, Beside(f"receipts/{number}.json"), kept=kept)
    return page(account, language).render().encode()
