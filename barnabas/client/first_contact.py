"""The first connection to a cluster: says at once what a client library would only retry until its timeout.

RULES    1. One address of several that answers is enough; otherwise the first error is raised, rather that of a node which
            answers and refuses than that of one which is down.
         2. A listener with TLS closes a connection that begins without it; one with SASL closes it at the first request that
            needs a login. So ApiVersions is asked, which needs none, and then Metadata, which does.
         3. With TLS 1.3 a client learns only from the first answer that the listener wants a certificate of it.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterable
from contextlib import closing, suppress

from barnabas.client.client_settings import Security
from barnabas.client.errors import ClientError
from barnabas.client.plain_requests import API_VERSIONS, METADATA, ask
from barnabas.client.secure_stream import Stream, connect
from barnabas.client.secure_stream import ask as ask_secured

TIMEOUT_S = 10.0


class _Unreached(ClientError):
    """There is no connection to the node."""


def check_answers(
    addresses: Iterable[tuple[str, int]],
    security: Security,
    timeout_s: float = TIMEOUT_S,
    *,
    options: str = "-X or --command-config",
) -> tuple[str, int]:
    """Asks these addresses until one answers, and logs in if the settings say so; returns that one.

    `options` take the settings. Raises ClientError: one sentence with the cause.
    """
    first: ClientError | None = None
    for host, port in addresses:
        try:
            _check(host, port, security, min(timeout_s, TIMEOUT_S), options)
        except ClientError as failure:
            if first is None or (isinstance(first, _Unreached) and not isinstance(failure, _Unreached)):
                first = failure
        else:
            return host, port
    raise first or ClientError("--bootstrap names no node.")


def _check(host: str, port: int, security: Security, timeout_s: float, options: str) -> None:
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            if not security.has_tls:
                _check_plaintext(plain, where, options, has_login=security.has_sasl)
    except (OSError, UnicodeError) as failure:
        reason = "timed out" if isinstance(failure, TimeoutError) else getattr(failure, "strerror", None) or failure
        hint = "start it, or name another one with --bootstrap"
        raise _Unreached(f"No broker answers at {where}: {reason}; {hint}.") from failure
    if security.has_tls or security.has_sasl:
        _check_secured(host, port, security, options, timeout_s)


def _check_plaintext(plain: socket.socket, where: str, options: str, *, has_login: bool) -> None:
    """Raises ClientError if the listener wants TLS or a login (rule 2), TimeoutError if it is silent."""
    if not _is_answered(plain, API_VERSIONS):
        raise ClientError(
            f"The listener at {where} does not speak Kafka's protocol in plaintext: "
            f"if it has TLS, set security.protocol=SSL or SASL_SSL ({options})."
        )
    if not has_login and not _is_answered(plain, METADATA):
        raise _login_missing(where, "SASL_PLAINTEXT", options)


def _is_answered(plain: socket.socket, request: bytes) -> bool:
    """Whether the node answers; False if it closes the connection."""
    try:
        return bool(ask(plain, request))
    except ConnectionError:
        return False


def _check_secured(host: str, port: int, security: Security, options: str, timeout_s: float) -> None:
    try:
        stream = connect(host, port, security, timeout_s)
    except ClientError as failure:
        cause = failure.__cause__
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLCertVerificationError):
            raise _tls_failure(f"{host}:{port}", cause) from failure
        raise
    with suppress(OSError), closing(stream):  # what is left to send is of no interest
        if not security.has_sasl:
            _check_encrypted(stream, f"{host}:{port}", options)


def _check_encrypted(stream: Stream, where: str, options: str) -> None:
    """Raises ClientError if the listener wants a certificate (rule 3) or a login (rule 2)."""
    try:
        ask_secured(stream, API_VERSIONS)
    except (OSError, ClientError) as failure:
        raise _tls_failure(where, failure) from failure
    try:
        ask_secured(stream, METADATA)
    except (OSError, ClientError) as failure:
        raise _login_missing(where, "SASL_SSL", options) from failure


def _tls_failure(where: str, failure: Exception) -> ClientError:
    reason = str(getattr(failure, "reason", None) or failure).rstrip(".")
    return ClientError(
        f"The TLS connection to {where} failed ({reason}): "
        "is the listener one with TLS, as security.protocol says, and does it want a certificate of the client?"
    )


def _login_missing(where: str, protocol: str, options: str) -> ClientError:
    return ClientError(
        f"The listener at {where} wants a login: set security.protocol={protocol}, sasl.mechanism and "
        f"sasl.jaas.config ({options})."
    )
