"""The special timestamps and the answer of a ListOffsets query.

NOT HERE The query (`Partition.find_offset`), its request (broker/handlers/records/list_offsets.py).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from protocol.records import NO_TIMESTAMP
from replication.partition.follower_progress import NO_EPOCH, NO_OFFSET

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6


class TimestampAndOffset(NamedTuple):
    """The result of a ListOffsets query; all fields are -1 if no record matches."""

    timestamp: int
    offset: int
    leader_epoch: int


NOTHING_FOUND: Final = TimestampAndOffset(NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)
