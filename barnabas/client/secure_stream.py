"""A connection to a broker for our own requests: TLS, and a login with PLAIN, SCRAM (RFC 5802) or OAUTHBEARER (RFC 7628).

RULES    1. The connection is authenticated when it is returned; otherwise ClientError is raised.
NOT HERE The requests, the settings (`client_settings.py`), where a token is from (`oauth_tokens.py`).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import socket
import struct
from io import BufferedRWPair

from barnabas.client.client_settings import Security, tls_context
from barnabas.client.errors import ClientError
from barnabas.client.oauth_tokens import oauth_token
from barnabas.client.scram import HASHES, salted_password
from barnabas.client.wire import Fields

CONNECT_TIMEOUT_S = 10.0
SOCKET_TIMEOUT_S = 30.0
_SASL_HANDSHAKE_V1, _SASL_AUTHENTICATE_V0 = (17, 1), (36, 0)

Stream = BufferedRWPair


def connect(host: str, port: int, security: Security, timeout_s: float = SOCKET_TIMEOUT_S) -> Stream:
    """Connects and authenticates; `timeout_s` is of each answer. Raises ClientError."""
    try:
        with socket.create_connection((host, port), timeout=min(timeout_s, CONNECT_TIMEOUT_S)) as plain:
            plain.settimeout(timeout_s)
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not security.has_tls:
                return _authenticated(plain.makefile("rwb"), security)
            with tls_context(security).wrap_socket(plain, server_hostname=host) as encrypted:
                return _authenticated(encrypted.makefile("rwb"), security)
    except OSError as failure:
        reason = "timed out" if isinstance(failure, TimeoutError) else failure.strerror or failure
        raise ClientError(f"The broker at {host}:{port} does not answer: {reason}.") from failure


def ask(stream: Stream, request: bytes) -> bytes:
    """Sends a request and returns the response, both without their length."""
    stream.write(struct.pack(">i", len(request)) + request)
    stream.flush()
    (size,) = struct.unpack(">i", _receive(stream, 4))
    return _receive(stream, size)


def _receive(stream: Stream, count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise ClientError("The broker closed the connection.")
    return data


def _authenticated(stream: Stream, security: Security) -> Stream:
    if security.has_sasl:
        mechanism = security.mechanism.encode()
        response = ask(stream, _header(_SASL_HANDSHAKE_V1) + struct.pack(">h", len(mechanism)) + mechanism)
        fields = Fields(response, 4)
        error, offered = fields.number("h"), fields.array(fields.text)
        if error:
            instead = ", ".join(offered) or "none: leave SASL out of security.protocol"
            raise ClientError(f"The listener does not offer the mechanism {security.mechanism}, it offers {instead}.")
        if security.tokens is not None:
            bearer = oauth_token(security.tokens)
            refusal = _token(stream, f"n,,\x01auth=Bearer {bearer}\x01\x01".encode())
            if refusal:
                raise ClientError(f"The broker refused the token: {refusal.decode(errors='replace')}.")
        elif security.mechanism == "PLAIN":
            _token(stream, f"\0{security.username}\0{security.password}".encode())
        else:
            _scram(stream, security)
    return stream


def _scram(stream: Stream, security: Security) -> None:
    algorithm = HASHES[security.mechanism]
    user = security.username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={user},r={secrets.token_urlsafe(24)}".encode()
    challenge = _token(stream, b"n,," + first)
    fields = dict(part.split(b"=", 1) for part in challenge.split(b","))
    salt, iterations = base64.b64decode(fields[b"s"]), int(fields[b"i"])
    salted = salted_password(security.mechanism, security.password, salt, iterations)
    key = hmac.digest(salted, b"Client Key", algorithm)
    unsigned = b"c=biws,r=" + fields[b"r"]
    message = b",".join((first, challenge, unsigned))
    signature = hmac.digest(hashlib.new(algorithm, key).digest(), message, algorithm)
    proof = bytes(left ^ right for left, right in zip(key, signature, strict=True))
    final = _token(stream, unsigned + b",p=" + base64.b64encode(proof))
    verifier = hmac.digest(hmac.digest(salted, b"Server Key", algorithm), message, algorithm)
    if final != b"v=" + base64.b64encode(verifier):
        raise ClientError("The broker does not know the password of the client settings.")


def _token(stream: Stream, token: bytes) -> bytes:
    """Sends a token of the mechanism; returns the broker's."""
    response = ask(stream, _header(_SASL_AUTHENTICATE_V0) + struct.pack(">i", len(token)) + token)
    error, length = struct.unpack_from(">hh", response, 4)
    at = 8 + max(0, length)
    if error:
        raise ClientError(f"The broker refused the login: {response[8:at].decode()}.")
    (size,) = struct.unpack_from(">i", response, at)
    return response[at + 4 : at + 4 + size]


def _header(api: tuple[int, int]) -> bytes:
    return struct.pack(">hhih", *api, 1, -1)
