"""What a SASL mechanism's server is to the authenticator (Java: SaslServer)."""

from __future__ import annotations

from typing import Protocol


class InvalidCredentials(Exception):
    """The client is not authenticated; the message, which Apache Kafka sends too, is for the client.

    An empty message stands for the general one of the mechanism, which does not tell what was wrong.
    """


class SaslServer(Protocol):
    """The server's side of one authentication."""

    user: str | None
    """The name of the authenticated user; None until then."""

    def evaluate(self, token: bytes) -> bytes:
        """The answer to a client's token.

        Raises:
            InvalidCredentials: authentication failed.
        """
