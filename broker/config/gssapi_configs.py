"""The settings of GSSAPI (Kerberos) on a listener.

RULES    1. The JAAS text names the node's key: `useKeyTab=true`, `keyTab` and `principal`. Other sources of keys are refused.
         2. The package gssapi is an extra: it is built with the Kerberos library of the machine, and finds realms as that does
            (/etc/krb5.conf, KRB5_CONFIG).
         3. GSSAPI is for clients. Between nodes it is refused.
NOT HERE Authentication (`broker/security/sasl/gssapi_server.py`), names (`broker/security/sasl/kerberos_names.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.config.broker_config import ConfigError

GSSAPI: Final = "GSSAPI"
LOGIN_MODULE: Final = "com.sun.security.auth.module.Krb5LoginModule"
RULES_SETTING: Final = "sasl.kerberos.principal.to.local.rules"


class GssapiAcceptor(NamedTuple):
    """How a listener authenticates clients with Kerberos."""

    keytab: str
    """The path of the file with the node's keys."""
    principal: str
    """The node's name, such as kafka/host@REALM."""
    rules: tuple[str, ...] = ("DEFAULT",)
    """How principals of clients become users."""


def gssapi_acceptor(setting: str, options: Mapping[str, str], rules: list[str]) -> GssapiAcceptor:
    """What the options of a JAAS text say; `setting` is its name.

    Raises:
        ConfigError: an option is missing.
    """
    keytab, principal = options.get("keyTab", ""), options.get("principal", "")
    if options.get("useKeyTab", "").lower() != "true" or not keytab or not principal:
        raise ConfigError(
            f"{setting} needs useKeyTab=true, keyTab and principal: this broker takes keys from a file only"
        )
    return GssapiAcceptor(keytab.removeprefix("FILE:"), principal, tuple(rules))
