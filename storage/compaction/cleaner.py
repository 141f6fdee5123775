"""One compaction: the keys of the dirty part are gathered, then every segment up to there is written anew without what
is out of date.

RULES    1. First the map: for every key between the first dirty offset and the end the offset of its last record. When it
            is full, the compaction reaches so far and no further.
         2. A record stays when no later one has its key, and it has a value or its time as a tombstone is not over
            (`delete.retention.ms` from when a compaction first met it). A record without a key goes.
         3. Batches of aborted transactions go; a marker goes when its transaction has left nothing, after the same time.
         4. A batch stays without its records where it is the last of a producer that is still known: its sequence
            number, or a marker's epoch. So does the last batch of each new segment: its end is where the next begins, so
            that after a crash no gap looks like a loss, and the log's end is known.
         5. Every batch's checksum is compared before it is written anew: damage must not get a valid one.
         6. A new segment is durable, indexes and name included, when it is told of. Whoever takes the steps puts it in
            its place before the next step; giving up is to take no further step.
         7. Reads whole files from their start, no index: theirs may not be written yet.
         8. Begins by removing what one that was given up has left: a `.cleaned` file before a `.swap` file would make the
            latter count for nothing after a crash (segments/directory_recovery.py). Segments come in the order of their offsets.
NOT HERE Which partition, and when (cleanable.py); putting the segments in place (Log.replace); throttling, other processes.
         Why it is as it is: docs/decisions/0021-compaction.md
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import Buffer
from protocol.records import BATCH_OVERHEAD, BatchHeader, crc_is_valid, headers, parse_header
from storage.compaction.batch_filter import Keep, filtered, opened
from storage.compaction.cleaner_job import Cleaned, Job, Progress, Replacement, Step
from storage.compaction.grouping import groups
from storage.compaction.offset_map import OffsetMap
from storage.compaction.transactions import Transactions
from storage.engine import BatchInfo, SegmentInfo
from storage.io.disk import Disk, File, StorageError
from storage.segments.directory_recovery import CLEANED, LOG, OFFSET_INDEX, TIME_INDEX
from storage.segments.segment import Segment

_LARGEST_BATCH_BYTES: Final = 1 << 27

Batches = tuple[Buffer, list[tuple[int, BatchHeader]]]


def clean(disk: Disk, job: Job) -> Iterator[Step]:
    """Do all of a job, step by step; the last step is Cleaned.

    Raises:
        StorageError: the disk failed, or the partition's files are gone.
        KafkaError: there is something in the log that cannot be compacted.
    """
    return _Cleaning(disk, job).steps()


def discard(disk: Disk, path: str) -> None:
    """Remove what a compaction that was given up has left in a partition's directory."""
    for name in disk.listdir(path):
        if name.endswith(CLEANED):
            disk.unlink(f"{path}/{name}", missing_ok=True)


