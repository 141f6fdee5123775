"""Appends to and reads from a coordinator's partition through the ReplicaManager (Kafka: PartitionWriter).

NOT HERE The records (`coordinator_runtime.py`), the partition (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.errors import ErrorCode, KafkaError
from replication.partition.partition import ACKS_ALL, Append
from replication.partition.replica_manager import ReplicaManager
from replication.timer_queue import Clock
from storage.io.disk_lookup import DiskLookup
from storage.log.log import Log
from storage.log.log_validator import AppendOrigin


class PartitionWriter:
    """The ShardLog of one partition that this broker leads. Appends use acks=all."""

    def __init__(self, replicas: ReplicaManager, topic: str, partition: int, clock: Clock) -> None:
        self._replicas = replicas
        self._topic = topic
        self._partition = partition
        self._clock = clock
        self._replica = replicas.find(topic, partition)

    @property
    def _log(self) -> Log:
        """The current log: it changes when the partition moves to another log directory."""
        return self._replica.log

    def offset_range(self) -> tuple[int, int] | DiskLookup:
        """Log start offset and log end offset."""
        log = self._log
        if log.is_unused:
            return 0, 0
        return (log.log_start_offset, log.log_end_offset) if log.is_open else log.open_lookup()

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that the log accepts."""
        return self._log.config.max_message_bytes

    def append(self, batch: bytearray) -> Append:
        """Append; it has its result when every in-sync replica has the batch."""
        return append(self._replicas, (self._topic, self._partition), batch, self._clock.wall_ms())

    def read(self, offset: int, max_bytes: int) -> bytes | bytearray | memoryview | DiskLookup:
        """Whole batches from the batch that contains `offset`."""
        opened = self._log.opened
        return self._log.open_lookup() if opened is None else opened.reader.read_records(offset, max_bytes)

    def await_disk(self, lookup: DiskLookup, then: Callable[[], None]) -> None:
        """Call `then` when the lookup has finished or failed."""
        self._replicas.await_disk(self._replica, lookup, then)


def append(replicas: ReplicaManager, key: tuple[str, int], batch: bytearray, wall_ms: int) -> Append:
    """Append a coordinator's batch or marker with acks=all.

    It is rejected at once or not at all, also if it has to wait for the disk: the coordinator applies its records meanwhile.
    """
    partition = replicas.partitions.get(key)
    if partition is not None and partition.is_leader and len(partition.isr) < partition.min_isr:
        rejected = Append(batch, ACKS_ALL, wall_ms, AppendOrigin.COORDINATOR)
        rejected.fail(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS))
        return rejected
    return replicas.appender.append(*key, batch, acks=ACKS_ALL, wall_ms=wall_ms, origin=AppendOrigin.COORDINATOR)
