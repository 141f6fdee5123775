"""Settings of Kafka's clients: given once, with the names of the Java clients, and translated for each library.

RULES    1. Spark's clients are Java's; the driver and the sender use librdkafka, the demo kafka-python.
         2. Certificates and keys are PEM, in files or in the settings: no other form is read by all libraries.
         3. A setting of TLS or SASL that has no translation raises JobError: no client connects otherwise than the others.
         4. Other settings are passed on unchanged.
NOT HERE Where the settings are given (`settings.py`), the sockets of our own requests (`secure_stream.py`).
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.pipeline.errors import JobError

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
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
_TRANSLATED = {*_LIBRDKAFKA_NAMES, "sasl.jaas.config", "ssl.truststore.type", "ssl.keystore.type"}


class Security(NamedTuple):
    """How a client connects. Texts are empty where nothing is given."""

    protocol: str
    mechanism: str
    username: str
    password: str
    tls: Mapping[str, str]
    """The settings that begin with `ssl.`."""

    @property
    def has_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol.endswith("SSL")

    @property
    def has_sasl(self) -> bool:
        """Whether the client authenticates with a password."""
        return self.protocol.startswith("SASL")

    @property
    def checks_host(self) -> bool:
        """Whether the node's certificate must name its host."""
        return bool(self.tls.get("ssl.endpoint.identification.algorithm", "https"))


def read_properties(path: Path) -> dict[str, str]:
    """Reads a file as Kafka's tools take with --command-config: lines of NAME=VALUE. Raises JobError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as failure:
        raise JobError(f"The client settings {path} cannot be read: {failure}.") from failure
    found = {}
    for line in re.sub(r"\\\r?\n\s*", "", text).splitlines():
        name, equals, value = line.strip().partition("=")
        if not name or name.startswith(("#", "!")):
            continue
        if not equals:
            raise JobError(f"The client settings {path} have a line that is not NAME=VALUE.")
        found[name.strip()] = value.strip()
    return found


def security_of(settings: Mapping[str, str]) -> Security:
    """Checks the settings of TLS and SASL. Raises JobError (rules 2 and 3)."""
    for name in settings:
        if name.startswith(_SECURITY) and name not in _TRANSLATED:
            raise JobError(f"The jobs cannot give {name} to all their clients: see docs/pipeline.md.")
    for store in ("truststore", "keystore"):
        if f"ssl.{store}.location" in settings and settings.get(f"ssl.{store}.type") != "PEM":
            raise JobError(f"ssl.{store}.location needs ssl.{store}.type=PEM: the jobs read no other certificates.")
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise JobError(f"security.protocol is {protocol}, and it must be one of {', '.join(PROTOCOLS)}.")
    mechanism, user, password = "", "", ""
    if protocol.startswith("SASL"):
        mechanism = settings.get("sasl.mechanism", "GSSAPI")
        if mechanism not in MECHANISMS:
            raise JobError(f"The jobs authenticate with {', '.join(MECHANISMS)}, and sasl.mechanism is {mechanism}.")
        user, password = _credentials(settings.get("sasl.jaas.config", ""))
    tls = {name: value for name, value in settings.items() if name.startswith("ssl.")}
    return Security(protocol, mechanism, user, password, tls)


def _credentials(jaas: str) -> tuple[str, str]:
    options = {name: re.sub(r"\\(.)", r"\1", quoted) or bare for name, quoted, bare in _JAAS_OPTION.findall(jaas)}
    if "username" not in options or "password" not in options:
        raise JobError('sasl.jaas.config must be a login module with username="…" and password="…".')
    return options["username"], options["password"]


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings for librdkafka. Raises JobError."""
    security = security_of(settings)
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
    """Returns the keyword arguments of kafka-python's clients for TLS and SASL. Raises JobError."""
    security = security_of(settings)
    found: dict[str, Any] = {"security_protocol": security.protocol}
    if security.has_sasl:
        found |= {"sasl_mechanism": security.mechanism}
        found |= {"sasl_plain_username": security.username, "sasl_plain_password": security.password}
    if security.has_tls:
        found["ssl_context"] = tls_context(security)
    return found


def tls_context(security: Security) -> ssl.SSLContext:
    """Returns the context of the settings' certificates. Raises JobError."""
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
    except (OSError, KeyError, ValueError) as failure:
        raise JobError(f"The certificates of the client settings cannot be used: {failure}.") from failure
    return context


def _lines(pem: str | None) -> str | None:
    return None if pem is None else pem.replace("\\n", "\n")
