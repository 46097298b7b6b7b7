"""What a workspace still knows of its releases: steps in the ledger, public certificates, what was measured.

Weights, sums and their digests leave with a release, on purpose (``workspace/superseded.py``). Whoever asked
has them in a whole receipt, and may bring it; what was measured is brought, too, or in a service's ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from efface import files
from efface.errors import EffaceError, FormatError
from efface.ledger import LedgerRow
from efface.receipts.receipt import Receipt
from efface.workspace.inventory import Inventory
from efface.workspace.steps import STEP, Entry, Milestone
from efface.workspace.superseded import CERTIFICATE_SCHEMA
from efface.workspace.told import entry_of

EVALUATION = "service.evaluation"  # the kind of a row that a service writes
SUBJECTS = {"statistics_digest": "statistics", "weights_digest": "weights"}  # in a whole receipt
GIVEN = {  # of a certificate: what the same model follows from
    "core": "core_digest",
    "class list": "classes_digest",
    "image preparation": "preprocess_digest",
    "calibration": "calibration_digest",
    "ridge": "ridge",
    "μ": "mu",
    "arithmetic": "arithmetic",
}


@dataclass(frozen=True)
class Accuracy:
    """How often a release was right, on how many records, as told by whom."""

    accuracy: float
    num_records: int
    source: str


@dataclass(frozen=True)
class Release:
    """One of them: the request that made it, what was promised, and what is left to compare.

    Times are the ledger's. ``certificate`` is the public one as it stays; ``brought`` is what a whole receipt
    adds to it; ``measured`` is None where nobody has.
    """

    number: int
    action: str
    asked: str
    served: str
    certificate: Mapping[str, Any] = field(default_factory=dict)
    brought: Mapping[str, Any] = field(default_factory=dict)
    measured: Accuracy | None = None

    def told(self, name: str) -> Any:
        """A value of the certificate, or of a receipt that was brought; None: not known any more."""
        value = self.certificate.get(name)
        return self.brought.get(name) if value is None else value

    def given(self, name: str) -> Any:
        return (self.certificate.get("given") or {}).get(name)


@dataclass(frozen=True)
class Compared:
    """The same thing of two releases; None: not known (any more)."""

    name: str
    before: Any
    after: Any

    @property
    def changed(self) -> bool | None:
        return None if self.before is None or self.after is None else self.before != self.after


def checked_rows(model: Path) -> tuple[list[LedgerRow], int]:
    """The ledger's rows, checked against its head and the manifest, and the number of the release."""
    inventory = Inventory(model)
    inventory.only_looks = True
    number = inventory.number
    with files.locked(inventory.paths.lock):
        if inventory.ledger.is_earlier():
            inventory.check_ledger()
            message = f"{model} has the journal of an earlier version, which is whole."
            raise EffaceError(message, f"`efface resume {model}` makes a ledger of it.")
        inventory.check_ledger()
        return inventory.ledger.rows(), number


def releases(
    model: Path, receipts: Sequence[Receipt] = (), measured: Mapping[int, Accuracy] | None = None
) -> list[Release]:
    """All that were ever published, in order; LedgerError if a row of the ledger was changed."""
    rows, _ = checked_rows(model)
    steps: dict[int, list[Entry]] = {}
    for entry in (entry_of(row) for row in rows if row.kind == STEP):
        if entry.step is Milestone.ACCEPTED:
            steps[entry.number] = []  # a request that was called off may have had the number before
        steps.setdefault(entry.number, []).append(entry)
    known = {**_evaluated(rows), **(measured or {})}
    held = {receipt.release: _ours(receipt, rows) for receipt in receipts}
    found = [
        _release(model, entries, held.get(number), known.get(number))
        for number, entries in sorted(steps.items())
        if entries[-1].step is Milestone.DONE
    ]
    strange = sorted({*held, *known} - {release.number for release in found})
    if strange:
        message = f"release {strange[0]} is none of this model's."
        raise EffaceError(message, "bring receipts and evaluations of this model.")
    return found


def facts(first: Release, last: Release) -> list[Compared]:
    """What can be compared, in the order in which a reader asks."""
    named = {
        "records it was computed from": "num_retained",
        "guarantee": "kind",
        "guarantee met": "passed",
        "weights (SHA-256)": "weights_digest",
        "sums (SHA-256)": "statistics_digest",
        "made by efface": "version",
    }
    found = [Compared(name, first.told(key), last.told(key)) for name, key in named.items()]
    found.insert(2, Compared("ε and δ", _promise(first), _promise(last)))
    found += [Compared(name, first.given(key), last.given(key)) for name, key in GIVEN.items()]
    found.append(Compared("libraries", _libraries(first), _libraries(last)))
    rights = [None if r.measured is None else r.measured.accuracy for r in (first, last)]
    return [Compared("accuracy", *rights), *found]


def _ours(receipt: Receipt, rows: Sequence[LedgerRow]) -> Receipt:
    known = {row.seq: row.digest for row in rows}
    if known.get(receipt.head.seq) == receipt.head.digest:
        return receipt
    message = f"the receipt of release {receipt.release} is none of this model's."
    raise EffaceError(message, "bring one that this model's ledger knows.")


def _release(
    model: Path, entries: list[Entry], receipt: Receipt | None, measured: Accuracy | None
) -> Release:
    served = next((e for e in entries if e.step is Milestone.PUBLISHED), entries[-1])
    number = entries[0].number
    return Release(
        number,
        str(entries[0].action),
        entries[0].when,
        served.when,
        _certificate(model / "certificates" / f"{number}.public.json"),
        _brought(receipt),
        measured,
    )


def _certificate(path: Path) -> dict[str, Any]:
    try:
        return files.read_json(path, CERTIFICATE_SCHEMA) if path.is_file() else {}
    except FormatError:  # damaged: efface verify says so
        return {}


def _brought(receipt: Receipt | None) -> dict[str, Any]:
    """What only a whole receipt has."""
    if receipt is None or not receipt.is_whole:
        return {}
    subjects = {name: receipt.subjects.get(key) for name, key in SUBJECTS.items()}
    return {**subjects, **(receipt.certificate or {})}


def _evaluated(rows: Sequence[LedgerRow]) -> dict[int, Accuracy]:
    told = [row.values for row in rows if row.kind == EVALUATION]
    return {
        v["release"]: Accuracy(v["accuracy"], v["num_records"], "the service's ledger")
        for v in told
    }


def _promise(release: Release) -> str | None:
    """(ε, δ) of a guarantee with noise; an exact one has 0 and 0."""
    noise = release.told("difference") or {}
    asked = release.told("guarantee") or noise.get("guarantee")
    if asked is not None:
        return f"{asked['epsilon']:g}, {asked['delta']:g}"
    return "0, 0" if release.told("kind") == "exact" else None


def _libraries(release: Release) -> str | None:
    found = release.given("environment")
    return None if not found else ", ".join(f"{name} {found[name]}" for name in sorted(found))
