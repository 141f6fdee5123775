"""AlterPartitionReassignments and ListPartitionReassignments.

RULES    1. The checks, their order and messages are Apache Kafka 4.3's (ReplicationControlManager), and so are the records:
            added replicas follow the current ones, removed replicas stay until the added ones are in sync, and the ISR change
            that completes this ends the reassignment (`partition_changes.py`).
         2. Cancelling a reassignment removes its added replicas. If no other replica is in sync, the first one leads if the
            topic allows unclean elections.
NOT HERE Replication to the new replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import cluster, common
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.assignments import invalid_assignment, validate_manual_assignment
from replication.controller.partitions.elections import can_lead, topic_rules
from replication.controller.partitions.partition_changes import TargetReplicas, TopicRules, build_partition_change
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import MetadataImage, PartitionState, TopicImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


def alter_reassignments(
    context: DecisionContext, request: cluster.AlterPartitionReassignmentsRequest
) -> Decision[cluster.AlterPartitionReassignmentsResponse]:
    """Decide on each reassignment."""
    version = partition_version(context.image.metadata_version)
    records: list[Versioned] = []
    responses = []
    for topic in request.topics:
        results = []
        for wanted in topic.partitions:
            result = common.PartitionErrorMessage(partition_index=wanted.partition_index, error_code=ErrorCode.NONE)
            try:
                change = _alter(context, topic.name, wanted, can_change_factor=request.allow_replication_factor_change)
            except KafkaError as error:
                result.error_code, result.error_message = error.code, error.message
            else:
                records += [] if change is None else [(change, version)]
            results.append(result)
        responses.append(common.Topic(name=topic.name, partitions=results))
    response = cluster.AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        responses=responses,
    )
    return Decision(records, response, is_atomic=False)


def _alter(
    context: DecisionContext, name: str, wanted: cluster.ReassignablePartition, *, can_change_factor: bool
) -> PartitionChangeRecord | None:
    topic, index = context.image.topics_by_name.get(name), wanted.partition_index
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    state = topic.partitions.get(index)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    rules = topic_rules(context, topic)
    if wanted.replicas is None:
        return _cancel(context.image, topic, index, state, rules)
    validate_manual_assignment(context.image, wanted.replicas, None)
    before = len({*state.replicas, *state.adding} - {*state.removing})
    if not can_change_factor and len(wanted.replicas) != before:
        message = f"The replication factor is changed from {before} to {len(wanted.replicas)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)
    rules, target = rules._replace(allows_unclean=False), _target(state, tuple(wanted.replicas))
    can_be_leader = can_lead(context.image, state)
    return build_partition_change(topic.topic_id, index, state, state.isr, can_be_leader, rules, target=target)


def _target(state: PartitionState, wanted: tuple[int, ...]) -> TargetReplicas:
    removing = tuple(sorted(set(state.replicas) - set(wanted)))
    adding = tuple(sorted(set(wanted) - set(state.replicas)))
    return TargetReplicas(wanted + removing, adding or state.adding, removing or state.removing)


def _cancel(
    image: MetadataImage, topic: TopicImage, index: int, state: PartitionState, rules: TopicRules
) -> PartitionChangeRecord | None:
    if not state.adding and not state.removing:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    replicas = tuple(replica for replica in state.replicas if replica not in state.adding)
    if not replicas:
        raise invalid_assignment("Invalid replica assignment: addingReplicas contains all replicas.")
    isr = tuple(replica for replica in state.isr if replica not in state.adding)
    if not isr and not rules.allows_unclean:
        raise invalid_assignment(
            f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
            "leader election."
        )
    isr, target, can_be_leader = isr or replicas[:1], TargetReplicas(replicas), can_lead(image, state)
    return build_partition_change(topic.topic_id, index, state, isr, can_be_leader, rules, target=target)


def list_reassignments(
    image: MetadataImage, request: cluster.ListPartitionReassignmentsRequest
) -> cluster.ListPartitionReassignmentsResponse:
    """The ongoing reassignments among the requested partitions."""
    if request.topics is None:
        requested: Iterable[tuple[str, Iterable[int]]] = (
            (name, topic.partitions) for name, topic in image.topics_by_name.items()
        )
    else:
        requested = ((topic.name, topic.partition_indexes) for topic in request.topics)
    topics = []
    for name, indexes in requested:
        topic = image.topics_by_name.get(name)
        ongoing = [] if topic is None else _ongoing(topic, indexes)
        if ongoing:
            topics.append(common.Topic(name=name, partitions=ongoing))
    return cluster.ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=topics)


def _ongoing(topic: TopicImage, indexes: Iterable[int]) -> list[cluster.OngoingPartitionReassignment]:
    found = []
    for index in indexes:
        state = topic.partitions.get(index)
        if state is not None and (state.adding or state.removing):
            found.append(
                cluster.OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(state.replicas),
                    adding_replicas=list(state.adding),
                    removing_replicas=list(state.removing),
                )
            )
    return found
