"""The metadata log `__cluster_metadata-0` of one replica: appends of the leader, replication, flushing, truncation.

FORMAT   batches, records and snapshots: `metadata_records.py`; quorum-state: `quorum_state_store.py`
RULES    1. One append is one batch, visible completely or not at all; it is split only if it may be. A leader's append has its
            offsets at once. It is encoded in slices (`cooperative_tasks.py`) and written behind earlier ones through the
            IoExecutor, so that a slow directory does not block other requests.
         2. At most one flush is pending: what is written meanwhile is covered by the next one (group commit). `on_flushed`
            is called after each.
         3. An append is committed when the high watermark has passed it; callbacks run in the order of the appends. After a
            loss of leadership no callback runs.
         4. Appends, truncations and snapshot loads of a follower run one after the other; their results mean that they are
            durable. After a failure there is no result. A reader thread truncates: meanwhile the log is not used
            (`is_truncating`).
         5. A failed write or flush is final: nothing is committed afterwards, `on_failed` is called, the node must stop.
NOT HERE Content at startup (`metadata_replay.py`, `metadata_log_open.py`), what to write (`controller/`), elections and commit
         (`raft/`, `kraft_replica.py`), when a snapshot is taken (`metadata_snapshots.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from protocol.control_records import ControlType
from protocol.errors import KafkaError
from protocol.messages import stored_records
from protocol.records import headers
from protocol.schema import Message
from replication.completion import Completion
from replication.cooperative_tasks import CallSoon, no_op, run_in_slices, run_inline
from replication.io_executor import IoExecutor, IoResult
from replication.metadata.metadata_records import (
    DataBatches,
    MetadataBatch,
    Snapshot,
    SnapshotName,
    UnreadableMetadata,
    Versioned,
    control_records,
    read_batch,
    read_batches,
)
from replication.metadata_log.control_state import ControlState, to_record, voter_records
from replication.metadata_log.recent_batches import RecentBatches
from replication.metadata_log.snapshot_files import SnapshotFiles
from replication.raft.events import AppendBatches, AppendVoters, BecomeLeader, WriteSnapshotChunk
from replication.raft.raft_log import EpochEnd
from storage.io.deferred_file_ops import FileOp
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup, wait_for_disk
from storage.log.append_pipeline import PreparedAppend
from storage.log.log import Log
from storage.log.log_flush import LogFlush
from storage.log.log_validator import AppendOrigin
from storage.log.open_log import Truncation

READ_BYTES = 1024 * 1024
_log = logging.getLogger("barnabas.metadata")

LogCallback = Callable[[], None]


class _UnwrittenAppend(NamedTuple):
    """An append that is not submitted to the disk yet; its steps yield batches, and None after encoding a record."""

    steps: Iterator[bytearray | None]
    epoch: int
    wall_ms: int


class _FlushWaiter(NamedTuple):
    """What to call when the records before an offset are durable."""

    end_offset: int
    on_flushed: LogCallback


class CommitLatency:
    """How long this replica's appends as leader took to be committed, in milliseconds since the start."""

    __slots__ = ("count", "longest_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = self.sum_ms = self.longest_ms = 0

    def record(self, latency_ms: int) -> None:
        """Counts one append; a clock that was set back counts as 0."""
        latency_ms = max(latency_ms, 0)
        self.count += 1
        self.sum_ms += latency_ms
        self.longest_ms = max(self.longest_ms, latency_ms)


class _CommitWaiter(NamedTuple):
    """What to call when the records before an offset are committed."""

    end_offset: int
    wall_ms: int
    on_committed: LogCallback


@dataclass(eq=False)
class MetadataLog:
    """The log of one replica; implements Raft's view of it (`RaftLog`)."""

    _log: Log
    _executor: IoExecutor
    snapshots: SnapshotFiles
    _control: ControlState
    _end_epoch: int

    def __post_init__(self) -> None:
        self._log.files.submit = self._submit_file_op
        self._unwritten_appends: deque[_UnwrittenAppend] = deque()
        self._writes_in_flight = 0
        self._flush_waiters: deque[_FlushWaiter] = deque()
        self._commit_waiters: deque[_CommitWaiter] = deque()
        self._idle_waiters: deque[LogCallback] = deque()
        self._is_flushing = False
        self.next_offset = self._log.log_end_offset
        """The offset of the next record."""
        self._recent = RecentBatches()
        self._new_epochs: list[EpochEnd] = []
        """Epochs whose first records are being written, so that the log may not know them yet; and their start offsets."""
        self.voters = self._control.voters
        self.kraft_version = self._control.kraft_version
        """1: the voters are stored in the log; 0: they are configured."""
        self.is_failed = False
        self.is_truncating = False
        """Whether a thread truncates the log: nothing is read, written or deleted, and no high watermark moves."""
        self.on_failed: Callable[[StorageError], None] = no_op
        self.on_written: LogCallback = no_op
        """Called when more records are readable."""
        self.on_flushed: LogCallback = no_op
        """Called when more records are durable."""
        self.on_snapshot_loaded: Callable[[SnapshotName, Snapshot], None] = no_op
        """Receives a snapshot of the leader that replaced the log."""
        self.snapshot_timestamp_ms = 0
        """The last contained timestamp of the snapshot loaded at startup."""
        self.bytes_since_snapshot = 0
        """Bytes written since the newest snapshot."""
        self.committed_timestamp_ms = 0
        """The timestamp of the last committed record."""
        self.commit_latency = CommitLatency()
        self.call_soon: CallSoon = run_inline
        """Lets other work run while many records are encoded."""

    # ------------------------------------------------------------ state
    @property
    def directory(self) -> str:
        """The log directory."""
        return self._log.directory

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return self._log.open().engine.size_bytes

    @property
    def start_offset(self) -> int:
        """The log start offset."""
        return self._log.log_start_offset

    @property
    def end(self) -> EpochEnd:
        """The end of the log, including records that are being written."""
        return EpochEnd(self._end_epoch, self.next_offset)

    @property
    def flushed_offset(self) -> int:
        """The end of what is durable, in the log or in the snapshot before it."""
        return max(self._log.flushed_end_offset, self._log.log_start_offset)

    @property
    def oldest_snapshot(self) -> EpochEnd | None:
        """The oldest snapshot from which the log continues; a loaded snapshot may have left older ones."""
        names = (file.name for file in self.snapshots.files)
        name = next((name for name in names if name.end_offset >= self.start_offset), None)
        return _epoch_end(name) if name is not None and name.end_offset else None

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        """The snapshot for replicas that are too far behind."""
        newest = self.snapshots.newest
        return _epoch_end(newest) if newest.end_offset else None

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """The largest known epoch up to `epoch`, and its end offset."""
        if epoch >= self._end_epoch:
            return self.end
        lowest = self.oldest_snapshot or EpochEnd(0, 0)
        known = self._log.open().epochs.latest
        if epoch >= known:
            before = max(known, lowest.epoch)
            for start in self._new_epochs:
                if start.epoch > epoch:
                    return EpochEnd(before, start.offset)
                before = max(before, start.epoch)
        found, offset = self._log.open().end_offset_for_epoch(epoch)
        return EpochEnd(found, offset) if found >= 0 else lowest

    # ------------------------------------------------------------ reading
    def read(self, offset: int, max_bytes: int) -> Any:
        """Whole batches from an offset; empty at the end of the written records.

        Those that were written by an earlier process, or long ago, are read from the disk: `lookup` before avoids the wait.
        """
        if offset >= self._log.log_end_offset or self.is_truncating:
            return b""
        if self._recent.has(offset):
            return self._recent.read(offset, max_bytes)
        return wait_for_disk(self._log.open().reader.read_records, offset, max_bytes)

    def lookup(self, offset: int, max_bytes: int) -> DiskLookup | None:
        """The lookup before `read` that needs the disk; None if it does not."""
        is_here = self.start_offset <= offset < self._log.log_end_offset
        if not is_here or self.is_truncating or self._recent.has(offset):
            return None
        found = self._log.open().reader.read_records(offset, max_bytes)
        return found if isinstance(found, DiskLookup) else None

    def read_snapshot(self, snapshot: EpochEnd, position: int, max_bytes: int) -> tuple[Any, int] | None:
        """A chunk of a snapshot and the snapshot's size; None if it does not exist."""
        return self.snapshots.read_chunk(SnapshotName(snapshot.offset, snapshot.epoch), position, max_bytes)

    def batches(self, offset: int, end_offset: int) -> Iterator[MetadataBatch]:
        """Decoded batches between two offsets."""
        return batches_between(self.read, offset, end_offset)

    def snapshot_control_records(self, end_offset: int) -> list[tuple[ControlType, Message]]:
        """The control records of a snapshot up to an offset: the voters, unless they are configured."""
        return voter_records(to_record(self.voters.at(end_offset))) if self.kraft_version.at(end_offset) else []

    # ------------------------------------------------------------ as leader
    def begin_epoch(self, effect: BecomeLeader, node_id: int, wall_ms: int, on_committed: LogCallback) -> None:
        """Append the LeaderChange record of an epoch, and quorum records in the same batch."""
        voters = [stored_records.LeaderChangeVoter(voter_id=voter) for voter in self.voters.latest.node_ids]
        granting = [stored_records.LeaderChangeVoter(voter_id=voter) for voter in effect.granting_voters]
        leader = stored_records.LeaderChangeMessage(leader_id=node_id, voters=voters, granting_voters=granting)
        messages: list[tuple[ControlType, Message]] = [(ControlType.LEADER_CHANGE, leader)]
        if (new := effect.append_voters) is not None:
            messages += voter_records(to_record(new.voters), new.kraft_version)
        self._start_epoch(effect.epoch, self.next_offset)
        self._append_control(messages, wall_ms, on_committed)

    def append_voters(self, append_voters: AppendVoters, wall_ms: int) -> None:
        """Append a VotersRecord, after a KRaftVersionRecord if the effect has one."""
        records = voter_records(to_record(append_voters.voters), append_voters.kraft_version)
        self._append_control(records, wall_ms, no_op)

    def _append_control(
        self, messages: list[tuple[ControlType, Message]], wall_ms: int, on_committed: LogCallback
    ) -> None:
        first = self.next_offset
        batch = control_records(messages, base_offset=first, leader_epoch=self._end_epoch, timestamp_ms=wall_ms)
        for offset, (_, message) in enumerate(messages, first):
            self._control.apply(offset, message)
        self._append(len(messages), iter([batch]), wall_ms, on_committed)

    def append(
        self, records: Sequence[Versioned], *, wall_ms: int, on_committed: LogCallback, is_atomic: bool = True
    ) -> int:
        """Append data records; returns the last offset."""
        batches = DataBatches(base_offset=self.next_offset, leader_epoch=self._end_epoch, timestamp_ms=wall_ms)
        return self._append(len(records), _encode(records, batches, is_atomic=is_atomic), wall_ms, on_committed)

    def _append(self, records: int, steps: Iterator[bytearray | None], wall_ms: int, on_committed: LogCallback) -> int:
        """Assign offsets to `records` records; write the batches of `steps` behind earlier appends."""
        self.next_offset += records
        self._commit_waiters.append(_CommitWaiter(self.next_offset, wall_ms, on_committed))
        self._flush_waiters.append(_FlushWaiter(self.next_offset, no_op))
        self._unwritten_appends.append(_UnwrittenAppend(steps, self._end_epoch, wall_ms))
        if len(self._unwritten_appends) == 1:
            run_in_slices(self._write_unwritten(), self.call_soon)
        return self.next_offset - 1

    def _write_unwritten(self) -> Iterator[None]:
        unwritten = self._unwritten_appends
        while unwritten:
            steps, epoch, wall_ms = unwritten[0]
            for batch in steps:
                if batch is not None and not self.is_failed:
                    self._write_batch(batch, epoch, wall_ms)
                yield
            unwritten.popleft()
        self._run_idle_waiters()

    def _write_batch(self, batch: bytearray, epoch: int, wall_ms: int) -> None:
        prepared = wait_for_disk(self._log.open().appends.prepare, batch, epoch, wall_ms, AppendOrigin.RAFT_LEADER)
        assert prepared.end_offset <= self.next_offset, "records have the offsets that were assigned"
        self._write(prepared, wall_ms)

    def on_commit(self, high_watermark: int, wall_ms: int) -> None:
        """Take over a new high watermark and call back for committed appends (rule 3)."""
        self._log.high_watermark = high_watermark
        waiters = self._commit_waiters
        while waiters and waiters[0].end_offset <= high_watermark:
            waiter = waiters.popleft()
            self.committed_timestamp_ms = waiter.wall_ms
            self.commit_latency.record(wall_ms - waiter.wall_ms)
            waiter.on_committed()

    def on_leadership_lost(self) -> None:
        """Drop the callbacks: the next leader decides what happens to uncommitted records."""
        self._commit_waiters.clear()

    # ------------------------------------------------------------ as follower
    def append_fetched(self, fetched: AppendBatches, wall_ms: int) -> Completion[None]:
        """Append batches of the leader unchanged; batches that it cannot have sent are dropped."""
        done: Completion[None] = Completion()
        self.run_when_idle(partial(self._append_fetched, fetched, wall_ms, partial(done.complete, None)))
        return done

    def _append_fetched(self, fetched: AppendBatches, wall_ms: int, done: LogCallback) -> None:
        records = fetched.records
        try:
            prepared = self._log.open().prepare_as_follower(records, wall_ms=wall_ms, leader_epoch=fetched.epoch)
        except KafkaError as error:
            _log.warning("batches of the metadata leader cannot be appended and are fetched again: %s", error)
            prepared = None
        if prepared is None:
            done()
            return
        for at, header in headers(records):
            if header.base_offset >= prepared.end_offset:
                break  # in a newer epoch than the leader's
            self._start_epoch(header.leader_epoch, header.base_offset)
            if header.is_control:
                batch = read_batch(records, at, header)
                for offset, message in enumerate(batch.messages, batch.base_offset):
                    self._control.apply(offset, message)
        self.next_offset = prepared.end_offset
        self._flush_waiters.append(_FlushWaiter(prepared.end_offset, done))
        self._write(prepared, wall_ms)

    def _start_epoch(self, epoch: int, offset: int) -> None:
        if epoch > self._end_epoch:
            self._new_epochs = [one for one in self._new_epochs if one.epoch > self._log.open().epochs.latest]
            self._new_epochs.append(EpochEnd(epoch, offset))
            self._end_epoch = epoch

    def truncate(self, offset: int) -> Completion[None]:
        """Truncate the log to an offset."""
        done: Completion[None] = Completion()

        def on_truncated() -> None:
            self._reload_end()
            self._control.truncate_to(offset)
            done.complete(None)

        def begin() -> None:
            truncation = self._log.open().begin_truncation(offset)
            if truncation is None:
                on_truncated()
            else:
                self._run_truncation(truncation, on_truncated)

        self.run_when_idle(begin)
        return done

    def _run_truncation(self, truncation: Truncation, then: LogCallback) -> None:
        def on_run(run: IoResult) -> None:
            self.is_truncating = False
            self._check(run)
            if not self.is_failed:
                truncation.finish()
                then()
                self._run_idle_waiters()

        self.is_truncating = True
        self._recent.clear()
        self._executor.read(self.directory, truncation.run).then(on_run)

    def write_snapshot_chunk(self, chunk: WriteSnapshotChunk, wall_ms: int) -> Completion[None]:
        """Write a chunk of a leader's snapshot; after the last one the log restarts at the snapshot's end offset."""
        name = SnapshotName(chunk.snapshot.offset, chunk.snapshot.epoch)
        work = self.snapshots.receive_chunk(name, chunk.position, chunk.piece, is_last=chunk.is_last)
        done: Completion[None] = Completion()

        def on_written(written: IoResult) -> None:
            if written.value is not None:
                self.fail(written.value)
            elif chunk.is_last:
                self.run_when_idle(partial(self._start_at_snapshot, name, wall_ms, done))
            else:
                done.complete(None)

        self._executor.background(self.directory, work).then(on_written)
        return done

    def _start_at_snapshot(self, name: SnapshotName, wall_ms: int, done: Completion[None]) -> None:
        try:
            snapshot = self.snapshots.add_received(name, wall_ms)
        except StorageError as error:
            self.fail(error)
            return

        def on_truncated() -> None:
            self.next_offset, self._end_epoch, self._new_epochs = name.end_offset, name.leader_epoch, []
            self.bytes_since_snapshot = 0
            self.snapshot_timestamp_ms = self.committed_timestamp_ms = snapshot.last_contained_ms
            self._control.reset_to(name.end_offset, snapshot.control)
            self.on_snapshot_loaded(name, snapshot)
            done.complete(None)

        self._run_truncation(self._log.open().begin_full_truncation(name.end_offset, name.end_offset), on_truncated)

    def _reload_end(self) -> None:
        log = self._log
        self.next_offset, self._new_epochs = log.log_end_offset, []
        epoch = log.open().epochs.latest
        snapshot = self.newest_snapshot
        self._end_epoch = max(epoch, 0 if snapshot is None else snapshot.epoch)

    def run_when_idle(self, action: LogCallback) -> None:
        """Run `action` when all started writes and flushes are done and no file operation is pending."""
        self._idle_waiters.append(action)
        self._run_idle_waiters()

    def _run_idle_waiters(self) -> None:
        while self._idle_waiters and not (
            self._unwritten_appends
            or self._writes_in_flight
            or self._is_flushing
            or self.is_truncating
            or self.is_failed
        ):
            if self._log.files.has_pending_ops:
                self._executor.write(self.directory, 0, no_op).then(lambda _: self._run_idle_waiters())
                return
            self._idle_waiters.popleft()()

    def flush_initial_records(self) -> None:
        """Flush the records found at startup: the previous process may have ended before it flushed them."""
        if self.flushed_offset < self.next_offset:
            self._flush_waiters.append(_FlushWaiter(self.next_offset, no_op))
            self._start_flush()

    # ------------------------------------------------------------ writing
    def _write(self, prepared: PreparedAppend, wall_ms: int) -> None:
        log = self._log
        self.bytes_since_snapshot += prepared.size
        self._writes_in_flight += 1
        written = self._executor.write(log.directory, prepared.size, prepared.write)
        written.then(partial(self._on_written, prepared, wall_ms))

    def _on_written(self, prepared: PreparedAppend, wall_ms: int, written: IoResult) -> None:
        self._writes_in_flight -= 1
        self._check(written)
        if self.is_failed:
            return
        self._recent.add(prepared.records)
        prepared.commit(wall_ms)
        self._start_flush()
        self.on_written()
        self._run_idle_waiters()

    def _start_flush(self) -> None:
        """Flush, unless a flush is pending or no written record is waited for."""
        log = self._log
        if self._is_flushing or not self._flush_waiters or self._flush_waiters[0].end_offset > log.log_end_offset:
            return
        self._is_flushing = True
        flush = log.open().flush
        try:
            run = flush.begin()
        except StorageError as error:
            self.fail(error)
            return
        self._executor.sync(log.directory, lambda: run).then(partial(self._on_flushed, flush, log.log_end_offset))

    def _on_flushed(self, flush: LogFlush, end_offset: int, flushed: IoResult) -> None:
        self._is_flushing = False
        self._check(flushed)
        if self.is_failed:
            return
        flush.complete(end_offset)
        waiters = self._flush_waiters
        while waiters and waiters[0].end_offset <= end_offset:
            waiters.popleft().on_flushed()
        self.on_flushed()
        self._start_flush()
        self._run_idle_waiters()

    def _submit_file_op(self, op: FileOp) -> None:
        """Run a file operation in the order of the directory's writes, which wait for space on a full disk."""
        self._executor.write(self._log.directory, 0, op).then(self._check)

    def _check(self, io: IoResult) -> None:
        if io.value is not None:
            self.fail(io.value)

    def fail(self, error: StorageError) -> None:
        """Handle a disk failure (rule 5)."""
        if not self.is_failed:
            self.is_failed = True
            self.on_failed(error)

    # ------------------------------------------------------------ old segments
    def roll_segment(self, wall_ms: int, *, at_least: int) -> None:
        """Roll to a new segment if the active one has `at_least` bytes and no write is pending."""
        segment = self._log.open().engine.segments()[-1]
        is_busy = self._log.log_end_offset < self.next_offset or self.is_truncating
        if segment.size < at_least or is_busy or self.is_failed:
            return
        try:
            self._log.open().roll(wall_ms)
        except StorageError as error:
            self.fail(error)

    def trim(self, offset: int, wall_ms: int) -> None:
        """Delete segments completely below `offset`: a snapshot replaces them."""
        if self.is_failed:
            return
        opened, before = self._log.open(), -1
        try:
            while opened.engine.start_offset > before:  # a call deletes a few
                before = opened.engine.start_offset
                opened.trim(offset, wall_ms)
        except StorageError as error:
            self.fail(error)

    def take_deletable_files(self, wall_ms: int) -> list[str]:
        """Files of deleted segments whose delay has passed, for the caller to remove."""
        return self._log.files.take_deletable(wall_ms)

    def close(self) -> None:
        """Close the files; committed records are durable already."""
        if not self.is_failed:
            self._log.close()


def batches_between(read: Callable[[int, int], Any], offset: int, end_offset: int) -> Iterator[MetadataBatch]:
    """Decoded batches of a metadata log between two offsets; `read`: reads whole batches from an offset on.

    Raises:
        UnreadableMetadata: a record before `end_offset` is not written yet.
    """
    while offset < end_offset:
        data: Any = read(offset, READ_BYTES)
        if not data:
            raise UnreadableMetadata(f"offset {offset} of the metadata log cannot be read before it is written")
        for batch in read_batches(data):
            if batch.base_offset >= end_offset:
                return
            offset = batch.last_offset + 1
            yield batch


def _epoch_end(name: SnapshotName) -> EpochEnd:
    return EpochEnd(name.leader_epoch, name.end_offset)


def _encode(records: Sequence[Versioned], batches: DataBatches, *, is_atomic: bool) -> Iterator[bytearray | None]:
    """Encode one record per step, then yield the batches."""
    for message, version in records:
        batches.add(message, version)
        yield None
    finished = batches.finish()
    assert not is_atomic or len(finished) == 1, "an atomic append fits into one batch"
    yield from finished
