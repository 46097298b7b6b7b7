"""Receipts of a workspace: with which key, where they lie, and what is left of them later.

``private/signing.json`` names the key file, which lies elsewhere. After a request ``receipts/n.json`` is its
receipt, and ``receipts/n.kept.json`` the form that takes its place when the next release is published. Both
are written before the last row of the request, which has their digests: a crash in between writes them anew.
Pages beside them (``n.html``, ``n.kept.html``: ``report/filed.py``) take each other's place as they do.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efface import files
from efface.errors import EffaceError, RequestError
from efface.guarantee.certificates import ExactCertificate
from efface.ledger import LedgerRow
from efface.version import VERSION
from efface.workspace.disk import file_digest, remove
from efface.workspace.receipt_files import FOLDER, SETTINGS, numbered
from efface.workspace.steps import STEP, Milestone, sync_directory
from efface.workspace.store import Store
from efface.workspace.superseded import CERTIFICATE_SCHEMA, TELLING

if TYPE_CHECKING:
    from efface.receipts.keys import PublicKeys, SigningKey
    from efface.receipts.receipt import Receipt

SCHEMA = "efface.signing/1"
ROW = "receipt"  # the kind of a row
HIDING = 16  # references of a receipt that hides how many asked, at least
NOT_COVERED = (
    "copies of the model, of its predictions or of the images that are kept outside this folder",
    "that the images named in the request are all that there are of the person",
    "that the clock of whoever signed was right (a time stamp beside the receipt can say that)",
)


def among_others(references: tuple[str, ...]) -> tuple[str, ...]:
    """The references of a receipt among random ones, so that it does not tell how many asked: ``HIDING``
    of them, or the next power of two. Whoever knows what a reference is made of finds it there."""
    if not references:
        return ()
    size = max(HIDING, 1 << (len(references) - 1).bit_length())
    others = (secrets.token_hex(32) for _ in range(size - len(references)))
    return tuple(sorted((*references, *others)))


class Signing:
    """The receipts of what is in a store."""

    def __init__(self, store: Store) -> None:
        self.store, self.inventory, self.paths = store, store.inventory, store.paths
        self.folder = self.paths.root / FOLDER

    # --- the key ----------------------------------------------------------------------------------

    @property
    def _settings(self) -> Path:
        return self.paths.root / "private" / SETTINGS

    @property
    def key_path(self) -> Path | None:
        """The key file, if receipts are signed here."""
        if not self._settings.is_file():
            return None
        values = files.read_json(self._settings, SCHEMA)
        with files.as_saved(self._settings):
            return Path(str(values["key"]))

    def ring(self) -> PublicKeys | None:
        """The public keys, if receipts are signed here; the secret one is not needed."""
        from efface.receipts.keys import PublicKeys, public_path

        path = self.key_path
        return None if path is None else PublicKeys.load(public_path(path))

    def use(self, key: Path) -> None:
        """Sign with this key from now on; an error if there is none in the file."""
        from efface.receipts.keys import mended

        mended(key)
        values = {"schema": SCHEMA, "key": str(key.absolute())}
        files.write_json(self._settings, values, mode=files.PRIVATE)
        sync_directory(self._settings.parent)

    def receipt(self) -> Path | None:
        """Of the published release."""
        path = self.folder / f"{self.inventory.number}.json"
        return path if path.is_file() else None

    # --- writing ----------------------------------------------------------------------------------

    def write(self, references: tuple[str, ...] = ()) -> tuple[dict[str, Any] | None, str]:
        """Both files for the published release; the row that knows them, and what to say if there is none."""
        try:
            path = self.key_path
            if path is None:
                self._remove(self.inventory.number)
                return None, ""
            from efface.receipts.keys import mended

            return self._write(mended(path), references), ""
        except EffaceError as problem:
            self._remove(self.inventory.number)
            return None, f"no receipt was signed: {problem.message} {problem.fix}"

    def _write(self, key: SigningKey, references: tuple[str, ...]) -> dict[str, Any]:
        from efface.receipts.receipt import digest, sign

        number, signed = self.inventory.number, sign(*self._said(references), key)
        files.make_folder(self.folder, files.PUBLIC_FOLDER)
        files.write_bytes(self.folder / f"{number}.kept.json", signed.kept, files.PUBLIC)
        files.write_bytes(self.folder / f"{number}.json", signed.whole, files.PUBLIC)
        sync_directory(self.folder)
        return {"number": number, "whole": digest(signed.whole), "kept": digest(signed.kept)}

    def _said(self, references: tuple[str, ...]) -> tuple[Any, Any]:
        """What the two forms say."""
        from efface.receipts.keys import now
        from efface.receipts.receipt import Receipt

        number, certificate = self.inventory.number, self.store.certificate
        rows = rows_of_request(self.inventory.ledger.rows(), number)
        exact = certificate if isinstance(certificate, ExactCertificate) else None
        given = None if exact is None else exact.given
        public = None if certificate is None else certificate.public()
        asked = [row.values["request"] for row in rows if "request" in row.values]
        fixed = self._fixed()
        common: dict[str, Any] = {
            "action": rows[0].values["action"],
            "release": number,
            "request": [*asked[:1], *references],
            "arithmetic": "float64" if given is None else given.arithmetic,
            "environment": _here() if given is None else given.environment,
            "version": VERSION,
            "not_covered": [*(() if public is None else public["not_covered"]), *NOT_COVERED],
            "rows": tuple(rows),
            "time": now(),
        }
        whole = Receipt({**fixed, **self._made(public or {})}, certificate=public, **common)
        left = {name: value for name, value in (public or {}).items() if name not in TELLING}
        later = None if public is None else {**left, "superseded": True}
        return whole, Receipt(fixed, certificate=later, **common)

    def unsigned(self, number: int, *, kept: bool = False) -> Receipt:
        """What a receipt of this release would say, if anybody signed it; of an earlier one (or ``kept``)
        what is left of it."""
        from efface.receipts.receipt import Receipt

        rows = whole_request(self.inventory.ledger.rows(), number)
        if not rows or number > self.inventory.number:
            fix = "requests have the numbers of their releases: see `efface ledger show`."
            raise RequestError(f"there is no request {number}.", fix)
        path = self.paths.certificates / f"{number}.public.json"
        public = files.read_json(path, CERTIFICATE_SCHEMA) if path.is_file() else None
        said, given = public or {}, (public or {}).get("given") or {}
        return Receipt(
            subjects=self.subjects() if number == self.inventory.number and not kept else {},
            action=rows[0].values["action"],
            release=number,
            request=[row.values["request"] for row in rows if "request" in row.values][:1],
            certificate=public,
            arithmetic=given.get("arithmetic", "float64"),
            environment=given.get("environment", {}),
            version=VERSION,
            not_covered=[*said.get("not_covered", ()), *NOT_COVERED],
            rows=tuple(rows),
            time=rows[-1].time,
        )

    def subjects(self) -> dict[str, str]:
        """Digests of the published release, as a receipt would have them."""
        certificate = self.store.certificate
        return {**self._fixed(), **self._made({} if certificate is None else certificate.public())}

    def _fixed(self) -> dict[str, str]:
        """Digests of what no request changes."""
        settings = self.inventory.settings
        classes = json.dumps(
            {"classes": settings["classes"]}, sort_keys=True
        )  # as in a certificate
        digest = hashlib.sha256(classes.encode()).hexdigest()
        return {"core": settings["core_digest"], "classes": digest}

    def _made(self, public: dict[str, Any]) -> dict[str, str]:
        """Digests of what this request made."""
        named = {name: public.get(f"{name}_digest") for name in ("statistics", "weights")}
        release = self.paths.release(self.inventory.number)
        made = {f"{release.name}/{p.name}": file_digest(p) for p in release.iterdir()}
        released = {f"releases/{name}": digest for name, digest in made.items()}
        return {**{name: str(d) for name, d in named.items() if d is not None}, **released}

    # --- what is left -----------------------------------------------------------------------------

    def told(self) -> dict[int, dict[str, str]]:
        """The digests of all receipts so far, by the numbers of their releases."""
        rows = [row.values for row in self.inventory.ledger.rows() if row.kind == ROW]
        return {values["number"]: values for values in rows}

    def supersede(self) -> None:
        """Receipts and pages of earlier releases lose the digests of sums and weights; half-made files go."""
        for number, path in numbered(self.folder):
            if path.suffix == ".tmp" or number > self.inventory.number:
                remove(path)
            elif number < self.inventory.number and ".kept" in path.suffixes:
                path.replace(path.with_name(f"{number}{path.suffix}"))
        if self.folder.is_dir():
            sync_directory(self.folder)

    def _remove(self, number: int) -> None:
        for found, path in numbered(self.folder):
            if found == number:
                remove(path)

    def wrong(self) -> Iterator[str]:
        """Receipts that are missing, changed or more than they should be."""
        for number, known in self.told().items():
            current = number == self.inventory.number
            wanted = {f"{number}.json": known["whole" if current else "kept"]}
            if current:
                wanted[f"{number}.kept.json"] = known["kept"]
            for name, digest in wanted.items():
                path = self.folder / name
                if not path.is_file() or path.is_symlink() or file_digest(path) != digest:
                    yield f"{FOLDER}/{name}"


def _here() -> dict[str, str]:
    from efface.environment import environment  # it loads torch

    return environment(integer=False)


def rows_of_request(rows: list[LedgerRow], number: int) -> list[LedgerRow]:
    """From the row that accepted the request which made the release, to the last."""
    begins = [
        i
        for i, row in enumerate(rows)
        if row.kind == STEP
        and row.values["number"] == number
        and row.values["action"] != "plan"
        and row.values["step"] == Milestone.ACCEPTED
    ]
    return rows[begins[-1] :] if begins else rows[-1:]


def whole_request(rows: list[LedgerRow], number: int) -> list[LedgerRow]:
    """From its first row to its last; none if the ledger does not know it."""
    since = rows_of_request(rows, number)
    ours = [
        row.kind == STEP and row.values["number"] == number and row.values["action"] != "plan"
        for row in since
    ]
    return since[: len(ours) - ours[::-1].index(True)] if any(ours) else []
