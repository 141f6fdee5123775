"""The TLS of a node's listeners, whose stores can be replaced while it runs (Kafka: SslFactory).

RULES    1. New stores serve new connections; present connections stay.
         2. As in Apache Kafka, new certificates keep their subject and all alternative names unless `ssl.allow.dn.changes` and
            `ssl.allow.san.changes` say otherwise, and a listener neither gets nor loses a store. Both settings count at once.
         3. On the inter-broker listener, a node must accept its own certificate, and old and new contexts each other.
         4. `find_changes` and store checks read files and may run in a thread; everything else runs on the event loop.
NOT HERE When files are checked (`broker/node/tls_reloader.py`), contexts (`tls_context.py`), which settings are dynamic
         (`broker/config/dynamic_configs.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broker.config.broker_config import BrokerConfig, ConfigError
from broker.config.security_configs import find_listener_ssl_error, uses_sasl, uses_tls
from broker.config.ssl_configs import SslSettings, ssl_settings
from broker.security.certificates import alternative_names_text, certificate_fields
from broker.security.ssl_principal import NoPrincipal, distinguished_name
from broker.security.tls_context import ListenerTls

_log = logging.getLogger("barnabas.network")

_CLIENT_AUTH: Final = "ssl.client.auth"
_CONFIG_EXCEPTION: Final = "org.apache.kafka.common.config.ConfigException"
_HANDSHAKE_ROUNDS: Final = 4

FileStates = tuple[tuple[int, int, int] | None, ...]
"""Inode, size and time of the stores' files; None: there is none."""
StoreCheck = Callable[[], str | None]
"""Reads changed stores (in a thread): why they cannot be used, in Apache Kafka's words; None if they can."""


class TlsChange(NamedTuple):
    """The new state of a listener, or why there is none."""

    tls: ListenerTls
    files: FileStates
    settings: SslSettings
    replacement: ListenerTls | None
    error: str | None


class NodeTls:
    """The TLS of the listeners of a node, and of those of other nodes to which it connects."""

    def __init__(self, config: BrokerConfig) -> None:
        """`config` is the static config."""
        self._config = config
        self._listeners: dict[str, ListenerTls] = {}
        self._seen: dict[str, tuple[SslSettings, FileStates]] = {}

    def of(self, listener: str) -> ListenerTls | None:
        """The TLS of a listener of this or other nodes; None if its connections are plaintext.

        Raises:
            ConfigError: a file, a key, a suite or a rule is unusable.
        """
        if not uses_tls(self._config, listener):
            return None
        if listener not in self._listeners:
            settings = _settings(self._config, listener)
            if settings.client_auth == "none" != self._config.given.get(_CLIENT_AUTH, "none"):
                _log.warning(
                    "listener %s: %s without the prefix listener.name.%s. does not count on this listener, since its "
                    "clients authenticate with SASL", listener, _CLIENT_AUTH, listener.lower()
                )  # fmt: skip
            self._seen[listener] = settings, _file_states(settings)
            self._listeners[listener] = tls = ListenerTls(listener, settings)
            if listener == self._config.inter_broker_listener and tls.stores.keystore is not None:
                _check_own_certificate(tls)
        return self._listeners[listener]

    @property
    def is_used(self) -> bool:
        """Whether a listener uses TLS."""
        return bool(self._listeners)

    def store_check(self, current: BrokerConfig, proposed: BrokerConfig) -> StoreCheck | None:
        """Reads the stores whose settings change; None if none does."""
        changed = []
        for listener, tls in self._listeners.items():
            settings = _settings(proposed, listener)
            if settings != _settings(current, listener):
                changed.append((tls, settings))
        return (lambda: self._validation_error(proposed, changed)) if changed else None

    def _validation_error(self, proposed: BrokerConfig, changed: list[tuple[ListenerTls, SslSettings]]) -> str | None:
        for tls, settings in changed:
            error = find_listener_ssl_error(proposed, tls.listener)
            if error is None:
                _, error = self._replacement(tls, settings)
            if error is not None:
                return (
                    f"Invalid value {_CONFIG_EXCEPTION}: Validation of dynamic config update of SSLFactory failed: "
                    f"{_CONFIG_EXCEPTION}: {error} for configuration Invalid dynamic configuration"
                )
        return None

    def find_changes(self, config: BrokerConfig) -> list[TlsChange]:
        """Reads the stores of the listeners whose settings or files differ from those seen last (in a thread)."""
        found = []
        for listener, tls in list(self._listeners.items()):
            settings = _settings(config, listener)
            files = _file_states(settings)
            if (settings, files) == self._seen[listener]:
                continue
            found.append(TlsChange(tls, files, settings, *self._replacement(tls, settings)))
        return found

    def adopt(self, changes: Sequence[TlsChange]) -> None:
        """Lets new connections use the new stores; an unusable one costs one log line, and the old one stays."""
        for change in changes:
            listener = change.tls.listener
            self._seen[listener] = change.settings, change.files
            if change.replacement is None:
                _log.warning(
                    "listener %s keeps its certificates, since the new ones are unusable: %s", listener, change.error
                )
            else:
                change.tls.adopt(change.replacement)
                _log.info("listener %s uses new certificates for new connections", listener)

    def _replacement(self, old: ListenerTls, settings: SslSettings) -> tuple[ListenerTls | None, str | None]:
        """What may replace the stores of a listener, or why nothing may."""
        try:
            new = ListenerTls(old.listener, settings)
            self._check(old, new)
        except (ConfigError, NoPrincipal, ValueError) as error:
            return None, str(error)
        return new, None

    def _check(self, old: ListenerTls, new: ListenerTls) -> None:
        """Raises ConfigError, with Apache Kafka's sentences, if the new stores break rule 2 or 3."""
        if old.stores.keystore is None and new.stores.keystore is not None:
            raise ConfigError("Cannot add SSL keystore to an existing listener for which no keystore was configured.")
        if old.stores.keystore is not None and new.stores.keystore is None:
            raise ConfigError(
                "Cannot remove the SSL keystore from an existing listener for which a keystore was configured."
            )
        if old.stores.keystore is not None:
            _check_names(old.stores.chain()[0], new.stores.chain()[0], new.settings)
        if old.stores.truststore is None and new.stores.truststore is not None:
            raise ConfigError(
                "Cannot add SSL truststore to an existing listener for which no truststore was configured."
            )
        if old.listener == self._config.inter_broker_listener and old.stores.truststore is not None:
            try:
                _try_handshake(old, new)
                _try_handshake(new, old)
            except ssl.SSLError as error:
                raise ConfigError(f"old and new stores do not accept each other: {_reason(error)}") from None


