"""What a SASL mechanism's server is to the authenticator (Java: SaslServer)."""

from __future__ import annotations

from typing import Protocol


class InvalidCredentials(Exception):
    """The client is not authenticated; the message, which Apache Kafka sends too, is for the client.

    If the message is empty, the authenticator sends its general one, which does not say what was wrong.
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
