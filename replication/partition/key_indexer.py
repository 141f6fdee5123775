"""The key indexes of one broker: which partition is indexed next, and what is indexed (topic config `barnabas.index.keys`).

RULES    1. Every replica indexes its own log up to its high watermark, in offset order. Batches are read on a reader thread and
            decoded by a worker in another process.
         2. Partitions take turns, one at a time. A turn ends after TURN_BYTES, or at the high watermark; then what was decoded
            is written as a file, and a due merge goes one step on. One partition merges at a time, since the worker has one
            merge in progress.
         3. A range is valid while the log has the range's leader epoch at its last offset (Raft's log matching): this finds
            truncated and deleted records, also after a restart. Invalid ranges, and those below the log's start, are deleted.
         4. After a failure that is not the index's own (a full disk, a killed worker) the partition waits for RETRY_CHECKS,
            also if its files are not known yet.
            The log directory stays online: an index can be built again.
         5. An unchanged partition costs a comparison for each check, and a broker without indexed topics nothing. A partition
            without committed records gets no files: in a commit log nothing of it exists that its deletion could find.
NOT HERE The files (storage/keyindex), searches (key_search.py), the schedule (`broker/node/scheduled_tasks.py`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from protocol.errors import KafkaError
from replication.completion import Completion
from replication.partition.partition import Partition
from replication.partition.replica_manager import ReplicaManager
from storage.engine import EngineView
from storage.io.disk_lookup import DiskLookup
from storage.keyindex.entries import ENTRY_BYTES
from storage.keyindex.index_directory import due_merge
from storage.keyindex.index_file import IndexRange, digest_of
from storage.keyindex.index_jobs import (
    MAX_ENTRIES_IN_MEMORY,
    AddBatches,
    Added,
    Job,
    JobFailed,
    LoadRanges,
    MergeRanges,
    RemoveRanges,
    WriteRange,
)
from storage.log.log import Log
from storage.log.open_log import OpenLog

_log = logging.getLogger("barnabas.keyindex")

PIECE_BYTES: Final = 1 << 20
TURN_BYTES: Final = 64 << 20
RETRY_CHECKS: Final = 30


class Worker(Protocol):
    """Runs jobs in another process, in the order of their submission."""

    def submit(self, job: Job) -> Completion[Any]:
        """The job's result, or a JobFailed."""


class IndexLag(NamedTuple):
    """The index of one partition."""

    topic: str
    records: int
    """Committed records, by offsets, that are not indexed yet."""
    size_bytes: int


class PartitionIndex:
    """The index files of one log."""

    def __init__(self, fields: tuple[str, ...], ranges: list[IndexRange]) -> None:
        self.fields = fields
        self.ranges = ranges
        """Consecutive and ascending."""
        self.merging: tuple[IndexRange, ...] = ()
        """The ranges of a merge that is not finished."""
        self.complete_mark: object = None
        """`mark_of` the log when everything was indexed; None before."""

    def end_offset(self, log_start_offset: int) -> int:
        """All records from the log's start up to here are indexed."""
        return max(self.ranges[-1].end_offset if self.ranges else 0, log_start_offset)

    def drop_invalid(self, log: Log, opened: OpenLog) -> list[IndexRange]:
        """Forget the ranges that the log contradicts, and those below its start; returns them."""
        ranges, dropped, start_offset = self.ranges, [], log.offsets.log_start_offset
        while ranges and ranges[0].end_offset <= start_offset:
            dropped.append(ranges.pop(0))
        while ranges and not _is_in(ranges[-1], opened):
            dropped.append(ranges.pop())
        if ranges and ranges[0].start_offset > start_offset:
            dropped += ranges
            ranges.clear()
        if not set(self.merging) <= set(ranges):
            self.merging = ()
        return dropped

    def precedes(self, found: IndexRange, log_start_offset: int) -> bool:
        """Whether a new range continues this index."""
        if self.ranges:
            return self.ranges[-1].end_offset == found.start_offset
        return found.start_offset <= log_start_offset

    def drop_from(self, file_name: str) -> list[IndexRange]:
        """Forget the range of a damaged file and all later ones; returns them."""
        names = [known.file_name for known in self.ranges]
        at = names.index(file_name) if file_name in names else len(names)
        dropped, self.ranges = self.ranges[at:], self.ranges[:at]
        self.merging, self.complete_mark = (), None
        return dropped

    def replace(self, merged: IndexRange) -> None:
        """Put the result of the merge in place of its sources; the next merge may be due even if nothing is appended."""
        at = self.ranges.index(self.merging[0])
        self.ranges[at : at + len(self.merging)] = [merged]
        self.merging = tuple(due_merge(self.ranges))


