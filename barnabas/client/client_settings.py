"""Settings of Kafka's clients: given once, with the names of the Java clients, and translated for each library.

RULES    1. Spark's clients are Java's; the driver and the sender use librdkafka, the demo and the verbs that administer
            kafka-python, the verbs for records our own connections.
         2. Certificates and keys are PEM, in files or in the settings: no other form is read by all libraries.
         3. A setting of TLS or SASL that has no translation raises ClientError: no client connects otherwise than the others.
         4. Other settings are passed on unchanged, to the libraries that know them.
         5. Jobs do not use OAUTHBEARER: a token cannot be renewed in Spark's workers.
NOT HERE Where the settings are given (`pipeline/settings.py`, `cli/connection.py`), the sockets of our own requests
         (`secure_stream.py`), where tokens are from (`oauth_tokens.py`).
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.client.errors import ArgumentError, ClientError
from barnabas.client.oauth_tokens import OAUTHBEARER, TokenSource, oauth_token
from barnabas.properties import properties_in

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_STORES = ("ssl.truststore.location", "ssl.keystore.location")
_SECURITY = ("security.", "sasl.", "ssl.")
_JAAS_OPTION = re.compile(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s";]+))')
_LIBRDKAFKA_NAMES = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanism",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.location": "ssl.certificate.location",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.key.password": "ssl.key.password",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
}
_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105 a name
_ONLY_JAVA = {"sasl.login.callback.handler.class"}
"""Java needs it for tokens; our own connections know what to do from the URL."""
_TRANSLATED = {
    *_LIBRDKAFKA_NAMES,
    *_ONLY_JAVA,
    _TOKEN_URL,
    "sasl.jaas.config",
    "ssl.truststore.type",
    "ssl.keystore.type",
}


class Security(NamedTuple):
    """How a client connects. Texts are empty where nothing is given."""

    protocol: str
    mechanism: str
    username: str
    password: str
    tls: Mapping[str, str]
    """The settings that begin with `ssl.`."""
    tokens: TokenSource | None = None
    """Of OAUTHBEARER."""

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether the client authenticates with a password or a token."""
        return self.protocol.startswith("SASL")

    @property
    def checks_host(self) -> bool:
        """Whether the node's certificate must name its host."""
        return bool(self.tls.get("ssl.endpoint.identification.algorithm", "https"))


