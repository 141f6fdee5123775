"""Checks one partition in a commit log: its batches against entries, segments, leader epochs, transactions and checkpoints.

RULES    1. The log is opened as by the next start, on a disk that keeps the changes in memory: what it finds is checked.
         2. Every batch is read through its entry. The records of a damaged batch are lost; those after it stay readable.
         3. Nothing here can be repaired without losing records (`recover_from` is always None): a recovery would end the
            partition before the damage.
NOT HERE Frames, queue files (commit_log_check.py), partitions in segment files (partition_check.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Final, NamedTuple

from protocol.errors import KafkaError
from protocol.primitives import Buffer
from protocol.records import BatchHeader, crc_is_valid, parse_header
from storage.commitlog.commit_log import CommitLog
from storage.commitlog.commit_log_engine import CommitLogEngine
from storage.commitlog.queue_file import Entry
from storage.commitlog.slots import Slot, SlotId
from storage.config.log_config import LogConfig
from storage.inspection.dry_run_disk import DryRunDisk
from storage.inspection.issues import Issue, Severity
from storage.io.disk_lookup import read_waiting
from storage.log.leader_epoch_cache import UNDEFINED
from storage.log.log_offsets import NEVER_CLEANED, Checkpoint
from storage.log.producer_state import CorruptSnapshot, ProducerState
from storage.log.recovery import replay

_MAX_DAMAGES: Final = 20
_CONFIG: Final = LogConfig()


class StoredSlot(NamedTuple):
    """A partition with frames in a commit log."""

    slot_id: SlotId
    topic: str
    """Empty if the partition has a directory."""
    engine: CommitLogEngine


def stored_slots(directory: str) -> list[StoredSlot]:
    """The partitions in the commit log of a log directory after the next start; changes nothing."""
    log = CommitLog(DryRunDisk(), directory, random_bytes=bytes, new_lock=nullcontext)
    log.open()
    return [_stored(log, slot) for slot in sorted(log.slots, key=lambda slot: slot.number)]


def _stored(log: CommitLog, slot: Slot) -> StoredSlot:
    engine = CommitLogEngine(log, slot.slot_id, slot.topic, _CONFIG)
    engine.open(None)
    return StoredSlot(slot.slot_id, slot.topic, engine)


class _Damage(NamedTuple):
    """Neighbouring batches that cannot be read."""

    first: int
    last: int
    path: str
    position: int
    reason: str


class SlotCheck:
    """The check of one partition."""

    def __init__(self, directory: str, name: str, engine: CommitLogEngine) -> None:
        self.path = f"{directory}/{name}"
        self.name = name
        self._engine = engine
        self.issues: list[Issue] = []
        self.recover_from: int | None = None
        self.broken_files: list[str] = []
        self.end_offset = engine.end_offset
        self._damages: list[_Damage] = []
        self._was_compacted = False
        self._at = engine.start_offset  # the offset after the last entry
        self._bases = [segment.base_offset for segment in engine.segments()]
        self._sizes: dict[int, int] = {}  # of the batches of each segment, by number
        self._epochs: list[tuple[int, int]] = []
        self._producers = ProducerState(name)
        self._aborted: set[tuple[int, int]] = set()

    @property
    def worst(self) -> Severity:
        """The highest severity."""
        return max([issue.severity for issue in self.issues], default=Severity.NOTE)

    def run(self, known: Checkpoint) -> None:
        """Run all checks; `known` are the offsets checkpointed in the log directory."""
        self._was_compacted = known.first_dirty_offset != NEVER_CLEANED
        self._check_snapshots()
        for path, entry, data in self._entries():
            self._check_batch(path, entry, data)
        self._report_damages()
        if self._at < self.end_offset:
            self._add(Severity.LOSS, f"Offsets {self._at} to {self.end_offset - 1} are missing at its end.")
        if self.worst == Severity.NOTE:
            self._check_segments()
            self._check_epochs()
            self._check_aborted()
        self._check_checkpoint(known)

    def _add(self, severity: Severity, text: str, path: str = "") -> None:
        self.issues.append(Issue(severity, path or self.path, text))

    # ---- batches -----------------------------------------------------------------------------------------

    def _entries(self) -> Iterator[tuple[str, Entry, Buffer]]:
        for file, entry in self._engine.view().entries_from(self._engine.start_offset):
            yield file.path, entry, read_waiting(file.log.get(read_waiting), entry.size, entry.position)

    def _check_batch(self, path: str, entry: Entry, data: Buffer) -> None:
        header = _header(data)
        reason = "it has no valid header" if header is None else _contradiction(entry, data, header)
        if header is None or reason is not None:
            self._report_damage(path, entry, reason or "")
        else:
            self._accept(header, data)
        self._at = entry.last_offset + 1

    def _report_damage(self, path: str, entry: Entry, reason: str) -> None:
        last = self._damages[-1] if self._damages else None
        if last is not None and (last.path, last.reason, last.last + 1) == (path, reason, self._at):
            self._damages[-1] = last._replace(last=entry.last_offset)
        else:
            self._damages.append(_Damage(self._at, entry.last_offset, path, entry.position, reason))

    def _report_damages(self) -> None:
        for first, last, path, position, reason in self._damages[:_MAX_DAMAGES]:
            where = f"{path.rpartition('/')[2]} from position {position} on"
            self._add(
                Severity.LOSS, f"Offsets {first} to {last} cannot be read: the batch in {where} is damaged: {reason}."
            )
        if len(self._damages) > _MAX_DAMAGES:
            self._add(Severity.LOSS, f"{len(self._damages) - _MAX_DAMAGES} more ranges cannot be read.")

    def _accept(self, header: BatchHeader, data: Buffer) -> None:
        if header.base_offset > self._at > self._engine.start_offset:
            missing = f"Offsets {self._at} to {header.base_offset - 1} are missing"
            if self._was_compacted:
                self._add(Severity.NOTE, f"{missing}, as compaction leaves it.")
            else:
                self._add(Severity.LOSS, f"{missing}.")
        elif header.base_offset < self._at and self._at > self._engine.start_offset:
            self._add(
                Severity.LOSS, f"The batch at offset {header.base_offset} follows one that ends at {self._at - 1}."
            )
        number = max(bisect_right(self._bases, header.base_offset) - 1, 0)
        self._sizes[number] = self._sizes.get(number, 0) + header.size
        if header.leader_epoch > (self._epochs[-1][0] if self._epochs else UNDEFINED):
            self._epochs.append((header.leader_epoch, header.base_offset))
        if header.producer_id >= 0:
            try:
                aborted = replay(self._producers, data, 0, header)
            except KafkaError as error:
                self._add(Severity.LOSS, f"The marker at offset {header.base_offset} cannot be read: {error}.")
                return
            if aborted is not None:
                self._aborted.add((aborted.producer_id, aborted.last_offset))

    # ---- the state that the frames give ------------------------------------------------------------------

    def _check_snapshots(self) -> None:
        for offset, data in self._engine.snapshots().items():
            try:
                state = ProducerState(self.name)
                state.restore(data, wall_ms=0)
            except CorruptSnapshot as error:
                self._add(Severity.HARMLESS, f"Its producer snapshot at offset {offset} is corrupt: {error}.")
            else:
                if offset == self._engine.start_offset:
                    self._producers = state

    def _check_segments(self) -> None:
        for number, segment in enumerate(self._engine.segments()):
            found = self._sizes.get(number, 0)
            if segment.size != found:
                text = f"Its segment from offset {segment.base_offset} on has {segment.size} bytes, its batches {found}"
                if found < segment.size:
                    self._add(Severity.LOSS, f"{text}: the others are missing.")
                else:
                    self._add(Severity.HARMLESS, f"{text}.")

    def _check_epochs(self) -> None:
        start, known = self._engine.start_offset, self._engine.leader_epochs()
        first = [(epoch, start) for epoch, offset in known if offset <= start][-1:] if self._epochs else []
        stored = first + [(epoch, offset) for epoch, offset in known if offset > start]
        found = [(epoch, max(offset, start)) for epoch, offset in self._epochs]
        if stored != found:
            self._add(Severity.HARMLESS, f"Its leader epochs are {known}, those of its batches {found}.")

    def _check_aborted(self) -> None:
        aborted = self._engine.aborted(0, self.end_offset)
        known = {(transaction.producer_id, transaction.last_offset) for transaction in aborted}
        for _, last_offset in sorted(self._aborted - known):
            text = (
                f"The transaction that was aborted at {last_offset} is not known: readers of committed records get it."
            )
            self._add(Severity.LOSS, text)

    def _check_checkpoint(self, known: Checkpoint) -> None:
        point, start, watermark, _ = known
        end = self.end_offset
        if start > end:
            text = f"Its checkpointed start {start} is above its end {end}: the next start empties the log."
            self._add(Severity.LOSS, f"{text} Correct log-start-offset-checkpoint first if that is wrong.")
        elif point > end:
            self._add(Severity.LOSS, f"It ends at {end}, but was durable up to {point}.")
        elif watermark > end:
            self._add(Severity.HARMLESS, f"Its high watermark {watermark} is above its end {end}.")


def _header(data: Buffer) -> BatchHeader | None:
    try:
        return parse_header(data)
    except KafkaError:
        return None


def _contradiction(entry: Entry, data: Buffer, header: BatchHeader) -> str | None:
    if (header.size, header.last_offset) != (entry.size, entry.last_offset):
        found, said = (header.size, header.last_offset), (entry.size, entry.last_offset)
        return f"its bytes and last offset are {found}, its entry says {said}"
    if not crc_is_valid(data, 0, header):
        return "its bytes do not match its CRC"
    if header.max_timestamp != entry.max_timestamp:
        return f"its greatest timestamp is {header.max_timestamp}, its entry says {entry.max_timestamp}"
    return None
