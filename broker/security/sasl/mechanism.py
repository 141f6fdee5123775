"""What a SASL mechanism's server is to the authenticator (Java: SaslServer)."""

from __future__ import annotations

from abc import ABC, abstractmethod

from replication.completion import Completion


class InvalidCredentials(Exception):
    """The client is not authenticated; the message, which Apache Kafka sends too, is for the client.

    If the message is empty, the authenticator sends its general one, which does not say what was wrong.
    """


class SaslServer(ABC):
    """The server's side of one authentication."""

    user: str | None = None
    """The name of the authenticated user; None until then."""
    is_token = False
    """Whether the user authenticated with a delegation token."""
    expires_wall_ms: int | None = None
    """When the user's credential expires; None: never. In milliseconds since 1970."""

    @abstractmethod
    def evaluate(self, token: bytes) -> bytes | Completion[bytes]:
        """The answer to a client's token, now or later.

        Raises:
            InvalidCredentials: authentication failed; may also be the completion's error.
        """
