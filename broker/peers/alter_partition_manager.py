"""Asks the controller for the ISRs that the partitions led here want (AlterPartition).

RULES    1. One request is under way, with what all partitions wanted when it left; the next one has what they want when it is
            answered. A partition has one wish: it asks again only when that has been answered.
         2. A wish that is granted comes back as an image, like every change; this node obeys nothing else.
         3. A wish is forgotten when its refusal says that nothing was done, and that nothing has happened to the partition
            since this leader heard of it. Whoever still calls for it (a follower's next fetch, the next look for laggards)
            makes it anew; so no refusal is repeated in a loop.
         4. Any other refusal may follow on a grant whose answer was lost: until the metadata say what became of it, the high
            watermark has to wait for all whom it would let in. Where they need not say anything, it is asked again.
NOT HERE Who belongs into an ISR (`replication/partition/partition.py`), the decision (`replication/controller/partitions/alter_partition.py`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from broker.peers.broker_lifecycle import BrokerLife
from broker.peers.controller_channel import ControllerChannel
from protocol.errors import ErrorCode
from protocol.messages.quorum import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AlterPartitionResponse,
    BrokerState,
)
from replication.metadata_log.kraft_replica import Clock
from replication.partition.partition import Partition
from replication.timer_queue import Deadlines

_log = logging.getLogger("barnabas.isr")

_RETRY_MS: Final = 50
_NOTHING_DONE: Final = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
_METADATA_WILL_TELL: Final = (
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NEW_LEADER_ELECTED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
_RECOVERED: Final = 0
_NOT_KNOWN: Final = -1

Isr = tuple[int, ...]


class IsrRequests:
    """The wishes of one broker."""

    def __init__(
        self, channel: ControllerChannel, life: BrokerLife, broker_id: int, deadlines: Deadlines, clock: Clock
    ) -> None:
        self._channel = channel
        self._life = life
        self._broker_id = broker_id
        self._deadlines = deadlines
        self._clock = clock
        self._wishes: dict[Partition, Isr] = {}
        """Not asked for yet."""
        self._is_asking = False

    def want(self, partition: Partition, isr: Isr) -> None:
        """A partition that is led here wants another ISR."""
        self._wishes[partition] = isr
        if not self._is_asking:
            self._ask()

    def _ask(self) -> None:
        asked = {p: isr for p, isr in self._wishes.items() if p.is_leader and p.wanted_isr == isr}
        self._wishes.clear()
        if not asked:
            return
        self._is_asking = True
        topics: dict[bytes, list[AlterPartitionRequestPartition]] = {}
        for partition, isr in asked.items():
            assert partition.topic_id is not None, "what is led is in the image, by its id"
            topics.setdefault(partition.topic_id, []).append(self._wish(partition, isr))
        request = AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._life.epoch,
            topics=[AlterPartitionRequestTopic(topic_id=topic_id, partitions=p) for topic_id, p in topics.items()],
        )
        self._channel.submit(request, wall_ms=self._clock.wall_ms(), reply=partial(self._answered, asked))

    def _wish(self, partition: Partition, isr: Isr) -> AlterPartitionRequestPartition:
        return AlterPartitionRequestPartition(
            partition_index=partition.index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr_with_epochs=[BrokerState(broker_id=b, broker_epoch=self._epoch(partition, b)) for b in isr],
            leader_recovery_state=_RECOVERED,
        )

    def _epoch(self, partition: Partition, broker_id: int) -> int:
        """The registration that a member fetches with."""
        if broker_id == self._broker_id:
            return self._life.epoch
        follower = partition.followers.get(broker_id)
        return _NOT_KNOWN if follower is None else follower.broker_epoch

    def _answered(self, asked: dict[Partition, Isr], answer: AlterPartitionResponse) -> None:
        self._is_asking = False
        codes = {
            (topic.topic_id, partition.partition_index): partition.error_code
            for topic in answer.topics
            for partition in topic.partitions
        }
        for partition, isr in asked.items():
            key = (partition.topic_id or b"", partition.index)
            code = answer.error_code or codes.get(key, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._settle(partition, isr, ErrorCode(code))
        if not self._is_asking:
            self._ask()

    def _settle(self, partition: Partition, isr: Isr, code: ErrorCode) -> None:
        if code == ErrorCode.NONE:
            _log.info("%s-%d: in sync are %s", partition.topic, partition.index, list(isr))
            return
        _log.info(
            "%s-%d: %s cannot be the in-sync replicas: %s", partition.topic, partition.index, list(isr), code.name
        )
        if partition.wanted_isr != isr or code in _METADATA_WILL_TELL:
            return
        if code in _NOTHING_DONE:
            partition.wanted_isr = None
            partition.move_high_watermark()
        else:
            again = partial(self._want_again, partition, isr)
            self._deadlines.schedule(self._clock.mono_ms() + _RETRY_MS, again)

    def _want_again(self, partition: Partition, isr: Isr) -> None:
        if partition.wanted_isr == isr:
            self.want(partition, isr)
