"""The first connection to a cluster: says at once what a client library would only retry until its timeout.

RULES    1. One address of several that answers is enough; otherwise the first error is raised.
         2. A listener with TLS closes a connection that begins without it; one with SASL closes it at the first request that
            needs a login. So ApiVersions is asked, which needs none, and then Metadata, which does.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterable

from barnabas.client.client_settings import Security
from barnabas.client.errors import ClientError
from barnabas.client.secure_stream import connect

TIMEOUT_S = 10.0
_API_VERSIONS = b"\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
"""Version 0, correlation id 1, no client id."""
_METADATA = b"\x00\x03\x00\x01\x00\x00\x00\x02\xff\xff\x00\x00\x00\x00"
"""Version 1, correlation id 2, no client id, of no topic."""


def check_answers(addresses: Iterable[tuple[str, int]], security: Security, timeout_s: float = TIMEOUT_S) -> None:
    """Asks one of these addresses, and logs in if the settings say so. Raises ClientError: one sentence with the cause."""
    first: ClientError | None = None
    for host, port in addresses:
        try:
            _check(host, port, security, min(timeout_s, TIMEOUT_S))
        except ClientError as failure:
            first = first or failure
        else:
            return
    raise first or ClientError("--bootstrap names no node.")


def _check(host: str, port: int, security: Security, timeout_s: float) -> None:
    where = f"{host}:{port}"
    try:
        with socket.create_connection((host, port), timeout_s) as plain:
            if not (security.has_tls or security.has_sasl):
                _check_plaintext(plain, where)
    except (OSError, UnicodeError) as failure:
        reason = "timed out" if isinstance(failure, TimeoutError) else getattr(failure, "strerror", None) or failure
        hint = "start it, or name another one with --bootstrap"
        raise ClientError(f"No broker answers at {where}: {reason}; {hint}.") from failure
    if security.has_tls or security.has_sasl:
        _check_secured(host, port, security)


def _check_plaintext(plain: socket.socket, where: str) -> None:
    """Raises ClientError if the listener wants TLS or a login (rule 2), TimeoutError if it is silent."""
    if _ask(plain, _API_VERSIONS)[:4] != _API_VERSIONS[4:8]:
        raise ClientError(
            f"The listener at {where} does not speak Kafka's protocol in plaintext: "
            "if it has TLS, set security.protocol=SSL or SASL_SSL (-X or --command-config)."
        )
    if _ask(plain, _METADATA)[:4] != _METADATA[4:8]:
        raise ClientError(
            f"The listener at {where} wants a login: set security.protocol=SASL_PLAINTEXT, sasl.mechanism and "
            "sasl.jaas.config (-X or --command-config)."
        )


def _ask(plain: socket.socket, request: bytes) -> bytes:
    """The first bytes of a response; empty if the connection was closed instead."""
    try:
        plain.sendall(struct.pack(">i", len(request)) + request)
        stream = plain.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size) if 4 <= size < 1 << 24 else b""
    except (ConnectionError, struct.error):
        return b""


def _check_secured(host: str, port: int, security: Security) -> None:
    try:
        connect(host, port, security).close()
    except ClientError as failure:
        cause = failure.__cause__
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLCertVerificationError):
            raise ClientError(
                f"The TLS connection to {host}:{port} failed ({cause.reason or cause}): "
                "is the listener one with TLS, as security.protocol says, and does it want a certificate of the client?"
            ) from failure
        raise
