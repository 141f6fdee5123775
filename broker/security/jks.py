"""Reads Java key stores (JKS), as the JDK's sun.security.provider.JavaKeyStore writes them.

FORMAT   u4 0xFEEDFEED, u4 version, u4 count, entries, SHA-1 of (password, "Mighty Aphrodite", everything before).
         entry: u4 1, alias, u8 time, u4 length, key, u4 count, certificates · u4 2, alias, u8 time, certificate
         certificate: type (version 2 only), u4 length, DER · texts: u2 length, bytes · passwords: UTF-16, big endian
         key: SEQUENCE { SEQUENCE { OID 1.3.6.1.4.1.42.2.17.1.1, … }, OCTET STRING { salt, ciphertext, check, 20 bytes each
         but the second } }. Block n of the key stream is SHA-1 of (password, block n-1), block 0 is the salt; the check is
         SHA-1 of (password, plaintext). The plaintext is PKCS#8.
NOT HERE Other formats (`key_stores.py`).
"""

from __future__ import annotations

import hashlib
import hmac
from itertools import accumulate, repeat
from typing import Final, NamedTuple

from broker.security.der import elements, object_identifier

MAGIC: Final = bytes.fromhex("feedfeed")
_KEY_ENTRY, _TRUSTED_ENTRY = 1, 2
_VERSIONS: Final = (1, 2)
_TYPED: Final = 2
"""The version since which each certificate has a type."""
_KEY_PROTECTOR: Final = "1.3.6.1.4.1.42.2.17.1.1"
_WHITENER: Final = b"Mighty Aphrodite"
_DIGEST_BYTES: Final = 20


class KeyEntry(NamedTuple):
    """A private key with its certificate chain in DER, the key's own first."""

    protected_key: bytes
    chain: tuple[bytes, ...]


class JavaKeyStore(NamedTuple):
    """The entries of a store."""

    keys: tuple[KeyEntry, ...]
    trusted: tuple[bytes, ...]
    """Certificates in DER."""


def read_jks(data: bytes, password: str) -> JavaKeyStore:
    """The entries of a store; an empty password leaves the store's integrity unchecked, as in Java.

    Raises:
        ValueError: it is damaged, or the password is wrong.
    """
    reader = _Reader(data)
    if reader.take(len(MAGIC)) != MAGIC or (version := reader.number(4)) not in _VERSIONS:
        raise ValueError("it is not a JKS store of version 1 or 2")
    keys, trusted = [], []
    for _ in range(reader.number(4)):
        tag, _alias, _time = reader.number(4), reader.take(reader.number(2)), reader.number(8)
        if tag == _KEY_ENTRY:
            key = reader.take(reader.number(4))
            keys.append(KeyEntry(key, tuple(reader.certificate(version) for _ in range(reader.number(4)))))
        elif tag == _TRUSTED_ENTRY:
            trusted.append(reader.certificate(version))
        else:
            raise ValueError(f"it has an entry of the unknown kind {tag}")
    signed = data[: reader.position]
    digest = reader.take(_DIGEST_BYTES)
    if password and not hmac.compare_digest(_sha1(_encoded(password) + _WHITENER + signed), digest):
        raise ValueError("the store was tampered with, or its password is wrong")
    return JavaKeyStore(tuple(keys), tuple(trusted))


def private_key(entry: KeyEntry, password: str) -> bytes:
    """The private key of an entry, in PKCS#8 (DER).

    Raises:
        ValueError: the password is wrong, or the key is protected in another way.
    """
    try:
        (outer,) = elements(entry.protected_key)
        algorithm, protected = elements(outer.content)
        oid, *_ = elements(algorithm.content)
        if object_identifier(oid.content) != _KEY_PROTECTOR:
            raise ValueError("its key is not protected as keytool does it")
    except IndexError:
        raise ValueError("its key is damaged") from None
    secret = _encoded(password)
    salt, ciphertext, check = (
        protected.content[:_DIGEST_BYTES], protected.content[_DIGEST_BYTES:-_DIGEST_BYTES],
        protected.content[-_DIGEST_BYTES:],
    )  # fmt: skip
    blocks = accumulate(repeat(secret, -(-len(ciphertext) // _DIGEST_BYTES)), _next_block, initial=salt)
    next(blocks)  # the salt
    stream = b"".join(blocks)
    plaintext = bytes(left ^ right for left, right in zip(ciphertext, stream, strict=False))
    if not hmac.compare_digest(_sha1(secret + plaintext), check):
        raise ValueError("the password of its key is wrong")
    return plaintext


class _Reader:
    """Takes bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        taken = self._data[self.position : self.position + count]
        if len(taken) < count:
            raise ValueError("it is cut off")
        self.position += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def certificate(self, version: int) -> bytes:
        if version >= _TYPED and (kind := self.take(self.number(2))) != b"X.509":
            raise ValueError(f"it has a certificate of the type {kind.decode('latin-1')!r}")
        return self.take(self.number(4))


def _next_block(block: bytes, secret: bytes) -> bytes:
    return _sha1(secret + block)


def _encoded(password: str) -> bytes:
    return password.encode("utf-16-be")


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data).digest()  # noqa: S324  # the format's; nothing else protects the file
