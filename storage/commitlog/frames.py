"""Frames of a commit log: their bytes, and the scan of a log file.

FORMAT   file header, 40 bytes: magic `BCLG`, version 4, file id 16 (random), start 8, CRC-32C 4, zero 4
         frame, 28 bytes: magic 2, kind 1, flags 1, slot 4, length 4, batches 4, end offset of the slot before it 8, CRC-32C 4;
         then `length` bytes of payload, by kind:
             FOLLOWS  start 8 and end 8 of the previous file; the first frame of a file that is not the first one
             DURABLE  position 8: all bytes of the log before it were synced before this frame was written
             BIND     topic id 16, partition 4, incarnation 4, log start 8, topic (UTF-8; empty if the partition has a
                      directory): whose frames have this slot; before the slot's first frame in each file
             BATCHES  whole record batches; flag ROLLED: they begin a segment
             CUT      end offset 8, base offset 8 and size 8 of the last segment: the slot was truncated
             RESET    offset 8: the slot is empty and continues here
             START    offset 8: the segments before it are deleted
             ROLL     offset 8: a segment begins
             ABORTED  producer id 8, first offset 8, last offset 8, last stable offset 8
             DROP     nothing: the partition is deleted
             SNAPSHOT offset 8, then the producer state there (storage/log/producer_state.py)
             RUN      start 8 of the first file and end 8 of the last one that the run replaces, then the end offset 8 of each
                      slot at that end, by number; the first frame of a run (run_file.py). Flag SETTLED: it is not settled again
             STATE    JSON: the state of the slot at the end of the last file that the run replaces (slots.py)
RULES    1. The CRC covers the frame's position, the file id and the head. Of BATCHES it covers the first 21 bytes of each
            batch, which are those that the batch's own CRC does not cover; of other kinds the payload. Bytes of an earlier use
            of the disk are therefore no frames, and neither are records that contain a frame.
         2. A batch whose own CRC is wrong makes its frame invalid.
         3. After an invalid frame, `scan` continues at the next valid one. Zeros up to the end of the file are not invalid:
            they were written ahead of the frames (zeroing.py).
NOT HERE What an invalid frame means (recovery.py), the state of a slot (slots.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from protocol.crc32c import crc32c
from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.records import LENGTH_POSITION, LOG_OVERHEAD, BatchHeader, crc_is_valid, parse_header
from storage.engine import BatchInfo, batch_info
from storage.io.disk import File

FILE_HEADER: Final = Struct(">4sI16sqII")
FILE_MAGIC: Final = b"BCLG"
FILE_VERSION: Final = 1

HEAD: Final = Struct(">HBBIIIqI")
HEAD_SIZE: Final = HEAD.size
_COVERED: Final = Struct(">qHBBIIIq")  # the position and the head without its CRC
_CRC: Final = Struct(">I")
MAGIC: Final = 0xC10F
_MAGIC_BYTES: Final = MAGIC.to_bytes(2, "big")
ROLLED: Final = 1
SETTLED: Final = 1

LONG: Final = Struct(">q")
FOLLOWS_PAYLOAD: Final = Struct(">qq")
RUN_PAYLOAD: Final = Struct(">qq")
BIND_PAYLOAD: Final = Struct(">16siiq")
CUT_PAYLOAD: Final = Struct(">qqq")
ABORTED_PAYLOAD: Final = Struct(">qqqq")

_UNCOVERED: Final = 21  # bytes of a batch before those that its CRC covers
_WINDOW: Final = 1 << 20


class FrameKind(IntEnum):
    """What a frame says."""

    FOLLOWS = 1
    DURABLE = 2
    BIND = 3
    BATCHES = 4
    CUT = 5
    RESET = 6
    START = 7
    ROLL = 8
    ABORTED = 9
    DROP = 10
    SNAPSHOT = 11
    RUN = 20
    STATE = 21


_KINDS: Final = frozenset(map(int, FrameKind))
_BATCHES: Final = int(FrameKind.BATCHES)
_DURABLE: Final = int(FrameKind.DURABLE)
_POSITION_SIZE: Final = LONG.size
_pack_crc = _CRC.pack


class Frame(NamedTuple):
    """A valid frame of a scan."""

    kind: FrameKind
    flags: int
    slot: int
    previous_end: int
    """The slot's end offset before this frame."""
    position: int
    """Of the payload, in the log."""
    payload: Buffer
    """Empty for BATCHES."""
    batches: tuple[BatchInfo, ...]
    """Of BATCHES; positions are relative to the payload."""
    end: int
    """The position after the frame."""


