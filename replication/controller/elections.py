"""Who leads a partition after a broker came or went.

RULES    1. Only an active broker becomes leader: one of the ISR in the order of the replicas, else an eligible leader
            replica (KIP-966), else, where both are empty, the last known leader, which may have lost records
            and therefore begins in recovery.
         2. Naming a leader begins a new leader epoch, also when it is the one that led before.
         3. The last of an ISR stays in it when its broker goes: it holds all that was acknowledged.
NOT HERE Elections that a client asks for; unclean ones that a topic's setting allows.
"""

from __future__ import annotations

from collections.abc import Callable

from protocol.messages.stored import PartitionChangeRecord
from replication.controller.assignments import partition_version
from replication.image import NO_LEADER, MetadataImage, PartitionState
from replication.metadata_records import Versioned

_RECOVERING = 1

IsActive = Callable[[int], bool]


def elect(topic_id: bytes, index: int, state: PartitionState, is_active: IsActive) -> PartitionChangeRecord | None:
    """A leader for a partition that has none; None when nobody can."""
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    for replica in state.replicas:
        if replica in state.isr and is_active(replica):
            change.leader = replica
            return change
    for replica in state.replicas:
        if replica in state.eligible_leaders and is_active(replica):
            change.leader = replica
            change.isr = [replica]
            change.eligible_leader_replicas = [r for r in state.eligible_leaders if r != replica]
            change.last_known_elr = []
            return change
    last = state.last_known_leaders
    if not state.isr and not state.eligible_leaders and len(last) == 1 and is_active(last[0]):
        change.leader = last[0]
        change.isr = [last[0]]
        change.last_known_elr = []
        change.leader_recovery_state = _RECOVERING
        return change
    return None


def elect_leaders(image: MetadataImage, arrived: int) -> list[Versioned]:
    """Leaders for the partitions without one that the broker `arrived` holds; it counts as active."""

    def is_active(broker_id: int) -> bool:
        return broker_id == arrived or (broker_id in image.brokers and image.brokers[broker_id].is_active)

    version = partition_version(image)
    records: list[Versioned] = []
    for topic_id, topic in image.topics_by_id.items():
        for index, state in topic.partitions.items():
            if state.leader == NO_LEADER and arrived in state.replicas:
                change = elect(topic_id, index, state, is_active)
                if change is not None:
                    records.append((change, version))
    return records


def restart(image: MetadataImage, broker_id: int, *, was_clean: bool) -> list[Versioned]:
    """What a broker's new process means for the partitions that the old one led or followed.

    A partition that only this broker holds stays with it: after a clean end as it is, after any other under a
    new leader epoch, since records may be gone that somebody has read. Of all others the old process is taken out.
    """
    version = partition_version(image)
    records: list[Versioned] = []
    for topic_id, topic in image.topics_by_id.items():
        for index, state in topic.partitions.items():
            if broker_id not in state.replicas:
                continue
            if len(state.replicas) > 1:
                change = _without(image, topic_id, index, state, broker_id)
            elif was_clean or state.leader != broker_id:
                change = None
            else:
                change = PartitionChangeRecord(partition_id=index, topic_id=topic_id, leader=broker_id)
            if change is not None:
                records.append((change, version))
    return records


def _without(
    image: MetadataImage, topic_id: bytes, index: int, state: PartitionState, broker_id: int
) -> PartitionChangeRecord | None:
    isr = [replica for replica in state.isr if replica != broker_id]
    change = PartitionChangeRecord(partition_id=index, topic_id=topic_id)
    if isr and len(isr) < len(state.isr):
        change.isr = isr
    if state.leader == broker_id:
        can_lead = [r for r in state.replicas if r in isr and r in image.brokers and image.brokers[r].is_active]
        change.leader = can_lead[0] if can_lead else NO_LEADER
    elif change.isr is None:
        return None
    return change
