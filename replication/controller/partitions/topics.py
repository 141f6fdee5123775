"""Decisions on topics: create, delete, give more partitions.

RULES    1. Checks, their order, codes and sentences are Apache Kafka 4.3's (ReplicationControlManager and the
            checks that ControllerApis makes before it).
         2. A topic that is refused does not keep the others of its request from being decided on; what is decided
            becomes visible together.
         3. At most MAX_RECORDS records come from one request.
NOT HERE Which brokers hold a partition (`assignments.py`), a topic's settings (`configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from protocol.messages.stored_records import RemoveTopicRecord, TopicRecord
from protocol.primitives import ZERO_UUID
from replication.controller.configs.configs import effective_topic_settings, new_topic_settings
from replication.controller.decision_context import Environment
from replication.controller.partitions.assignments import (
    Assignment,
    all_by_hand,
    bad_assignment,
    by_hand,
    partition_records,
    placed,
)
from replication.metadata.image import MetadataImage, TopicImage
from replication.metadata.metadata_records import Versioned
from replication.metadata.topic_names import check_topic_name, collision_key
from replication.state_machine import Decision

MAX_RECORDS = 10_000
METADATA_TOPIC = "__cluster_metadata"
TOO_MANY_PARTITIONS = "Excessively large number of partitions per request."
TOO_MANY_RECORDS = "Unable to perform excessively large batch operation."


# ---- create ----------------------------------------------------------------------------------------------


def create_topics(
    image: MetadataImage, environment: Environment, request: CreateTopicsRequest
) -> Decision[CreateTopicsResponse]:
    """Decide on new topics."""
    repeated = _repeated(topic.name for topic in request.topics)
    results: list[CreatableTopicResult] = []
    candidates = []
    for topic in request.topics:
        if topic.name == METADATA_TOPIC:
            refusal = f"Creation of internal topic {METADATA_TOPIC} is prohibited."
            results.append(_not_created(topic.name, KafkaError(ErrorCode.INVALID_REQUEST, refusal)))
        elif topic.name not in repeated:
            candidates.append(topic)
    records, decided = _create_all(image, environment, candidates)
    results += decided
    results += [
        _not_created(name, KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
        for name in repeated
        if name != METADATA_TOPIC
    ]
    return Decision([] if request.validate_only else records, CreateTopicsResponse(topics=results))


class _Making:
    """What the topics of one request have in common, found out once for all of them."""

    def __init__(self, image: MetadataImage, environment: Environment) -> None:
        self.image = image
        self.environment = environment
        self._described: dict[frozenset[tuple[str, str]], list[CreatableTopicConfigs]] = {}

    @cached_property
    def taken(self) -> dict[str, str]:
        """The topics that there are, by what no other may be like."""
        return {collision_key(name): name for name in reversed(self.image.topics_by_name)}

    def described(self, own: Mapping[str, str]) -> list[CreatableTopicConfigs]:
        """Every setting of a topic whose own ones are `own`."""
        key = frozenset(own.items())
        found = self._described.get(key)
        if found is None:
            found = self._described[key] = effective_topic_settings(self.image, self.environment, own)
        return found


def _create_all(
    image: MetadataImage, environment: Environment, topics: list[CreatableTopic]
) -> tuple[list[Versioned], list[CreatableTopicResult]]:
    if _too_many_partitions(environment, topics):
        refusal = KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
        return [], [_not_created(topic.name, refusal) for topic in topics]
    records: list[Versioned] = []
    results = []
    making = _Making(image, environment)
    for topic in topics:
        try:
            made, result = _create_topic(making, topic)
        except KafkaError as error:
            results.append(_not_created(topic.name, error))
        else:
            records += made
            results.append(result)
    if len(records) > MAX_RECORDS:
        refusal = KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_RECORDS)
        return [], [_not_created(topic.name, refusal) for topic in topics]
    return records, results


def _too_many_partitions(environment: Environment, topics: Iterable[CreatableTopic]) -> bool:
    total = 0
    for topic in topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += environment.num_partitions if topic.num_partitions == -1 else max(topic.num_partitions, 0)
    return total > MAX_RECORDS


def _create_topic(making: _Making, topic: CreatableTopic) -> tuple[list[Versioned], CreatableTopicResult]:
    image, environment = making.image, making.environment
    _check_new_name(making, topic.name)
    settings, setting_records = new_topic_settings(image, environment, topic)
    assignments = _assignments(image, environment, topic)
    topic_id = environment.new_id()
    partitions = partition_records(image, topic_id, assignments)
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=topic_id,
        error_code=ErrorCode.NONE,
        num_partitions=len(partitions),
        replication_factor=len(assignments[0].replicas),
        configs=making.described(settings),
    )
    return [(TopicRecord(name=topic.name, topic_id=topic_id), 0), *setting_records, *partitions], result


def _check_new_name(making: _Making, name: str) -> None:
    if name in making.image.topics_by_name:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    check_topic_name(name)
    if "." in name or "_" in name:
        other = making.taken.get(collision_key(name))
        if other is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}")


def _assignments(image: MetadataImage, environment: Environment, topic: CreatableTopic) -> list[Assignment]:
    count, replication_factor = topic.num_partitions, topic.replication_factor
    if topic.assignments:
        for name, value in (("replication factor", replication_factor), ("numPartitions", count)):
            if value != -1:
                sentence = f"A manual partition assignment was specified, but {name} was not set to -1."
                raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)
        return all_by_hand(image, [(wanted.partition_index, wanted.broker_ids) for wanted in topic.assignments])
    if replication_factor < -1 or replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        sentence = "Number of partitions was set to an invalid non-positive value."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, sentence)
    if count == -1:
        count = environment.num_partitions
    if replication_factor == -1:
        replication_factor = environment.default_replication_factor
    try:
        return placed(image, environment.random_below, replication_factor, count)
    except KafkaError as error:
        sentence = f"Unable to replicate the partition {replication_factor} time(s): {error.message}"
        raise KafkaError(error.code, sentence) from None


def _not_created(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message)


def _repeated(names: Iterable[str]) -> list[str]:
    """Names that come more than once, each once."""
    return [name for name, count in Counter(names).items() if count > 1]


# ---- delete ----------------------------------------------------------------------------------------------


def delete_topics(
    image: MetadataImage, environment: Environment, request: DeleteTopicsRequest
) -> Decision[DeleteTopicsResponse]:
    """Decide on the end of topics, named or by id."""
    del environment
    results: list[DeletableTopicResult] = []
    records: list[Versioned] = []
    names, ids = _asked_often(request.topics)
    doomed: set[bytes] = set()
    for topic in request.topics:
        if topic.name in names or topic.topic_id in ids:
            continue
        try:
            known = _topic_to_delete(image, topic, doomed)
        except KafkaError as error:
            results.append(_not_deleted(topic.name, topic.topic_id, error))
        else:
            doomed.add(known.topic_id)
            records.append((RemoveTopicRecord(topic_id=known.topic_id), 0))
            results.append(DeletableTopicResult(name=known.name, topic_id=known.topic_id, error_code=ErrorCode.NONE))
    refusal = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results += [_not_deleted(name, ZERO_UUID, refusal) for name in names]
    refusal = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic id.")
    results += [_not_deleted(None, topic_id, refusal) for topic_id in ids]
    return Decision(records, DeleteTopicsResponse(responses=results))


def _asked_often(topics: Iterable[DeleteTopicState]) -> tuple[list[str], list[bytes]]:
    named = Counter(topic.name for topic in topics if topic.name is not None and topic.topic_id == ZERO_UUID)
    by_id = Counter(topic.topic_id for topic in topics if topic.name is None and topic.topic_id != ZERO_UUID)
    return (
        [name for name, count in named.items() if count > 1],
        [topic_id for topic_id, count in by_id.items() if count > 1],
    )


def _topic_to_delete(image: MetadataImage, topic: DeleteTopicState, doomed: set[bytes]) -> TopicImage:
    if topic.name is not None:
        if topic.topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "You may not specify both topic name and topic id.")
        known = image.topics_by_name.get(topic.name)
        if known is None:
            sentence = "This server does not host this topic-partition."
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
    else:
        if topic.topic_id == ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Neither topic name nor id were specified.")
        known = image.topics_by_id.get(topic.topic_id)
        if known is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    if known.topic_id in doomed:
        sentence = "The provided topic name maps to an ID that was already supplied."
        raise KafkaError(ErrorCode.INVALID_REQUEST, sentence)
    return known


def _not_deleted(name: str | None, topic_id: bytes, error: KafkaError) -> DeletableTopicResult:
    return DeletableTopicResult(name=name, topic_id=topic_id, error_code=error.code, error_message=error.message)


# ---- more partitions -------------------------------------------------------------------------------------


def create_partitions(
    image: MetadataImage, environment: Environment, request: CreatePartitionsRequest
) -> Decision[CreatePartitionsResponse]:
    """Decide on more partitions."""
    repeated = _repeated(topic.name for topic in request.topics)
    refusal = KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    results = [_not_added(name, refusal) for name in repeated]
    records: list[Versioned] = []
    for topic in request.topics:
        if topic.name in repeated:
            continue
        try:
            made = _more_partitions(image, environment, topic, MAX_RECORDS - len(records))
        except KafkaError as error:
            results.append(_not_added(topic.name, error))
        else:
            records += made
            results.append(CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.NONE))
    return Decision([] if request.validate_only else records, CreatePartitionsResponse(results=results))


def _more_partitions(
    image: MetadataImage, environment: Environment, topic: CreatePartitionsTopic, room: int
) -> list[Versioned]:
    known = image.topics_by_name.get(topic.name)
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
        raise bad_assignment(
            f"Attempted to add {added} additional partition(s), but only {len(topic.assignments)} assignment(s) "
            "were specified."
        )
    if added > room:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, TOO_MANY_PARTITIONS)
    replication_factor = len(known.partitions[0].replicas)
    if topic.assignments is None:
        assignments = placed(image, environment.random_below, replication_factor, added)
    else:
        assignments = [
            by_hand(image, index, wanted.broker_ids, replication_factor)
            for index, wanted in enumerate(topic.assignments, before)
        ]
    return partition_records(image, known.topic_id, assignments, first_index=before)


def _not_added(name: str, error: KafkaError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message)