def _is_in(known: IndexRange, opened: OpenLog) -> bool:
    """Whether the log still has the records of a range (rule 3)."""
    last_offset = known.end_offset - 1
    return known.end_offset <= opened.engine.end_offset and opened.epochs.epoch_at(last_offset) == known.leader_epoch


class KeyIndexer:
    """Keeps the key indexes of one broker up to date."""

    def __init__(self, replicas: ReplicaManager, worker: Worker) -> None:
        self._replicas = replicas
        self.worker = worker
        self.is_stopped = False
        self.failures = 0
        """Jobs that failed."""
        self._indexes: dict[Log, PartitionIndex] = {}
        self._delays: dict[Log, int] = {}
        """How many checks a log waits after a failure."""
        self._queue: deque[Partition] = deque()
        self._merging: Log | None = None
        """The log whose merge is in progress."""
        self._is_running = self._is_advancing = self._has_turn_ended = False
        self.has_more = False
        """Whether a turn has left work."""

    def check(self) -> None:
        """Index what was committed since, unless that is under way."""
        self._delays = {log: delay - 1 for log, delay in self._delays.items() if delay > 1}
        if not self._is_running and (self._indexes or self._replicas.has_indexed_topics):
            self._begin_turns()

    def _begin_turns(self) -> None:
        if self.is_stopped:
            return
        partitions = self._replicas.partitions.values()
        indexed = [p for p in partitions if p.log.config.barnabas_index_keys or p.log in self._indexes]
        self._indexes = {p.log: self._indexes[p.log] for p in indexed if p.log in self._indexes}
        self._queue = deque(p for p in indexed if not p.is_offline and self._is_due(p.log))
        self._is_running, self.has_more = True, False
        self.next_turn()

    def _is_due(self, log: Log) -> bool:
        if log in self._delays:
            return False
        index = self._indexes.get(log)
        if index is None:
            return log.high_watermark > 0 or log.needs_recovery
        return bool(index.merging) or index.complete_mark != mark_of(log)

    def next_turn(self) -> None:
        """Begin the next turn after one has ended; in a loop, since many turns end at once."""
        self._has_turn_ended = True
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._queue and self._has_turn_ended and not self.is_stopped:
            self._has_turn_ended = False
            _Turn(self, self._replicas, self._queue.popleft()).start()
        self._is_advancing = False
        if self._has_turn_ended:
            self._is_running = False
            if self.has_more:
                self._begin_turns()

    def stop(self) -> None:
        """Begin no more turns."""
        self.is_stopped = True

    # ------------------------------------------------------------ for turns and searches
    def index_of(self, log: Log) -> PartitionIndex | None:
        """The index of a log; None if it is not known yet."""
        return self._indexes.get(log)

    def set_index(self, log: Log, index: PartitionIndex | None) -> None:
        """Remember the index of a log; None forgets it."""
        if index is None:
            self._indexes.pop(log, None)
        else:
            self._indexes[log] = index

    def may_merge(self, log: Log) -> bool:
        """Whether no other merge is in progress (rule 2): the worker would drop that one."""
        merging = self._merging
        other = None if merging is None or merging.files.is_offline else self._indexes.get(merging)
        if merging is not log and other is not None and other.merging:
            return False
        self._merging = log
        return True

    def validate(self, log: Log, opened: OpenLog, index: PartitionIndex) -> None:
        """Drop invalid ranges (rule 3)."""
        dropped = index.drop_invalid(log, opened)
        if dropped:
            self.remove(log, dropped)

    def remove(self, log: Log, ranges: Sequence[IndexRange]) -> Completion[Any]:
        """Delete files, and what is in memory of this log. After a failure the index is forgotten: searches must not use files
        that are left, and the next turn finds and checks them.
        """
        removed = self.worker.submit(RemoveRanges(log.files.index_path, tuple(ranges)))
        removed.then(lambda done: self._on_removed(log, done.value))
        return removed

    def _on_removed(self, log: Log, result: JobFailed | None) -> None:
        if result is not None and not self.is_stopped:
            self.failures += 1
            self._indexes.pop(log, None)
            _log.warning(
                "the key index of %s is checked again, since files were not deleted: %s", log.name, result.text
            )

    def on_failed(self, log: Log, failure: JobFailed) -> None:
        """A job about an index has failed (rule 4), unless the broker stops, which kills the worker."""
        if self.is_stopped:
            return
        self.failures += 1
        index = self._indexes.get(log)
        if failure.damaged is not None:
            if index is not None:
                _log.warning("the key index of %s is built again from a damaged file on: %s", log.name, failure.text)
                dropped = index.drop_from(failure.damaged)
                self.remove(log, dropped)
                if not dropped:  # it is no file of this index: the next turn deletes it
                    self._indexes.pop(log, None)
        elif failure.is_missing:
            self._indexes.pop(log, None)
        else:
            _log.warning("the key index of %s waits for %d s: %s", log.name, RETRY_CHECKS, failure.text)
            self._delays[log] = RETRY_CHECKS
            if index is not None:
                index.merging = ()

    def lags(self) -> Iterator[IndexLag]:
        """The indexes of all partitions."""
        for log, index in self._indexes.items():
            end_offset = index.end_offset(log.offsets.log_start_offset)
            size_bytes = ENTRY_BYTES * sum(known.entry_count for known in index.ranges)
            yield IndexLag(log.topic, max(log.offsets.high_watermark - end_offset, 0), size_bytes)


