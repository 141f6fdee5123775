"""Sends the ISR changes of the partitions that this broker leads to the controller (AlterPartition).

RULES    1. One request is in flight; changes that are proposed meanwhile go into the next one. A partition has at most one
            pending change.
         2. A committed change takes effect through the metadata image, like every other change.
         3. A proposal is dropped if its error proves that nothing was changed and that the partition's state is current. The
            next fetch of the follower, or the next ISR check, proposes it again; so errors are not retried in a loop.
         4. After any other error the change may be committed and only its response lost. Until the metadata resolve that, the
            high watermark waits for the maximal ISR. If the metadata may never resolve it, the request is retried.
NOT HERE The choice of the ISR (`replication/partition/partition.py`), the decision
         (`replication/controller/partitions/alter_partition.py`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from broker.peers.broker_lifecycle import BrokerLifecycle
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.common import TopicById
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    BrokerState,
)
from replication.completion import Completion
from replication.partition.partition import Partition
from replication.timer_queue import Clock, TimerQueue

_log = logging.getLogger("barnabas.isr")

_RETRY_MS: Final = 50
_NOTHING_DONE: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
_METADATA_FOLLOWS: Final = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_RECOVERED: Final = 0
_UNKNOWN_EPOCH: Final = -1

Isr = tuple[int, ...]


@dataclass(eq=False)
class AlterPartitionManager:
    """The proposed ISR changes of one broker."""

    _channel: ControllerChannel
    _lifecycle: BrokerLifecycle
    _broker_id: int
    _timers: TimerQueue
    _clock: Clock
    _pending: dict[Partition, Isr] = field(default_factory=dict, init=False)
    """Proposed and not sent yet."""
    _is_in_flight: bool = field(default=False, init=False)

    def submit(self, partition: Partition, isr: Isr) -> None:
        """Proposes another ISR for a partition that this broker leads."""
        self._pending[partition] = isr
        if not self._is_in_flight:
            self._send_request()

    def _send_request(self) -> None:
        requested = {p: isr for p, isr in self._pending.items() if p.is_leader and p.pending_isr == isr}
        self._pending.clear()
        if not requested:
            return
        self._is_in_flight = True
        topics: dict[bytes, list[AlterPartitionRequestPartition]] = {}
        for partition, isr in requested.items():
            assert partition.topic_id is not None, "a led partition is in the image"
            topics.setdefault(partition.topic_id, []).append(self._request_partition(partition, isr))
        request = AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._lifecycle.epoch,
            topics=[TopicById(topic_id=topic_id, partitions=p) for topic_id, p in topics.items()],
        )
        response = self._channel.submit(request)
        response.then(partial(self._on_response, requested))

    def _request_partition(self, partition: Partition, isr: Isr) -> AlterPartitionRequestPartition:
        return AlterPartitionRequestPartition(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=b, broker_epoch=self._epoch(partition, b)) for b in isr],
            leader_recovery_state=_RECOVERED,
        )

    def _epoch(self, partition: Partition, broker_id: int) -> int:
        """The broker epoch of an ISR member's fetch requests."""
        if broker_id == self._broker_id:
            return self._lifecycle.epoch
        follower = partition.followers.get(broker_id)
        return _UNKNOWN_EPOCH if follower is None else follower.broker_epoch

    def _on_response(self, requested: dict[Partition, Isr], done: Completion[AlterPartitionResponse]) -> None:
        self._is_in_flight = False
        response = done.result()
        codes = {
            (topic.topic_id, partition.partition_index): partition.error_code
            for topic in response.topics
            for partition in topic.partitions
        }
        for partition, isr in requested.items():
            key = (partition.topic_id or b"", partition.index)
            code = response.error_code or codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._apply_result(partition, isr, ErrorCode(code))
        if not self._is_in_flight:
            self._send_request()

    def _apply_result(self, partition: Partition, isr: Isr, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            _log.info("%s-%d: the ISR is %s", partition.topic, partition.index, list(isr))
            return
        _log.info(
            "%s-%d: the controller refused the ISR %s: %s", partition.topic, partition.index, list(isr), code.name
        )
        if partition.pending_isr != isr or code in _METADATA_FOLLOWS:
            return
        if code in _NOTHING_DONE:
            partition.pending_isr = None
            partition.move_high_watermark()
        else:
            again = partial(self._retry, partition, isr)
            self._timers.schedule(self._clock.mono_ms() + _RETRY_MS, again)

    def _retry(self, partition: Partition, isr: Isr) -> None:
        if partition.pending_isr == isr:
            self.submit(partition, isr)
