"""SASL/SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677; Kafka: ScramSaslServer).

FORMAT   client     n,[a=authorization id],n=user,r=client nonce[,extension=value…]
         server     r=client nonce + server nonce,s=salt,i=iterations
         client     c=channel binding,r=both nonces[,extension=value…],p=proof
         server     v=server signature
RULES    1. Every failure has the same message for the client; a user without credentials fails at the first message, as in
            Apache Kafka.
         2. The nonce of the last message equals the server's (CVE-2024-56128), and its channel binding the header of the
            first message (RFC 5802, section 6; Apache Kafka ignores it).
         3. Proofs are compared in constant time.
         4. There is no channel binding and no reserved extension.
         5. With the extension `tokenauth=true` the user is the id of a delegation token; its owner is authenticated (KIP-48).
NOT HERE Stored credentials and their limits (`replication/controller/configs/scram_credentials.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from replication.controller.configs.scram_credentials import MIN_ITERATIONS

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The hash functions of the mechanisms."""
_NAME: Final = rb"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_EXTENSIONS: Final = rb"(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*"
_NONCE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_BASE64: Final = rb"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_FIRST: Final = re.compile(
    rb"(?P<header>n,(?:a=(?P<authorization_id>%b))?,)(?P<bare>n=(?P<user>%b),r=(?P<nonce>%b)(?P<extensions>%b))"
    % (_NAME, _NAME, _NONCE, _EXTENSIONS)
)
_FINAL: Final = re.compile(
    rb"(?P<unsigned>c=(?P<binding>%b),r=(?P<nonce>%b)%b),p=(?P<proof>%b)" % (_BASE64, _NONCE, _EXTENSIONS, _BASE64)
)
_TOKEN_AUTHENTICATION: Final = b"tokenauth=true"


class ScramCredential(NamedTuple):
    """What is stored of a user's password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class TokenCredential(NamedTuple):
    """A delegation token, as far as its users authenticate with it."""

    credential: ScramCredential
    owner: str
    """The name of its user."""
    expires_wall_ms: int


def _no_token(_token_id: str) -> TokenCredential | None:
    return None


class ScramServer(SaslServer):
    """The server of one authentication with one hash function, such as "sha256"."""

    def __init__(
        self,
        hash_name: str,
        find: Callable[[str], ScramCredential | None],
        nonce: str,
        find_token: Callable[[str], TokenCredential | None] = _no_token,
    ) -> None:
        """`find` returns a user's credential, `find_token` a delegation token's; `nonce` is random and printable."""
        self._hash_name = hash_name
        self._find = find
        self._find_token = find_token
        self._nonce = nonce.encode()
        self._credential: ScramCredential | None = None
        self._candidate = ""
        self._binding = b""
        self._messages = b""  # the messages of client and server so far, as they are signed

    def evaluate(self, token: bytes) -> bytes:
        """The server's first or final message.

        Raises:
            InvalidCredentials: a message is malformed, the user is unknown or the proof is wrong.
        """
        return self._on_first(token) if self._credential is None else self._on_final(token, self._credential)

    def _on_first(self, token: bytes) -> bytes:
        first = _FIRST.fullmatch(token)
        if first is None:
            raise InvalidCredentials
        name = _decode_name(first["user"])
        credential = self._credential_of(
            name, is_token=_TOKEN_AUTHENTICATION in first["extensions"].lower().split(b",")
        )
        if credential is None or credential.iterations < MIN_ITERATIONS:
            raise InvalidCredentials
        if first["authorization_id"] is not None and _decode_name(first["authorization_id"]) != name:
            raise InvalidCredentials(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self._credential, self._binding = credential, b64encode(first["header"])
        self._nonce = first["nonce"] + self._nonce
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, b64encode(credential.salt), credential.iterations)
        self._messages = first["bare"] + b"," + answer
        return answer

    def _credential_of(self, name: str, *, is_token: bool) -> ScramCredential | None:
        """The credential of a user, or of a delegation token with this id."""
        self._candidate, self.is_token = name, is_token
        if not is_token:
            return self._find(name)
        token = self._find_token(name)
        if token is None:
            return None
        self._candidate, self.expires_wall_ms = token.owner, token.expires_wall_ms
        return token.credential

    def _on_final(self, token: bytes, credential: ScramCredential) -> bytes:
        final = _FINAL.fullmatch(token)
        if final is None or final["nonce"] != self._nonce or final["binding"] != self._binding:
            raise InvalidCredentials
        signed = self._messages + b"," + final["unsigned"]
        signature = hmac.digest(credential.stored_key, signed, self._hash_name)
        proof = b64decode(final["proof"])
        if len(proof) != len(signature):
            raise InvalidCredentials
        client_key = bytes(left ^ right for left, right in zip(signature, proof, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash_name, client_key).digest(), credential.stored_key):
            raise InvalidCredentials
        self.user = self._candidate
        return b"v=" + b64encode(hmac.digest(credential.server_key, signed, self._hash_name))


def _decode_name(name: bytes) -> str:
    return name.replace(b"=2C", b",").replace(b"=3D", b"=").decode("ascii")
