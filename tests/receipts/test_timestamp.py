"""Time stamps: asked for as RFC 3161 says, and believed only if an authority that is trusted has signed them.

The authority is OpenSSL's, with certificates that are made here.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.shell import efface, values_of
from tests.workspaces import OWNER, fitted, people

from efface.errors import LedgerError
from efface.receipts import der, keys, timestamp
from efface.workspace import Workspace

OPENSSL = shutil.which("openssl")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="there is no openssl on this system")
NOW = datetime.now(UTC).replace(microsecond=0)
RECEIPT = b"a receipt"
CONFIG = """
[tsa]
serial = {folder}/serial
crypto_device = builtin
default_policy = 1.2.3.4.1
signer_digest = {digest}
digests = sha256
accuracy = secs:1
ess_cert_id_alg = {digest}
"""


@dataclass(frozen=True)
class Issued:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Any

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)


def issue(
    name: str,
    by: Issued | None = None,
    *,
    is_ca: bool = False,
    stamps: bool = True,
    kind: str = "rsa",
    start: datetime = NOW - timedelta(days=1),
    days: int = 30,
) -> Issued:
    key: Any = (
        rsa.generate_private_key(65537, 2048)
        if kind == "rsa"
        else ec.generate_private_key(ec.SECP256R1())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signer = (subject, key) if by is None else (by.certificate.subject, by.key)
    number, end = x509.random_serial_number(), start + timedelta(days=days)
    made = x509.CertificateBuilder(issuer, subject, key.public_key(), number, start, end)
    made = made.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
    if stamps and not is_ca:
        use = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING])
        made = made.add_extension(use, critical=True)
    return Issued(made.sign(signer, hashes.SHA256()), key)


ROOT = issue("root", is_ca=True)
MIDDLE = issue("middle", ROOT, is_ca=True)
SIGNER = issue("stamps", MIDDLE)
STRANGER = issue("root", is_ca=True)  # of the same name


def stamped(
    folder: Path, by: Issued = SIGNER, receipt: bytes = RECEIPT, digest: str = "sha256"
) -> bytes:
    """What an authority answers."""
    folder.mkdir(exist_ok=True)
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    pem = by.key.private_bytes(serialization.Encoding.PEM, form, plain)
    (folder / "key.pem").write_bytes(pem)
    (folder / "certificate.pem").write_bytes(by.pem)
    (folder / "chain.pem").write_bytes(MIDDLE.pem)
    (folder / "serial").write_text("01")
    (folder / "tsa.cnf").write_text(CONFIG.format(folder=folder, digest=digest))
    (folder / "receipt.tsq").write_bytes(timestamp.request(receipt))
    words = ["ts", "-reply", "-config", "tsa.cnf", "-section", "tsa", "-queryfile", "receipt.tsq"]
    words += ["-signer", "certificate.pem", "-inkey", "key.pem", "-chain", "chain.pem"]
    words += ["-out", "receipt.tsr"]
    done = subprocess.run([str(OPENSSL), *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return (folder / "receipt.tsr").read_bytes()


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return stamped(tmp_path_factory.mktemp("authority"))


# --- asking ---------------------------------------------------------------------------------------


@needs_openssl
def test_openssl_reads_a_request(tmp_path: Path) -> None:
    (tmp_path / "r.tsq").write_bytes(timestamp.request(RECEIPT))
    words = [str(OPENSSL), "ts", "-query", "-in", str(tmp_path / "r.tsq"), "-text"]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "Hash Algorithm: sha256" in text
    assert "Certificate required: yes" in text
    assert "Nonce: 0x" in text


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 70_000])
def test_values_read_back(size: int) -> None:
    found = der.parse(der.value(der.OCTETS, bytes(size)))
    assert (found.tag, found.body) == (der.OCTETS, bytes(size))


@pytest.mark.parametrize(
    "data",
    ["", "04", "0481", "048101ff", "04820001ff", "0480", "0402ff", "04850100000000", "1f0100"],
)
def test_other_spellings_are_refused(data: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        der.parse(bytes.fromhex(data))


def test_numbers_and_names() -> None:
    assert der.integer(0).hex() == "020100"
    assert der.integer(128).hex() == "02020080"
    assert der.oid("1.2.840.113549.1.7.2").hex() == "06092a864886f70d010702"


# --- checking -------------------------------------------------------------------------------------


@needs_openssl
@pytest.mark.parametrize("trusted", [SIGNER, MIDDLE, ROOT])
def test_a_stamp_is_believed(answer: bytes, trusted: Issued) -> None:
    found = timestamp.check(answer, RECEIPT, trusted.pem)
    assert found.signer == SIGNER.certificate
    assert abs(found.time - datetime.now(UTC)) < timedelta(hours=1)


@needs_openssl
@pytest.mark.parametrize(("kind", "digest"), [("ec", "sha256"), ("rsa", "sha512")])
def test_other_keys_and_hashes(tmp_path: Path, kind: str, digest: str) -> None:
    signer = issue("other", kind=kind)
    answer = stamped(tmp_path / "a", signer, digest=digest)
    assert timestamp.check(answer, RECEIPT, signer.pem).signer == signer.certificate


@needs_openssl
def test_what_is_not_believed(answer: bytes, tmp_path: Path) -> None:
    for trusted in (STRANGER, issue("stamps", MIDDLE)):
        with pytest.raises(LedgerError, match="nobody who is trusted"):
            timestamp.check(answer, RECEIPT, trusted.pem)
    with pytest.raises(LedgerError, match="another file"):
        timestamp.check(answer, RECEIPT + b" ", ROOT.pem)
    with pytest.raises(LedgerError, match="does not check"):
        timestamp.check(answer, RECEIPT, b"no certificate")
    old = issue("old", ROOT, start=NOW - timedelta(days=60))
    with pytest.raises(LedgerError, match="not valid then"):
        timestamp.check(stamped(tmp_path / "old", old), RECEIPT, ROOT.pem)
    with pytest.raises(LedgerError, match="refused"):  # PKIStatus 2
        timestamp.check(bytes.fromhex("30053003020102"), RECEIPT, ROOT.pem)


def test_a_certificate_for_something_else() -> None:
    for certificate in (issue("web", stamps=False), ROOT):
        with pytest.raises(ValueError, match="not for time stamps"):
            timestamp._check_purpose(certificate.certificate)


def test_somebody_who_is_no_authority_issues_nothing() -> None:
    assert not timestamp._issued(SIGNER.certificate, issue("x", SIGNER).certificate)
    assert timestamp._issued(MIDDLE.certificate, SIGNER.certificate)
    assert not timestamp._issued(STRANGER.certificate, MIDDLE.certificate)


@needs_openssl
def test_no_mutation_says_another_time(answer: bytes) -> None:
    """Some bytes are nobody's word (a text beside the status); none of them is the time or the digest."""
    right, dice = timestamp.check(answer, RECEIPT, ROOT.pem), random.Random(7)
    refused = 0
    for _ in range(1500):
        data = bytearray(answer)
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
        try:
            assert timestamp.check(bytes(data), RECEIPT, ROOT.pem) == right
        except LedgerError:
            refused += 1
    assert refused > 1400