def _settings(config: BrokerConfig, listener: str) -> SslSettings:
    return ssl_settings(config.given, listener, has_sasl=uses_sasl(config, listener))


def _file_states(settings: SslSettings) -> FileStates:
    return tuple(
        _file_state(store.location) for store in (settings.keystore, settings.truststore) if store and store.location
    )


def _file_state(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _check_names(old: bytes, new: bytes, settings: SslSettings) -> None:
    before, after = certificate_fields(old), certificate_fields(new)
    if before.subject != after.subject and not settings.allows_dn_changes:
        raise ConfigError(
            _mismatch("DistinguishedName does", "DN", *(distinguished_name(each, ", ") for each in (old, new)))
        )
    if not {*before.alternative_names} <= {*after.alternative_names} and not settings.allows_san_changes:
        texts = (alternative_names_text(fields.alternative_names) for fields in (before, after))
        raise ConfigError(_mismatch("SubjectAltNames do", "SAN", *texts))


def _mismatch(what: str, key: str, old: str, new: str) -> str:
    """Apache Kafka's sentence; the alias is that of certificates in PEM there."""
    return f"Keystore {what} not match:  existing={{alias=kafka, {key}={old}}}, new={{alias=kafka, {key}={new}}}"


def _check_own_certificate(tls: ListenerTls) -> None:
    """Brokers with these settings must be able to connect to each other."""
    try:
        _try_handshake(tls, tls)
    except ssl.SSLError as error:
        raise ConfigError(
            f"listener {tls.listener} is for connections between brokers, but a client with its settings cannot connect to "
            f"a server with them: {_reason(error)}. Its truststore must trust the certificate of its keystore"
        ) from None


def _try_handshake(accepting: ListenerTls, connecting: ListenerTls) -> None:
    """Connects two ends in memory, without a look at the host.

    Raises:
        ssl.SSLError: they do not accept each other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = accepting.context.wrap_bio(to_server, to_client, server_side=True)
    client = connecting.new_client(verifies_host=False).wrap_bio(to_client, to_server)
    for _ in range(_HANDSHAKE_ROUNDS):
        for end in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _reason(error: ssl.SSLError) -> str:
    return getattr(error, "verify_message", "") or (error.reason or str(error)).lower().replace("_", " ")
