"""The client side of OAUTHBEARER, for this node's connections to other nodes (Kafka: OAuthBearerSaslClient).

RULES    1. A refusal is confirmed with ^A; the server then fails the authentication with its reason.
         2. A token file is read at each login: at most 64 KiB, at the start of a connection and before a session ends.
NOT HERE Settings (`broker/config/oauth_login_configs.py`).
"""

from __future__ import annotations

import json
import os
import stat
import time
from base64 import urlsafe_b64encode
from typing import Any, Final

from broker.config.oauth_login_configs import OAuthLogin, TokenFile, UnsecuredLogin

_MAX_BYTES: Final = 64 * 1024


class NoToken(Exception):
    """There is no token with which this node could authenticate."""


class OAuthBearerClient:
    """One authentication with a token."""

    def __init__(self, token: str) -> None:
        self._token = token

    def first(self) -> bytes:
        """The token."""
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def answer(self, token: bytes) -> bytes | None:
        """Nothing after success; the confirmation of a refusal."""
        return b"\x01" if token else None


def current_token(login: OAuthLogin) -> str:
    """The token for a login now.

    Raises:
        NoToken: the file cannot be read.
    """
    return _read(login) if isinstance(login, TokenFile) else _unsecured(login)


def _read(login: TokenFile) -> str:
    try:
        with open(login.path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_BYTES) if is_regular else b""
    except OSError as error:
        raise NoToken(f"cannot read the token in {login.path}: {error.strerror}") from None
    token = text.strip().decode("ascii", "replace")
    if not token:
        raise NoToken(f"{login.path} contains no token")
    return token


def _unsecured(login: UnsecuredLogin) -> str:
    now_s = time.time_ns() // 1_000_000_000
    claims = {**login.claims, "iat": now_s, "exp": now_s + login.lifetime_s}
    return f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."


def _encoded(part: dict[str, Any]) -> str:
    return urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
