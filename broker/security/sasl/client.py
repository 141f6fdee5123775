"""The client side of SASL, for this node's connections to other nodes (Kafka: SaslClientAuthenticator).

RULES    1. A SCRAM client refuses more iterations than Apache Kafka allows to store, so that a server cannot keep it busy, and
            a server that does not know the password.
NOT HERE Messages and sockets (`broker/network/peer.py`), the formats (`plain.py`, `scram.py`), the client of OAUTHBEARER
         (`oauth_login.py`).
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from typing import Final, Protocol

from broker.config.sasl_configs import ClientCredentials
from broker.security.sasl.oauth_login import OAuthBearerClient, current_token
from broker.security.sasl.scram import HASHES
from replication.controller.configs.scram_credentials import MAX_ITERATIONS, MIN_ITERATIONS

_HEADER: Final = b"n,,"


class InvalidServer(Exception):
    """The server's message is malformed, or it does not know the password."""


class SaslClient(Protocol):
    """The client's side of one authentication."""

    def first(self) -> bytes:
        """The first token."""

    def answer(self, token: bytes) -> bytes | None:
        """The answer to the server's token; None: authentication is complete.

        Raises:
            InvalidServer: the server cannot be trusted.
        """


def sasl_client(credentials: ClientCredentials, nonce: str) -> SaslClient:
    """The client of one authentication; `nonce` is random and printable.

    Raises:
        NoToken: there is no token for OAUTHBEARER.
    """
    if credentials.oauth is not None:
        return OAuthBearerClient(current_token(credentials.oauth))
    if credentials.mechanism in HASHES:
        return ScramClient(HASHES[credentials.mechanism], credentials, nonce)
    return PlainClient(credentials)


class PlainClient:
    """PLAIN: one token."""

    def __init__(self, credentials: ClientCredentials) -> None:
        self._credentials = credentials

    def first(self) -> bytes:
        """The only token."""
        return f"\0{self._credentials.user}\0{self._credentials.password}".encode()

    def answer(self, token: bytes) -> bytes | None:  # noqa: ARG002  # it is empty
        """Nothing."""
        return None


class ScramClient:
    """SCRAM: two tokens, and the server's signature."""

    def __init__(self, hash_name: str, credentials: ClientCredentials, nonce: str) -> None:
        self._hash_name = hash_name
        self._password = credentials.password.encode()
        user = credentials.user.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce.encode()
        self._bare = f"n={user},r={nonce}".encode()
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """User and nonce."""
        return _HEADER + self._bare

    def answer(self, token: bytes) -> bytes | None:
        """The proof for the server's challenge; None for its signature."""
        if self._signature is None:
            return self._prove(token)
        if not hmac.compare_digest(token, b"v=" + b64encode(self._signature)):
            raise InvalidServer("the server does not know the password")
        return None

    def _prove(self, challenge: bytes) -> bytes:
        try:
            nonce, salt, iterations = (
                part.removeprefix(name) for part, name in zip(challenge.split(b","), (b"r=", b"s=", b"i="), strict=True)
            )
            salt, count = b64decode(salt, validate=True), int(iterations)
        except ValueError:
            raise InvalidServer("the server's challenge is malformed") from None
        if not nonce.startswith(self._nonce) or not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
            raise InvalidServer("the server's challenge has another nonce, or too few or too many iterations")
        salted = hashlib.pbkdf2_hmac(self._hash_name, self._password, salt, count)
        unsigned = b"c=" + b64encode(_HEADER) + b",r=" + nonce
        signed = b",".join((self._bare, challenge, unsigned))
        client_key = hmac.digest(salted, b"Client Key", self._hash_name)
        signature = hmac.digest(hashlib.new(self._hash_name, client_key).digest(), signed, self._hash_name)
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash_name), signed, self._hash_name)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        return unsigned + b",p=" + b64encode(proof)