class InvalidRange(NamedTuple):
    """Bytes without a valid frame."""

    start: int
    end: int


def file_header(file_id: bytes, start: int) -> bytes:
    """The header of a log file."""
    head = FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, file_id, start, 0, 0)
    return FILE_HEADER.pack(FILE_MAGIC, FILE_VERSION, file_id, start, crc32c(head), 0)


def parse_file_header(data: bytes, start: int) -> bytes | None:
    """The file id; None if these are not the first bytes of the log file with this start."""
    if len(data) < FILE_HEADER.size:
        return None
    _, version, file_id, _, _, _ = FILE_HEADER.unpack_from(data)
    is_valid = version == FILE_VERSION and data[: FILE_HEADER.size] == file_header(file_id, start)
    return file_id if is_valid else None


def parse_bind(payload: Buffer) -> tuple[bytes, int, int, int, str]:
    """Topic id, partition, incarnation, log start and topic of a BIND."""
    topic_id, partition, incarnation, log_start = BIND_PAYLOAD.unpack_from(payload)
    return topic_id, partition, incarnation, log_start, bytes(payload[BIND_PAYLOAD.size :]).decode()


def frame_head(
    file_id_crc: int, position: int, kind: int, slot: int, previous_end: int, length: int, covered: Buffer, *,
    flags: int = 0, count: int = 0,
) -> bytes:  # fmt: skip
    """The head of a frame at `position` in the log; `file_id_crc` is the CRC-32C of the file's id."""
    head = _COVERED.pack(position, MAGIC, kind, flags, slot, length, count, previous_end)
    return head[_POSITION_SIZE:] + _pack_crc(crc32c(covered, crc32c(head, file_id_crc)))


def batches_head(
    file_id_crc: int, position: int, slot: int, previous_end: int, buffer: Buffer, batches: Sequence[BatchInfo], *,
    rolled: bool,
) -> bytes:  # fmt: skip
    """The head of a frame with these batches; their positions are relative to `buffer`."""
    covered, flags = _covered_bytes(buffer, batches), ROLLED if rolled else 0
    return frame_head(
        file_id_crc, position, _BATCHES, slot, previous_end, len(buffer), covered, flags=flags, count=len(batches)
    )


def durable_frame(file_id_crc: int, position: int, slot: int, previous_end: int, durable: int) -> bytes:
    """A whole DURABLE frame: all before `durable` was synced."""
    payload = LONG.pack(durable)
    return frame_head(file_id_crc, position, _DURABLE, slot, previous_end, len(payload), payload) + payload


def _covered_bytes(buffer: Buffer, batches: Sequence[BatchInfo]) -> Buffer:
    """The bytes of the batches that the frame's CRC covers (rule 1)."""
    if len(batches) == 1:
        return buffer[:_UNCOVERED]
    return b"".join([buffer[batch.position : batch.position + _UNCOVERED] for batch in batches])


def scan(file: File, file_id: bytes, start: int, size: int) -> Iterator[Frame | InvalidRange]:
    """The frames of a log file of `size` bytes, and what is between them; without the zeros at its end."""
    window = FrameWindow(file, size)
    file_id_crc = crc32c(file_id)
    at = FILE_HEADER.size
    while at < size:
        frame = frame_at(window, file_id_crc, start, at)
        if frame is not None:
            yield frame
            at = frame.end - start
            continue
        resumed = at
        while frame is None and resumed < size:
            resumed = window.find(_MAGIC_BYTES, resumed + 1)
            frame = frame_at(window, file_id_crc, start, resumed)
        if resumed == size and window.is_zero(at):
            return
        yield InvalidRange(start + at, start + resumed)
        at = resumed


class _Head(NamedTuple):
    """The head of a frame."""

    kind: int
    flags: int
    slot: int
    length: int
    batch_count: int
    previous_end: int
    crc: int
    crc_before_payload: int
    """The CRC of all covered bytes before those of the payload."""


