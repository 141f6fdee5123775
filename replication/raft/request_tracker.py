"""What this replica asked others, and whom it leaves alone for a moment.

RULES    1. A replica is asked one thing at a time; an answer to anything else than the last question is dropped.
         2. Who failed to answer is not asked again for the retry backoff.
"""

from __future__ import annotations

from protocol.schema import Message
from replication.raft.raft_log import Effect, Send
from replication.raft.voters import Address


class Asking:
    """Questions on their way."""

    def __init__(self, effects: list[Effect], retry_backoff_ms: int) -> None:
        self._effects = effects
        self._retry_backoff_ms = retry_backoff_ms
        self._tokens = 0
        self._asked: dict[int, tuple[int, Message]] = {}
        self._retry_ms: dict[int, int] = {}

    @property
    def is_waiting(self) -> bool:
        """Whether anybody was asked and has not answered."""
        return bool(self._asked)

    @property
    def is_anybody_resting(self) -> bool:
        """Whether somebody is left alone for a moment."""
        return bool(self._retry_ms)

    @property
    def next_retry_ms(self) -> list[int]:
        """When somebody may be asked again."""
        return list(self._retry_ms.values())

    def may_ask(self, peer: int) -> bool:
        """Rules 1 and 2."""
        return peer not in self._asked and peer not in self._retry_ms

    def is_backing_off(self, peer: int) -> bool:
        """Rule 2."""
        return peer in self._retry_ms

    def ask(self, peer: int, address: Address | None, request: Message) -> None:
        """Ask somebody."""
        self._tokens += 1
        self._asked[peer] = (self._tokens, request)
        self._effects.append(Send(peer, address, request, self._tokens))

    def answered(self, peer: int, token: int) -> Message | None:
        """The question that was answered; None: it is none any more."""
        asked = self._asked.get(peer)
        if asked is None or asked[0] != token:
            return None
        del self._asked[peer]
        return asked[1]

    def back_off(self, peer: int, mono_ms: int) -> None:
        """Leave somebody alone for a moment."""
        self._retry_ms[peer] = mono_ms + self._retry_backoff_ms

    def forgive(self, mono_ms: int) -> None:
        """Some moments are over."""
        for peer in [peer for peer, retry_ms in self._retry_ms.items() if retry_ms <= mono_ms]:
            del self._retry_ms[peer]

    def forget_all(self) -> None:
        """What was asked was asked in another role."""
        self._asked.clear()
        self._retry_ms.clear()
