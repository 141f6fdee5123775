"""CreateTopics, DeleteTopics and CreatePartitions.

RULES    1. The checks, their order, codes and messages are Apache Kafka 4.3's (ReplicationControlManager, and the earlier
            checks in ControllerApis).
         2. The topics of a request are decided independently; the accepted ones become visible together.
         3. A request creates at most MAX_RECORDS records.
NOT HERE Replica placement (`assignments.py`), topic configurations (`configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin
from protocol.messages.stored_records import RemoveTopicRecord, TopicRecord
from protocol.primitives import ZERO_UUID
from replication.controller.configs.configs import effective_topic_configs, new_topic_configs
from replication.controller.configs.schedule_targets import ScheduleTargets
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.assignments import (
    Assignment,
    invalid_assignment,
    manual_assignment,
    manual_assignments,
    partition_records,
    place_partitions,
)
from replication.metadata.image import MetadataImage, TopicImage
from replication.metadata.metadata_records import Versioned
from replication.metadata.topic_names import METADATA_TOPIC, check_topic_name, collision_key
from replication.state_machine import Decision

MAX_RECORDS = 10_000
TOO_MANY_PARTITIONS = "Excessively large number of partitions per request."
TOO_MANY_RECORDS = "Unable to perform excessively large batch operation."

T = TypeVar("T", str, bytes)


# ---- create ----------------------------------------------------------------------------------------------


def create_topics(context: DecisionContext, request: admin.CreateTopicsRequest) -> Decision[admin.CreateTopicsResponse]:
    """Decide on new topics."""
    repeated = _repeated(topic.name for topic in request.topics)
    results: list[admin.CreatableTopicResult] = []
    candidates = []
    for topic in request.topics:
        if topic.name == METADATA_TOPIC:
            message = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
            results.append(_not_created(topic.name, KafkaError(ErrorCode.INVALID_REQUEST, message)))
        elif topic.name not in repeated:
            candidates.append(topic)
    records, creation_results = _create_all(context, candidates)
    results += creation_results
    results += [
        _not_created(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name in repeated
        if name != METADATA_TOPIC
    ]
    return Decision([] if request.validate_only else records, admin.CreateTopicsResponse(topics=results))


class _TopicCreation:
    """Values that the topics of one request share, computed once."""

    def __init__(self, context: DecisionContext) -> None:
        self.context = context
        self.schedule_targets = ScheduleTargets(context.image)
        self._configs_by_settings: dict[frozenset[tuple[str, str]], list[admin.CreatableTopicConfigs]] = {}

    @cached_property
    def names_by_collision_key(self) -> dict[str, str]:
        """The existing topics by collision key (dots and underscores are equal)."""
        return {collision_key(name): name for name in reversed(self.context.image.topics_by_name)}

    def effective_configs(self, configs: Mapping[str, str]) -> list[admin.CreatableTopicConfigs]:
        """All effective configurations of a topic with these overrides."""
        key = frozenset(configs.items())
        found = self._configs_by_settings.get(key)
        if found is None:
            found = self._configs_by_settings[key] = effective_topic_configs(self.context, configs)
        return found


def _create_all(
    context: DecisionContext, topics: list[admin.CreatableTopic]
) -> tuple[list[Versioned], list[admin.CreatableTopicResult]]:
    if _too_many_partitions(context, topics):
        policy_error = KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
        return [], [_not_created(topic.name, policy_error) for topic in topics]
    records: list[Versioned] = []
    results = []
    creation = _TopicCreation(context)
    for topic in topics:
        try:
            new_records, result = _create_topic(creation, topic)
        except KafkaError as error:
            results.append(_not_created(topic.name, error))
        else:
            records += new_records
            results.append(result)
    if len(records) > MAX_RECORDS:
        policy_error = KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_RECORDS)
        return [], [_not_created(topic.name, policy_error) for topic in topics]
    return records, results


def _too_many_partitions(context: DecisionContext, topics: Iterable[admin.CreatableTopic]) -> bool:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += context.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)
    return total > MAX_RECORDS


def _create_topic(
    creation: _TopicCreation, topic: admin.CreatableTopic
) -> tuple[list[Versioned], admin.CreatableTopicResult]:
    context = creation.context
    _check_new_name(creation, topic.name)
    settings, config_records = new_topic_configs(context, topic)
    creation.schedule_targets.check(topic.name, settings)
    assignments = _assignments(context, topic)
    context.charge_partitions(len(assignments))
    creation.schedule_targets.add(topic.name, settings)
    topic_id = context.new_id()
    partitions = partition_records(context.image, topic_id, assignments)
    result = admin.CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=len(partitions),
        replication_factor=len(assignments[0].replicas),
        configs=creation.effective_configs(settings),
    )
    return [(TopicRecord(name=topic.name, topic_id=topic_id), 0), *config_records, *partitions], result


def _check_new_name(creation: _TopicCreation, name: str) -> None:
    if name in creation.context.image.topics_by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    if "." in name or "_" in name:
        other = creation.names_by_collision_key.get(collision_key(name))
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _assignments(context: DecisionContext, topic: admin.CreatableTopic) -> list[Assignment]:
    count, replication_factor = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        for name, value in (("replication factor", replication_factor), ("numPartitions", count)):
            if value != -1:
                message = f"A manual partition assignment was specified, but {name} was not set to -1."
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return manual_assignments(
            context.image, [(wanted.partition_index, wanted.broker_ids) for wanted in topic.assignments]
        )
    if replication_factor < -1 or replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        message = "Number of partitions was set to an invalid non-positive value."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if count == -1:
        count = context.num_partitions
    if replication_factor == -1:
        replication_factor = context.default_replication_factor
    try:
        return place_partitions(context.image, context.random_below, replication_factor, count)
    except KafkaError as error:
        message = f"Unable to replicate the partition {replication_factor} time(s): {error.message}"
        raise KafkaError(error.code, message) from None


def _not_created(name: str, error: KafkaError) -> admin.CreatableTopicResult:
    return admin.CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _repeated(keys: Iterable[T]) -> list[T]:
    """The names or ids that occur more than once."""
    return [key for key, count in Counter(keys).items() if count > 1]


# ---- delete ----------------------------------------------------------------------------------------------


def delete_topics(context: DecisionContext, request: admin.DeleteTopicsRequest) -> Decision[admin.DeleteTopicsResponse]:
    """Decide on the deletion of topics, by name or id."""
    results: list[admin.DeletableTopicResult] = []
    records: list[Versioned] = []
    topics = request.topics
    names = _repeated(topic.name for topic in topics if topic.name is not None and topic.topic_id == ZERO_UUID)
    ids = _repeated(topic.topic_id for topic in topics if topic.name is None and topic.topic_id != ZERO_UUID)
    deleted_ids: set[bytes] = set()
    for topic in topics:
        if topic.name in names or topic.topic_id in ids:
            continue
        try:
            known = _topic_to_delete(context.image, topic, deleted_ids)
            context.charge_partitions(len(known.partitions))
        except KafkaError as error:
            results.append(_not_deleted(topic.name, topic.topic_id, error))
        else:
            deleted_ids.add(known.topic_id)
            records.append((RemoveTopicRecord(topic_id=known.topic_id), 0))
            results.append(
                admin.DeletableTopicResult(name=known.name, topic_id=known.topic_id, error_code=ErrorCode.NONE)
            )
    duplicate_name = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results += [_not_deleted(name, ZERO_UUID, duplicate_name) for name in names]
    duplicate_id = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
    results += [_not_deleted(None, topic_id, duplicate_id) for topic_id in ids]
    return Decision(records, admin.DeleteTopicsResponse(responses=results))


def _topic_to_delete(image: MetadataImage, topic: admin.DeleteTopicState, deleted_ids: set[bytes]) -> TopicImage:
    if topic.name is not None:
        if topic.topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        known = image.topics_by_name.get(topic.name)
        if known is None:
            message = "This server does not host this topic-partition."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    else:
        if topic.topic_id == ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        known = image.topics_by_id.get(topic.topic_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if known.topic_id in deleted_ids:
        message = "The provided topic name maps to an ID that was already supplied."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return known


def _not_deleted(name: str | None, topic_id: bytes, error: KafkaError) -> admin.DeletableTopicResult:
    return admin.DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)


# ---- create partitions -----------------------------------------------------------------------------------


def create_partitions(
    context: DecisionContext, request: admin.CreatePartitionsRequest
) -> Decision[admin.CreatePartitionsResponse]:
    """Decide on additional partitions."""
    repeated = _repeated(topic.name for topic in request.topics)
    duplicate_name = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results = [_not_added(name, duplicate_name) for name in repeated]
    records: list[Versioned] = []
    for topic in request.topics:
        if topic.name in repeated:
            continue
        try:
            new_records = _add_partitions(context, topic, MAX_RECORDS - len(records))
        except KafkaError as error:
            results.append(_not_added(topic.name, error))
        else:
            records += new_records
            results.append(admin.CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE))
    return Decision([] if request.validate_only else records, admin.CreatePartitionsResponse(results=results))


def _add_partitions(context: DecisionContext, topic: admin.CreatePartitionsTopic, max_records: int) -> list[Versioned]:
    known = context.image.topics_by_name.get(topic.name)
    if known is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    before = len(known.partitions)
    added = topic.count - before
    if added == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {before} partition(s).")
    if added < 0:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {topic.name} currently has {before} partition(s); {topic.count} would not be an increase.",
        )
    if topic.assignments is not None and len(topic.assignments) != added:
        raise invalid_assignment(
            f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} assignment(s) "
            "were specified."
        )
    context.charge_partitions(added)
    if added > max_records:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
    replication_factor = len(known.partitions[0].replicas)
    if topic.assignments is None:
        assignments = place_partitions(context.image, context.random_below, replication_factor, added)
    else:
        assignments = [
            manual_assignment(context.image, index, wanted.broker_ids, replication_factor)
            for index, wanted in enumerate(topic.assignments, before)
        ]
    return partition_records(context.image, known.topic_id, assignments, first_index=before)


def _not_added(name: str, error: KafkaError) -> admin.CreatePartitionsTopicResult:
    return admin.CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)
