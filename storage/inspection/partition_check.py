"""Checks one partition's directory: the sequence of segments, and the other files against their contents.

RULES    1. A batch's offset and leader epoch, which no CRC covers, are compared with neighbours and the epoch checkpoint.
         2. The expected aborted transactions follow from the batches, starting with the snapshot at the log start. In a
            compacted log an index also names those whose batches were removed, as long as it has their markers.
         3. `recover_from` is the offset from which a recovery repairs all issues; None if none is needed.
         4. After a crash the epoch checkpoint need not have the epochs of batches that the next start scans.
NOT HERE One segment (segment_check.py); the effects of a start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import pairwise
from operator import itemgetter

from protocol.errors import KafkaError
from protocol.records import NO_LEADER_EPOCH
from storage.engine import AbortedTransaction
from storage.inspection.batches import StoredBatch
from storage.inspection.indexes import ENTRY_SIZES, TRANSACTION_INDEX, transaction_entries
from storage.inspection.issues import Issue, Severity, severity_of
from storage.inspection.segment_check import SegmentCheck
from storage.io.checkpoint_file import LEADER_EPOCHS, read_epochs
from storage.io.disk import DELETED, Disk, StorageError
from storage.log.leader_epoch_cache import UNDEFINED
from storage.log.log_offsets import NEVER_CLEANED, Checkpoint
from storage.log.producer_state import (
    CorruptSnapshot,
    ProducerState,
    read_end_transaction_marker,
    snapshot_name,
    snapshot_offset,
)
from storage.log.recovery import replay
from storage.segments.directory_recovery import CLEANED, INDEXES, LOG, SWAP

_DIGITS = 20


class PartitionCheck:
    """The check of one partition."""

    def __init__(self, disk: Disk, path: str, name: str, *, is_compacted: bool, is_clean: bool) -> None:
        self._disk = disk
        self._is_compacted = is_compacted
        self._is_clean = is_clean
        self.path = path
        self.name = name
        self.issues: list[Issue] = []
        self.start_offset = self.end_offset = 0
        self.recover_from: int | None = None
        self.broken_files: list[str] = []
        """Unreadable files that a recovery rebuilds."""
        self._epochs: list[tuple[int, int]] = []
        self._epoch = UNDEFINED
        self._producers = ProducerState(name)
        self._aborted: deque[tuple[int, AbortedTransaction]] = deque()
        self._aborted_path = ""
        self._base_offset = 0
        self._log_start_offset = 0
        self._recovery_point = 0

    def run(self, known: Checkpoint) -> None:
        """Run all checks; `known` are the offsets checkpointed in the log directory."""
        self._is_compacted |= known.first_dirty_offset != NEVER_CLEANED  # it was compacted before
        names = self._disk.listdir(self.path)
        bases = sorted(int(name[:_DIGITS]) for name in names if _is_segments(name, LOG))
        self._check_names(names, set(bases))
        if not bases:
            return
        self.start_offset = self.end_offset = bases[0]
        self._log_start_offset, self._recovery_point = known.log_start_offset, known.recovery_point
        snapshots = sorted(offset for name in names if (offset := snapshot_offset(name)) is not None)
        self._check_snapshots(snapshots, bases[0])
        self._read_epochs()
        for base_offset in bases:
            self._check_segment(base_offset, is_last=base_offset == bases[-1])
        self._check_epochs(known)
        for offset in snapshots:
            if offset > self.end_offset:
                self._add(
                    Severity.HARMLESS, snapshot_name(offset), f"It is above the log end offset {self.end_offset}."
                )
        self._check_checkpoint(known)

    def _add(self, severity: Severity, name: str, text: str) -> None:
        self.issues.append(Issue(severity, f"{self.path}/{name}" if name else self.path, text))

    def _report_once(self, name: str, text: str) -> None:
        """Report a file that a recovery rebuilds, unless it was reported before."""
        if not any(issue.path.endswith(name) for issue in self.issues):
            self._add(Severity.HARMLESS, name, text)

    def _recover_from(self, offset: int) -> None:
        self.recover_from = offset if self.recover_from is None else min(offset, self.recover_from)

    # ---- files -------------------------------------------------------------------------------------------

    def _check_names(self, names: list[str], bases: set[int]) -> None:
        for name in sorted(names):
            if name.endswith((DELETED, CLEANED, SWAP)):
                self._add(
                    Severity.NOTE, name, "It belongs to an interrupted operation, which the next start completes."
                )
            for suffix in INDEXES:
                if _is_segments(name, suffix) and int(name[:_DIGITS]) not in bases:
                    self._add(Severity.HARMLESS, name, "There is no log with this name: the next start deletes it.")
                    self._recover_from(self.end_offset)
        if not bases and self._is_clean and any(snapshot_offset(name) for name in names):
            self._add(Severity.LOSS, "", "There are producer snapshots but no log.")

    def _check_snapshots(self, offsets: list[int], start_offset: int) -> None:
        for offset in offsets:
            name = snapshot_name(offset)
            try:
                state = ProducerState(self.name)
                state.restore(self._disk.read(f"{self.path}/{name}"), wall_ms=0)
            except CorruptSnapshot as error:
                self._add(Severity.HARMLESS, name, f"It is corrupt: {error}.")
                self._recover_from(start_offset)
            else:
                if offset == start_offset:
                    self._producers = state

    # ---- segments ----------------------------------------------------------------------------------------

    def _check_segment(self, base_offset: int, *, is_last: bool) -> None:
        if base_offset > self.end_offset and not self._is_compacted:
            missing = f"Offsets {self.end_offset} to {base_offset - 1} are missing before it."
            self._add(Severity.LOSS, f"{base_offset:020d}{LOG}", missing)
            self._recover_from(self.end_offset)
        elif base_offset < self.end_offset:
            twice = f"The segment before it ends at {self.end_offset}, behind its own start."
            self._add(Severity.LOSS, f"{base_offset:020d}{LOG}", twice)
            self._recover_from(self._base_offset)
        self._base_offset = base_offset
        self._open_aborted(base_offset)
        check = SegmentCheck(self._disk, self.path, base_offset, self._visit)
        check.run(is_last=is_last, is_clean=self._is_clean)
        self.issues += check.issues
        if check.has_bad_index or check.first_damage is not None:
            self._recover_from(base_offset)
        if check.first_damage is None and self._aborted:
            _, transaction = self._aborted[0]
            self._report_aborted(f"No transaction ends at {transaction.last_offset}.")
        self.end_offset = check.end_offset

    def _visit(self, found: StoredBatch) -> None:
        header = found.header
        if header.last_offset >= self._log_start_offset:
            self._check_epoch(header.leader_epoch, max(header.base_offset, self._log_start_offset))
        if header.producer_id >= 0:
            try:
                aborted = replay(self._producers, found.buffer, found.at, header)
            except KafkaError as error:
                text = f"The marker at offset {header.base_offset} cannot be read: {error}."
                self._add(Severity.LOSS, f"{self._base_offset:020d}{LOG}", text)
                return
            is_named = self._take_named(aborted, found)
            if aborted is not None and not is_named:
                self._report_aborted(f"It does not name the transaction that was aborted at {aborted.last_offset}.")

    # ---- aborted transactions ----------------------------------------------------------------------------

    def _take_named(self, aborted: AbortedTransaction | None, found: StoredBatch) -> bool:
        """Whether the next entry names the transaction that a batch aborts; if so, take it (rule 2)."""
        entry, header = self._aborted[0] if self._aborted else None, found.header
        if entry is None:
            return False
        version, named = entry
        is_same = (version, named) == (0, aborted)
        if not is_same and self._is_compacted and header.is_control:
            marker = read_end_transaction_marker(found.buffer, found.at, header)
            is_abort = marker is not None and not marker.is_commit
            ends_here = (version, named.producer_id, named.last_offset) == (0, header.producer_id, header.last_offset)
            is_same = is_abort and ends_here
        if is_same:
            self._aborted.popleft()
        return is_same

    def _open_aborted(self, base_offset: int) -> None:
        name = f"{base_offset:020d}{TRANSACTION_INDEX}"
        self._aborted, self._aborted_path = deque[tuple[int, AbortedTransaction]](), name
        if self._disk.exists(f"{self.path}/{name}"):
            file = self._disk.open(f"{self.path}/{name}", write=False)
            self._aborted.extend(transaction_entries(file))
            if file.size() % ENTRY_SIZES[TRANSACTION_INDEX]:
                self._report_aborted(f"Its {file.size()} bytes are no multiple of {ENTRY_SIZES[TRANSACTION_INDEX]}.")

    def _report_aborted(self, text: str) -> None:
        self._report_once(self._aborted_path, text)
        self._aborted.clear()
        self._recover_from(self._base_offset)

    # ---- leader epochs -----------------------------------------------------------------------------------

    def _read_epochs(self) -> None:
        try:
            self._epochs = read_epochs(self._disk, f"{self.path}/{LEADER_EPOCHS}")
        except StorageError as error:
            self._add(severity_of(error), LEADER_EPOCHS, str(error))
            self.broken_files.append(f"{self.path}/{LEADER_EPOCHS}")
            self._recover_from(self.start_offset)
        for (epoch, offset), (next_epoch, next_offset) in pairwise(self._epochs):
            if epoch >= next_epoch or offset >= next_offset:
                self._report_epochs(f"Epoch {next_epoch} from {next_offset} on follows epoch {epoch} from {offset} on.")

    def _check_epoch(self, epoch: int, offset: int) -> None:
        if epoch < self._epoch:
            text = (
                f"The batch at offset {offset} says leader epoch {epoch}, the one before it {self._epoch}: one of them "
                "was changed where no CRC covers it. Consumers pass over it."
            )
            if not any(issue.text == text for issue in self.issues):
                self._add(Severity.NOTE, f"{self._base_offset:020d}{LOG}", text)
            return
        self._epoch = epoch
        slot = bisect_right(self._epochs, offset, key=itemgetter(1)) - 1
        expected, _ = self._epochs[slot] if slot >= 0 else (NO_LEADER_EPOCH, 0)
        is_unwritten = not self._is_clean and epoch > expected and offset >= self._recovery_point  # rule 4
        if epoch != expected and not is_unwritten and not self.broken_files:
            self._report_epochs(f"It says epoch {expected} for offset {offset}, whose batch says {epoch}.")

    def _check_epochs(self, known: Checkpoint) -> None:
        for epoch, offset in self._epochs:
            if offset > max(self.end_offset, known.log_start_offset):
                self._report_epochs(f"Epoch {epoch} begins at {offset}, behind the end {self.end_offset}.")

    def _report_epochs(self, text: str) -> None:
        self._report_once(LEADER_EPOCHS, text)
        self._recover_from(self.start_offset)

    # ---- checkpoints of the log directory ----------------------------------------------------------------

    def _check_checkpoint(self, known: Checkpoint) -> None:
        point, start, watermark, _ = known
        end = self.end_offset
        if start > end:
            text = f"Its checkpointed start {start} is above its end {end}: the next start empties the log."
            self._add(Severity.LOSS, "", f"{text} Correct log-start-offset-checkpoint first if that is wrong.")
        elif point > end:
            self._add(Severity.LOSS, "", f"It ends at {end}, but was durable up to {point}.")
        elif watermark > end:
            self._add(Severity.HARMLESS, "", f"Its high watermark {watermark} is above its end {end}.")
        if end < max(start, point, watermark):
            self._recover_from(self.start_offset)


def _is_segments(name: str, suffix: str) -> bool:
    return len(name) == _DIGITS + len(suffix) and name[:_DIGITS].isdecimal() and name.endswith(suffix)
