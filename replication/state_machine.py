"""The contract of all state machines: decide on records, then change state only by applying records.

RULES    1. `decide` reads state and changes nothing; it returns a Decision.
         2. State changes only when records are applied, so replaying a log rebuilds the state of its writer.
         3. A rejected request is a Decision without records; a state machine raises nothing for a peer's request.
         4. The reply is sent when the records are committed; the runtime of the state machine ensures that.
NOT HERE Encoding and committing records: `metadata_log.py` for the controller,
         `broker/coordinators/runtime/coordinator_runtime.py` for groups and transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from protocol.schema import Message

Reply = TypeVar("Reply")


class Decision(Generic[Reply]):
    """Records to write, and the reply to send when they are committed."""

    __slots__ = ("is_atomic", "records", "reply")

    def __init__(self, records: Sequence[tuple[Message, int]], reply: Reply, *, is_atomic: bool = True) -> None:
        self.records = records
        """Messages with their versions."""
        self.reply = reply
        self.is_atomic = is_atomic
        """Whether the records become visible together, in one batch, instead of being split when the batch grows too large."""
