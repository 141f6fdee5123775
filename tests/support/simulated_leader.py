"""The log of a partition that another broker leads, and its answers to Fetch and ListOffsets of a follower."""

from __future__ import annotations

import random

from protocol.batch_builder import BatchBuilder
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import (
    FetchEpochEndOffset,
    FetchPartition,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    PartitionData,
)
from protocol.records import BatchHeader, headers
from replication.partition.list_offsets import EARLIEST
from tests.support.replica_harness import NOW_MS

Batch = tuple[bytes, BatchHeader]


class SimulatedLeader:
    """One partition of another broker."""

    def __init__(
        self, broker_id: int, epoch: int, batches: list[Batch], start_offset: int, high_watermark: int
    ) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.batches = batches
        self.start_offset = start_offset
        self._first_offset = start_offset
        self.high_watermark = min(high_watermark, self.end_offset)

    @property
    def end_offset(self) -> int:
        return self.batches[-1][1].next_offset if self.batches else self._first_offset

    def append(self, rng: random.Random) -> None:
        """Append a batch."""
        builder = BatchBuilder(base_offset=self.end_offset, leader_epoch=self.epoch)
        for _ in range(rng.choice((1, 1, 2, 5))):
            builder.append(NOW_MS, b"k", bytes(rng.choice((5, 50, 300))))
        data = bytes(builder.build())
        self.batches += [(data, header) for _, header in headers(data)]

    def fetch(self, requested: FetchPartition, rng: random.Random) -> PartitionData:
        """The answer to a follower."""
        data = PartitionData(partition_index=requested.partition, error_code=0, high_watermark=-1, records=b"")
        data.error_code = self._refusal(requested.current_leader_epoch)
        offset, last_epoch = requested.fetch_offset, requested.last_fetched_epoch
        if data.error_code:
            return data
        if last_epoch >= 0 and offset >= self.start_offset:
            epoch, end_offset = self._end_of_epoch(last_epoch)
            if epoch < last_epoch or end_offset < offset:
                data.diverging_epoch = FetchEpochEndOffset(epoch=epoch, end_offset=end_offset)
                return data
        if not self.start_offset <= offset <= self.end_offset:
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            return data
        limit, records = rng.choice((1, 500, 5000)), bytearray()
        for batch, header in self.batches:
            if header.next_offset > offset and len(records) < limit:
                records += batch
        if rng.random() < 0.7:
            self.high_watermark = max(self.high_watermark, offset)
        data.high_watermark, data.log_start_offset, data.records = self.high_watermark, self.start_offset, records
        return data

    def list_offsets(self, requested: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        """The log start offset or the log end offset."""
        code = self._refusal(requested.current_leader_epoch)
        offset = self.start_offset if requested.timestamp == EARLIEST else self.end_offset
        return ListOffsetsPartitionResponse(
            partition_index=requested.partition_index, error_code=code, offset=-1 if code else offset
        )

    def _refusal(self, epoch: int) -> ErrorCode:
        if epoch == self.epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def _end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """As `LeaderEpochCache.end_offset_for`, of a log that knows its epochs from the first record on."""
        known = sorted({header.leader_epoch for _, header in self.batches if header.leader_epoch <= epoch})
        later = [header.base_offset for _, header in self.batches if header.leader_epoch > epoch]
        return (known[-1] if known else epoch), min(later, default=self.end_offset)
