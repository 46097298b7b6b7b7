"""The page about one request, for a privacy officer: what happened to somebody's images, in plain words.

One template, and the words of a language (``languages/``). What it tells comes from a receipt, or from what a
receipt would say where nobody signs; the service adds when the request came and how many images it named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from efface.receipts.receipt import WHOLE, Receipt
from efface.report.document import Document, Fact, Part, SignatureBlock
from efface.report.elements import Digest, HowToCheck, Moment, Table
from efface.report.language import Language, Words, words
from efface.report.limits import limit
from efface.version import VERSION

STEPS = ("accepted", "prepared", "published", "purged", "done", "aborted")
ANEW = "--retrain --from-images IMAGES"
FORGETS = ("forget", "partner-forget")


@dataclass(frozen=True)
class Asked:
    """What a service knows of a request, nobody's name: its number, when it came, until when it is due."""

    number: str
    source: str
    law: str
    received: datetime
    due: datetime
    ended: datetime
    images: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class SignedBy:
    """Which key has signed, and the SHA-256 of the receipt as a file."""

    keyid: str
    digest: str


@dataclass(frozen=True)
class Beside:
    """The names of the files that the reader has as well."""

    receipt: str = "RECEIPT"
    keys: str = "KEYS.pub"
    ledger: str = ""
    others: Sequence[str] = ()


@dataclass(frozen=True)
class Account:
    """All that a page tells. ``num_rows`` of the ledger were checked for it, 0: none were."""

    receipt: Receipt
    signed: SignedBy | None = None
    asked: Asked | None = None
    beside: Beside = field(default_factory=Beside)
    num_rows: int = 0
    is_newest: bool = True

    @property
    def kind(self) -> str:
        """Of the guarantee; empty if nothing was removed."""
        certificate = self.receipt.certificate
        forgotten = self.receipt.action in FORGETS and certificate is not None
        return str(certificate["kind"]) if forgotten and certificate is not None else ""

    def time_of(self, step: str) -> str:
        """When a step was reached, or when it was signed if that is not known."""
        found = [row.time for row in self.receipt.rows if row.values.get("step") == step]
        return found[0] if found else self.receipt.time


def page(account: Account, language: Language = Language.ENGLISH) -> Document:
    say, receipt = words(language), account.receipt
    title = say("title.forget" if receipt.action in FORGETS else "title.other")
    parts = (
        Part(say("short.heading"), _short(account, say)),
        _request(account, say),
        Part(say("removed.heading"), items=list(_removed(account, say))),
        _checked(account, say),
        Part(say("limits.heading"), say("limits.before"), items=_limits(receipt, say)),
        Part(say("stranger.heading"), commands=list(_commands(account, say))),
        Part(say("flow.heading"), say("flow.text")),
        Part(say("kept.heading"), say("kept.text")),
        _steps(receipt, say),
        *_files(account.beside.others, say),
        *_digests(receipt, say),
    )
    numbered = say("request.numbered", number=receipt.release)
    subtitle = f"{numbered} · {moment(account.time_of('published'))}"
    return Document(language, title, subtitle, parts, _signatures(account, say), _footer(say))


def refusal(
    asked: Asked, language: Language = Language.ENGLISH, *, cancelled: bool = False
) -> Document:
    """About a request that ended without a change."""
    say, how = words(language), "cancelled" if cancelled else "refused"
    reason = [Fact(say("request.reason"), say(f"reason.{asked.reason}"))] if asked.reason else []
    facts = [fact for fact in _of_service(asked, say) if fact.label != say("request.done")]
    parts = (
        Part(say("short.heading"), say(f"short.{how}", date=day(asked.ended))),
        Part(say("request.heading"), say("request.who"), [*facts, *reason]),
        Part(say("removed.heading"), say("removed.nothing")),
    )
    subtitle = f"{say('request.numbered', number=asked.number)} · {moment(asked.ended)}"
    block = _block(Part(say("sign.digital"), say("sign.none")), say)
    return Document(language, say(f"title.{how}"), subtitle, parts, block, _footer(say))


# --- what it says ---------------------------------------------------------------------------------


def _short(account: Account, say: Words) -> str:
    values = {"date": day(account.time_of("published")), "number": account.receipt.release}
    promise = (account.receipt.certificate or {}).get("guarantee") or {}
    if account.kind == "exact":
        text = say("short.exact", **values)
    elif account.kind:
        numbers = {name: f"{promise[name]:g}" for name in ("epsilon", "delta")}
        text = say("short.noise", **values, **numbers)
    else:
        text = say("short.nothing", **values)
    return text if account.is_newest else f"{text}\n\n{say('short.newer')}"


def _request(account: Account, say: Words) -> Part:
    receipt, asked = account.receipt, account.asked
    if asked is None:
        facts = [Fact(say("request.number"), str(receipt.release))]
        facts += [Fact(say("request.received"), moment(account.time_of("accepted")))]
        facts += [Fact(say("request.done"), moment(account.time_of("published")))]
    else:
        facts = _of_service(asked, say)
    facts += [Fact(say("request.reference"), Digest(text)) for text in receipt.request]
    return Part(say("request.heading"), say("request.who"), facts)


def _of_service(asked: Asked, say: Words) -> list[Fact]:
    return [
        Fact(say("request.number"), Digest(asked.number)),
        Fact(say("request.came"), asked.source),
        Fact(say("request.received"), moment(asked.received)),
        Fact(say("request.law"), asked.law.upper()),
        Fact(say("request.due"), moment(asked.due)),
        Fact(say("request.done"), moment(asked.ended)),
    ]