def open_log(partition: Partition) -> OpenLog | DiskLookup:
    """The log of a partition; a leader's high watermark is up to date then."""
    lookup = partition.open_leader_log() if partition.is_leader else None
    return lookup or partition.log.opened or partition.log.open_lookup()


def index_digest(log: Log) -> bytes:
    """Of the index files of a log."""
    return digest_of(log.files.topic_id or b"", log.partition, log.config.barnabas_index_keys)


def mark_of(log: Log) -> object:
    """Differs when there may be something to index or to drop."""
    offsets = log.offsets
    return offsets.high_watermark, offsets.log_start_offset, offsets.truncation_count, log.config.barnabas_index_keys


class _Piece(NamedTuple):
    """Batches to index, and the mark of the log when they were read."""

    job: AddBatches | None
    """None at the high watermark; without data before damage."""
    mark: object


class _Turn:
    """One turn of one partition."""

    def __init__(self, indexer: KeyIndexer, replicas: ReplicaManager, partition: Partition) -> None:
        self._indexer = indexer
        self._replicas = replicas
        self._partition = partition
        self._log = partition.log
        self._fields = self._log.config.barnabas_index_keys
        self._digest = index_digest(self._log)
        self._truncation_count = self._log.offsets.truncation_count
        self._next_offset = -1
        """After what was decoded; -1: nothing yet."""
        self._bytes = 0

    def start(self) -> None:
        """Continue with the partition's index, or find its files."""
        index = self._indexer.index_of(self._log)
        if index is not None and index.fields != self._fields:
            self._indexer.set_index(self._log, None)
            if not self._fields:
                self._remove(index.ranges)
                return
            index = None
        if index is None:
            files = self._log.files
            job = LoadRanges(files.index_path, self._digest, may_create=not files.has_directory)
            self._submit(job, self._on_loaded)
        else:
            self._continue(index)

    def _on_loaded(self, ranges: list[IndexRange]) -> None:
        if self._log.is_offline:
            self._remove_directory()
            self._end()
            return
        index = PartitionIndex(self._fields, ranges)
        self._indexer.set_index(self._log, index)
        self._continue(index)

    def _continue(self, index: PartitionIndex) -> None:
        log = self._log
        if log.is_open or log.needs_recovery or index.end_offset(log.offsets.log_start_offset) < log.high_watermark:
            self._read(index)
        else:  # a closed log with nothing new is not opened
            index.complete_mark = mark_of(log)
            self._merge(index)

    def _read(self, index: PartitionIndex) -> None:
        piece = self._replicas.lookup(*self._partition.key, partial(self._next_piece, index))
        piece.then(lambda done: self._on_piece(index, done))

    def _next_piece(self, index: PartitionIndex, partition: Partition) -> _Piece | DiskLookup:
        log = self._log
        opened = open_log(partition)
        if isinstance(opened, DiskLookup):
            return opened
        self._indexer.validate(log, opened, index)
        start = max(index.end_offset(log.offsets.log_start_offset), self._next_offset)
        end, mark = log.offsets.high_watermark, mark_of(log)
        if start >= end or partition.log is not log:
            return _Piece(None, mark)
        read = partial(_read_piece, directory=log.files.index_path, fields=self._fields, start=start, end=end)
        job = opened.engine.lookup(("key index", start), read)
        return job if isinstance(job, DiskLookup) else _Piece(job, mark)

    def _on_piece(self, index: PartitionIndex, done: Completion[_Piece]) -> None:
        if done.error is not None:
            if not isinstance(done.error, KafkaError):
                raise done.error
            index.merging = ()  # so that others may merge
            self._end()  # the partition is offline, or was deleted
            return
        if self._log.offsets.truncation_count != self._truncation_count:  # what was decoded may be deleted
            self._indexer.has_more = True
            self._remove(())
            return
        job, mark = done.value
        if job is None or not job.data:
            index.complete_mark = mark
            self._write(index)
        else:
            self._bytes += len(job.data)
            self._submit(job, lambda added: self._on_added(index, job.start_offset, mark, added))

    def _on_added(self, index: PartitionIndex, start_offset: int, mark: object, added: Added) -> None:
        self._next_offset = added.next_offset
        if added.next_offset == start_offset:  # the last batch is not wholly committed
            index.complete_mark = mark
            self._write(index)
        elif added.entry_count >= MAX_ENTRIES_IN_MEMORY or self._bytes >= TURN_BYTES:
            self._indexer.has_more = True
            self._write(index)
        else:
            self._read(index)

    def _write(self, index: PartitionIndex) -> None:
        if self._next_offset > index.end_offset(self._log.offsets.log_start_offset):
            self._submit(
                WriteRange(self._log.files.index_path, self._digest), lambda found: self._on_written(index, found)
            )
        else:
            self._merge(index)

    def _on_written(self, index: PartitionIndex, found: IndexRange) -> None:
        if index.precedes(found, self._log.offsets.log_start_offset):
            index.ranges.append(found)
            self._merge(index)
        else:  # a truncation, or a search, has dropped what is before it
            index.complete_mark = None
            self._remove((found,))

    def _merge(self, index: PartitionIndex) -> None:
        """One step of a merge."""
        index.merging = index.merging or tuple(due_merge(index.ranges))
        if index.merging and self._indexer.may_merge(self._log):
            start_offset = self._log.offsets.log_start_offset if self._log.is_open else 0
            job = MergeRanges(self._log.files.index_path, self._digest, index.merging, start_offset)
            self._submit(job, lambda merged: self._on_merged(index, job.ranges, merged))
        else:
            self._end()

    def _on_merged(self, index: PartitionIndex, merging: tuple[IndexRange, ...], merged: IndexRange | None) -> None:
        if merged is None:
            self._indexer.has_more = True
        elif index.merging == merging:
            index.replace(merged)
            self._indexer.has_more = self._indexer.has_more or bool(index.merging)
        else:
            self._remove((merged,))
            return
        self._end()

    # ------------------------------------------------------------ jobs
    def _remove(self, ranges: Sequence[IndexRange]) -> None:
        """Delete files, then end the turn."""
        self._indexer.remove(self._log, ranges).then(lambda _: self._end())

    def _remove_directory(self) -> None:
        """Delete the directory of a log without one that was deleted, perhaps before the worker has created it."""
        manager, log = self._replicas.log_manager, self._log
        if not log.files.has_directory and log.directory in manager.directories:
            manager.submit_directory_op(log.directory, partial(manager.commit_logs.remove_index, log.files.index_path))

    def _submit(self, job: Job, on_done: Callable[[Any], None]) -> None:
        self._indexer.worker.submit(job).then(lambda done: self._on_result(done.value, on_done))

    def _on_result(self, result: Any, on_done: Callable[[Any], None]) -> None:
        if isinstance(result, JobFailed):
            self._indexer.on_failed(self._log, result)
            self._end()
        else:
            on_done(result)

    def _end(self) -> None:
        self._indexer.next_turn()


def _read_piece(view: EngineView, directory: str, fields: tuple[str, ...], start: int, end: int) -> AddBatches:
    """The next batches; none if the first of them is damaged, so that the index ends before it. On a reader thread."""
    data = b""
    with suppress(KafkaError):
        data = bytes(view.read_batches(start, PIECE_BYTES))
    return AddBatches(directory, fields, start, end, data)
