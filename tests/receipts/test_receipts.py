"""Receipts: what is signed is what is read, and nothing else is accepted."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from efface.errors import EffaceError, FormatError, LedgerError
from efface.ledger import Ledger
from efface.receipts import check, keys
from efface.receipts.encoding import canonical, from_base64, to_base64
from efface.receipts.envelope import PAYLOAD_TYPE, Envelope, encoded
from efface.receipts.keys import PublicKeys, SigningKey
from efface.receipts.receipt import WHOLE, Receipt, digest, opened, sign

THEN, LATER = "2030-01-01T00:00:00+00:00", "2031-01-01T00:00:00+00:00"
MUTATIONS = 10_000


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return SigningKey.new(THEN)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("receipts") / "ledger.sqlite"
    with Ledger.open(path, create=True) as ledger:
        for step in ("accepted", "prepared", "published", "purged"):
            with ledger.transaction() as tx:
                tx.append("step", {"number": 2, "action": "forget", "step": step})
    return path


@pytest.fixture(scope="module")
def receipt(ledger: Path) -> Receipt:
    with Ledger.open(ledger) as opened_ledger:
        rows = tuple(opened_ledger.rows(since=1))
    certificate = {"kind": "exact", "passed": True, "not_covered": ["core data"]}
    return Receipt(
        subjects={"core": "aa" * 32, "classes": "bb" * 32, "weights": "cc" * 32},
        action="forget",
        release=2,
        request=["dd" * 32],
        certificate=certificate,
        arithmetic="integer",
        environment={"torch": "2"},
        version="0",
        not_covered=["core data"],
        rows=rows,
        time="2030-06-01T00:00:00+00:00",
    )


def kept(receipt: Receipt) -> Receipt:
    return replace(receipt, subjects={"core": "aa" * 32, "classes": "bb" * 32})


# --- both forms -----------------------------------------------------------------------------------


def test_a_receipt_reads_back(receipt: Receipt, key: SigningKey) -> None:
    signed = sign(receipt, kept(receipt), key)
    whole, left = opened(signed.whole, key.ring), opened(signed.kept, key.ring)
    assert replace(whole, nonce=None) == receipt
    assert whole.is_whole
    assert not left.is_whole
    assert left.subjects[WHOLE] == digest(signed.whole)
    assert "weights" not in left.subjects


def test_the_digest_of_a_whole_receipt_tells_nothing(receipt: Receipt, key: SigningKey) -> None:
    """It is kept for ever: two receipts that say the same have different ones."""
    first, second = (sign(receipt, kept(receipt), key).whole for _ in range(2))
    assert digest(first) != digest(second)


def test_the_envelope_is_dsse(receipt: Receipt, key: SigningKey) -> None:
    """As the specification has it, read with nothing of ours."""
    import base64

    values = json.loads(sign(receipt, kept(receipt), key).whole)
    payload = base64.b64decode(values["payload"])
    statement = json.loads(payload)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert {s["name"] for s in statement["subject"]} == set(receipt.subjects)
    kind = values["payloadType"].encode()
    message = b" ".join(
        [b"DSSEv1", str(len(kind)).encode(), kind, str(len(payload)).encode(), payload]
    )
    signature = base64.b64decode(values["signatures"][0]["sig"])
    Ed25519PublicKey.from_public_bytes(key.ring.current.public).verify(signature, message)
    assert encoded(b"hello world", "http://example.com/HelloWorld") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"  # the specification's own example
    )


# --- nothing else ---------------------------------------------------------------------------------


def mutated(data: bytes, dice: random.Random) -> bytes:
    """One or a few small changes, anywhere."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 5))):
        at = dice.randrange(len(changed))
        kind = dice.randrange(6)
        if kind == 0:
            changed[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            changed[at] = dice.randrange(256)
        elif kind == 2:
            del changed[at : at + dice.randrange(1, 8)]
        elif kind == 3:
            changed[at:at] = dice.choice((b" ", b"\n", b"=", b"A", b"\x00", b'"x":1,'))
        elif kind == 4:
            other = dice.randrange(len(changed))
            changed[at], changed[other] = changed[other], changed[at]
        else:
            changed = changed[: max(1, at)]
    return bytes(changed)


def test_no_mutation_is_accepted(receipt: Receipt, key: SigningKey) -> None:
    """Of the file, and of what is inside it, put into an envelope again."""
    dice = random.Random(17)
    data = sign(receipt, kept(receipt), key).whole
    inner = Envelope.parse(data)
    for number in range(MUTATIONS):
        if number % 2:
            changed = mutated(data, dice)
        else:
            part = mutated(inner.payload, dice)
            changed = replace(inner, payload=part).to_bytes()
        if changed == data:
            continue
        with pytest.raises(LedgerError):
            opened(changed, key.ring)


def test_no_mutation_of_a_ring_is_accepted(key: SigningKey) -> None:
    dice = random.Random(18)
    data = key.rotated(LATER).ring.to_bytes()
    for _ in range(1000):
        changed = mutated(data, dice)
        if changed == data or changed == data.removesuffix(b"\n"):
            continue
        with pytest.raises(ValueError, match=r".+"):
            PublicKeys.parse(changed)


@pytest.mark.parametrize(
    "spelling", ["spaces", "order", "more", "two signatures", "type", "base64"]
)
def test_another_spelling_of_the_same_is_refused(
    receipt: Receipt, key: SigningKey, spelling: str
) -> None:
    values = json.loads(sign(receipt, kept(receipt), key).whole)
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    if spelling == "spaces":
        text = json.dumps(values, sort_keys=True)
    elif spelling == "order":
        text = json.dumps(dict(sorted(values.items(), reverse=True)), separators=(",", ":"))
    else:
        if spelling == "more":
            values["more"] = 1
        elif spelling == "two signatures":
            values["signatures"] *= 2
        elif spelling == "type":
            values["payloadType"] = "application/json"
        else:
            values["payload"] = values["payload"].rstrip("=") + "===="
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    with pytest.raises(LedgerError, match="this is no receipt"):
        opened(text.encode() + b"\n", key.ring)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_what_is_no_receipt_at_all(key: SigningKey, data: bytes) -> None:
    with pytest.raises(LedgerError):
        opened(data, key.ring)


def test_a_statement_of_something_else_is_refused(key: SigningKey, receipt: Receipt) -> None:
    """Signed by the right key, and yet no receipt: the key may sign other things, too."""
    good = receipt.statement()
    for change in (
        {"predicateType": "https://slsa.dev/provenance/v1"},
        {"_type": "https://in-toto.io/Statement/v0.1"},
        {"predicate": {"time": receipt.time}},
        {"subject": [{"name": "core"}]},
        {"predicate": {**good["predicate"], "more": 1}},
        {"predicate": {**good["predicate"], "ledger": {"head": {}, "rows": []}}},
    ):
        envelope = Envelope.sign(canonical({**good, **change}), key)
        with pytest.raises(LedgerError):
            opened(envelope.to_bytes(), key.ring)


def test_rows_that_do_not_follow_from_each_other_are_refused(
    receipt: Receipt, key: SigningKey
) -> None:
    broken = replace(receipt, rows=(receipt.rows[0], receipt.rows[2]))
    with pytest.raises(LedgerError, match="row 3 of the ledger is missing"):
        opened(sign(broken, kept(broken), key).whole, key.ring)


# --- keys -----------------------------------------------------------------------------------------


def test_a_rotated_key_keeps_what_it_signed(receipt: Receipt, key: SigningKey) -> None:
    old = sign(receipt, kept(receipt), key)
    new = key.rotated(LATER)
    assert opened(old.whole, new.ring).release == 2
    late = replace(receipt, time="2031-06-01T00:00:00+00:00")
    assert opened(sign(late, kept(late), new).whole, new.ring).time == late.time
    for who, what in ((key, late), (new, receipt)):  # not any more; not yet
        with pytest.raises(LedgerError, match="not valid then"):
            opened(sign(what, kept(what), who).whole, new.ring)
    with pytest.raises(LedgerError, match="unknown"):
        opened(old.whole, SigningKey.new(THEN).ring)


def test_a_ring_is_vouched_for_by_the_key_before(key: SigningKey) -> None:
    ring = key.rotated(LATER).ring
    assert PublicKeys.of(ring.to_list()) == ring
    stranger = SigningKey.new(LATER).ring.to_list()
    with pytest.raises(ValueError, match="not signed by the key before it"):
        PublicKeys.of([*key.ring.to_list(), *stranger])
    with pytest.raises(ValueError, match="not signed by the key before it"):
        PublicKeys.of(ring.to_list()[1:])


@pytest.mark.needs("posix")
def test_key_files_are_private_and_kept_out_of_models(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    before = os.umask(0)
    try:
        made = keys.make(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SigningKey.load(path) == made
    assert PublicKeys.load(keys.public_path(path)) == made.ring
    assert to_base64(made.private).encode() not in keys.public_path(path).read_bytes()
    with pytest.raises(EffaceError, match="already is a file"):
        keys.make(path)
    rotated = keys.rotate(path)
    assert len(rotated.ring.keys) == 2
    assert to_base64(made.private).encode() not in path.read_bytes()
    path.chmod(0o644)
    with pytest.raises(EffaceError, match="can be read by others"):
        SigningKey.load(path)
    (tmp_path / "CURRENT").write_text("{}")
    with pytest.raises(EffaceError, match="is a model"):
        keys.make(tmp_path / "private" / "key")


def test_a_ring_that_was_not_written_is_made_up_for(tmp_path: Path) -> None:
    path = tmp_path / "signing.key"
    made = keys.make(path)
    keys.public_path(path).unlink()
    assert keys.mended(path) == made
    assert PublicKeys.load(keys.public_path(path)) == made.ring


@pytest.mark.parametrize("data", [b"", b"{}", b"-----BEGIN PRIVATE KEY-----", b"\xff\xfe", b"[]"])
def test_files_that_hold_no_key(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "signing.key"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(FormatError, match="holds no signing key"):
        SigningKey.load(path)
    with pytest.raises(LedgerError, match="holds no public keys"):
        PublicKeys.load(path)


def test_times_are_utc() -> None:
    for text in ("2030-01-01", "2030-01-01T00:00:00", "2030-01-01T00:00:00+01:00", "", 5, None):
        with pytest.raises((ValueError, TypeError)):
            keys.time_of(text)


# --- the check of strangers -----------------------------------------------------------------------


def test_a_receipt_is_checked_against_a_ledger(
    receipt: Receipt, key: SigningKey, ledger: Path, tmp_path: Path
) -> None:
    signed = sign(receipt, kept(receipt), key)
    (tmp_path / "r.json").write_bytes(signed.whole)
    (tmp_path / "k.pub").write_bytes(key.ring.to_bytes())
    paths = (tmp_path / "r.json", tmp_path / "k.pub")
    assert all(c.ok for c in check.checks(*paths))
    found = list(check.checks(*paths, ledger))
    assert [c.detail for c in found if not c.ok] == ["no row knows this receipt"]
    other = tmp_path / "other.sqlite"
    with Ledger.open(other, create=True) as empty, empty.transaction() as tx:
        tx.append("step", {})
    found = list(check.checks(*paths, other))
    assert [c.detail for c in found if not c.ok] == ["the receipt's head is not on its chain"]


@pytest.mark.parametrize("line", ["x", "{}", "[]", '{"seq": 1}'])
def test_lines_that_are_no_rows(tmp_path: Path, line: str) -> None:
    (tmp_path / "ledger.jsonl").write_text(line)
    with pytest.raises(LedgerError, match="line 1"):
        check.rows_of(tmp_path / "ledger.jsonl")


def test_nothing_heavy_is_needed() -> None:
    code = (
        "import sys, efface.receipts.check\n"
        "print({'torch', 'numpy', 'scipy', 'sqlalchemy', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_base64_has_one_spelling() -> None:
    assert from_base64(to_base64(b"ab")) == b"ab"
    for text in ("YWI", "YWI=\n", "YWJ=", 5, None, "YWI=="):
        with pytest.raises(ValueError, match="base64"):
            from_base64(text)
    assert PAYLOAD_TYPE == "application/vnd.in-toto+json"