def _removed(account: Account, say: Words) -> Iterator[str]:
    if not account.kind:
        yield say("removed.nothing")
        return
    people = (account.receipt.certificate or {}).get("num_people", 0)
    if account.asked is None or account.asked.images is None:
        yield say("removed.named")
    else:
        yield say("removed.images", images=account.asked.images)
    if people > 1:
        yield say("removed.people", people=people)
    yield say("removed.rows")
    if account.kind == "exact":
        yield say("removed.sums")
    yield from (say("removed.model"), say("removed.traces"), say("removed.name"))


def _checked(account: Account, say: Words) -> Part:
    rows = [
        (say(f"checked.{what}"), result, f"`{command}`")
        for what, result, command in _checks(account, say)
    ]
    columns = [say(f"checked.{name}") for name in ("what", "result", "command")]
    return Part(say("checked.heading"), table=Table(columns, rows))


def _checks(account: Account, say: Words) -> Iterator[tuple[str, str, str]]:
    beside = account.beside
    if account.kind:
        met = (account.receipt.certificate or {}).get("passed") is True
        when = moment(account.time_of("prepared"))
        yield (
            "guarantee",
            say("checked.met", date=when) if met else say("checked.missed"),
            "efface verify MODEL",
        )
        when = moment(account.time_of("purged"))
        yield "gone", say("checked.deleted", date=when), "efface scan MODEL IMAGES --owner NAME"
    rows = say("checked.rows", rows=account.num_rows) if account.num_rows else say("checked.none")
    yield "ledger", rows, "efface ledger verify MODEL"
    signed = say("checked.signed" if account.signed else "checked.unsigned")
    yield "signature", signed, f"efface verify {beside.receipt} --key {beside.keys}"
    for name in beside.others:
        if name.startswith("audit/"):
            yield "attacks", say("checked.attached", file=name), "efface audit MODEL IMAGES"


def _limits(receipt: Receipt, say: Words) -> list[str]:
    return [limit(text, say) for text in receipt.not_covered]


def _commands(account: Account, say: Words) -> Iterator[HowToCheck]:
    """What a stranger runs."""
    beside = account.beside
    verify = f"efface verify {beside.receipt} --key {beside.keys}"
    if account.signed is None:
        yield HowToCheck(say("stranger.unsigned"), f"efface verify MODEL {ANEW}")
        return
    ledger = f" --ledger {beside.ledger}" if beside.ledger else ""
    yield HowToCheck(say("stranger.first"), verify + ledger)
    yield HowToCheck(say("stranger.key"), f"efface keys show {beside.keys}")
    if account.asked is not None:
        yield HowToCheck(say("stranger.mine"), f"printf %s {account.asked.number} | sha256sum")
    if account.is_newest:
        yield HowToCheck(say("stranger.true"), f"{verify} --workspace MODEL {ANEW}")
    else:
        yield HowToCheck(say("stranger.now"), f"efface verify MODEL {ANEW}")


def _steps(receipt: Receipt, say: Words) -> Part:
    rows: list[tuple[int, Moment, str]] = []
    for row in receipt.rows:
        step = row.values.get("step", row.kind)
        if row.values.get("number") == receipt.release and step in (*STEPS, "receipt"):
            when = Moment(moment(row.time, seconds=True), row.time)
            rows.append((row.seq, when, say(f"steps.{step}")))
    columns = [say(f"steps.{name}") for name in ("row", "time", "what")]
    return Part(say("steps.heading"), table=Table(columns, rows, numeric=(0,)))


def _files(names: Sequence[str], say: Words) -> Iterator[Part]:
    known = {"keys.pub": "keys", "ledger.jsonl": "ledger", "CHECK.txt": "check"}
    rows = []
    for name in dict.fromkeys(re.sub("/.*", "/", name) for name in names):
        key = known.get(name, name.rstrip("/"))
        key = "certificate" if name.startswith("certificate-") else key
        rows.append((Digest(name), say(f"files.{key}")))
    if rows:
        yield Part(say("files.heading"), table=Table([say("files.file"), say("files.what")], rows))


def _digests(receipt: Receipt, say: Words) -> Iterator[Part]:
    facts = [Fact(name, Digest(text)) for name, text in receipt.subjects.items() if name != WHOLE]
    if facts:
        yield Part(say("digests.heading"), say("digests.text"), facts)


def _signatures(account: Account, say: Words) -> SignatureBlock:
    signed = account.signed
    if signed is None:
        return _block(Part(say("sign.digital"), say("sign.none")), say)
    facts = (
        Fact(say("sign.time"), moment(account.receipt.time, seconds=True)),
        Fact(say("sign.key"), Digest(signed.keyid)),
        Fact(say("sign.receipt"), Digest(signed.digest)),
    )
    return _block(Part(say("sign.digital"), say("sign.digital_text"), facts), say)


def _block(digital: Part, say: Words) -> SignatureBlock:
    lines = [say(f"sign.{name}") for name in ("organisation", "name", "place", "signature")]
    return SignatureBlock(say("sign.heading"), digital, say("sign.hand"), lines)


def _footer(say: Words) -> list[str]:
    return [say("footer.law"), say("footer.made", version=VERSION)]


# --- times ----------------------------------------------------------------------------------------


def _utc(time: str | datetime) -> datetime:
    return (datetime.fromisoformat(time) if isinstance(time, str) else time).astimezone(UTC)


def moment(time: str | datetime, *, seconds: bool = False) -> str:
    """In the one order of year, month and day that is read alike in every language."""
    return _utc(time).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M UTC")


def day(time: str | datetime) -> str:
    return _utc(time).strftime("%Y-%m-%d")