class FrameWindow:
    """The part of a file whose frames are read."""

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self.size = size
        self.step = _WINDOW
        """The number of bytes per read, at least."""
        self._at = 0
        self._data = b""

    def get(self, at: int, length: int) -> memoryview:
        """Bytes of the file; fewer at its end."""
        if at < self._at or at + length > self._at + len(self._data):
            wanted = min(max(length, self.step), max(self.size - at, 0))
            self._at, self._data = at, self._file.pread(wanted, at)
        begin = at - self._at
        return memoryview(self._data)[begin : begin + length]

    def find(self, wanted: bytes, at: int) -> int:
        """The first position from `at` on with these bytes; the end of the file if there is none."""
        while at < self.size:
            found = bytes(self.get(at, _WINDOW)).find(wanted)
            if found >= 0:
                return at + found
            at += _WINDOW - len(wanted) + 1
        return self.size

    def is_zero(self, at: int) -> bool:
        """Whether all bytes from `at` on are zero."""
        while at < self.size:
            data = bytes(self.get(at, _WINDOW))
            if not data or data.count(0) < len(data):
                return False
            at += len(data)
        return True


def frame_at(window: FrameWindow, file_id_crc: int, start: int, at: int) -> Frame | None:
    """The frame at a position in a file that begins at `start`; None if it is invalid."""
    head = _head_at(window, file_id_crc, start, at)
    if head is None:
        return None
    payload = window.get(at + HEAD_SIZE, head.length)
    found = _batches(payload, head.batch_count) if head.kind == FrameKind.BATCHES else []
    if found is None:
        return None
    infos = tuple([info for info, _ in found])
    covered = _covered_bytes(payload, infos) if infos else payload
    if head.crc != crc32c(covered, head.crc_before_payload):
        return None
    if not all(crc_is_valid(payload, info.position, header) for info, header in found):
        return None
    position = start + at + HEAD_SIZE
    data = b"" if infos else bytes(payload)
    kind, end = FrameKind(head.kind), position + head.length
    return Frame(kind, head.flags, head.slot, head.previous_end, position, data, infos, end)


def batches_end(window: FrameWindow, file_id_crc: int, start: int, at: int, slot: int) -> int | None:
    """The end of the slot's BATCHES at a position, as a position in the file; None if the frame's CRC is wrong.

    The batches' own CRCs are not checked: of each batch only the bytes are read that they do not cover.
    """
    head = _head_at(window, file_id_crc, start, at)
    if head is None or (head.kind, head.slot) != (_BATCHES, slot):
        return None
    at += HEAD_SIZE
    end, count, crc = at + head.length, head.batch_count, head.crc_before_payload
    while at < end and count:
        covered = window.get(at, _UNCOVERED)
        if len(covered) < _UNCOVERED:
            return None
        crc = crc32c(covered, crc)
        at += LOG_OVERHEAD + int.from_bytes(covered[LENGTH_POSITION:LOG_OVERHEAD], "big")
        count -= 1
    return end if at == end and not count and crc == head.crc else None


def _head_at(window: FrameWindow, file_id_crc: int, start: int, at: int) -> _Head | None:
    """The head at a position in a file that begins at `start`; None if it is no head, or its payload is truncated."""
    data = window.get(at, HEAD_SIZE)
    if len(data) < HEAD_SIZE:
        return None
    magic, kind, flags, slot, length, count, previous_end, crc = HEAD.unpack(data)
    if magic != MAGIC or kind not in _KINDS or at + HEAD_SIZE + length > window.size:
        return None
    covered = _COVERED.pack(start + at, magic, kind, flags, slot, length, count, previous_end)
    return _Head(kind, flags, slot, length, count, previous_end, crc, crc32c(covered, file_id_crc))


def _batches(payload: memoryview, count: int) -> list[tuple[BatchInfo, BatchHeader]] | None:
    """The batches that fill the payload; None if it does not contain `count` of them."""
    found: list[tuple[BatchInfo, BatchHeader]] = []
    at = 0
    try:
        while at < len(payload):
            header = parse_header(payload, at)
            found.append((batch_info(at, header), header))
            at += header.size
    except KafkaError:
        return None
    return found if found and at == len(payload) and len(found) == count else None
