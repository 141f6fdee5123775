"""AlterPartitionReassignments: partitions get other replicas; ListPartitionReassignments: which ones do.

RULES    1. Checks, their order and sentences are Apache Kafka 4.3's (ReplicationControlManager), and so are the records:
            who comes is added behind those who stay, who goes stays until those are in sync, and the change of the ISR
            that makes them so ends it (`partition_changes.py`).
         2. To end one that is under way takes back who was coming. Where nobody else is in sync the first of the others
            leads, if the topic allows that.
NOT HERE Copying records: that is what followers do.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.cluster import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from protocol.messages.stored_records import PartitionChangeRecord
from replication.controller.decision_context import Environment
from replication.controller.partitions.assignments import bad_assignment, check_by_hand, default_directory
from replication.controller.partitions.elections import can_lead, is_active, rules_of
from replication.controller.partitions.partition_changes import Target, TopicRules, change_of
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import MetadataImage, PartitionState, TopicImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision


def alter_reassignments(
    image: MetadataImage, environment: Environment, request: AlterPartitionReassignmentsRequest
) -> Decision[AlterPartitionReassignmentsResponse]:
    """Decide on each partition's new replicas."""
    version = partition_version(image.metadata_version)
    records: list[Versioned] = []
    responses = []
    for topic in request.topics:
        answers = []
        for wanted in topic.partitions:
            answer = ReassignablePartitionResponse(partition_index=wanted.partition_index, error_code=ErrorCode.NONE)
            try:
                change = _alter(
                    image, environment, topic.name, wanted, may_grow=request.allow_replication_factor_change
                )
            except KafkaError as error:
                answer.error_code, answer.error_message = error.code, error.message
            else:
                records += [] if change is None else [(change, version)]
            answers.append(answer)
        responses.append(ReassignableTopicResponse(name=topic.name, partitions=answers))
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=ErrorCode.NONE,
        responses=responses,
    )
    return Decision(records, response, is_atomic=False)


def _alter(
    image: MetadataImage, environment: Environment, name: str, wanted: ReassignablePartition, *, may_grow: bool
) -> PartitionChangeRecord | None:
    topic, index = image.topics_by_name.get(name), wanted.partition_index
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    state = topic.partitions.get(index)
    if state is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    rules = rules_of(image, environment, topic)
    if wanted.replicas is None:
        return _cancel(image, topic, index, state, rules)
    check_by_hand(image, wanted.replicas, None)
    before = len({*state.replicas, *state.adding} - {*state.removing})
    if not may_grow and len(wanted.replicas) != before:
        sentence = f"The replication factor is changed from {before} to {len(wanted.replicas)}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, sentence)
    rules = rules._replace(allows_unclean=False)
    return _change(image, topic, index, state, state.isr, _target(state, tuple(wanted.replicas)), rules)


def _target(state: PartitionState, wanted: tuple[int, ...]) -> Target:
    going = tuple(sorted(set(state.replicas) - set(wanted)))
    coming = tuple(sorted(set(wanted) - set(state.replicas)))
    return Target(wanted + going, coming or state.adding, going or state.removing)


def _cancel(
    image: MetadataImage, topic: TopicImage, index: int, state: PartitionState, rules: TopicRules
) -> PartitionChangeRecord | None:
    if not state.adding and not state.removing:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    replicas = tuple(replica for replica in state.replicas if replica not in state.adding)
    if not replicas:
        raise bad_assignment("Invalid replica assignment: addingReplicas contains all replicas.")
    isr = tuple(replica for replica in state.isr if replica not in state.adding)
    if not isr and not rules.allows_unclean:
        raise bad_assignment(
            f"Unable to revert partition assignment for {topic.name}:{index} because it would require an unclean "
            "leader election."
        )
    return _change(image, topic, index, state, isr or replicas[:1], Target(replicas), rules)


def _change(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    state: PartitionState,
    isr: tuple[int, ...],
    target: Target,
    rules: TopicRules,
) -> PartitionChangeRecord | None:
    return change_of(
        topic.topic_id,
        index,
        state,
        isr,
        can_lead(image, state, lambda broker_id: is_active(image, broker_id)),
        rules,
        target=target,
        directory_of=lambda broker_id: default_directory(image, broker_id),
    )


def list_reassignments(
    image: MetadataImage, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Which of these partitions are getting other replicas?"""
    if request.topics is None:
        asked: Iterable[tuple[str, Iterable[int]]] = (
            (name, topic.partitions) for name, topic in image.topics_by_name.items()
        )
    else:
        asked = ((topic.name, topic.partition_indexes) for topic in request.topics)
    topics = []
    for name, indexes in asked:
        topic = image.topics_by_name.get(name)
        ongoing = [] if topic is None else _ongoing(topic, indexes)
        if ongoing:
            topics.append(OngoingTopicReassignment(name=name, partitions=ongoing))
    return ListPartitionReassignmentsResponse(error_code=ErrorCode.NONE, topics=topics)


def _ongoing(topic: TopicImage, indexes: Iterable[int]) -> list[OngoingPartitionReassignment]:
    found = []
    for index in indexes:
        state = topic.partitions.get(index)
        if state is not None and (state.adding or state.removing):
            found.append(
                OngoingPartitionReassignment(
                    partition_index=index,
                    replicas=list(state.replicas),
                    adding_replicas=list(state.adding),
                    removing_replicas=list(state.removing),
                )
            )
    return found
