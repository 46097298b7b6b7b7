"""Evidence: receipts, certificate, ledger, keys and a page in plain words, in one archive for a stranger.

Times in the archive are fixed, names are sorted: the same workspace gives the same bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from efface import files
from efface.errors import EffaceError
from efface.receipts.receipt import Receipt
from efface.report.accounts import account_of
from efface.report.evidence import Beside, page
from efface.report.filed import file_page
from efface.report.language import Language
from efface.workspace import Workspace
from efface.workspace.receipt_files import receipts

LARGEST = 1 << 28  # bytes of a result of an audit
WHEN = (1980, 1, 1, 0, 0, 0)
KEYS, LEDGER = "keys.pub", "ledger.jsonl"


def pack(
    workspace: Workspace,
    out: Path,
    *,
    key: Path | None = None,
    audits: tuple[Path, ...] = (),
    language: Language = Language.ENGLISH,
) -> list[str]:
    """Write the archive; returns the names of what is in it. The release is signed first, if it is not."""
    if out.exists() and (out.is_dir() or not zipfile.is_zipfile(out)):
        raise EffaceError(f"{out} is there, and no archive.", "choose another --out.")
    signing, number = workspace.protocol.signing, workspace.number
    was_signed = number in signing.told()
    workspace.protocol.sign(key)
    if not was_signed and (signing.folder / f"{number}.html").is_file():
        file_page(workspace, number, language)  # the one that is there says: not signed
    ring = workspace.protocol.signing.ring()
    assert ring is not None  # it has just signed
    found = {
        KEYS: ring.to_bytes(),
        LEDGER: _ledger(workspace),
        "CHECK.txt": _commands(workspace.number).encode(),
        **_receipts(workspace),
        **_certificate(workspace),
        **_audits(audits),
    }
    found |= _earlier_pages(workspace, language)
    found["START.html"] = _page(workspace, workspace.number, language, sorted(found))
    _write(out, found)
    return sorted(found)


def write_page(workspace: Workspace, number: int, out: Path, language: Language) -> Receipt:
    """The page about one request alone; its receipt may lie anywhere."""
    account = account_of(workspace, number, Beside(f"receipts/{number}.json"))
    if out.exists() and (out.is_dir() or not out.read_bytes()[:15] == b"<!doctype html>"):
        raise EffaceError(f"{out} is there, and no page.", "choose another --out.")
    files.write_bytes(out, page(account, language).render().encode(), files.PUBLIC)
    return account.receipt


def _page(workspace: Workspace, number: int, language: Language, others: Sequence[str]) -> bytes:
    beside = Beside(f"receipts/{number}.json", KEYS, LEDGER, others)
    return page(account_of(workspace, number, beside), language).render().encode()


def _earlier_pages(workspace: Workspace, language: Language) -> dict[str, bytes]:
    """A page a request that has a receipt; that of the newest is START.html."""
    listed = receipts(workspace.protocol.signing.folder)
    numbers = [n for n, _ in listed if n != workspace.number]
    return {f"pages/{n}.html": _page(workspace, n, language, ()) for n in numbers}


def _receipts(workspace: Workspace) -> dict[str, bytes]:
    """Of the published release the whole one, of earlier ones what was kept."""
    listed = receipts(workspace.protocol.signing.folder)
    return {f"receipts/{path.name}": path.read_bytes() for _, path in listed}


def _certificate(workspace: Workspace) -> dict[str, bytes]:
    path = workspace.path / "certificates" / f"{workspace.number}.public.json"
    return {f"certificate-{workspace.number}.json": path.read_bytes()} if path.is_file() else {}


def _ledger(workspace: Workspace) -> bytes:
    rows = workspace.inventory.ledger.rows()
    return "".join(f"{json.dumps(asdict(row), sort_keys=True)}\n" for row in rows).encode()


def _audits(paths: tuple[Path, ...]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in paths:
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise EffaceError(f"{path} is no result of an audit.", "give a file that efface wrote.")
        found[f"audit/{path.name}"] = path.read_bytes()
    return found


def _commands(number: int) -> str:
    name = f"receipts/{number}.json"
    return (
        "In this folder, with efface installed (no model, no images, no network):\n\n"
        f"    efface verify {name} --key keys.pub --ledger ledger.jsonl\n\n"
        "`efface keys show keys.pub` prints the key id: compare it with the operator's.\n\n"
        "With the model's folder and the images of whoever is left, on any machine:\n\n"
        f"    efface verify {name} --key keys.pub --workspace MODEL --retrain --from-images IMAGES\n"
    )


def _write(out: Path, found: dict[str, bytes]) -> None:
    """Beside, then renamed."""
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(found):
            entry = zipfile.ZipInfo(name, WHEN)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, found[name], zipfile.ZIP_DEFLATED)
    files.write_bytes(out, memory.getvalue(), files.PUBLIC)
