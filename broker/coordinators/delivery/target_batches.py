"""The batches of one transaction for the partitions of a target topic.

RULES    1. A record with a key goes to the partition that Java's default partitioner chooses: murmur2 of the key, modulo the
            partitions. The records of a transaction without key go to one partition, the next transaction's to the next one.
         2. Key, value and headers are the record's, with the header `schedule-id` after them: topic, partition and offset in
            the schedule topic. The timestamp is that of the delivery. Their bytes are copied, not decoded.
         3. A partition gets one batch of at most the target's `max.message.bytes` and `segment.bytes`, unless its first record
            is larger, and all together 2 MiB: the records after them wait for the next transaction.
         4. A record that is larger than a batch may be is compressed with gzip, which every client reads: the schedule topic
            may have accepted it compressed.
NOT HERE The transaction (`transaction_client.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from protocol.batch_builder import BatchBuilder
from protocol.compression import Compression
from protocol.errors import ErrorCode, KafkaError
from protocol.primitives import varint
from protocol.record_codec import read_varint, read_varlong
from protocol.records import BATCH_OVERHEAD

SCHEDULE_ID: Final = "schedule-id"
_SCHEDULE_ID_NAME: Final = varint(len(SCHEDULE_ID)) + SCHEDULE_ID.encode()
MAX_TOTAL_BYTES: Final = 2 * 1024 * 1024
"""Built, checked and written in a few milliseconds each."""
_FAST_GZIP: Final = 1
_RECORD_OVERHEAD: Final = 24
"""Length, attributes, deltas, the number of headers."""
_MASK: Final = 0xFFFFFFFF
_MULTIPLIER: Final = 0x5BD1E995
_SEED: Final = 0x9747B28C


class StoredRecord(NamedTuple):
    """A record as it is in a batch."""

    key: bytes | None
    key_and_value: bytes
    """Encoded."""
    header_count: int
    headers: bytes
    """Encoded."""


def stored_record(encoded: bytes) -> StoredRecord:
    """The parts of an encoded record without its length.

    Raises:
        KafkaError: it is corrupt.
    """
    try:
        _, at = read_varlong(encoded, 1)
        _, key_at = read_varint(encoded, at)
        length, at = read_varint(encoded, key_at)
        end = at + max(length, 0)
        key = None if length < 0 else encoded[at:end]
        length, at = read_varint(encoded, end)
        end = at + max(length, 0)
        count, headers_at = read_varint(encoded, end)
    except IndexError:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record is too short") from None
    return StoredRecord(key, encoded[key_at:end], count, encoded[headers_at:])


class TargetBatches:
    """Collects records, then builds a batch for each partition."""

    def __init__(
        self, origin: str, partitions: int, keyless_partition: int, producer: tuple[int, int], max_batch_bytes: int
    ) -> None:
        """`origin`: topic and partition of the records; `producer`: id and epoch."""
        self._prefix = f"{origin}-".encode()
        self._partitions = partitions
        self._keyless_partition = keyless_partition % partitions
        self._producer_id, self._producer_epoch = producer
        self._max_batch_bytes = max_batch_bytes
        self._total_bytes = 0
        self._builders: dict[int, BatchBuilder] = {}
        self.count = 0
        """Records so far."""
        self.is_compressed = False
        """Whether one of the batches is (rule 4)."""

    def add(self, record: StoredRecord, offset: int, wall_ms: int) -> bool:
        """Add the record at an offset of the schedule partition; False if it must wait for the next transaction."""
        schedule_id = self._prefix + b"%d" % offset
        parts = (
            record.key_and_value,
            varint(record.header_count + 1),
            record.headers,
            _SCHEDULE_ID_NAME,
            varint(len(schedule_id)),
            schedule_id,
        )
        fields = b"".join(parts)
        size, key = len(fields) + _RECORD_OVERHEAD, record.key
        index = self._keyless_partition if key is None else (murmur2(key) & 0x7FFFFFFF) % self._partitions
        builder = self._builders.get(index)
        if self.count and self._total_bytes + size > MAX_TOTAL_BYTES:
            return False
        if builder is None:
            is_large = BATCH_OVERHEAD + size > self._max_batch_bytes
            self.is_compressed = self.is_compressed or is_large
            builder = self._builders[index] = BatchBuilder(
                compression=Compression.GZIP if is_large else Compression.NONE,
                compression_level=_FAST_GZIP,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=0,
                transactional=True,
            )
        elif builder.size + size > self._max_batch_bytes:
            return False
        builder.append_encoded(wall_ms, fields)
        self._total_bytes += size
        self.count += 1
        return True

    def build(self) -> dict[int, bytearray]:
        """The batches by partition."""
        return {index: builder.build() for index, builder in self._builders.items()}


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