def read_properties(path: Path) -> dict[str, str]:
    """Reads a file as Kafka's tools take with --command-config: lines of NAME=VALUE, in the format of Java's properties.

    Raises:
        ClientError: the file cannot be read, or a line has another form.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as failure:
        reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8 text"
        raise ClientError(f"The client settings {path} cannot be read: {reason}.") from failure
    found = {}
    for item in properties_in(text):
        if item is None:
            raise ClientError(f"The client settings {path} have a line that is not NAME=VALUE.")
        name, value = item
        found[name] = value
    return found


def parse_pairs(name: str, lines: Iterable[str]) -> dict[str, str]:
    """Parses lines of NAME=VALUE. Raises ClientError."""
    pairs = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise ArgumentError(f"{name} takes NAME=VALUE, not {line!r}.")
        pairs[key.strip()] = value.strip()
    return pairs


def is_security_setting(name: str) -> bool:
    """Whether a setting is one of TLS or SASL; `security_of` refuses those without an effect."""
    return name.startswith(_SECURITY)


def security_of(settings: Mapping[str, str]) -> Security:
    """Checks the settings of TLS and SASL. Raises ClientError (rules 2 and 3)."""
    for name in settings:
        if is_security_setting(name) and name not in _TRANSLATED:
            raise ClientError(f"No client here can be given {name}: docs/cli.md lists the settings of TLS and SASL.")
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.location" in settings and settings.get(f"ssl.{store}.type") != "PEM":
            raise ClientError(f"ssl.{store}.location needs ssl.{store}.type=PEM: no other certificates are read.")
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise ClientError(f"security.protocol is {protocol}, and it must be one of {', '.join(PROTOCOLS)}.")
    mechanism, user, password, tokens = "", "", "", None
    if protocol.startswith("SASL"):
        mechanism = settings.get("sasl.mechanism", "")
        if mechanism not in MECHANISMS:
            raise ClientError(
                f"sasl.mechanism is {mechanism or 'missing'}, and it must be one of {', '.join(MECHANISMS)}."
            )
        options = _jaas_options(settings.get("sasl.jaas.config", ""))
        if mechanism == OAUTHBEARER:
            tokens = TokenSource(settings.get(_TOKEN_URL, ""), options)
        else:
            user, password = _credentials(options)
    tls = {name: value for name, value in settings.items() if name.startswith("ssl.")}
    return Security(protocol, mechanism, user, password, tls, tokens)


def _jaas_options(jaas: str) -> dict[str, str]:
    return {name: re.sub(r"\\(.)", r"\1", quoted) or bare for name, quoted, bare in _JAAS_OPTION.findall(jaas)}


def _credentials(options: Mapping[str, str]) -> tuple[str, str]:
    if options.get("tokenauth", "").lower() == "true":
        raise ClientError(
            "sasl.jaas.config names a delegation token (tokenauth), which no client here can use: name a user."
        )
    if "username" not in options or "password" not in options:
        raise ClientError('sasl.jaas.config must be a login module with username="…" and password="…".')
    return options["username"], options["password"]


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings for librdkafka. Raises ClientError."""
    security = security_of(settings)
    if security.tokens is not None:
        raise ClientError("The jobs do not authenticate with OAUTHBEARER: give them PLAIN or SCRAM.")
    found = {name: value for name, value in settings.items() if not name.startswith(_SECURITY)}
    found |= {ours: settings[name] for name, ours in _LIBRDKAFKA_NAMES.items() if name in settings}
    if "ssl.certificate.location" in found:
        found["ssl.key.location"] = found["ssl.certificate.location"]
    if security.has_sasl:
        found |= {"sasl.username": security.username, "sasl.password": security.password}
    if not security.checks_host:
        found["ssl.endpoint.identification.algorithm"] = "none"
    return found


def for_kafka_python(settings: Mapping[str, str]) -> dict[str, Any]:
    """Returns the keyword arguments of kafka-python's clients for TLS and SASL. Raises ClientError."""
    security = security_of(settings)
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.tokens is not None:
        found |= {"sasl_mechanism": OAUTHBEARER, "sasl_oauth_token_provider": _token_provider(security.tokens)}
    elif security.has_sasl:
        found |= {"sasl_mechanism": security.mechanism}
        name = security.username
        if security.mechanism.startswith("SCRAM-"):  # kafka-python sends it as it is; RFC 5802, section 5.1
            name = name.replace("=", "=3D").replace(",", "=2C")
        found |= {"sasl_plain_username": name, "sasl_plain_password": security.password}
    if security.has_tls:
        found["ssl_context"] = tls_context(security)
    return found


def _token_provider(tokens: TokenSource) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return oauth_token(tokens)

    return Provider()


def tls_context(security: Security) -> ssl.SSLContext:
    """Returns the context of the settings' certificates. Raises ClientError."""
    tls = security.tls
    try:
        context = ssl.create_default_context(
            cafile=tls.get("ssl.truststore.location"), cadata=_lines(tls.get("ssl.truststore.certificates"))
        )
        context.check_hostname = security.checks_host
        if "ssl.keystore.location" in tls:
            context.load_cert_chain(tls["ssl.keystore.location"], password=tls.get("ssl.key.password"))
        elif "ssl.keystore.key" in tls:
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as both:  # Python reads keys only from files
                both.write(f"{tls['ssl.keystore.certificate.chain']}\n{tls['ssl.keystore.key']}\n")
                both.flush()
                context.load_cert_chain(both.name, password=tls.get("ssl.key.password"))
    except (OSError, KeyError, ValueError, TypeError) as failure:  # TypeError: a certificate that is not ASCII
        files = " and ".join(tls[name] for name in _STORES if name in tls) or "the client settings"
        reason = (
            f"{failure} is missing" if isinstance(failure, KeyError) else getattr(failure, "strerror", None) or failure
        )
        raise ClientError(f"The certificates of {files} cannot be used: {reason}.") from failure
    return context


def _lines(pem: str | None) -> str | None:
    return None if pem is None else pem.replace("\\n", "\n")
