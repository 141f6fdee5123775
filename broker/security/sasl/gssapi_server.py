"""SASL/GSSAPI with Kerberos (RFC 4752; Java: GssKrb5Server).

FORMAT   client and server exchange tokens of GSS-API until both have a context; then
         server     wrapped: u1 layers, u3 size, without encryption
         client     wrapped: u1 layer, u3 size, [authorization id]; the server answers with an empty token
RULES    1. The only layer is authentication (1): TLS encrypts, as in Apache Kafka.
         2. The authorization id is ignored, as in Apache Kafka: the user is that of the client's ticket.
         3. Each step runs in a thread: the library reads the key file, and writes a file against replays.
         4. A client learns nothing from a failure; the log has the library's reason.
NOT HERE Settings (`broker/config/gssapi_configs.py`). Importing this module fails without the package gssapi.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import gssapi

from broker.config.broker_config import ConfigError
from broker.config.gssapi_configs import RULES_SETTING, GssapiAcceptor
from broker.security.sasl.callbacks import CallbackThreads
from broker.security.sasl.kerberos_names import KerberosNames
from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from replication.completion import Completion

_log = logging.getLogger("barnabas.security")

_AUTHENTICATION_ONLY: Final = 1
_OFFER: Final = bytes((_AUTHENTICATION_ONLY, 0, 0, 0))


class Acceptor:
    """The key of a listener, and the names of its clients."""

    def __init__(self, config: GssapiAcceptor) -> None:
        """Checks that the key exists.

        Raises:
            ConfigError: it does not, or a rule is invalid.
        """
        self._config = config
        try:
            self._names = KerberosNames(config.rules)
        except ValueError as error:
            raise ConfigError(f"{RULES_SETTING}: {error}") from None
        try:
            self.credentials()
        except gssapi.exceptions.GSSError as error:
            raise ConfigError(f"GSSAPI: {config.keytab} has no usable key of {config.principal}: {error}") from None

    def credentials(self) -> gssapi.Credentials:
        """The key, read from its file: it may have been renewed."""
        name = gssapi.Name(self._config.principal, gssapi.NameType.kerberos_principal)
        only = [gssapi.MechType.kerberos]  # no negotiation of other mechanisms
        return gssapi.Credentials(name=name, usage="accept", mechs=only, store={"keytab": self._config.keytab})

    def user(self, principal: str) -> str:
        """The user of a client.

        Raises:
            NoLocalName: no rule makes one.
        """
        anybody = gssapi.Name("anybody", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
        return self._names.user(principal, str(anybody).rpartition("@")[2])


class GssapiServer(SaslServer):
    """The server of one authentication."""

    def __init__(self, acceptor: Acceptor, threads: CallbackThreads) -> None:
        self._acceptor = acceptor
        self._threads = threads
        self._context: gssapi.SecurityContext | None = None
        self._is_offered = False

    def evaluate(self, token: bytes) -> Completion[bytes]:
        """The answer to a token; the error is InvalidCredentials."""
        return self._threads.run(partial(self._evaluate, token))

    def _evaluate(self, token: bytes) -> bytes:
        """The same, in a thread."""
        try:
            if self._context is None:
                self._context = gssapi.SecurityContext(creds=self._acceptor.credentials(), usage="accept")
            if not self._context.complete:
                answer: bytes | None = self._context.step(token)
                return answer or self._offer(self._context)
            return self._finish(self._context, token) if self._is_offered else self._offer(self._context)
        except (gssapi.exceptions.GSSError, ValueError) as error:
            _log.info("a client is refused by GSSAPI: %s", error)
            raise InvalidCredentials from None

    def _offer(self, context: gssapi.SecurityContext) -> bytes:
        """The layers that the client may choose from."""
        if not context.complete:
            raise ValueError("the context needs a token that the library does not have")
        self._is_offered = True
        wrapped: bytes = context.wrap(_OFFER, False).message  # whether it is encrypted
        return wrapped

    def _finish(self, context: gssapi.SecurityContext, token: bytes) -> bytes:
        """Authenticates the client, which has chosen a layer."""
        chosen: bytes = context.unwrap(token).message
        if len(chosen) < len(_OFFER) or chosen[0] != _AUTHENTICATION_ONLY:
            raise ValueError("it chose a security layer that was not offered")
        self.user = self._acceptor.user(str(context.initiator_name))
        return b""
