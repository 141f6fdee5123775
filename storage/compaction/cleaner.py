"""Compaction of one partition: builds the key map of the dirty part, then rewrites all segments up to there (Kafka: Cleaner).

RULES    1. The map has, for every key between the first dirty offset and the end, the offset of its last record. When it is
            full, the compaction ends at the offset reached.
         2. A record is retained if no later one has its key, and it has a value or its tombstone retention has not expired
            (`delete.retention.ms` from the first compaction that found it). Records without a key are removed.
         3. Batches of aborted transactions are removed; a marker is removed after the same retention when its transaction has
            no batches left, and only from segments below the checkpointed recovery point: a recovery restores the producers
            from the snapshot there, and without the marker a transaction that was open there would stay open.
         4. The last batch of a known producer is retained without its records: it has the sequence number or a marker's
            epoch. So is the last batch of each new segment: its end is the start of the next one, so that after a crash a
            gap is not taken for a loss, and the log end is known. A consumer gets it in a response without records.
         5. Every batch's CRC is verified before it is rewritten: corrupt data must not get a valid one.
         6. A new segment is durable, including indexes and names, when its step is yielded. The caller swaps it in before the
            next step; it cancels by taking no further step.
         7. Files are read completely, without indexes: these may not be written yet.
         8. Starts by deleting the files of a cancelled compaction: a `.cleaned` file before a `.swap` file would invalidate
            the latter after a crash (segments/directory_recovery.py). Segments are rewritten in offset order. No segment may
            wait for its renames at the start. Later a failure deletes only the files of the unfinished segment: those of
            earlier ones may still wait.
         9. A new segment takes the place of a further segment if that fits, whatever is removed of it: the logs into
            `segment.bytes`, the indexes of each type into `segment.index.bytes`, and the offsets into relative ones of the
            base offset. So segments of which nothing is left become one, with one empty batch: some clients report an error
            after a dozen responses without records. Segments above the recovery point do not join those below it (rule 3).
            No more than MAX_REPLACED are replaced by one: all of them are renamed at a time.
NOT HERE When, and which partition (cleanable.py); swapping segments (OpenLog.replace); throttling, other processes.
         Why: docs/decisions/0021-compaction.md
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import BATCH_OVERHEAD, BatchHeader, crc_is_valid, headers, parse_header
from storage.compaction.batch_filter import Keep, decompress_batch, empty_batch, filter_batch
from storage.compaction.cleaner_job import BytesProcessed, CleanerJob, CleaningResult, Replacement, Step
from storage.compaction.offset_map import OffsetMap
from storage.compaction.transactions import TransactionTracker
from storage.engine import SegmentInfo, batch_info
from storage.io.disk import Disk, File, StorageError
from storage.segments.active_segment import ActiveSegment
from storage.segments.directory_recovery import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX
from storage.segments.segment import MAX_RELATIVE_OFFSET
from storage.segments.segment_files import LARGEST_BATCH_BYTES

MAX_REPLACED: Final = 128

Batches = tuple[Buffer, list[tuple[int, BatchHeader]]]


def clean(disk: Disk, job: CleanerJob) -> Generator[Step, None, None]:
    """Run a job step by step; the last step is CleaningResult.

    Raises:
        StorageError: the disk failed, or the partition's files do not exist.
        KafkaError: the log contains an invalid batch.
    """
    discard(disk, job.path)
    cleaner = _Cleaner(disk, job)
    try:
        yield from cleaner.steps()
    except (KafkaError, StorageError):
        with suppress(StorageError):  # the first error is raised
            if cleaner.unfinished is not None:
                discard(disk, job.path, cleaner.unfinished)
        raise


def discard(disk: Disk, path: str, base_offset: int | None = None) -> None:
    """Delete the files of a cancelled compaction from a partition's directory; with `base_offset`, those of one new segment."""
    prefix = "" if base_offset is None else f"{base_offset:020d}."
    for name in disk.listdir(path):
        if name.startswith(prefix) and name.endswith(CLEANED):
            disk.unlink(f"{path}/{name}", missing_ok=True)