# --- in the shell ---------------------------------------------------------------------------------


@needs_openssl
def test_from_request_to_stamp(tmp_path: Path) -> None:
    keys.make(tmp_path / "signing.key")
    workspace = Workspace.create(tmp_path / "model", fitted("compact", people()))
    workspace.protocol.signing.use(tmp_path / "signing.key")
    workspace.forget(owner=OWNER)
    receipt = shutil.copy(tmp_path / "model/receipts/2.json", tmp_path / "receipt.json")
    assert efface("timestamp", receipt).exit_code == 0
    assert efface("timestamp", receipt).exit_code == 2  # nothing is overwritten
    assert efface("timestamp", tmp_path / "signing.key.pub").exit_code == 4
    (tmp_path / "r.tsr").write_bytes(stamped(tmp_path / "a", receipt=Path(receipt).read_bytes()))
    (tmp_path / "root.pem").write_bytes(ROOT.pem)
    (tmp_path / "stranger.pem").write_bytes(STRANGER.pem)
    words = ("verify", receipt, "--key", tmp_path / "signing.key.pub", "--timestamp")
    shown = values_of(
        efface(*words, tmp_path / "r.tsr", "--tsa-cert", tmp_path / "root.pem", "--json")
    )
    assert [c["ok"] for c in shown["checks"] if c["name"] == "time stamp"] == [True]
    wrong = efface(*words, tmp_path / "r.tsr", "--tsa-cert", tmp_path / "stranger.pem")
    assert wrong.exit_code == 4
    assert efface(*words, tmp_path / "r.tsr").exit_code == 2
