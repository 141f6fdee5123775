"""The recovery of a partition's segments: every batch is checked, and the log ends before the first loss (Kafka: LogLoader).

RULES    1. A segment that starts above the end of the previous one may mean a loss, and then the log is truncated there.
            Exceptions: below the recovery point (all was durable) and below `compacted_end`; and in a compacted topic, if
            the previous segment has gaps above that point, since recent appends have none. Our own compaction leaves no
            such gap: at least a header ends every segment (compaction/cleaner.py). Those of Apache Kafka's that was killed are
            filled before (directory_recovery.py rule 3).
         2. An empty segment that starts below the end of the previous one was being deleted or created at the loss of power:
            it is deleted.
         3. Segments after the end are deleted newest first, so that a crash leaves no hole, and durably.
NOT HERE The names in the directory (directory_recovery.py), one segment (active_segment.py), where a recovery starts
         (segment_engine.py), producers and leader epochs (storage/log/recovery.py).
"""

from __future__ import annotations

import logging

from protocol.primitives import Buffer
from protocol.records import BatchHeader
from storage.config.log_config import LogConfig
from storage.engine import OnBatch
from storage.io.disk import Disk
from storage.segments.active_segment import ActiveSegment
from storage.segments.log_segments import LogSegments
from storage.segments.sealed_segment import LogSegment

_log = logging.getLogger("barnabas.storage")


class Recovery:
    """One recovery of a partition; `run` is called once."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        segments: LogSegments,
        *,
        durable_end: int,
        compacted_end: int,
    ) -> None:
        """Below `durable_end` all was durable; below `compacted_end` compaction may have left gaps between segments."""
        self._disk = disk
        self._directory = directory
        self._config = config
        self._segments = segments
        self._durable_end = durable_end
        self._whole_end = max(durable_end, compacted_end)
        self._end_offset = 0
        self._has_gaps = False
        """Whether the last segment has offsets without a record, above the durable end."""
        self.rebuilt: list[int] = []
        """The base offsets of the segments whose indexes are complete and not synced yet; the active one is not among them."""

    def run(self, start_offset: int, on_batch: OnBatch) -> int:
        """Recover the segments from the one with `start_offset` on; returns the log end offset."""
        segments = self._segments
        slot = segments.slot_of(start_offset)
        remaining = segments.items[slot:]
        del segments.items[slot:]
        while remaining:
            found = remaining.pop(0)
            segment = self._recover(found.base_offset, on_batch)
            while remaining and remaining[0].base_offset < self._end_offset and not remaining[0].size:
                remaining.pop(0).unlink()
            if segment.size < found.size or (remaining and self._is_hole(remaining[0])):
                self._delete(remaining)
            elif remaining:
                self.rebuilt.append(segment.base_offset)
                segments.seal(len(segments.items) - 1, segment.size)
        return self._end_offset

    def _recover(self, base_offset: int, on_batch: OnBatch) -> ActiveSegment:
        """Check one segment, which becomes the last one."""
        segment = ActiveSegment(self._disk, self._directory, base_offset, self._config.index_interval_bytes)
        self._segments.add(segment)
        if base_offset in self._segments.with_aborted:
            self._segments.with_aborted.discard(base_offset)
            segment.delete_transactions()
        self._end_offset = base_offset
        self._has_gaps = False
        durable_end = self._durable_end or -1

        def publish(buffer: Buffer, position: int, header: BatchHeader) -> None:
            if header.base_offset > durable_end:
                self._has_gaps |= header.base_offset > self._end_offset > durable_end
                self._has_gaps |= header.record_count <= header.last_offset_delta
            self._end_offset = header.next_offset
            on_batch(buffer, position, header)

        segment.recover(publish)
        return segment

    def _is_hole(self, following: LogSegment) -> bool:
        """Whether the gap before this segment is a loss, so that the log ends before it (rule 1)."""
        begins_at = following.base_offset
        if begins_at <= self._end_offset:
            return begins_at < self._end_offset
        return begins_at > self._whole_end and not (self._config.is_compacted and self._has_gaps)

    def _delete(self, remaining: list[LogSegment]) -> None:
        if remaining:
            _log.warning("Deleting %d segments of %s after a missing or invalid batch", len(remaining), self._directory)
        while remaining:
            remaining.pop().unlink()
        self._disk.sync_dir(self._directory)
