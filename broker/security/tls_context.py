"""Builds what TLS connections need from the settings of a listener (Kafka: DefaultSslEngineFactory).

RULES    1. Every error is a `ConfigError` with the listener, the setting and OpenSSL's reason, without secrets.
         2. Each certificate of the truststore is trusted by itself, as in Java: it need not be a root.
         3. OpenSSL reads keys from files only: they are passed through memory without a name.
         4. Python's `ssl` cannot choose among the suites of TLS 1.3: a list that excludes some of them is refused, unless
            it excludes all or TLS 1.3 is off.
NOT HERE Which settings are refused (`broker/config/ssl_configs.py`), the stores (`tls_stores.py`), sockets
         (`broker/network/tls_transport.py`).
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from broker.config.broker_config import ConfigError
from broker.config.ssl_configs import SslSettings
from broker.security.authorizer import ANONYMOUS
from broker.security.ssl_principal import PrincipalMapper, distinguished_name
from broker.security.tls_stores import TlsStores, read_stores, setting_name

_VERIFY_MODES: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS_1_3_SUITES: Final = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})


class ListenerTls:
    """The certificate of a listener, the principals of its clients, and connections to this listener of other nodes."""

    def __init__(self, listener: str, settings: SslSettings) -> None:
        """Reads the stores.

        Raises:
            ConfigError: a file, a key, a suite or a rule is unusable.
        """
        self.listener = listener
        self.settings = settings
        self.stores = read_stores(listener, settings)
        self.context = _server_context(listener, settings, self.stores)
        """Of connections that are accepted."""
        self._client: ssl.SSLContext | None = None
        try:
            self._mapper = PrincipalMapper(settings.mapping_rules)
        except ValueError as error:
            raise ConfigError(f"listener {listener}: ssl.principal.mapping.rules: {error}") from None

    def adopt(self, other: ListenerTls) -> None:
        """Uses the stores of `other` for new connections."""
        self.settings, self.stores, self.context, self._client = other.settings, other.stores, other.context, None

    @property
    def client(self) -> ssl.SSLContext:
        """Of connections that this node opens."""
        if self._client is None:
            self._client = self.new_client(verifies_host=self.settings.verifies_host)
        return self._client

    def new_client(self, *, verifies_host: bool) -> ssl.SSLContext:
        """A context of connections that this node opens; without a truststore the system's certificates are trusted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load(context, self.listener, self.settings, self.stores)
        if self.stores.truststore is None:
            context.load_default_certs()
        context.check_hostname = verifies_host
        return context

    def principal(self, certificate: bytes | None) -> str:
        """The principal of a client with this verified certificate in DER; with SASL, until it has authenticated.

        Raises:
            NoPrincipal: it cannot be read, or the mapping rules have no name for it.
        """
        if certificate is None or self.settings.has_sasl:
            return ANONYMOUS
        return f"User:{self._mapper.name(distinguished_name(certificate))}"


def _server_context(listener: str, settings: SslSettings, stores: TlsStores) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, listener, settings, stores)
    context.verify_mode = _VERIFY_MODES[settings.client_auth]
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def _load(context: ssl.SSLContext, listener: str, settings: SslSettings, stores: TlsStores) -> None:
    """Sets what servers and clients have alike."""
    protocols = _choose_suites(context, listener, settings)
    context.minimum_version = min(protocols)
    context.maximum_version = max(protocols)
    if stores.keystore is not None:
        _load_key(context, listener, settings, stores.keystore)
    if stores.truststore is not None:
        _load_trusted(context, listener, settings, stores.truststore)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _choose_suites(context: ssl.SSLContext, listener: str, settings: SslSettings) -> set[ssl.TLSVersion]:
    """Sets the cipher suites; returns the protocols that have one."""
    versions = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
    protocols = {versions[name] for name in settings.protocols}
    wanted = set(settings.cipher_suites)
    if not wanted:
        return protocols
    newest, older = wanted & _TLS_1_3_SUITES, sorted(wanted - _TLS_1_3_SUITES)
    if ssl.TLSVersion.TLSv1_3 in protocols:
        if newest and newest != _TLS_1_3_SUITES:
            raise ConfigError(
                f"listener {listener}: ssl.cipher.suites cannot exclude single suites of TLS 1.3: name "
                f"{', '.join(sorted(_TLS_1_3_SUITES))}, or none of them"
            )
        if not newest:
            protocols.discard(ssl.TLSVersion.TLSv1_3)
    if not older:
        protocols.discard(ssl.TLSVersion.TLSv1_2)
    if not protocols:
        raise ConfigError(f"listener {listener}: no suite of ssl.cipher.suites belongs to ssl.enabled.protocols")
    names = [_openssl_name(context, listener, suite) for suite in older]
    if names:
        context.set_ciphers(":".join(names))
    return protocols


def _openssl_name(context: ssl.SSLContext, listener: str, suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"_CBC_", "_", re.sub(r"^AES_(\d+)", r"AES\1", cipher))
    cipher = cipher.removesuffix("_SHA256") if cipher.startswith("CHACHA20") else cipher
    name = "-".join(part for part in (exchange.removeprefix("RSA"), cipher) if part).replace("_", "-")
    try:
        context.set_ciphers(name)
    except ssl.SSLError:
        known = False
    else:
        known = any(row["name"] == name for row in context.get_ciphers())
    if not known:
        raise ConfigError(f"listener {listener}: OpenSSL has no cipher suite {suite} (ssl.cipher.suites)")
    return name


def _load_key(context: ssl.SSLContext, listener: str, settings: SslSettings, text: str) -> None:
    assert settings.keystore is not None, "the text is of a keystore"
    setting = setting_name(settings.keystore, "keystore")
    try:
        with _as_file(text) as path:  # without a password OpenSSL would ask the terminal
            context.load_cert_chain(path, password=lambda: settings.key_password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"listener {listener}: {setting} has no usable key and certificate: {_reason(error)}"
        ) from None


def _load_trusted(context: ssl.SSLContext, listener: str, settings: SslSettings, text: str) -> None:
    assert settings.truststore is not None, "the text is of a truststore"
    setting = setting_name(settings.truststore, "truststore")
    try:
        context.load_verify_locations(cadata=text.encode("ascii", "replace").decode())  # other text is a TypeError
    except ssl.SSLError as error:
        raise ConfigError(f"listener {listener}: {setting} has no usable certificates: {_reason(error)}") from None


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "the password or the PEM is wrong").lower().replace("_", " ")


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path from which OpenSSL can read a text (rule 3)."""
    data = text.encode("latin-1", "replace")
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("keystore"), "wb") as file:
            file.write(data)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile() as file:  # mode 0600
            file.write(data)
            file.flush()
            yield file.name
