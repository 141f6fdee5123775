"""The frames of one system call.

NOT HERE Which frames, and what changes when they are written (commit_log.py).
"""

from __future__ import annotations

from protocol.primitives import Buffer
from storage.commitlog.frames import ABORTED_PAYLOAD, HEAD_SIZE, LONG, FrameKind, batches_head, frame_head
from storage.commitlog.log_file import LogFile
from storage.commitlog.slot_append import AppendedState, SlotAppend
from storage.commitlog.slots import Slot


class FrameGroup:
    """Neighbouring frames at the end of a file."""

    __slots__ = ("_file_id_crc", "durable", "end", "file", "new_slots", "pieces", "preceded")

    def __init__(self, file: LogFile, durable: int) -> None:
        """`durable`: all before this position of the log is durable."""
        self.file = file
        self._file_id_crc = file.file_id_crc
        self.durable = durable
        self.end = file.end
        """The position after the frames."""
        self.pieces: list[Buffer] = []
        """Heads and payloads."""
        self.new_slots: list[Slot] = []
        """Slots that got their number for these frames."""
        self.preceded: list[Slot] = []
        """Slots with all that must precede their frames in this file."""

    def add(self, kind: int, slot: int, previous_end: int, payload: bytes) -> None:
        """Add a frame without batches."""
        length = len(payload)
        self.pieces.append(frame_head(self._file_id_crc, self.end, kind, slot, previous_end, length, payload))
        self.pieces.append(payload)
        self.end += HEAD_SIZE + length

    def add_append(self, append: SlotAppend) -> None:
        """Add the frame of an append and those of its state, and set the position of its payload."""
        buffer, end = append.buffer, self.end
        head = batches_head(
            self._file_id_crc,
            end,
            append.slot.number,
            append.previous_end,
            buffer,
            append.batches,
            rolled=append.rolled,
        )
        self.pieces += head, buffer
        append.position = end = end + HEAD_SIZE
        self.end = end + len(buffer)
        if append.state is not None:
            self._add_state(append, append.state)

    def _add_state(self, append: SlotAppend, state: AppendedState) -> None:
        number, batches = append.slot.number, append.batches
        end_offset = batches[-1].last_offset + 1
        if state.snapshot is not None:
            payload = LONG.pack(batches[0].base_offset) + state.snapshot
            self.add(FrameKind.SNAPSHOT, number, end_offset, payload)
        for transaction in state.aborted:
            self.add(FrameKind.ABORTED, number, end_offset, ABORTED_PAYLOAD.pack(*transaction))
