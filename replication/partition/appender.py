"""Appends to the partitions of this broker: prepared, written, committed, acknowledged.

RULES    1. An append is prepared, written through the IoExecutor, committed, flushed if the topic requires it, and
            acknowledged. Appends to one partition are committed in the order of their preparation.
         2. The batches of one request share write jobs: their partitions are prepared first, then written, then committed. No
            append is acknowledged before all of them are committed or in a thread, since an acknowledgement may start other
            appends.
         3. Behind an append that waits for a disk lookup, later ones to its partition queue.
         4. While the disk is full, appends of clients are rejected, those of coordinators wait.
NOT HERE Decisions of one partition (partition.py), flushes (flushes.py). Why: docs/decisions/0059-write-jobs-of-a-request.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from replication.io_executor import SUCCEEDED, IoExecutor, IoResult
from replication.partition.disk_lookups import DiskLookups
from replication.partition.partition import Append, Partition
from storage.engine import SharedLog
from storage.io.disk import StorageError
from storage.io.disk_lookup import DiskLookup
from storage.log.append_pipeline import write_job
from storage.log.log_validator import AppendOrigin

_NO_RECORDS: Final = bytearray()
_WRITES_PER_JOB: Final = 64
"""A job in a writer thread takes the interpreter lock again after every write."""
_GATHERED_PER_JOB: Final = 510
"""Appends to a shared log are one write: a head and a payload each, and four buffers before them; a system call takes 1,024."""


class Appender:
    """The appends of one broker, and those that wait for the disk."""

    __slots__ = ("_absence_error", "_directory_failed", "_disk_lookups", "_executor", "_partitions", "_waiting")

    def __init__(
        self,
        partitions: Mapping[tuple[str, int], Partition],
        executor: IoExecutor,
        disk_lookups: DiskLookups,
        absence_error: Callable[[str, int], ErrorCode],
        directory_failed: Callable[[str, StorageError], None],
    ) -> None:
        """`partitions`: by topic and index; `absence_error`: for a partition that is not among them, or is offline."""
        self._partitions = partitions
        self._executor = executor
        self._disk_lookups = disk_lookups
        self._absence_error = absence_error
        self._directory_failed = directory_failed
        self._waiting: dict[Partition, deque[Append]] = {}

    def append(
        self,
        topic: str,
        index: int,
        records: bytearray | memoryview,
        *,
        acks: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> Append:
        """Append to a partition led by this broker; the result exists when `acks` is satisfied."""
        append = Append(records, acks, wall_ms, origin)
        lookups: list[tuple[Partition, DiskLookup]] = []
        if self._begin_append(append, topic, index, lookups):
            self._acknowledge(self._write(append.partition.log.directory, [append]))
        elif lookups:
            self._disk_lookups.wait_together(lookups, self._resume_all)
        return append

    def append_all(
        self,
        batches: Iterable[tuple[str, int, bytearray | memoryview]],
        *,
        acks: int,
        wall_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> list[Append]:
        """Append to several partitions (topic, index, records), which share the jobs of their directory's writer.

        An acknowledgement may start other appends, so it comes after all of these are published or in a thread.
        """
        appends: list[Append] = []
        lookups: list[tuple[Partition, DiskLookup]] = []
        writes = _SharedWrites(self._write)
        for topic, index, records in batches:
            append = Append(records, acks, wall_ms, origin)
            appends.append(append)
            if self._begin_append(append, topic, index, lookups):
                writes.add(append)
        self._acknowledge(writes.finish())
        if lookups:
            self._disk_lookups.wait_together(lookups, self._resume_all)
        return appends

    def _begin_append(
        self, append: Append, topic: str, index: int, lookups: list[tuple[Partition, DiskLookup]]
    ) -> bool:
        """Find the partition and prepare; False if there is nothing to write, or not yet."""
        partition = self._partitions.get((topic, index))
        if partition is None or partition.is_offline:
            append.fail(KafkaError(self._absence_error(topic, index)))
            return False
        append.partition = partition
        if partition.log.files.disk_space.is_full and append.origin.is_client:
            append.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            return False
        if self._waiting:
            waiting = self._waiting.get(partition)
            if waiting is not None:
                waiting.append(append)
                return False
        return self._prepare(append, lookups)

    def _prepare(self, append: Append, lookups: list[tuple[Partition, DiskLookup]]) -> bool:
        """Prepare; False if it failed, is a duplicate, or needs the disk: it is the first to wait for one of `lookups` then."""
        partition = append.partition
        try:
            prepared = partition.prepare(append.records, append.acks, append.wall_ms, append.origin)
        except KafkaError as error:
            append.fail(error.with_traceback(None))
            return False
        except StorageError as error:
            append.fail(self._storage_error(partition, error))
            return False
        if isinstance(prepared, DiskLookup):
            self._waiting.setdefault(partition, deque()).appendleft(append)
            lookups.append((partition, prepared))
            return False
        append.records = _NO_RECORDS
        if prepared.duplicate is not None:
            append.info = prepared.duplicate
            partition.await_acks(append)
            return False
        append.prepared = prepared
        return True

    def resume(self, partition: Partition) -> None:
        """Start the waiting appends in their order, until one needs the disk."""
        self._resume_all((partition,))

    def _resume_all(self, partitions: Sequence[Partition]) -> None:
        """Resume several partitions, whose appends share write jobs; new appends queue behind until these are written."""
        lookups: list[tuple[Partition, DiskLookup]] = []
        committed: list[Append] = []
        resumed = partitions
        while resumed:
            writes = _SharedWrites(self._write)
            for partition in resumed:
                waiting = self._waiting.get(partition, deque())
                while waiting:
                    append = waiting.popleft()
                    if self._prepare(append, lookups):
                        writes.add(append)
                    elif waiting and waiting[0] is append:
                        break
            committed += writes.finish()
            blocked = {partition for partition, _ in lookups}
            resumed = [p for p in resumed if p not in blocked and self._waiting.get(p)]
        for partition in partitions:
            if not self._waiting.get(partition, True):
                del self._waiting[partition]
        self._acknowledge(committed)
        if lookups:
            self._disk_lookups.wait_together(lookups, self._resume_all)

    def pause(self, partition: Partition) -> bool:
        """Queue appends to a partition until `resume`; False if some wait for the disk already."""
        if partition in self._waiting:
            return False
        self._waiting[partition] = deque()
        return True

    def fail_waiting(self, partition: Partition, code: ErrorCode) -> None:
        """Fail the appends that wait for the disk."""
        for append in self._waiting.pop(partition, ()):
            append.fail(KafkaError(code))

    def _write(self, directory: str, appends: list[Append]) -> list[Append]:
        """Write prepared appends to logs in one directory; returns those that are committed already."""
        written = self._executor.write(directory, *write_job([append.prepared for append in appends]))
        if written is SUCCEEDED:
            return self._commit(appends)
        for append in appends:
            append.partition.writes_in_flight += 1
        written.then(partial(self._on_written, appends))
        return []

    def _on_written(self, appends: list[Append], written: IoResult) -> None:
        committable: list[Append] = []
        for append in appends:
            partition, error = append.partition, written.value
            partition.writes_in_flight -= 1
            if error is not None and not partition.log.is_offline:  # otherwise it was deleted
                self._directory_failed(partition.log.directory, error)
            if partition.is_offline:
                append.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR))
            elif self._partitions.get(partition.key) is not partition:
                append.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            else:
                committable.append(append)
        self._acknowledge(self._commit(committable))

    def _commit(self, appends: list[Append]) -> list[Append]:
        """Publish written records; returns the appends that succeeded."""
        committed: list[Append] = []
        for append in appends:
            partition, prepared = append.partition, append.prepared
            try:
                append.info = partition.commit(prepared, append.wall_ms)
            except KafkaError as rejection:
                append.fail(rejection.with_traceback(None))
            except StorageError as storage_error:
                append.fail(self._storage_error(partition, storage_error))
            else:
                committed.append(append)
                counts, info = partition.counts, append.info
                counts.appends += 1
                counts.bytes_in += prepared.size
                counts.messages_in += info.last_offset - info.base_offset + 1
        return committed

    def _acknowledge(self, committed: list[Append]) -> None:
        """Advance the partitions of committed appends, and complete these when their acks are satisfied."""
        for append in committed:
            partition = append.partition
            partition.update_durable_end_offset(append.info.last_offset + 1)
            if partition.is_leader:
                partition.await_acks(append)
            else:
                self._fail_without_leadership(append)

    def _fail_without_leadership(self, append: Append) -> None:
        """Fail an append whose records are in the log: the new leader may truncate them."""
        offline, moved = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER
        append.fail(KafkaError(offline if append.partition.is_offline else moved))

    def _storage_error(self, partition: Partition, error: StorageError) -> KafkaError:
        self._directory_failed(partition.log.directory, error)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)


class _SharedWrites:
    """Writes prepared appends in jobs, for each log directory at most _WRITES_PER_JOB in one; those to a shared log apart."""

    __slots__ = ("_committed", "_unwritten", "_write")

    def __init__(self, write: Callable[[str, list[Append]], list[Append]]) -> None:
        self._write = write
        self._committed: list[Append] = []
        self._unwritten: dict[str | SharedLog, list[Append]] = {}

    def add(self, append: Append) -> None:
        """Write it in the next job of its directory, or of its shared log."""
        shared_log = append.prepared.shared_log
        key = append.partition.log.directory if shared_log is None else shared_log
        group = self._unwritten.get(key)
        if group is None:
            group = self._unwritten[key] = []
        group.append(append)
        if len(group) == (_WRITES_PER_JOB if shared_log is None else _GATHERED_PER_JOB):
            self._committed += self._write(append.partition.log.directory, self._unwritten.pop(key))

    def finish(self) -> list[Append]:
        """Write the rest; returns the appends that are committed already."""
        for group in self._unwritten.values():
            self._committed += self._write(group[0].partition.log.directory, group)
        return self._committed