class _Cleaning:
    def __init__(self, disk: Disk, job: Job) -> None:
        self._disk = disk
        self._job = job
        memory_bytes, load_factor, _ = job.resources
        self._map = OffsetMap(memory_bytes, load_factor, job.end_offset - job.first_dirty_offset)
        self._transactions = Transactions(job.aborted)
        self._bytes_read = self._bytes_written = self._records_read = self._records_written = 0

    def steps(self) -> Iterator[Step]:
        job = self._job
        discard(self._disk, job.path)
        try:
            yield from self._all()
        except (KafkaError, StorageError):
            with suppress(StorageError):  # the first error tells more
                discard(self._disk, job.path)
            raise

    def _all(self) -> Iterator[Step]:
        job = self._job
        yield from self._gather()
        end_offset = self._map.latest_offset + 1
        reached = [segment for segment in job.segments if segment.base_offset < end_offset]
        for group in groups(reached, job.segment_bytes, job.segment_index_bytes, self._index_sizes):
            yield from self._rewrite(group)
        yield Cleaned(
            max(end_offset, job.first_dirty_offset),
            self._bytes_read,
            self._bytes_written,
            self._records_read,
            self._records_written,
            self._map.utilization,
        )

    # ---- the map -----------------------------------------------------------------------------------------

    def _gather(self) -> Iterator[Step]:
        job, keys = self._job, self._map
        aborted = [transaction for transaction in job.aborted if transaction.last_offset >= job.first_dirty_offset]
        transactions = Transactions(aborted)
        keys.latest_offset = job.first_dirty_offset - 1
        for segment in job.segments:
            if segment.end_offset <= job.first_dirty_offset:
                continue
            for data, batches in self._read(segment):
                for position, header in batches:
                    if header.last_offset < job.first_dirty_offset:
                        continue
                    if header.is_control:
                        transactions.pass_marker(data, position, header)
                    elif not transactions.pass_batch(header) and not self._gather_batch(data, position, header):
                        return
                    keys.latest_offset = header.last_offset
                yield Progress(len(data))
            keys.latest_offset = segment.end_offset - 1  # what is missing before the next segment is known too

    def _gather_batch(self, data: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether all keys of the batch found room."""
        keys, base_offset, first_dirty_offset = self._map, header.base_offset, self._job.first_dirty_offset
        for _, _, _, delta, key, _ in opened(data, position, header)[1]:
            if key is not None and base_offset + delta >= first_dirty_offset:
                if keys.is_full:
                    return False
                keys.put(key, base_offset + delta)
        return True

    # ---- new segments ------------------------------------------------------------------------------------

    def _rewrite(self, group: list[SegmentInfo]) -> Iterator[Step]:
        job = self._job
        new = Segment(self._disk, job.path, group[0].base_offset, 0, job.index_interval_bytes, CLEANED)
        new.create(job.wall_ms)
        for segment in group:
            for data, batches in self._read(segment):
                size = self._append(new, data, batches, group[-1].end_offset)
                self._bytes_read += len(data)
                self._bytes_written += size
                yield Progress(len(data) + size)
        aborted, self._transactions.retained = self._transactions.retained, []
        for transaction in aborted:
            new.transactions.append(transaction)
        self._complete(new, group[-1])
        yield Replacement(tuple(group), new.size, bool(aborted))

    def _append(self, new: Segment, data: Buffer, batches: list[tuple[int, BatchHeader]], end_offset: int) -> int:
        """What stays of some batches; how many bytes that are."""
        output, infos = bytearray(), []
        for position, header in batches:
            batch = self._filter(data, position, header, end_offset)
            self._records_read += header.record_count
            if batch is not None:
                kept = parse_header(batch)
                self._records_written += kept.record_count
                infos.append(
                    BatchInfo(len(output), len(batch), kept[0], kept.last_offset, kept.max_timestamp, kept.leader_epoch)
                )
                output += batch
        if infos:
            new.file.pwrite(output, new.claim(infos, len(output)))
            new.publish(infos)
        return len(output)

    def _complete(self, new: Segment, last: SegmentInfo) -> None:
        """Make the files whole and durable, as old as the last that they replace."""
        disk = self._disk
        new.finish()
        modified_ms = disk.modified_ms(self._path(last, LOG))
        new.file.sync()
        for file in new.index_files():
            file.sync()
        new.release(forget=False)
        disk.set_modified_ms(new.path(LOG), modified_ms)
        disk.sync_dir(self._job.path)

    # ---- what stays --------------------------------------------------------------------------------------

    def _filter(self, data: Buffer, position: int, header: BatchHeader, end_offset: int) -> Buffer | None:
        job, transactions = self._job, self._transactions
        if header.is_control:
            is_useless = transactions.pass_marker(data, position, header)
            horizon_ms = header.delete_horizon_ms
            drops_all = is_useless and horizon_ms is not None and horizon_ms <= job.wall_ms
        else:
            is_useless = False
            drops_all = transactions.pass_batch(header)
        keeps_empty = self._is_last_of_producer(header) or header.next_offset == end_offset
        if drops_all and not keeps_empty:
            return None
        return filtered(
            data,
            position,
            header,
            _nothing if drops_all else _everything if header.is_control else self._keeper(header),
            horizon_ms=job.wall_ms + job.delete_retention_ms,
            always=is_useless,
            keeps_empty=keeps_empty,
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

    # ---- reading -----------------------------------------------------------------------------------------

    def _read(self, segment: SegmentInfo) -> Iterator[Batches]:
        """All batches of a segment, some at a time."""
        file = self._disk.open(self._path(segment, LOG), write=False)
        position = 0
        while position < segment.size:
            data = file.pread(min(self._job.resources.buffer_bytes, segment.size - position), position)
            batches = headers(data)
            if not batches:
                data = self._read_large(file, position, data, segment)
                batches = headers(data)
            size = batches[-1][0] + batches[-1][1].size
            for at, header in batches:
                if not crc_is_valid(data, at, header):
                    raise _damaged(file, position + at)
            yield memoryview(data)[:size], batches
            position += size

    def _read_large(self, file: File, position: int, data: bytes, segment: SegmentInfo) -> bytes:
        """A batch that is larger than what is read at a time."""
        if len(data) < BATCH_OVERHEAD:
            raise _damaged(file, position)
        size = parse_header(data).size
        if size > min(segment.size - position, _LARGEST_BATCH_BYTES):
            raise _damaged(file, position)
        return file.pread(size, position)

    def _index_sizes(self, segment: SegmentInfo) -> tuple[int, int]:
        offsets, times = (self._path(segment, suffix) for suffix in (OFFSET_INDEX, TIME_INDEX))
        return self._size(offsets), self._size(times)

    def _size(self, path: str) -> int:
        return self._disk.size(path) if self._disk.exists(path) else 0

    def _path(self, segment: SegmentInfo, suffix: str) -> str:
        return f"{self._job.path}/{segment.base_offset:020d}{suffix}"


def _nothing(_offset: int, _key: bytes | None, _has_value: bool) -> bool:  # noqa: FBT001
    return False


def _everything(_offset: int, _key: bytes | None, _has_value: bool) -> bool:  # noqa: FBT001
    return True


def _damaged(file: File, position: int) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{file.path} is damaged at position {position}")
