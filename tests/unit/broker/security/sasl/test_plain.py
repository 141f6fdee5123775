"""PLAIN (broker/security/sasl/plain.py)."""

from __future__ import annotations

import pytest

from broker.security.sasl.mechanism import InvalidCredentials
from broker.security.sasl.plain import PlainServer

USERS = {"alice": "secret", "": "empty", "nopass": "", "zoë": "ß"}


@pytest.mark.parametrize(("token", "user"), [("\0alice\0secret", "alice"), ("zoë\0zoë\0ß", "zoë")])
def test_the_right_password_authenticates_its_user(token: str, user: str) -> None:
    server = PlainServer(USERS)
    assert (server.evaluate(token.encode()), server.user) == (b"", user)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0bob\0secret", "Authentication failed: Invalid username or password"),
        (b"\0\xff\0secret", "Authentication failed: Invalid username or password"),
        (b"\0\0empty", "Authentication failed: username not specified"),
        (b"\0nopass\0", "Authentication failed: password not specified"),
        (b"bob\0alice\0secret", "Authentication failed: Client requested an authorization id that is different from username"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0a\0b\0c\0d", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_message_of_apache_kafka(token: bytes, message: str) -> None:
    server = PlainServer(USERS)
    with pytest.raises(InvalidCredentials) as refusal:
        server.evaluate(token)
    assert (str(refusal.value), server.user) == (message, None)
