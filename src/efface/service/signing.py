"""Signed replies of OpenDSR: base64 of a signature, RSA or ECDSA with SHA-256, over the raw body."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from efface.errors import EffaceError

DOMAIN, SIGNATURE = "X-OpenDSR-Processor-Domain", "X-OpenDSR-Signature"
LARGEST_FILE = 1 << 20


class ReplySigner:
    """Signs with a private key; the certificate is handed out."""

    def __init__(self, key: Path, certificate: Path, domain: str) -> None:
        self.domain = domain
        try:
            loaded = serialization.load_pem_private_key(_read(key), password=None)
            self.certificate = _read(certificate)
            found = x509.load_pem_x509_certificate(self.certificate)
        except (ValueError, TypeError) as problem:
            message = f"{key.name} and {certificate.name} are not a PEM key and certificate."
            raise EffaceError(message, "give an RSA or ECDSA key without a password.") from problem
        if not isinstance(loaded, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
            raise EffaceError(f"{key.name} is neither RSA nor ECDSA.", "make one that is.")
        if found.public_key() != loaded.public_key():
            message = f"{certificate.name} is not the certificate of {key.name}."
            raise EffaceError(message, "give the pair.")
        self._key = loaded

    def sign(self, body: bytes) -> str:
        if isinstance(self._key, rsa.RSAPrivateKey):
            signature = self._key.sign(body, padding.PKCS1v15(), hashes.SHA256())
        else:
            signature = self._key.sign(body, ec.ECDSA(hashes.SHA256()))
        return base64.b64encode(signature).decode()

    def headers(self, body: bytes) -> dict[str, str]:
        return {DOMAIN: self.domain, SIGNATURE: self.sign(body)}


def is_signed(body: bytes, signature: str, certificate: bytes) -> bool:
    """Whether the holder of this certificate (PEM) signed the body; what a controller checks."""
    key = x509.load_pem_x509_certificate(certificate).public_key()
    try:
        plain = base64.b64decode(signature.encode(), validate=True)
        if base64.b64encode(plain).decode() != signature:
            return False  # spare bits that are not zero: another spelling
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(plain, body, padding.PKCS1v15(), hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(plain, body, ec.ECDSA(hashes.SHA256()))
        else:
            return False
    except (InvalidSignature, binascii.Error, ValueError):
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_FILE)
    except OSError as problem:
        raise EffaceError(f"{path} cannot be read.", "check the path.") from problem
