"""A coordinator's partition as the ReplicaManager keeps it: appended to with acks=all, read back at the start.

NOT HERE What is written and when it counts (`coordinator_runtime.py`), the partition itself (`replication/partition/partition.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.coordinators.runtime.coordinator_runtime import Clock
from protocol.errors import ErrorCode, KafkaError
from replication.partition.replica_manager import ReplicaManager
from storage.io.would_block import WouldBlock
from storage.log.log import AppendInfo, Log
from storage.log.log_validator import Origin

_ALL = -1


class ReplicaLog:
    """The ShardLog of one partition that is led here."""

    def __init__(self, replicas: ReplicaManager, topic: str, partition: int, clock: Clock) -> None:
        self._replicas = replicas
        self._topic = topic
        self._partition = partition
        self._clock = clock
        self._replica = replicas.find(topic, partition)

    @property
    def _log(self) -> Log:
        """Where the records lie, which may change (replication/partition/log_dir_moves.py)."""
        return self._replica.log

    def bounds(self) -> tuple[int, int]:
        """Where it begins and ends."""
        log = self._log
        if log.is_untouched:
            return 0, 0
        log.open(may_block=False)
        return log.log_start_offset, log.log_end_offset

    @property
    def max_batch_bytes(self) -> int:
        """The largest batch that it takes."""
        return self._log.config.max_message_bytes

    def append(self, batch: bytearray, done: Callable[[ErrorCode], None]) -> None:
        """Append; `done` is called when every in-sync replica has the batch, or cannot have it."""

        def report(code: ErrorCode, _info: AppendInfo | None, _error: KafkaError | None) -> None:
            done(code)

        self._replicas.append(
            self._topic,
            self._partition,
            batch,
            acks=_ALL,
            wall_ms=self._clock.wall_ms(),
            done=report,
            origin=Origin.COORDINATOR,
        )

    def read(self, offset: int, max_bytes: int) -> bytes | bytearray | memoryview:
        """Whole batches from the one that holds `offset`."""
        return self._log.read_records(offset, max_bytes, may_block=False)

    def await_disk(self, blocked: WouldBlock[Any], then: Callable[[], None]) -> None:
        """Call `then` when what would have blocked is done, or has failed."""
        self._replicas.await_disk(self._replica, blocked, then)
