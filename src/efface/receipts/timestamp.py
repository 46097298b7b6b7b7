"""Time stamps by somebody else (RFC 3161): that a receipt was there then, whatever the operator's clock said.

A request has the SHA-256 of the receipt's file, and nothing else of it. An authority signs that digest with
its own time; the answer lies beside the receipt. Sending the one and fetching the other is for ``curl``:
nothing here uses the network.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from efface.errors import LedgerError
from efface.receipts import der
from efface.receipts.der import Der

SHA256, SIGNED = der.oid("2.16.840.1.101.3.4.2.1"), der.oid("1.2.840.113549.1.7.2")
STAMP = der.oid("1.2.840.113549.1.9.16.1.4")
CONTENT_TYPE, MESSAGE_DIGEST = (der.oid(f"1.2.840.113549.1.9.{n}") for n in (3, 4))
WHOSE_V1, WHOSE_V2 = (der.oid(f"1.2.840.113549.1.9.16.2.{n}") for n in (12, 47))
HASHES: dict[bytes, hashes.HashAlgorithm] = {
    SHA256: hashes.SHA256(),
    der.oid("2.16.840.1.101.3.4.2.2"): hashes.SHA384(),
    der.oid("2.16.840.1.101.3.4.2.3"): hashes.SHA512(),
}
TIME = re.compile(rb"(\d{14})(\.\d+)?Z")
LONGEST_CHAIN = 5
WRONG = (  # what bytes that are no time stamp may end in
    *(ValueError, TypeError, IndexError, InvalidSignature, UnsupportedAlgorithm),
    *(x509.InvalidVersion, x509.ExtensionNotFound, x509.DuplicateExtension),
    x509.UnsupportedGeneralNameType,
)
FIX = "ask the authority again, and for its certificate."


@dataclass(frozen=True)
class Stamp:
    """When the authority saw the digest, and whose certificate it signed with."""

    time: datetime
    signer: x509.Certificate


def request(receipt: bytes) -> bytes:
    """What an authority is asked (``.tsq``): to sign the digest of the receipt, and send its certificate."""
    imprint = _imprint(hashlib.sha256(receipt).digest())
    nonce = der.integer(secrets.randbits(64))
    return der.value(der.SEQUENCE, der.integer(1), imprint, nonce, der.value(der.BOOLEAN, b"\xff"))


def _imprint(digest: bytes) -> bytes:
    algorithm = der.value(der.SEQUENCE, SHA256, der.value(der.NULL))
    return der.value(der.SEQUENCE, algorithm, der.value(der.OCTETS, digest))


def check(answer: bytes, receipt: bytes, trusted: bytes) -> Stamp:
    """The stamp in an answer (``.tsr``), if it is of this receipt and by an authority of ``trusted``, PEM.

    LedgerError says what is wrong: another digest, a signature that is none, a certificate that nobody of
    ``trusted`` has issued, that was not valid then or is not for time stamps.
    """
    try:
        return _checked(answer, receipt, x509.load_pem_x509_certificates(trusted))
    except WRONG as problem:
        reason = "its signature is none" if isinstance(problem, InvalidSignature) else str(problem)
        raise LedgerError(f"the time stamp does not check: {reason}.", FIX) from problem


def _checked(answer: bytes, receipt: bytes, trusted: Sequence[x509.Certificate]) -> Stamp:
    signed = _token(answer)
    stamp, beside = _content(signed), _certificates(signed)
    time = _time(stamp, receipt)
    (info,) = signed[-1].expect(der.SET).parts()
    signer = _verified(info.sequence(), stamp, [*trusted, *beside])
    _check_purpose(signer)
    _check_chain(signer, trusted, beside, time)
    return Stamp(time, signer)


# --- what it says ---------------------------------------------------------------------------------


def _token(answer: bytes) -> list[Der]:
    """The parts of the signed data, if the authority granted the request."""
    status, *token = der.parse(answer).sequence()
    granted = int.from_bytes(status.sequence()[0].expect(der.INTEGER).body)
    if granted not in (0, 1) or len(token) != 1:
        raise ValueError("the authority has refused the request")
    kind, content = token[0].sequence()
    if kind.raw != SIGNED:
        raise ValueError("it holds no signed data")
    return der.parse(content.expect(der.inside(0)).body).sequence()


def _content(signed: Sequence[Der]) -> bytes:
    kind, content = signed[2].sequence()
    if kind.raw != STAMP:
        raise ValueError("what is signed is no time stamp")
    return der.parse(content.expect(der.inside(0)).body).expect(der.OCTETS).body


def _certificates(signed: Sequence[Der]) -> list[x509.Certificate]:
    held = [part for part in signed[3:-1] if part.tag == der.inside(0)]
    return [x509.load_der_x509_certificate(c.raw) for part in held for c in part.parts()]


def _time(stamp: bytes, receipt: bytes) -> datetime:
    _, _, imprint, _, time, *_ = der.parse(stamp).sequence()
    algorithm, digest = imprint.sequence()
    if algorithm.sequence()[0].raw != SHA256:
        raise ValueError("it is about a digest that is no SHA-256")
    if digest.expect(der.OCTETS).body != hashlib.sha256(receipt).digest():
        raise ValueError("it is about another file")
    found = TIME.fullmatch(time.expect(der.TIME).body)
    if found is None:
        raise ValueError("its time is none")
    return datetime.strptime(found[1].decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)


# --- who says it ----------------------------------------------------------------------------------


def _verified(
    info: Sequence[Der], stamp: bytes, known: Sequence[x509.Certificate]
) -> x509.Certificate:
    """The certificate of the key that has signed the stamp, by way of the attributes that are signed."""
    _, who, how, attributes, _, signature, *_ = info
    attributes.expect(der.inside(0))
    digest = HASHES.get(how.sequence()[0].raw)
    if digest is None:
        raise ValueError("it is signed with a hash that is too old, or not known")
    found = {name.raw: values.expect(der.SET).parts() for name, values in _pairs(attributes)}
    if [v.raw for v in found[CONTENT_TYPE]] != [STAMP]:
        raise ValueError("what is signed is no time stamp")
    if [v.expect(der.OCTETS).body for v in found[MESSAGE_DIGEST]] != [_hash(digest, stamp)]:
        raise ValueError("what is signed is another time stamp")
    signer = _signer(who, found, known)
    _verify(signer, signature.expect(der.OCTETS).body, der.value(der.SET, attributes.body), digest)
    return signer


def _pairs(attributes: Der) -> list[tuple[Der, Der]]:
    found = [attribute.sequence() for attribute in attributes.parts()]
    if len({name.raw for name, _ in found}) != len(found):
        raise ValueError("an attribute is there twice")
    if not {CONTENT_TYPE, MESSAGE_DIGEST} <= {name.raw for name, _ in found}:
        raise ValueError("an attribute is missing")
    return [(name, values) for name, values in found]


def _signer(
    who: Der, found: dict[bytes, list[Der]], known: Sequence[x509.Certificate]
) -> x509.Certificate:
    """Whom the stamp names, by issuer and number, and once more by the digest of the certificate."""
    issuer, number = who.sequence()
    wanted = int.from_bytes(number.expect(der.INTEGER).body, signed=True)
    digest = _certificate_digest(found)
    for certificate in known:
        named = certificate.issuer.public_bytes() == issuer.raw
        if (
            named
            and certificate.serial_number == wanted
            and digest == _fingerprint(certificate, digest)
        ):
            return certificate
    raise ValueError("the certificate that it names is not there")


def _certificate_digest(found: dict[bytes, list[Der]]) -> bytes:
    """ESSCertID: the digest of the signer's certificate, SHA-1 in the older of the two."""
    named = found.get(WHOSE_V2) or found.get(WHOSE_V1) or []
    if not named:
        raise ValueError("it does not name its certificate")
    (held,) = named
    first = held.sequence()[0].sequence()[0].sequence()
    (digest,) = [part.body for part in first if part.tag == der.OCTETS]
    return digest


