"""Reads the key and trust stores of a listener, from files or from the settings, as PEM.

RULES    1. Every error is a `ConfigError` with the listener, the setting and the reason, without secrets.
         2. A file is read once: the key and its certificates are of the same moment.
         3. Only regular files of at most 16 MiB are read: dynamic configs can name any path, and a pipe or a device would
            stop the event loop.
         4. A file in PEM must be declared as PEM, and no other, as in Java.
NOT HERE Binary stores (`key_stores.py`), what OpenSSL makes of a store (`tls_context.py`).
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.config.broker_config import ConfigError
from broker.config.ssl_configs import PEM, SslSettings, Store
from broker.security.key_stores import is_java_store, keystore_pem, truststore_pem

_BLOCK: Final = re.compile(r"-+BEGIN ([A-Z0-9 ]+?)-+(.*?)-+END \1-+", re.DOTALL)
_LINE: Final = 64
_CERTIFICATE: Final = "CERTIFICATE"
_MAX_BYTES: Final = 16 * 1024 * 1024


class TlsStores(NamedTuple):
    """The contents of a listener's stores in PEM; None: there is no such store."""

    keystore: str | None
    """A private key, perhaps encrypted, and its certificate chain."""
    truststore: str | None

    def __repr__(self) -> str:
        """No keys in logs."""
        return "TlsStores"

    def chain(self) -> list[bytes]:
        """The keystore's certificates in DER, the node's own first."""
        blocks = pem_blocks(self.keystore or "", _CERTIFICATE)
        return [ssl.PEM_cert_to_DER_cert(block) for block in blocks]


def read_stores(listener: str, settings: SslSettings) -> TlsStores:
    """Reads both stores.

    Raises:
        ConfigError: a store cannot be read.
    """
    keystore = truststore = None
    if (store := settings.keystore) is not None:
        password, key_password = store.password, settings.key_password
        keystore = _read(listener, store, "keystore", lambda data: keystore_pem(data, password, key_password))
    if (store := settings.truststore) is not None:
        trusted = store.password
        text = _read(listener, store, "truststore", lambda data: truststore_pem(data, trusted))
        truststore = "".join(pem_blocks(text, _CERTIFICATE))
        if not truststore:
            raise ConfigError(f"listener {listener}: {setting_name(store, 'truststore')} has no certificates in PEM")
    return TlsStores(keystore, truststore)


def setting_name(store: Store, kind: str) -> str:
    """The setting that a store is from."""
    if store.location:
        return f"ssl.{kind}.location"
    return "ssl.truststore.certificates" if kind == "truststore" else "ssl.keystore.key"


def pem_blocks(text: str, only: str = "") -> list[str]:
    """The blocks of a PEM text with lines of the usual length: in a settings file it is often one line."""
    blocks = []
    for label, body in _BLOCK.findall(text.replace("\\n", "\n").replace("\\r", "")):
        if only and label != only:
            continue
        base64 = "".join(body.split())
        lines = [base64[start : start + _LINE] for start in range(0, len(base64), _LINE)]
        blocks.append("\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""]))
    return blocks


def _content(path: str) -> bytes:
    """The contents of a regular file that is not too large.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no regular file, or too large; the message says which.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("is not a regular file")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"has more than {_MAX_BYTES} bytes")
    return data


def _read(listener: str, store: Store, kind: str, convert: Callable[[bytes], str]) -> str:
    if not store.location:
        return "".join(pem_blocks(store.text))
    where = f"listener {listener}: ssl.{kind}.location"
    try:
        data = _content(store.location)
    except OSError as error:
        raise ConfigError(f"{where}: cannot read {store.location}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{where}: {store.location} {error}") from None
    is_pem = not is_java_store(data)
    if is_pem != (store.type == PEM):
        found = "in PEM" if is_pem else "not in PEM"
        raise ConfigError(f"{where}: {store.location} is {found}, but ssl.{kind}.type is {store.type}")
    try:
        return data.decode("latin-1") if is_pem else convert(data)
    except ValueError as error:
        raise ConfigError(f"{where}: cannot load {store.location}: {error}") from None
