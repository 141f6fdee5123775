"""The state of one partition in a commit log, and how frames change it; the numbers of slots.

FORMAT   state, a JSON array: slot number, topic id (hex), partition, incarnation, start of the first file with its data, end
         offset, segments [base offset, size, first timestamp]..., cuts [file start, offset]..., aborted transactions
         [producer id, first offset, last offset, last stable offset]..., leader epochs [epoch, first offset]..., producer
         snapshots [offset, base64]..., topic (empty if the partition has a directory); only the slot number if the
         partition was deleted
RULES    1. Appends and recovery change a slot by the same methods, in the order of its frames. Exceptions: START, ROLL and
            SNAPSHOT change it before a thread has written them, so a ROLL may follow appends to its segment (`split`). START
            does not wait for appends that are written and not published (`in_order` is false). The state of an earlier file may
            then contain them already, which is harmless: they name data that this file or an earlier one contains.
         2. Segments are logical: where a segment begins is a flag of a frame. They are units of retention, as in Kafka; a log
            file contains parts of the segments of many slots.
         3. A truncation removes entries only from the file that contains its CUT frame. Entries in earlier files are skipped by
            readers, because of `cuts`: the queue of a file depends on that file alone. A file's entries are valid below the
            offset of the first cut in a later file.
         4. `cuts` are ascending in file and offset: a later cut at a lower offset replaces those above it.
         5. Data in files before `begin` belong to the time before a reset.
         6. A slot has the producer snapshots at its segment starts, and the newest one.
         7. Rows of queue files are addressed by the numbers of slots, so these stay small: that of a deleted partition is used
            again when the file with its DROP is sealed. Files before that one may contain its rows and batches: those are
            before the `begin` of the next slot, so its readers and cleaning skip them. A file therefore has frames of one slot
            for each number, or after a DROP those that are ignored.
NOT HERE Reading entries (slot_reader.py), writing frames (commit_log.py).
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import uuid_text
from protocol.records import NO_TIMESTAMP
from storage.commitlog.log_file import LogFile, Slice
from storage.engine import AbortedTransaction, BatchInfo, SegmentInfo

UNBOUND: Final = -1
NO_EPOCH: Final = -1
NO_FILE: Final = -1
_file_start = itemgetter(0)
_base_offset = attrgetter("base_offset")
_last_offset = attrgetter("last_offset")


class SlotId(NamedTuple):
    """The partition of a slot."""

    topic_id: bytes
    partition: int
    incarnation: int = 0
    """Increases when the partition's log in this directory is replaced by another one."""


class Cut(NamedTuple):
    """What a truncation leaves."""

    end_offset: int
    segment_base: int
    segment_size: int
    """Base offset and size of the last segment afterwards."""


class LatestTimestamp(NamedTuple):
    """The greatest timestamp in a segment when it ended at an offset."""

    timestamp_ms: int
    end_offset: int


@dataclass(slots=True)
class LogicalSegment:
    """A segment of a slot (rule 2)."""

    base_offset: int
    size: int = 0
    first_timestamp: int = NO_TIMESTAMP
    """The greatest timestamp of its first batch."""
    latest: LatestTimestamp | None = None
    """What a reader has found; not stored."""


