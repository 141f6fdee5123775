"""SASL/PLAIN (RFC 4616; Kafka: PlainSaslServer).

FORMAT   client     [authorization id] NUL user NUL password, in UTF-8; the server answers with an empty token
RULES    1. The authorization id is empty or the user.
         2. The users are those of the listener's settings: `user_NAME="password"` of PlainLoginModule.
         3. Passwords are compared in constant time.
         4. A callback may decide about passwords instead (`callbacks.py`).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from functools import partial

from broker.security.sasl.mechanism import InvalidCredentials, SaslServer
from replication.completion import Completion

_TOKENS = 3


class PlainServer(SaslServer):
    """The server of one authentication; `passwords` are by user, `check` decides instead of them."""

    def __init__(
        self, passwords: Mapping[str, str], check: Callable[[str, str], Completion[bool]] | None = None
    ) -> None:
        self._passwords = passwords
        self._check = check

    def evaluate(self, token: bytes) -> bytes | Completion[bytes]:
        """Authenticates the user of the only token.

        Raises:
            InvalidCredentials: the token is malformed, or the password is wrong.
        """
        parts = token.decode(errors="replace").split("\0", _TOKENS)
        if len(parts) != _TOKENS:
            raise InvalidCredentials(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}")
        authorization_id, user, password = parts
        if not user:
            raise InvalidCredentials("Authentication failed: username not specified")
        if not password:
            raise InvalidCredentials("Authentication failed: password not specified")
        if self._check is not None:
            return self._check(user, password).map(partial(self._finish, authorization_id, user))
        expected = self._passwords.get(user)
        is_right = expected is not None and hmac.compare_digest(password.encode(), expected.encode())
        return self._finish(authorization_id, user, is_right)

    def _finish(self, authorization_id: str, user: str, is_right: bool) -> bytes:  # noqa: FBT001  # of a completion
        if not is_right:
            raise InvalidCredentials("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise InvalidCredentials(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.user = user
        return b""
