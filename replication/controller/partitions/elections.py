"""Leader and ISR changes in all partitions after a broker or directory change (Kafka: ReplicationControlManager).

RULES    1. Only an active broker leads, and only if its replica's log directory is online.
         2. A fenced broker is removed from every ISR; an unfenced one leads its leaderless partitions. The change of each
            partition follows `partition_changes.py`.
         3. If the local broker is the only broker, it keeps its single-replica partitions over a restart (decision 0013),
            unless their directory is missing.
NOT HERE ElectLeaders requests (`elect_leaders.py`), periodic elections (`periodic_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.configs.configs import MIN_ISR, UNCLEAN_ELECTION, topic_config_value
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.assignments import default_log_dir
from replication.controller.partitions.partition_changes import LeaderFilter, TopicRules, build_partition_change
from replication.metadata.feature_levels import WITHOUT_EPOCH_PER_SHRINK, partition_version
from replication.metadata.image import NO_LEADER, MetadataImage, PartitionState, TopicImage
from replication.metadata.metadata_records import Versioned

PartitionFilter = Callable[[PartitionState], bool]


def topic_rules(context: DecisionContext, topic: TopicImage) -> TopicRules:
    """The rules for partition changes of a topic."""
    replication_factor = len(topic.partitions[0].replicas)
    return TopicRules(
        min(int(topic_config_value(context, topic.name, MIN_ISR)), replication_factor),
        context.image.has_eligible_leaders,
        topic_config_value(context, topic.name, UNCLEAN_ELECTION) == "true",
        context.image.metadata_version < WITHOUT_EPOCH_PER_SHRINK,
        new_log_dir=partial(default_log_dir, context.image),
    )


def can_lead(image: MetadataImage, state: PartitionState, is_available: LeaderFilter | None = None) -> LeaderFilter:
    """The filter of brokers that may lead a partition (rule 1); without `is_available`, the active brokers."""
    is_live = is_available or partial(_is_active, image)
    return lambda broker_id: (
        is_live(broker_id) and state.is_in_directories(broker_id, image.brokers[broker_id].directories)
    )


def _is_active(image: MetadataImage, broker_id: int) -> bool:
    """Whether a broker is registered and active."""
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.is_active


def leader_change(
    context: DecisionContext,
    topic: TopicImage,
    index: int,
    state: PartitionState,
    *,
    prefers_first: bool = False,
    allows_unclean: bool = False,
) -> PartitionChangeRecord | None:
    """Elect a leader for one partition; None if nothing changes."""
    rules = topic_rules(context, topic)._replace(prefers_first=prefers_first, allows_unclean=allows_unclean)
    return build_partition_change(topic.topic_id, index, state, state.isr, can_lead(context.image, state), rules)


def broker_unfenced(context: DecisionContext, unfenced_id: int) -> list[Versioned]:
    """Elect leaders for leaderless partitions; the broker `unfenced_id` counts as active."""

    def is_available(broker_id: int) -> bool:
        return broker_id == unfenced_id or _is_active(context.image, broker_id)

    return _partition_change_records(context, lambda state: state.leader == NO_LEADER, is_available)


def broker_fenced(
    context: DecisionContext, removed_id: int, is_affected: PartitionFilter | None = None
) -> list[Versioned]:
    """Remove a broker from the ISRs of its partitions, or of those that `is_affected` selects."""
    return _partition_change_records(
        context,
        is_affected or (lambda state: removed_id in state.isr),
        _others(context.image, removed_id),
        removed_id=removed_id,
    )


def directory_offline(context: DecisionContext, broker_id: int, directory: bytes) -> list[Versioned]:
    """Remove a broker from the ISRs of its partitions in a failed directory."""

    def is_affected(state: PartitionState) -> bool:
        return (broker_id, directory) in zip(state.replicas, state.directories, strict=False)

    return broker_fenced(context, broker_id, is_affected)


def broker_restarted(
    context: DecisionContext, broker_id: int, directories: Sequence[bytes], *, was_clean_shutdown: bool
) -> list[Versioned]:
    """The changes for a new process of a broker with these log directories."""
    is_single_broker = context.image.brokers.keys() == {broker_id} == {context.node_id}
    drops_elr = not was_clean_shutdown and context.image.has_eligible_leaders

    is_kept = partial(_is_kept_over_restart, context, broker_id)

    def is_affected(state: PartitionState) -> bool:
        if is_kept(state):
            return False
        return broker_id in state.isr or (drops_elr and broker_id in state.eligible_leaders)

    def is_in_removed_directory(state: PartitionState) -> bool:
        return is_kept(state) and broker_id in state.isr and not state.is_in_directories(broker_id, directories)

    unclean_shutdown_id = broker_id if drops_elr else NO_LEADER
    records = _partition_change_records(
        context,
        is_affected,
        _others(context.image, broker_id),
        removed_id=broker_id,
        unclean_shutdown_id=unclean_shutdown_id,
    )
    records += broker_fenced(context, broker_id, is_in_removed_directory)
    return (
        records + _begin_new_epochs(context.image, broker_id, directories)
        if is_single_broker and not was_clean_shutdown
        else records
    )


def _begin_new_epochs(image: MetadataImage, broker_id: int, directories: Sequence[bytes]) -> list[Versioned]:
    """New leader epochs (rule 3): after an unclean shutdown, records that clients have read may be lost."""
    version = partition_version(image.metadata_version)
    return [
        (PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=broker_id), version)
        for topic, index, state in partitions_of(image)
        if state.replicas == (broker_id,)
        and state.leader == broker_id
        and state.is_in_directories(broker_id, directories)
    ]


def controlled_shutdown(context: DecisionContext, broker_id: int) -> list[Versioned]:
    """The changes for a controlled shutdown; partitions of rule 3 stay."""

    def is_affected(state: PartitionState) -> bool:
        return broker_id in state.isr and not _is_kept_over_restart(context, broker_id, state)

    return broker_fenced(context, broker_id, is_affected)


def has_leaderships(context: DecisionContext, broker_id: int) -> bool:
    """Whether a broker leads partitions that other brokers could lead."""
    return any(
        state.leader == broker_id and not _is_kept_over_restart(context, broker_id, state)
        for _, _, state in partitions_of(context.image)
    )


def _is_kept_over_restart(context: DecisionContext, broker_id: int, state: PartitionState) -> bool:
    """Whether the local broker keeps this partition over a restart (rule 3)."""
    return context.image.brokers.keys() == {broker_id} == {context.node_id} and len(state.replicas) == 1


def _others(image: MetadataImage, broker_id: int) -> LeaderFilter:
    return lambda other: other != broker_id and _is_active(image, other)


def partitions_of(image: MetadataImage) -> Iterator[tuple[TopicImage, int, PartitionState]]:
    """All partitions, with their topic and index."""
    for topic in image.topics_by_id.values():
        for index, state in topic.partitions.items():
            yield topic, index, state


def _partition_change_records(
    context: DecisionContext,
    is_affected: PartitionFilter,
    is_available: LeaderFilter,
    *,
    removed_id: int = NO_LEADER,
    unclean_shutdown_id: int = NO_LEADER,
) -> list[Versioned]:
    version = partition_version(context.image.metadata_version)
    records: list[Versioned] = []
    for topic in context.image.topics_by_id.values():
        affected = [(index, state) for index, state in topic.partitions.items() if is_affected(state)]
        rules = topic_rules(context, topic) if affected else TopicRules()
        for index, state in affected:
            can_be_leader = can_lead(context.image, state, is_available)
            isr = tuple(replica for replica in state.isr if replica != removed_id)
            change = build_partition_change(
                topic.topic_id, index, state, isr, can_be_leader, rules, unclean_shutdown_id=unclean_shutdown_id
            )
            if change is not None:
                records.append((change, version))
    return records
