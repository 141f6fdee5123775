"""One contract for all state machines: decide what to record, then change state only by applying records.

RULES    1. `decide` reads state and changes nothing; it answers with a Decision.
         2. State changes only when records are applied, so replaying a log gives the state that wrote it.
         3. A refusal is a Decision without records; a state machine does not raise for what a peer may ask.
         4. The reply is given out only when the records are committed (whoever runs the machine sees to that).
NOT HERE How records become bytes and when they are committed: `metadata_log.py` for the controller,
         `broker/coordinators/runtime/coordinator_runtime.py` for groups and transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from protocol.schema import Message

Reply = TypeVar("Reply")


class Decision(Generic[Reply]):
    """What to write and what to answer once it is written.

    `records` are messages, each with the version it is written in; `is_atomic` says whether they must become
    visible together (one batch) or may be split where a batch would grow too large.
    """

    __slots__ = ("is_atomic", "records", "reply")

    def __init__(self, records: Sequence[tuple[Message, int]], reply: Reply, *, is_atomic: bool = True) -> None:
        self.records = records
        self.reply = reply
        self.is_atomic = is_atomic

    def __repr__(self) -> str:
        return f"Decision({list(self.records)!r}, {self.reply!r}, is_atomic={self.is_atomic})"