def _fingerprint(certificate: x509.Certificate, like: bytes) -> bytes:
    """By the hash whose digests have that length."""
    kinds = {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}
    data = certificate.public_bytes(Encoding.DER)
    return hashlib.new(kinds.get(len(like), "sha256"), data, usedforsecurity=False).digest()


def _hash(kind: hashes.HashAlgorithm, data: bytes) -> bytes:
    made = hashes.Hash(kind)
    made.update(data)
    return made.finalize()


def _verify(
    signer: x509.Certificate, signature: bytes, data: bytes, digest: hashes.HashAlgorithm
) -> None:
    key = signer.public_key()
    if isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, data, padding.PKCS1v15(), digest)
    elif isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, data, ec.ECDSA(digest))
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, data)
    else:
        raise ValueError("its key is of a kind that is not known here")


def _check_purpose(signer: x509.Certificate) -> None:
    try:
        use = signer.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        raise ValueError("the certificate is not for time stamps") from None
    if not use.critical or list(use.value) != [ExtendedKeyUsageOID.TIME_STAMPING]:
        raise ValueError("the certificate is not for time stamps alone")


def _check_chain(
    signer: x509.Certificate,
    trusted: Sequence[x509.Certificate],
    beside: Sequence[x509.Certificate],
    time: datetime,
) -> None:
    """From the signer by issuers to one that is trusted; all of them valid at that time."""
    here = signer
    for _ in range(LONGEST_CHAIN):
        if not here.not_valid_before_utc <= time <= here.not_valid_after_utc:
            raise ValueError("a certificate was not valid then")
        if here in trusted:
            return
        issuer = next((c for c in (*trusted, *beside) if _issued(c, here)), None)
        if issuer is None or issuer == here:
            break
        here = issuer
    raise ValueError("nobody who is trusted has issued its certificate")


def _issued(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        limits = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        certificate.verify_directly_issued_by(issuer)
    except WRONG:
        return False
    return limits.ca
