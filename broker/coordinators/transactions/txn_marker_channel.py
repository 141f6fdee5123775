"""Writes the markers of ended transactions into partitions wherever they are led: here, or on other brokers.

RULES    1. Partitions of one leader are asked for together. What is not answered is NOT_LEADER_OR_FOLLOWER, for the coordinator
            tries it again, and finds the leader anew then.
         2. A partition that no longer exists needs no marker.
NOT HERE Writing them here (`txn_marker_writer.py`), trying again (`transaction_coordinator.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from broker.coordinators.transactions.transaction import TopicPartition
from broker.coordinators.transactions.transaction_coordinator import Marker, MarkerDone
from broker.coordinators.transactions.txn_marker_writer import LocalMarkers
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from protocol.schema import Message
from replication.metadata.image import MetadataImage

Ask = Callable[[int, Message, Callable[[Message | None], None]], None]
"""Asks another broker, by its id; None is the answer that did not come."""

_NOBODY: Final = -1


class ClusterMarkers:
    """Whoever writes markers, for the coordinators of this broker."""

    def __init__(self, own_id: int, local: LocalMarkers, image: Callable[[], MetadataImage], ask: Ask) -> None:
        self._own_id = own_id
        self._local = local
        self._image = image
        self._ask = ask

    def write(self, marker: Marker, partitions: Iterable[TopicPartition], done: MarkerDone) -> None:
        """Write a marker into some partitions; `done` is called once for each of them, perhaps at once."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in partitions:
            by_leader.setdefault(self._leader_of(partition), []).append(partition)
        for leader_id, led in by_leader.items():
            if leader_id == self._own_id:
                self._local.write(marker, led, done)
            elif leader_id == _NOBODY:
                for partition in led:
                    done(partition, ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                self._write_there(leader_id, marker, led, done)

    def _leader_of(self, partition: TopicPartition) -> int:
        """Who leads a partition; this broker answers for those that are no more (rule 2)."""
        topic = self._image().topics_by_name.get(partition[0])
        state = None if topic is None else topic.partitions.get(partition[1])
        return self._own_id if state is None else state.leader

    def _write_there(self, leader_id: int, marker: Marker, led: list[TopicPartition], done: MarkerDone) -> None:
        topics: dict[str, list[int]] = {}
        for topic, index in led:
            topics.setdefault(topic, []).append(index)
        asked = WritableTxnMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.epoch,
            transaction_result=marker.is_commit,
            topics=[WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.version,
        )

        def answered(answer: Message | None) -> None:
            codes = _codes(answer)
            for partition in led:
                done(partition, codes.get(partition, ErrorCode.NOT_LEADER_OR_FOLLOWER))

        self._ask(leader_id, WriteTxnMarkersRequest(markers=[asked]), answered)


def _codes(answer: Message | None) -> dict[TopicPartition, ErrorCode]:
    if not isinstance(answer, WriteTxnMarkersResponse):
        return {}
    return {
        (topic.name, one.partition_index): ErrorCode(one.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for one in topic.partitions
    }