class _Cleaner:
    def __init__(self, disk: Disk, job: CleanerJob) -> None:
        self._disk = disk
        self._job = job
        memory_bytes, load_factor, _ = job.resources
        self._map = OffsetMap(memory_bytes, load_factor, job.end_offset - job.first_dirty_offset)
        self._transactions = TransactionTracker(job.aborted)
        self.unfinished: int | None = None
        """The base offset of the new segment that the caller has not swapped in yet."""
        self._dropped: BatchHeader | None = None  # the last batch, if nothing of it was retained
        self._bytes_read = self._bytes_written = self._records_read = self._records_written = 0

    def steps(self) -> Iterator[Step]:
        job = self._job
        yield from self._build_map()
        end_offset = self._map.latest_offset + 1
        remaining = deque([segment for segment in job.segments if segment.base_offset < end_offset])
        while remaining:
            yield from self._rewrite(remaining)
        yield CleaningResult(
            max(end_offset, job.first_dirty_offset),
            self._bytes_read,
            self._bytes_written,
            self._records_read,
            self._records_written,
            self._map.utilization,
        )

    # ---- key map -----------------------------------------------------------------------------------------

    def _build_map(self) -> Iterator[Step]:
        job, keys = self._job, self._map
        aborted = [transaction for transaction in job.aborted if transaction.last_offset >= job.first_dirty_offset]
        transactions = TransactionTracker(aborted)
        keys.latest_offset = job.first_dirty_offset - 1
        for segment in job.segments:
            if segment.end_offset <= job.first_dirty_offset:
                continue
            for data, batches in self._read(segment):
                for position, header in batches:
                    if header.last_offset < job.first_dirty_offset:
                        continue
                    if header.is_control:
                        transactions.on_control_batch_read(data, position, header)
                    elif not transactions.on_batch_read(header) and not self._add_keys(data, position, header):
                        return
                    keys.latest_offset = header.last_offset
                yield BytesProcessed(len(data))
            keys.latest_offset = segment.end_offset - 1  # includes a gap before the next segment

    def _add_keys(self, data: Buffer, position: int, header: BatchHeader) -> bool:
        """Returns whether all keys of the batch fit."""
        keys, base_offset, first_dirty_offset = self._map, header.base_offset, self._job.first_dirty_offset
        for _, _, _, delta, key, _ in decompress_batch(data, position, header)[1]:
            if key is not None and base_offset + delta >= first_dirty_offset:
                if keys.is_full:
                    return False
                keys.put(key, base_offset + delta)
        return True

    # ---- new segments ------------------------------------------------------------------------------------

    def _rewrite(self, remaining: deque[SegmentInfo]) -> Iterator[Step]:
        """Replace the first of the remaining segments, and those after it that fit, by a new one."""
        job, group = self._job, [remaining.popleft()]
        self.unfinished = group[0].base_offset
        new = ActiveSegment(self._disk, job.path, group[0].base_offset, job.config.index_interval_bytes, CLEANED)
        new.create(job.wall_ms)
        while True:
            yield from self._copy(group[-1], new)
            if len(group) == MAX_REPLACED or not remaining or not self._fits(new, group[-1], remaining[0]):
                break
            group.append(remaining.popleft())
        if self._dropped is not None:
            self._append(new, [empty_batch(self._dropped)])
            self._dropped = None
        aborted, self._transactions.retained = self._transactions.retained, []
        for transaction in aborted:
            new.transactions.append(transaction)
        self._complete(new, group[-1])
        yield Replacement(tuple(group), new.size, bool(aborted))
        self.unfinished = None

    def _copy(self, segment: SegmentInfo, new: ActiveSegment) -> Iterator[Step]:
        """Append the retained part of a segment to a new one."""
        may_drop_markers = segment.end_offset <= self._job.recovery_point
        for data, batches in self._read(segment):
            kept: list[Buffer] = []
            for position, header in batches:
                batch = self._filter(data, position, header, may_drop_markers=may_drop_markers)
                self._records_read += header.record_count
                self._dropped = header if batch is None else None
                if batch is not None:
                    kept.append(batch)
            size = self._append(new, kept)
            self._bytes_read += len(data)
            yield BytesProcessed(len(data) + size)

    def _append(self, new: ActiveSegment, batches: list[Buffer]) -> int:
        """Append batches; returns their size."""
        output, infos = bytearray(), []
        for batch in batches:
            header = parse_header(batch)
            self._records_written += header.record_count
            infos.append(batch_info(len(output), header))
            output += batch
        if infos:
            new.file.pwrite(output, new.reserve(infos, len(output)))
            new.publish(infos)
        self._bytes_written += len(output)
        return len(output)

    def _fits(self, new: ActiveSegment, last: SegmentInfo, following: SegmentInfo) -> bool:
        """Whether a new segment, which replaces those up to `last`, may also replace the following one (rule 9)."""
        config, recovery_point = self._job.config, self._job.recovery_point
        offsets, times = self._index_sizes(following)
        return (
            new.size + following.size <= config.segment_bytes
            and new.offset_index.size + offsets <= config.segment_index_bytes
            and new.time_index.size + times <= config.segment_index_bytes
            and (not following.size or following.end_offset - 1 - new.base_offset <= MAX_RELATIVE_OFFSET)
            and not last.end_offset <= recovery_point < following.end_offset
        )

    def _complete(self, new: ActiveSegment, last: SegmentInfo) -> None:
        """Finish and sync the files, with the modification time of the last replaced segment."""
        disk = self._disk
        new.finish()
        modified_ms = disk.modified_ms(self._path(last, LOG))
        new.file.sync()
        for file in new.index_files():
            file.sync()
        new.close_files()
        disk.set_modified_ms(new.path(LOG), modified_ms)
        disk.sync_dir(self._job.path)

    # ---- retention ---------------------------------------------------------------------------------------

    def _filter(self, data: Buffer, position: int, header: BatchHeader, *, may_drop_markers: bool) -> Buffer | None:
        job, transactions = self._job, self._transactions
        if header.is_control:
            is_useless = transactions.on_control_batch_read(data, position, header)
            horizon_ms = header.delete_horizon_ms
            is_expired = horizon_ms is not None and horizon_ms <= job.wall_ms
            drops_all = is_useless and is_expired and may_drop_markers
        else:
            is_useless = False
            drops_all = transactions.on_batch_read(header)
        keep_empty = self._is_last_of_producer(header)
        if drops_all and not keep_empty:
            return None
        return filter_batch(
            data,
            position,
            header,
            (lambda *_: not drops_all) if drops_all or header.is_control else self._keeper(header),
            horizon_ms=job.wall_ms + job.config.delete_retention_ms,
            always=is_useless,
            keep_empty=keep_empty,
        )

    def _keeper(self, header: BatchHeader) -> Keep:
        keys, latest_offset = self._map, self._map.latest_offset
        horizon_ms = header.delete_horizon_ms
        keeps_tombstones = horizon_ms is None or self._job.wall_ms < horizon_ms

        def keeps(offset: int, key: bytes | None, has_value: bool) -> bool:  # noqa: FBT001
            if offset > latest_offset:
                return True
            return key is not None and (has_value or keeps_tombstones) and offset >= keys.get(key)

        return keeps

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._job.last_records.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            return False
        if last.offset >= 0:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch

    # ---- read --------------------------------------------------------------------------------------------

    def _read(self, segment: SegmentInfo) -> Iterator[Batches]:
        """All batches of a segment, one buffer at a time."""
        file = self._disk.open(self._path(segment, LOG), write=False)
        position = 0
        while position < segment.size:
            data = file.pread(min(self._job.resources.buffer_bytes, segment.size - position), position)
            batches = headers(data)
            if not batches:
                data = self._read_large(file, position, data, segment)
                batches = headers(data)
                if not batches:  # the file is shorter than the segment; its topic may have been created again
                    raise _corrupt(file, position)
            start, last = batches[-1]
            size = start + last.size
            for at, header in batches:
                if not crc_is_valid(data, at, header):
                    raise _corrupt(file, position + at)
            yield memoryview(data)[:size], batches
            position += size

    def _read_large(self, file: File, position: int, data: bytes, segment: SegmentInfo) -> bytes:
        """A batch that is larger than the buffer."""
        if len(data) < BATCH_OVERHEAD:
            raise _corrupt(file, position)
        size = parse_header(data).size
        if size > min(segment.size - position, LARGEST_BATCH_BYTES):
            raise _corrupt(file, position)
        return file.pread(size, position)

    def _index_sizes(self, segment: SegmentInfo) -> tuple[int, int]:
        offsets, times = (self._path(segment, suffix) for suffix in (OFFSET_INDEX, TIME_INDEX))
        return self._size(offsets), self._size(times)

    def _size(self, path: str) -> int:
        return self._disk.size(path) if self._disk.exists(path) else 0

    def _path(self, segment: SegmentInfo, suffix: str) -> str:
        return f"{self._job.path}/{segment.base_offset:020d}{suffix}"


def _corrupt(file: File, position: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{file.path} is damaged at position {position}")
