"""The settings of a TLS listener (Kafka: SslConfigs, BrokerSecurityConfigs).

RULES    1. `listener.name.<name in lower case>.ssl.X` overrides `ssl.X`.
         2. A value that would restrict clients in Apache Kafka and is not enforced here is refused, in one sentence.
         3. On listeners with SASL only the listener's own `ssl.client.auth` counts, not the general one (KIP-684).
         4. No sentence contains a password or a key.
NOT HERE Certificates and keys (`broker/security/tls_context.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.config.ssl_definitions import IGNORED_AND_SSL

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")
_CLIENT_AUTH: Final = "ssl.client.auth"
_CLIENT_AUTHS: Final = ("none", "requested", "required")
PEM: Final = "PEM"
_TYPES: Final = (PEM, "PKCS12", "JKS")
_FIXED: Final[Mapping[str, frozenset[str]]] = {
    "ssl.endpoint.identification.algorithm": frozenset({"", "https", "HTTPS"}),
    "ssl.engine.factory.class": frozenset({"", "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"}),
    "ssl.keymanager.algorithm": frozenset({"", "SunX509", "PKIX"}),
    "ssl.protocol": frozenset({"TLS", *PROTOCOLS}),
    "ssl.provider": frozenset({""}),
    "ssl.secure.random.implementation": frozenset({"", "SHA1PRNG", "DRBG", "NativePRNG", "NativePRNGNonBlocking"}),
    "ssl.trustmanager.algorithm": frozenset({"", "PKIX", "SunX509"}),
}
"""Settings with few values: most of them name parts of a Java runtime."""


class Store(NamedTuple):
    """A file, or a text in PEM."""

    location: str
    text: str
    type: str
    """PEM, or another one: which, the file says."""
    password: str
    """Of a file that is not PEM."""

    def __repr__(self) -> str:
        """No keys in logs."""
        return f"Store({self.location!r}, {self.type})"


class SslSettings(NamedTuple):
    """What a listener's TLS needs."""

    keystore: Store | None
    """Certificate chain and private key; None: this node is only a client there, and sends no certificate."""
    key_password: str
    truststore: Store | None
    """The certificates that the peers' certificates are verified with; None: the system's, and clients send none."""
    client_auth: str
    protocols: frozenset[str]
    cipher_suites: tuple[str, ...]
    """Names of IANA; empty: OpenSSL's default."""
    mapping_rules: str
    verifies_host: bool
    """Whether a client compares the host with the server's certificate."""
    has_sasl: bool = False
    """The clients' names are those of SASL; their certificates have only to be valid."""
    allows_dn_changes: bool = False
    """Whether a certificate that replaces the node's at run time may have another subject."""
    allows_san_changes: bool = False
    """The same for its alternative names."""

    def __repr__(self) -> str:
        """No keys in logs."""
        return f"SslSettings(client_auth={self.client_auth!r})"


class _Values:
    """The settings of one listener."""

    def __init__(self, given: Mapping[str, str], listener: str, *, has_sasl: bool) -> None:
        self._given = given
        self._prefix = f"listener.name.{listener.lower()}."
        self.has_sasl = has_sasl

    def text(self, name: str) -> str:
        default = IGNORED_AND_SSL[name].default or ""
        return self._given.get(self._prefix + name, self._given.get(name, default)).strip()

    def client_auth(self) -> str:
        """The listener's `ssl.client.auth` (rule 3)."""
        if self.has_sasl and self._prefix + _CLIENT_AUTH not in self._given:
            return "none"
        return self.text(_CLIENT_AUTH)

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())


def find_ssl_error(given: Mapping[str, str], listener: str, *, is_served: bool, has_sasl: bool = False) -> str | None:
    """The first setting of a TLS listener that must be refused, as a sentence; None if all are enforced.

    A listener that is not served is one of other nodes, to which this node connects.
    """
    values = _Values(given, listener, has_sasl=has_sasl)
    for name, allowed in _FIXED.items():
        if values.text(name) not in allowed:
            return f"listener {listener}: {name}={values.text(name)} is not supported: remove the setting"
    unknown = set(values.texts("ssl.enabled.protocols")) - set(PROTOCOLS)
    if unknown or not values.texts("ssl.enabled.protocols"):
        return f"listener {listener}: ssl.enabled.protocols must be a list of {' and '.join(PROTOCOLS)}"
    if values.client_auth() not in _CLIENT_AUTHS:
        return f"listener {listener}: {_CLIENT_AUTH} must be one of {', '.join(_CLIENT_AUTHS)}"
    needs_trust = is_served and values.client_auth() != "none"
    return _store_error(values, listener, "keystore", is_needed=is_served) or _store_error(
        values, listener, "truststore", is_needed=needs_trust
    )


