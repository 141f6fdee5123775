"""Who leads and who is in sync after a broker came, went, or lost a directory: one look over all partitions.

RULES    1. Only an active broker leads, and only from a directory that it still has.
         2. A broker that goes leaves every ISR; one that comes leads where nobody else does. What that makes of one
            partition is one rule for all (`partition_changes.py`).
         3. Where this node's own broker is the only one, what it holds stays with it over its restart (decision 0013), as far
            as it brings the directories along.
NOT HERE Elections that a client asks for (`elect_leaders.py`), and those that time brings (`periodic_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.configs.configs import MIN_ISR, UNCLEAN_ELECTION, setting_of
from replication.controller.decision_context import Environment
from replication.controller.partitions.partition_changes import MayLead, TopicRules, change_of
from replication.metadata.feature_levels import WITHOUT_EPOCH_PER_SHRINK, partition_version
from replication.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicImage
from replication.metadata.metadata_records import Versioned

Concerns = Callable[[PartitionState], bool]


def rules_of(image: MetadataImage, environment: Environment, topic: TopicImage) -> TopicRules:
    """What counts for changes of a topic's partitions."""
    replication_factor = len(topic.partitions[0].replicas)
    return TopicRules(
        min(int(setting_of(image, environment, topic.name, MIN_ISR)), replication_factor),
        image.has_eligible_leaders,
        setting_of(image, environment, topic.name, UNCLEAN_ELECTION) == "true",
        image.metadata_version < WITHOUT_EPOCH_PER_SHRINK,
    )


def can_lead(image: MetadataImage, state: PartitionState, is_there: MayLead) -> MayLead:
    """Who of those that `is_there` names can lead a partition (rule 1)."""
    return lambda broker_id: is_there(broker_id) and state.is_within(broker_id, image.brokers[broker_id].directories)


def is_active(image: MetadataImage, broker_id: int) -> bool:
    """Whether a broker is registered and active."""
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active


def election(
    image: MetadataImage,
    environment: Environment,
    topic: TopicImage,
    index: int,
    state: PartitionState,
    *,
    prefers_first: bool = False,
    allows_unclean: bool = False,
) -> PartitionChangeRecord | None:
    """A leader for one partition that nothing else has happened to, whatever its topic allows; None: all stays as it is."""
    rules = rules_of(image, environment, topic)._replace(prefers_first=prefers_first, allows_unclean=allows_unclean)
    may_lead = can_lead(image, state, lambda broker_id: is_active(image, broker_id))
    return change_of(topic.topic_id, index, state, state.isr, may_lead, rules)


def broker_arrived(image: MetadataImage, environment: Environment, arrived: int) -> list[Versioned]:
    """Leaders for the partitions without one; the broker `arrived` counts as active."""

    def is_there(broker_id: int) -> bool:
        return broker_id == arrived or is_active(image, broker_id)

    return _changes(image, environment, lambda state: state.leader == NO_LEADER, is_there)


def broker_left(
    image: MetadataImage, environment: Environment, gone: int, concerns: Concerns | None = None
) -> list[Versioned]:
    """What becomes of the partitions that a broker led or followed; `concerns` says of which, None: of all."""
    return _changes(image, environment, concerns or (lambda state: gone in state.isr), _others(image, gone), gone=gone)


def directory_left(image: MetadataImage, environment: Environment, broker_id: int, directory: bytes) -> list[Versioned]:
    """What becomes of the partitions that a broker kept in a directory that failed."""

    def concerns(state: PartitionState) -> bool:
        return (broker_id, directory) in zip(state.replicas, state.directories, strict=False)

    return broker_left(image, environment, broker_id, concerns)


def restart(
    image: MetadataImage, environment: Environment, broker_id: int, directories: Sequence[bytes], *, was_clean: bool
) -> list[Versioned]:
    """What a broker's new process, with these directories, means for the partitions that the old one led or followed."""
    is_only = image.brokers.keys() == {broker_id} == {environment.node_id}
    forgets = not was_clean and image.has_eligible_leaders

    def is_alone(state: PartitionState) -> bool:
        return _stays(image, environment, broker_id, state)

    def concerns(state: PartitionState) -> bool:
        if is_alone(state):
            return False
        return broker_id in state.isr or (forgets and broker_id in state.eligible_leaders)

    def is_left_behind(state: PartitionState) -> bool:
        return is_alone(state) and broker_id in state.isr and not state.is_within(broker_id, directories)

    lost = broker_id if forgets else NO_LEADER
    records = _changes(image, environment, concerns, _others(image, broker_id), gone=broker_id, lost=lost)
    records += broker_left(image, environment, broker_id, is_left_behind)
    return records + _lead_on(image, broker_id, directories) if is_only and not was_clean else records


def _lead_on(image: MetadataImage, broker_id: int, directories: Sequence[bytes]) -> list[Versioned]:
    """Rule 3: a new leader epoch, since records may be gone that somebody has read."""
    version = partition_version(image.metadata_version)
    return [
        (PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=broker_id), version)
        for topic, index, state in _partitions(image)
        if state.replicas == (broker_id,) and state.leader == broker_id and state.is_within(broker_id, directories)
    ]


def leave_in_peace(image: MetadataImage, environment: Environment, broker_id: int) -> list[Versioned]:
    """What the wanted end of a broker means for the partitions that it does not keep."""

    def concerns(state: PartitionState) -> bool:
        return broker_id in state.isr and not _stays(image, environment, broker_id, state)

    return broker_left(image, environment, broker_id, concerns)


def leads_any(image: MetadataImage, environment: Environment, broker_id: int) -> bool:
    """Whether a broker leads a partition that somebody else could lead."""
    return any(
        state.leader == broker_id and not _stays(image, environment, broker_id, state)
        for _, _, state in _partitions(image)
    )


def _stays(image: MetadataImage, environment: Environment, broker_id: int, state: PartitionState) -> bool:
    """Rule 3: whether a partition stays with its broker over a restart."""
    return image.brokers.keys() == {broker_id} == {environment.node_id} and len(state.replicas) == 1


def _others(image: MetadataImage, broker_id: int) -> MayLead:
    return lambda other: other != broker_id and is_active(image, other)


def _partitions(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionState]]:
    for topic in image.topics_by_id.values():
        for index, state in topic.partitions.items():
            yield topic, index, state


def _changes(
    image: MetadataImage,
    environment: Environment,
    concerns: Concerns,
    is_there: MayLead,
    *,
    gone: int = NO_LEADER,
    lost: int = NO_LEADER,
) -> list[Versioned]:
    version = partition_version(image.metadata_version)
    records: list[Versioned] = []
    for topic in image.topics_by_id.values():
        concerned = [(index, state) for index, state in topic.partitions.items() if concerns(state)]
        rules = rules_of(image, environment, topic) if concerned else TopicRules()
        for index, state in concerned:
            may_lead = can_lead(image, state, is_there)
            isr = _without(state.isr, gone)
            change = change_of(topic.topic_id, index, state, isr, may_lead, rules, lost=lost)
            if change is not None:
                records.append((change, version))
    return records


def _without(isr: Iterable[int], gone: int) -> tuple[int, ...]:
    return tuple(replica for replica in isr if replica != gone)
