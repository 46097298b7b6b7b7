"""The page of an evidence archive: what happened to somebody's images, in words for everybody."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from efface.receipts.keys import PublicKeys
from efface.receipts.receipt import WHOLE, Receipt
from efface.report.html import Card, Digest, HowToCheck, Report, Section, Table

FLOW = """\
**Where the data went in.** Every image was turned into a row of numbers by a network that does not change
(the core, made from data that is never forgotten). Of the person's images the model keeps those rows, the
labels and whose they are, in a private folder. The images themselves are not kept there.

**What was learnt from them.** {learnt} No other part of the model has seen them.

**What a request does.** The person's rows are taken out, the changeable part is computed again from the
others, the new model takes the old one's place in one step, and the rows and the old model are deleted. Each
step is written into a ledger that cannot be changed without showing it."""
SUMS = "The rows were added up, and the changeable part of the model was computed from the sums."
FITTED = "The changeable part of the model was fitted to the rows."

EXACT = """\
The model that is served now **is the model that would have been made without the images that were
removed**: not about the same, but the same numbers, given the same core and the same list of classes. Whoever
has the images that are left can make it again and compare the digests below."""
APPROXIMATE = """\
The model that is served now is hidden by noise so that **it can hardly be told from one that was made
without the images**: how hardly is the (ε, δ) in the certificate, proved on the weights that are served."""
NOTHING = "Nothing was removed in this release, so nothing is claimed about a removal."
KEPT = """\
Of every image that was removed, a keyed digest: with it the image is refused when somebody brings it again.
The key never leaves the private folder. Of the request: its time, its number, and a keyed digest. No name."""


def page(receipt: Receipt, ring: PublicKeys, names: Sequence[str]) -> Report:
    """About one receipt; ``names`` are the files beside the page."""
    kind = "" if receipt.certificate is None else str(receipt.certificate["kind"])
    forgotten = receipt.action == "forget" and kind
    claim = (EXACT if kind == "exact" else APPROXIMATE) if forgotten else NOTHING
    learnt = FLOW.format(learnt=SUMS if kind == "exact" else FITTED)
    return Report(
        "Evidence of a deletion" if receipt.action == "forget" else "Evidence about a model",
        f"release {receipt.release}, signed {receipt.time}",
        cards=_cards(receipt, kind),
        sections=(
            Section("What is claimed", claim),
            Section("What happened to the data", learnt),
            Section("What is kept", KEPT),
            Section("What is not covered", tables=(_limits(receipt),)),
            Section("When it happened", tables=(_steps(receipt),)),
            Section("Who signed", _signer(ring), tables=(_keys(ring),)),
            Section("What is in this folder", tables=(_files(names),)),
        ),
        checks=_checks(receipt),
        digests={n: d for n, d in receipt.subjects.items() if n != WHOLE},
        made=datetime.fromisoformat(receipt.time),
    )


def _cards(receipt: Receipt, kind: str) -> list[Card]:
    met = receipt.certificate is not None and receipt.certificate.get("passed") is True
    where = "on every machine" if receipt.arithmetic == "integer" else "on one kind of machine"
    return [
        Card("request", receipt.action, f"release {receipt.release}"),
        Card("guarantee", kind or "none", "met" if met else "nothing to meet"),
        Card("arithmetic", receipt.arithmetic, f"the same numbers {where}"),
    ]


def _limits(receipt: Receipt) -> Table:
    return Table(("this receipt says nothing about",), [(text,) for text in receipt.not_covered])


def _steps(receipt: Receipt) -> Table:
    words = {
        "accepted": "the request was accepted: from here on it is carried out, whatever fails",
        "prepared": "the new model was written, and is not served yet",
        "published": "the new model is served; the old one is no longer",
        "purged": "the old model, the old sums and the rows were deleted",
        "done": "the request is done",
    }
    rows = [
        (row.seq, row.time, words.get(row.values.get("step", ""), row.kind)) for row in receipt.rows
    ]
    return Table(("row", "time (UTC)", "what"), rows, numeric=(0,))


def _signer(ring: PublicKeys) -> str:
    return (
        f"The key id is `{ring.current.keyid}`. Compare it with the one that the operator publishes "
        "elsewhere: this page could have been written by anybody."
    )


def _keys(ring: PublicKeys) -> Table:
    rows = [
        (Digest(key.keyid), key.since, ring.until(i) or "now") for i, key in enumerate(ring.keys)
    ]
    return Table(("key id", "signs from", "until"), rows)


def _files(names: Sequence[str]) -> Table:
    words = {
        "keys.pub": "the public keys",
        "ledger.jsonl": "every row of the ledger; it names nobody",
        "CHECK.txt": "the commands, as text",
        "receipts": "signed: the newest whole, earlier ones without the digests of their models",
        "certificate": "what was proved about the newest release",
        "audit": "attacks on the model, and what came out",
    }
    rows = []
    for name in names:
        key = name.partition("/")[0]
        key = "certificate" if key.startswith("certificate-") else key
        rows.append((Digest(name), words.get(key, "")))
    return Table(("file", "what it is"), rows)


def _checks(receipt: Receipt) -> list[HowToCheck]:
    name = f"receipts/{receipt.release}.json"
    return [
        HowToCheck(
            "Is it genuine? Signature, key and ledger, without the model:",
            f"efface verify {name} --key keys.pub --ledger ledger.jsonl",
        ),
        HowToCheck(
            "Is it true? With the model and the images that are left, on any machine:",
            f"efface verify {name} --key keys.pub --workspace MODEL --retrain --from-images IMAGES",
        ),
    ]
