"""Asks the controller for the ISRs that the partitions led here want (AlterPartition).

RULES    1. One request per partition is under way: the partition asks again only when its wish has been answered.
         2. A wish that is granted comes back as an image, like every change; this node obeys nothing else.
         3. A wish that is refused is forgotten. Whoever still calls for it (a follower's next fetch, the next look for
            laggards) makes it anew, with the epochs known then; so no refusal is repeated in a loop.
NOT HERE Who belongs into an ISR (`replication/partition.py`), the decision (`replication/controller/isr_changes.py`).
"""

from __future__ import annotations

import logging
from typing import Final

from broker.controller_channel import ControllerChannel
from broker.life import BrokerLife
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    BrokerState,
)
from replication.partition import Partition
from replication.quorum import Clock

_log = logging.getLogger("barnabas.isr")

_RECOVERED: Final = 0
_NOT_KNOWN: Final = -1


class IsrRequests:
    """The wishes of one broker."""

    def __init__(self, channel: ControllerChannel, life: BrokerLife, broker_id: int, clock: Clock) -> None:
        self._channel = channel
        self._life = life
        self._broker_id = broker_id
        self._clock = clock

    def want(self, partition: Partition, isr: tuple[int, ...]) -> None:
        """A partition that is led here wants another ISR."""
        epoch = self._life.epoch
        wanted = AlterPartitionRequestPartition(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=b, broker_epoch=self._epoch(partition, b)) for b in isr],
            leader_recovery_state=_RECOVERED,
        )
        assert partition.topic_id is not None, "what is led is in the image, by its id"
        topic = AlterPartitionRequestTopic(topic_id=partition.topic_id, partitions=[wanted])
        request = AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=epoch, topics=[topic])
        self._channel.submit(
            request, wall_ms=self._clock.wall_ms(), reply=lambda answer: self._answered(partition, isr, answer)
        )

    def _epoch(self, partition: Partition, broker_id: int) -> int:
        """The registration that a member fetches with."""
        if broker_id == self._broker_id:
            return self._life.epoch
        follower = partition.followers.get(broker_id)
        return _NOT_KNOWN if follower is None else follower.broker_epoch

    def _answered(self, partition: Partition, isr: tuple[int, ...], answer: AlterPartitionResponse) -> None:
        code = answer.error_code or answer.topics[0].partitions[0].error_code
        if code == ErrorCode.NONE:
            _log.info("%s-%d: in sync are %s", partition.topic, partition.index, list(isr))
            return
        name = ErrorCode(code).name
        _log.info("%s-%d: %s cannot be the in-sync replicas: %s", partition.topic, partition.index, list(isr), name)
        if partition.wanted_isr == isr:
            partition.wanted_isr = None
            partition.move_high_watermark()
