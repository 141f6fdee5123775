"""SCRAM credentials of delegation tokens (Kafka: DelegationTokenCache).

RULES    1. The user is the id, the password the secret in base64. Credentials are derived at the first login and kept: that
            takes a few milliseconds, once for each token, mechanism and node.
         2. An expired token is refused, also before the controller removes it.
         3. So is a token of an owner that is no user, such as "Group:admin": the right to create it was not that to be the user
            with this name. Apache Kafka lets it log in as "User:admin".
NOT HERE The clients that may have a token (`broker/handlers/admin/delegation_tokens.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.security.sasl.scram import ScramCredential, TokenCredential
from replication.controller.configs.scram_credentials import MIN_ITERATIONS
from replication.metadata.delegation_tokens import TokenSettings, find_token, is_expired
from replication.metadata.image import MetadataImage

_USER: Final = "User"
_SALT_BYTES: Final = 20
_MAX_KEPT: Final = 10_000


class TokenCredentials:
    """The credentials of a node's delegation tokens."""

    def __init__(self, settings: TokenSettings, image: Callable[[], MetadataImage], wall_ms: Callable[[], int]) -> None:
        self._settings, self._image, self._wall_ms = settings, image, wall_ms
        self._kept: OrderedDict[tuple[str, str], ScramCredential] = OrderedDict()

    def find(self, hash_name: str, token_id: str) -> TokenCredential | None:
        """The credential of a valid token for a hash function; None if there is no such token."""
        token = find_token(self._image(), token_id)
        if not self._settings.is_enabled or token is None or is_expired(token, self._wall_ms()):
            return None
        kind, _, owner = token.owner.partition(":")
        if kind != _USER:
            return None
        return TokenCredential(self._credential(hash_name, token_id), owner, token.expiration_timestamp)

    def _credential(self, hash_name: str, token_id: str) -> ScramCredential:
        credential = self._kept.get((hash_name, token_id))
        if credential is None:
            credential = self._kept[hash_name, token_id] = self._derive(hash_name, token_id)
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return credential

    def _derive(self, hash_name: str, token_id: str) -> ScramCredential:
        salt, password = secrets.token_bytes(_SALT_BYTES), b64encode(self._settings.secret_of(token_id))
        salted = hashlib.pbkdf2_hmac(hash_name, password, salt, MIN_ITERATIONS)
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        server_key = hmac.digest(salted, b"Server Key", hash_name)
        return ScramCredential(salt, hashlib.new(hash_name, client_key).digest(), server_key, MIN_ITERATIONS)