def _store_error(values: _Values, listener: str, kind: str, *, is_needed: bool) -> str | None:
    """Kafka's rules and sentences (DefaultSslEngineFactory)."""
    inline = _INLINE[kind]
    where, password = values.text(f"ssl.{kind}.location"), values.text(f"ssl.{kind}.password")
    store_type = values.text(f"ssl.{kind}.type").upper()
    given = [name for name in inline if values.text(name)]
    if not where and not given:
        return f"listener {listener}: TLS needs ssl.{kind}.location or {' and '.join(inline)}" if is_needed else None
    if store_type not in _TYPES:
        return (
            f"listener {listener}: ssl.{kind}.type={store_type} is not supported: it must be one of {', '.join(_TYPES)}"
        )
    if given and store_type != PEM:
        return f"listener {listener}: {given[0]} can be specified only for PEM, but ssl.{kind}.type is {store_type}"
    if where and given:
        return f"listener {listener}: set either ssl.{kind}.location or {given[0]}, not both"
    if given and len(given) < len(inline):
        return f"listener {listener}: {' and '.join(inline)} must be set together"
    if kind == "keystore" and store_type != PEM and not password:
        return f"listener {listener}: SSL key store is specified, but ssl.keystore.password is not specified"
    if store_type == PEM and password:
        return (
            f"listener {listener}: SSL {kind} password cannot be specified with PEM format: remove ssl.{kind}.password"
        )
    return None


_PREFIX: Final = "listener.name."
_ALLOWED_CHANGES: Final = frozenset({"ssl.allow.dn.changes", "ssl.allow.san.changes"})
STORE_SETTINGS: Final = frozenset(
    {
        *("ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key", "ssl.keystore.location"),
        *("ssl.keystore.password", "ssl.keystore.type", "ssl.truststore.certificates", "ssl.truststore.location"),
        *("ssl.truststore.password", "ssl.truststore.type"),
    }
)
"""Can be changed at run time with the prefix of a listener (Kafka: SslConfigs.RECONFIGURABLE_CONFIGS)."""
_INLINE: Final[Mapping[str, tuple[str, ...]]] = {
    "keystore": ("ssl.keystore.certificate.chain", "ssl.keystore.key"),
    "truststore": ("ssl.truststore.certificates",),
}


def ssl_settings(given: Mapping[str, str], listener: str, *, has_sasl: bool = False) -> SslSettings:
    """The settings of a TLS listener for which `find_ssl_error` finds nothing."""
    values = _Values(given, listener, has_sasl=has_sasl)

    def store(kind: str) -> Store | None:
        location = values.text(f"ssl.{kind}.location")
        text = "\n".join(map(values.text, _INLINE[kind])).strip()
        store_type, password = values.text(f"ssl.{kind}.type").upper(), values.text(f"ssl.{kind}.password")
        return Store(location, text, store_type, password) if location or text else None

    return SslSettings(
        store("keystore"),
        values.text("ssl.key.password"),
        store("truststore"),
        values.client_auth(),
        frozenset(values.texts("ssl.enabled.protocols")),
        values.texts("ssl.cipher.suites"),
        values.text("ssl.principal.mapping.rules"),
        values.text("ssl.endpoint.identification.algorithm") != "",
        has_sasl,
        values.text("ssl.allow.dn.changes").lower() == "true",
        values.text("ssl.allow.san.changes").lower() == "true",
    )


def store_setting(name: str) -> str | None:
    """The general name of a setting of one listener's stores, which can be changed at run time; None for other settings."""
    _, _, own_name = name.removeprefix(_PREFIX).partition(".")
    is_of_store = own_name in STORE_SETTINGS or own_name in _ALLOWED_CHANGES
    return own_name if name.startswith(_PREFIX) and is_of_store else None


def is_ssl_setting(name: str) -> bool:
    """Whether a setting is about TLS, with or without the prefix of a listener."""
    if name.startswith(_PREFIX):
        _, _, name = name.removeprefix(_PREFIX).partition(".")
    return name.startswith("ssl.")
