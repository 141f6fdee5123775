"""The appends of one slot from their reservation until they are published.

RULES    1. The frames of a slot are in the order of its offsets: an append that is written before an earlier one of its slot
            waits in memory, and is written by the earlier one's call.
         2. What could not be written waits at the same place for a retry. An append that another call has written still
            writes what waits behind it, or fails: those behind it have counted on it.
NOT HERE Frames and files (commit_log.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from protocol.primitives import Buffer
from storage.commitlog.frames import ABORTED_PAYLOAD, HEAD_SIZE, LONG
from storage.commitlog.log_file import LogFile
from storage.commitlog.slots import Slot
from storage.engine import AbortedTransaction, BatchInfo, Reservation


class AppendedState(NamedTuple):
    """What is written after the batches of an append, by the same call."""

    snapshot: bytes | None
    """The producers at the first offset of the append."""
    aborted: Sequence[AbortedTransaction]
    """The transactions that it aborts."""

    @property
    def size(self) -> int:
        """The bytes of the frames."""
        size = len(self.aborted) * (HEAD_SIZE + ABORTED_PAYLOAD.size)
        return size if self.snapshot is None else size + HEAD_SIZE + LONG.size + len(self.snapshot)


class SlotAppend(Reservation):
    """The place of an append in the order of its slot."""

    __slots__ = (
        "buffer", "file", "first_timestamp", "is_dropped", "position", "previous_end", "slot", "state", "unwritten", "used",
    )  # fmt: skip

    def __init__(
        self, slot: Slot, unwritten: list[SlotAppend], batches: Sequence[BatchInfo], previous_end: int, *,
        rolled: bool, takes_snapshot: bool, used: int, first: int,
    ) -> None:  # fmt: skip
        """`unwritten`: the reserved appends of the slot that are not written."""
        self.batches = batches
        self.rolled = rolled
        self.takes_snapshot = takes_snapshot
        self.slot = slot
        self.unwritten = unwritten
        self.previous_end = previous_end
        self.used = used
        """Bytes of the segment with this append."""
        self.first_timestamp = first
        self.buffer: Buffer = b""
        """From the call of `write` until the bytes are written; empty before and after."""
        self.file: LogFile | None = None
        """Of the frame, once it is written."""
        self.position = 0
        """Of the frame's payload, in the log."""
        self.is_dropped = False
        """Whether the partition was deleted."""
        self.state: AppendedState | None = None

    @property
    def written_size(self) -> int:
        """The bytes that the append writes, without the head of its first frame."""
        return len(self.buffer) if self.state is None else len(self.buffer) + self.state.size


def take_writable(writes: Sequence[tuple[Reservation, Buffer]]) -> list[SlotAppend]:
    """The appends to write now, in the order of each slot (rules 1, 2); the caller holds the lock of the log."""
    taken: list[SlotAppend] = []
    for append, buffer in writes:
        assert isinstance(append, SlotAppend)
        if append.is_dropped:
            continue
        if append.file is None:
            append.buffer = buffer
        unwritten = append.unwritten
        while unwritten and unwritten[0].buffer:
            taken.append(unwritten.pop(0))
    return taken


def put_back(appends: Sequence[SlotAppend]) -> None:
    """Appends that were taken and not written wait again (rule 2)."""
    for append in reversed(appends):
        append.unwritten.insert(0, append)
