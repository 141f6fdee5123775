"""The batches of one transaction for the partitions of a target topic.

RULES    1. A record with a key goes to the partition that Java's default partitioner chooses: murmur2 of the key, modulo the
            partitions. The records of a transaction without key go to one partition, the next transaction's to the next one.
         2. Key, value and headers are the record's, with the header `schedule-id` after them: topic, partition and offset in
            the schedule topic. The timestamp is that of the delivery.
         3. A partition gets one batch of at most the target's `max.message.bytes`, unless its first record is larger, and all
            together 4 MiB: the records after them wait for the next transaction.
NOT HERE The transaction (`transaction_client.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from protocol.records import BatchBuilder, Record

SCHEDULE_ID: Final = "schedule-id"
MAX_TOTAL_BYTES: Final = 4 * 1024 * 1024
_RECORD_OVERHEAD: Final = 40
"""Above that of its lengths, deltas and attributes."""
_HEADER_OVERHEAD: Final = 10
_MASK: Final = 0xFFFFFFFF
_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


class TargetBatches:
    """See the module."""

    def __init__(
        self, origin: str, partitions: int, keyless_partition: int, producer: tuple[int, int], max_batch_bytes: int
    ) -> None:
        """`origin`: topic and partition of the records; `producer`: id and epoch."""
        self._origin = origin
        self._partitions = partitions
        self._keyless_partition = keyless_partition % partitions
        self._producer_id, self._producer_epoch = producer
        self._max_batch_bytes = max_batch_bytes
        self._total_bytes = 0
        self._builders: dict[int, BatchBuilder] = {}
        self.count = 0
        """Records so far."""

    def add(self, record: Record, wall_ms: int) -> bool:
        """Adds a record; False if it must wait for the next transaction."""
        schedule_id = f"{self._origin}-{record.offset}".encode()
        size = _size(record) + len(SCHEDULE_ID) + len(schedule_id) + _HEADER_OVERHEAD
        key = record.key
        index = self._keyless_partition if key is None else (murmur2(key) & 0x7FFFFFFF) % self._partitions
        builder = self._builders.get(index)
        if self.count and self._total_bytes + size > MAX_TOTAL_BYTES:
            return False
        if builder is None:
            builder = self._builders[index] = BatchBuilder(
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=0,
                transactional=True,
            )
        elif builder.size + size > self._max_batch_bytes:
            return False
        builder.append(wall_ms, key, record.value, (*record.headers, (SCHEDULE_ID, schedule_id)))
        self._total_bytes += size
        self.count += 1
        return True

    def build(self) -> dict[int, bytearray]:
        """The batches by partition."""
        return {index: builder.build() for index, builder in self._builders.items()}


def _size(record: Record) -> int:
    """An upper bound of the encoded size."""
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += 4 * len(name) + len(value or b"") + _HEADER_OVERHEAD  # a character has up to 4 bytes
    return size


@lru_cache(maxsize=4096)
def murmur2(data: bytes) -> int:
    """The hash of Kafka's Java client (Kafka: Utils.murmur2), unsigned."""
    size = len(data)
    value = (_SEED ^ size) & _MASK
    whole = size & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ word
    if size > whole:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15