class Slot:
    """The state of one partition."""

    __slots__ = (
        "aborted", "begin", "bound_in", "checked", "cuts", "end_offset", "epochs", "is_dropped", "last_file", "latest_epoch",
        "number", "original", "segments", "slices", "slot_id", "snapshots", "topic",
    )  # fmt: skip

    def __init__(self, slot_id: SlotId, topic: str = "") -> None:
        self.slot_id = slot_id
        self.topic = topic
        """The topic of a partition without a directory; else empty."""
        self.number = UNBOUND
        """Of the slot in frames and queue files (rule 7)."""
        self.bound_in = NO_FILE
        """The start of the last file with a BIND frame."""
        self.last_file = NO_FILE
        """The start of the last file that changed the end offset."""
        self.begin = 0
        """The start of the first file with its data (rule 5)."""
        self.end_offset = 0
        self.segments = [LogicalSegment(0)]
        self.cuts: tuple[tuple[int, int], ...] = ()
        # Tuples are replaced, not changed: an empty one takes no memory.
        self.aborted: tuple[AbortedTransaction, ...] = ()
        """In the order of their markers."""
        self.epochs: tuple[tuple[int, int], ...] = ()
        """The leader epochs of the batches, and their first offsets."""
        self.latest_epoch = NO_EPOCH
        self.snapshots: tuple[tuple[int, bytes], ...] = ()
        """Producer snapshots and their offsets, ascending."""
        self.slices: tuple[Slice, ...] = ()
        """The entries in files that are not sealed, oldest first."""
        self.is_dropped = False
        """Whether the partition was deleted: later frames of its slot have no BIND and are ignored."""
        self.checked: tuple[tuple[int, int], ...] = ()
        """Ranges of offsets whose frames were checked (frame_check.py); any thread replaces them."""
        self.original: Slot | None = None
        """Of a copy: the slot."""

    @property
    def start_offset(self) -> int:
        """The base offset of the oldest segment."""
        return self.segments[0].base_offset

    @property
    def size(self) -> int:
        """The size of all batches."""
        return sum([segment.size for segment in self.segments])

    def copy(self) -> Slot:
        """The slot at this moment, for reads in another thread."""
        copied = Slot(self.slot_id, self.topic)
        copied.original = self
        copied.number, copied.begin, copied.end_offset = self.number, self.begin, self.end_offset
        copied.segments = [
            LogicalSegment(segment.base_offset, segment.size, segment.first_timestamp) for segment in self.segments
        ]
        copied.cuts, copied.aborted = self.cuts, self.aborted
        copied.slices = tuple([unsealed.copy() for unsealed in self.slices])
        return copied

    def segment_infos(self, limit: int | None = None) -> list[SegmentInfo]:
        """The segments, oldest first, at most `limit`."""
        segments = self.segments if limit is None else self.segments[: limit + 1]
        ends = [*[segment.base_offset for segment in segments[1:]], self.end_offset]
        infos = [
            SegmentInfo(segment.base_offset, end, segment.size) for segment, end in zip(segments, ends, strict=True)
        ]
        return infos[:limit]

    def valid_end(self, file_start: int, end_offset: int) -> int:
        """The end offset of the valid entries in a file whose row has this end offset (rule 3)."""
        return valid_end(self.cuts, file_start, end_offset)

    def check_not_dropped(self) -> None:
        """Before a frame of the slot: raise KafkaError if the partition was deleted, as while a thread opens or truncates it.

        Its number may be that of another slot, which would get the frame (rule 7).
        """
        if self.is_dropped:
            name = slot_text(self.slot_id, self.topic)
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The partition {name} was deleted")

    # ---- changes by frames -------------------------------------------------------------------------------

    def enter(self, file: LogFile, *, in_order: bool = True) -> None:
        """A frame in `file` changes the end: record the state at the end of earlier files before (log_file.py rule 4).

        `in_order`: no append before the frame is unpublished.
        """
        if in_order and self.last_file != file.start:
            earlier = file.previous
            while earlier is not None and not earlier.is_sealed:
                self.record_in(earlier)
                earlier = earlier.previous if earlier.start != self.last_file else None
            self.last_file = file.start
        file.touched.add(self.number)

    def append(self, file: LogFile, position: int, batches: Sequence[BatchInfo], *, rolled: bool) -> None:
        """BATCHES: `position` is that of the payload."""
        if self.last_file != file.start:
            self.enter(file)
        if rolled:
            self._begin_segment(batches[0].base_offset)
        segment = self.segments[-1]
        if not segment.size:
            segment.first_timestamp = batches[0].max_timestamp
        slices = self.slices
        if not slices or slices[-1].file is not file:
            self.slices = slices = (*slices, Slice(file))
            file.slices[self.number] = slices[-1]
        segment.size += slices[-1].add(position, batches)
        last = batches[-1]
        self.end_offset = last.last_offset + 1
        if last.leader_epoch > self.latest_epoch:
            self._add_epochs(batches)

    def cut(self, file: LogFile, cut: Cut) -> None:
        """CUT."""
        self.enter(file)
        end_offset = cut.end_offset
        entries = file.slices.get(self.number)
        if entries is not None:
            file.removed += entries.size
            entries.truncate(end_offset)
            file.removed -= entries.size
        self._add_cut(file, end_offset)
        while len(self.segments) > 1 and self.segments[-1].base_offset > cut.segment_base:
            self.segments.pop()
        last = self.segments[-1]
        last.base_offset, last.size = min(last.base_offset, end_offset), cut.segment_size
        last.latest = None
        self.aborted = tuple([aborted for aborted in self.aborted if aborted.last_offset < end_offset])
        self.set_epochs([known for known in self.epochs if known[1] < end_offset])
        self.snapshots = tuple([known for known in self.snapshots if known[0] <= end_offset])
        self.end_offset = end_offset

    def _add_cut(self, file: LogFile, end_offset: int) -> None:
        """Entries in files before the one with a CUT are valid below this offset (rule 3)."""
        cuts = [earlier for earlier in self.cuts if earlier[1] < end_offset]
        if self.begin < file.start:
            cuts.append((file.start, end_offset))
        self.cuts = tuple(cuts)  # replaced, not changed: the cleaning thread reads it

    def reset(self, file: LogFile, offset: int) -> None:
        """RESET."""
        self.enter(file)
        self._remove_entries(file)
        self.begin, self.end_offset = file.start, offset
        self.segments, self.slices, self.cuts, self.aborted = [LogicalSegment(offset)], (), (), ()
        self.set_epochs([])
        self.snapshots = ()

    def roll(self, offset: int) -> None:
        """ROLL; `enter` is called before, or when it is written."""
        self._begin_segment(offset)

    def split(self, offset: int, batches: Iterable[tuple[int, int, int]]) -> None:
        """ROLL that follows batches from its offset on: a segment begins before them.

        `batches`: size, last offset and greatest timestamp of each from the offset on.
        """
        segments = self.segments
        number = bisect_right(segments, offset, key=_base_offset)
        if not number or segments[number - 1].base_offset == offset:
            return
        end_offset = segments[number].base_offset if number < len(segments) else self.end_offset
        moved = LogicalSegment(offset)
        for size, last_offset, timestamp in batches:
            if last_offset >= end_offset:
                break
            if not moved.size:
                moved.first_timestamp = timestamp
            moved.size += size
        segments[number - 1].size -= moved.size
        segments.insert(number, moved)

    def trim(self, offset: int) -> None:
        """START, likewise."""
        while len(self.segments) > 1 and self.segments[0].base_offset < offset:
            del self.segments[0]
        start_offset = self.start_offset
        self.aborted = tuple([aborted for aborted in self.aborted if aborted.last_offset >= start_offset])
        current = max(sum(known[1] <= start_offset for known in self.epochs) - 1, 0)
        self.set_epochs(self.epochs[current:])
        self.snapshots = tuple([known for known in self.snapshots if known[0] >= start_offset])

    def add_aborted(self, file: LogFile, transaction: AbortedTransaction) -> None:
        """ABORTED."""
        self.enter(file)
        known = self.aborted
        if not known or known[-1].last_offset < transaction.last_offset:
            self.aborted = (*known, transaction)
        elif transaction not in known:  # its first frame was lost, those of later ones were not
            self.set_aborted((*known, transaction))

    def set_aborted(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Replace the aborted transactions."""
        self.aborted = tuple(sorted(aborted, key=_last_offset))

    def add_snapshot(self, offset: int, data: bytes) -> None:
        """SNAPSHOT, likewise."""
        earlier = [known for known in self.snapshots if known[0] < offset]
        if earlier and not self._starts_segment(earlier[-1][0]):
            del earlier[-1]
        later = [known for known in self.snapshots if known[0] > offset]
        self.snapshots = (*earlier, (offset, data), *later)

    def _starts_segment(self, offset: int) -> bool:
        number = bisect_left(self.segments, offset, key=_base_offset)
        return number < len(self.segments) and self.segments[number].base_offset == offset

    def drop(self, file: LogFile) -> None:
        """DROP."""
        self.enter(file)
        self._remove_entries(file)
        file.ends[self.number] = 0
        file.states[self.number] = [self.number]

    def _remove_entries(self, file: LogFile) -> None:
        entries = file.slices.pop(self.number, None)
        if entries is not None:
            file.removed += entries.size

    def record_in(self, file: LogFile) -> None:
        """Record the state at the end of a file (log_file.py rule 4)."""
        file.ends.setdefault(self.number, self.end_offset)
        if self.number in file.touched and self.number not in file.states:
            file.states[self.number] = self.state()

    def _add_epochs(self, batches: Sequence[BatchInfo]) -> None:
        for batch in batches:
            if batch.leader_epoch > self.latest_epoch:
                self.latest_epoch = batch.leader_epoch
                self.epochs = (*self.epochs, (batch.leader_epoch, batch.base_offset))

    def set_epochs(self, epochs: Sequence[tuple[int, int]]) -> None:
        """Replace the leader epochs."""
        self.epochs = tuple(epochs)
        self.latest_epoch = epochs[-1][0] if epochs else NO_EPOCH

    def _begin_segment(self, base_offset: int) -> None:
        if base_offset > self.segments[-1].base_offset:
            self.segments.append(LogicalSegment(base_offset))

    # ---- state -------------------------------------------------------------------------------------------

    def state(self) -> list[object]:
        """The state as in a queue file."""
        topic_id, partition, incarnation = self.slot_id
        return [
            self.number, topic_id.hex(), partition, incarnation, self.begin, self.end_offset,
            [[segment.base_offset, segment.size, segment.first_timestamp] for segment in self.segments],
            [list(cut) for cut in self.cuts],
            [list(aborted) for aborted in self.aborted], [list(known) for known in self.epochs],
            [[offset, b64encode(data).decode()] for offset, data in self.snapshots],
            self.topic,
        ]  # fmt: skip

    def restore(self, state: list[object]) -> None:
        """Take over the state of a queue file."""
        self.number, _, _, _, self.begin, self.end_offset, segments, cuts, aborted, epochs, snapshots, self.topic = (
            state  # type: ignore[assignment]
        )
        self.segments = [LogicalSegment(*values) for values in segments]  # type: ignore[attr-defined]
        self.cuts = tuple([(file_start, offset) for file_start, offset in cuts])  # type: ignore[attr-defined]
        self.set_aborted([AbortedTransaction(*values) for values in aborted])  # type: ignore[attr-defined]
        self.set_epochs([(epoch, offset) for epoch, offset in epochs])  # type: ignore[attr-defined]
        self.snapshots = tuple([(offset, b64decode(data)) for offset, data in snapshots])  # type: ignore[attr-defined]


def packed_json(state: Sequence[object]) -> bytes:
    """A state in a queue file. One at a time: all of them would keep other threads waiting for the interpreter."""
    return json.dumps(state, separators=(",", ":")).encode()


def states_in(packed: bytes) -> Iterator[list[Any]]:
    """The states in a queue file, likewise."""
    text, at, decode = packed.decode(), 1, json.JSONDecoder().raw_decode
    while at < len(text) - 1:
        state, end = decode(text, at)
        yield state
        at = end + 1


def valid_end(cuts: Sequence[tuple[int, int]], file_start: int, end_offset: int) -> int:
    """The end offset of the valid entries in a file whose row has this end offset (rule 3)."""
    later = bisect_right(cuts, file_start, key=_file_start)
    return min(end_offset, cuts[later][1]) if later < len(cuts) else end_offset


def topic_of(state: list[object]) -> str:
    """The topic of a state; empty if the partition has a directory."""
    topic = state[-1]
    assert isinstance(topic, str)
    return topic


def slot_text(slot_id: SlotId, topic: str = "") -> str:
    """A partition in messages, as Kafka prints it; one with a directory has no topic here, and is named by its topic id."""
    return f"{topic or uuid_text(slot_id.topic_id)}-{slot_id.partition}"


def slot_id_of(state: list[object]) -> SlotId:
    """The partition of a state."""
    _, topic_id, partition, incarnation, *_ = state
    assert isinstance(topic_id, str)
    assert isinstance(partition, int)
    assert isinstance(incarnation, int)
    return SlotId(bytes.fromhex(topic_id), partition, incarnation)


class SlotNumbers:
    """Which numbers are free (rule 7).

    `take`, `collect` and `give_back` are called under the lock of the log, `release` in any thread.
    """

    def __init__(self, count: int = 0, used: Container[int] = ()) -> None:
        """`count`: numbers below it were used; `used`: those that are, in files that are all sealed."""
        self.count = count
        """All numbers in use are below it."""
        self._free = [number for number in reversed(range(count)) if number not in used]
        self._released: deque[tuple[int, LogFile]] = deque()

    @property
    def has_released(self) -> bool:
        """Whether `collect` may find numbers; any thread."""
        return bool(self._released)

    def take(self) -> int:
        """A number for a new slot."""
        self.collect()
        if self._free:
            return self._free.pop()
        self.count += 1
        return self.count - 1

    def collect(self) -> None:
        """Find the numbers that are free by now, and forget the files with their DROP frames."""
        while self._released and self._released[0][1].is_sealed:
            self._free.append(self._released.popleft()[0])

    def give_back(self, number: int) -> None:
        """No frame was written with the number that was taken last."""
        if number == self.count - 1:
            self.count = number  # as if it had not been taken: queue files are made again from frames alone
        else:
            self._free.append(number)

    def release(self, number: int, file: LogFile) -> None:
        """The slot was dropped by a frame in this file."""
        self._released.append((number, file))
