"""Reads PKCS12 stores with the package cryptography: importing this module fails without it.

RULES    1. The trusted certificates of a store cannot be distinguished from the chain of its key: both in one are refused as a
            truststore, since Java trusts only the first kind.
NOT HERE Which format a file has (`key_stores.py`).
"""

from __future__ import annotations

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, load_pkcs12

from broker.security.certificates import chain_of


def private_key_and_chain(data: bytes, password: str) -> tuple[bytes, list[bytes]]:
    """The private key in PKCS#8 and its certificate chain, the key's own first; all in DER.

    Raises:
        ValueError: the store cannot be read, or has no private key.
    """
    store = load_pkcs12(data, password.encode())
    if store.key is None or store.cert is None:
        raise ValueError("it has no private key with a certificate")
    key = store.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return key, chain_of([_der(store.cert), *map(_der, store.additional_certs)])


def trusted_certificates(data: bytes, password: str) -> list[bytes]:
    """The trusted certificates in DER.

    Raises:
        ValueError: the store cannot be read, or has a private key with a chain (rule 1).
    """
    store = load_pkcs12(data, password.encode())
    if store.key is not None and store.additional_certs:
        raise ValueError("it has a private key too: store the trusted certificates in a file of their own")
    own = [] if store.cert is None else [_der(store.cert)]
    return [*own, *map(_der, store.additional_certs)]


def _der(certificate: PKCS12Certificate) -> bytes:
    return certificate.certificate.public_bytes(Encoding.DER)
