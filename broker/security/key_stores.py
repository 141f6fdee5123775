"""Reads key and trust stores of Java, PKCS12 and JKS, as PEM for OpenSSL.

RULES    1. The first bytes say what a file is, as in Java, which reads PKCS12 declared as JKS and the reverse. Only PEM must be
            declared.
         2. A truststore trusts what Java trusts: certificates stored as trusted, and the own certificate of a key.
         3. Messages contain no password.
NOT HERE The formats (`jks.py`, `pkcs12.py`), PEM files (`tls_context.py`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from types import ModuleType
from typing import Final

from broker.security.jks import MAGIC, private_key, read_jks

_PEM_START: Final = b"-----"
_JCEKS: Final = bytes.fromhex("cececece")
_SEQUENCE: Final = b"\x30"
_LINE: Final = 64


def is_java_store(data: bytes) -> bool:
    """Whether a file is binary rather than PEM, which may begin with any text."""
    return data.startswith((MAGIC, _JCEKS, _SEQUENCE)) and _PEM_START not in data[:16]


def keystore_pem(data: bytes, password: str, key_password: str) -> str:
    """The private key and its certificate chain; without a key password it has the store's.

    Raises:
        ValueError: the store cannot be read, or has not one private key.
    """
    if _is_jks(data):
        return _jks_key(data, password, key_password)
    return _pkcs12_key(data, password, key_password)


def truststore_pem(data: bytes, password: str) -> str:
    """The trusted certificates.

    Raises:
        ValueError: the store cannot be read, or has no trusted certificate.
    """
    text = _jks_trusted(data, password) if _is_jks(data) else _pkcs12_trusted(data, password)
    if not text:
        raise ValueError("it has no trusted certificate")
    return text


def _is_jks(data: bytes) -> bool:
    """Whether a file is JKS; else it is PKCS12."""
    if data.startswith((MAGIC, _SEQUENCE)):
        return data.startswith(MAGIC)
    what = "a JCEKS store" if data.startswith(_JCEKS) else "neither PKCS12 nor JKS"
    raise ValueError(f"it is {what}: convert it with keytool -importkeystore -deststoretype PKCS12")


def _jks_key(data: bytes, password: str, key_password: str) -> str:
    entries = read_jks(data, password).keys
    if len(entries) != 1:
        raise ValueError(f"it has {len(entries)} private keys instead of one")
    (entry,) = entries
    return _pem("PRIVATE KEY", private_key(entry, key_password or password)) + _certificates(entry.chain)


def _jks_trusted(data: bytes, password: str) -> str:
    store = read_jks(data, password)
    return _certificates([*store.trusted, *(entry.chain[0] for entry in store.keys if entry.chain)])


def _pkcs12_key(data: bytes, password: str, key_password: str) -> str:
    key, chain = _pkcs12().private_key_and_chain(data, password)
    if key_password not in ("", password):
        raise ValueError("the key of a PKCS12 store has the password of the store: remove ssl.key.password")
    return _pem("PRIVATE KEY", key) + _certificates(chain)


def _pkcs12_trusted(data: bytes, password: str) -> str:
    return _certificates(_pkcs12().trusted_certificates(data, password))


def _pkcs12() -> ModuleType:
    try:
        from broker.security import pkcs12  # noqa: PLC0415  # its package is optional
    except ModuleNotFoundError:
        raise ValueError(
            "PKCS12 needs the package cryptography: pip install cryptography, or convert the file to PEM (openssl pkcs12)"
        ) from None
    return pkcs12


def _certificates(certificates: Iterable[bytes]) -> str:
    return "".join(_pem("CERTIFICATE", certificate) for certificate in certificates)


def _pem(label: str, data: bytes) -> str:
    text = base64.b64encode(data).decode()
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])
