"""Where things are: Metadata, DescribeCluster, DescribeTopicPartitions, answered from the image.

RULES    1. Answers come from the image alone; nobody is asked.
         2. A topic that makes itself is made through the controller like any other. The answer does not wait for it:
            it is UNKNOWN_TOPIC_OR_PARTITION until the client asks again, as in Kafka. Who reads back that a topic
            is deleted relies on it, for asking makes the topic anew.
         3. A name that no topic can have is INVALID_TOPIC_EXCEPTION, whether or not it was to be made.
         4. A topic that the principal may not describe is not there, unless it was asked for: then it is
            TOPIC_AUTHORIZATION_FAILED, as in Kafka, and who asked by id is not told its name.
         5. An answer of many partitions is made in turns of the loop (replication/cooperative_tasks.py), all from one image.
NOT HERE Changing anything (`topics.py`, `replication/controller`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from broker.handlers.router import Pending, RequestContext, Route
from broker.peers.endpoints import Addresses
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from broker.security.operations import NOT_ASKED, authorized_operations
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from protocol.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from protocol.primitives import ZERO_UUID
from replication.cooperative_tasks import STEPS_A_TURN, Soon, in_turns
from replication.metadata.image import MetadataImage, PartitionState, TopicImage
from replication.metadata.topic_names import INTERNAL_TOPICS, check_topic_name

_log = logging.getLogger("barnabas.metadata")

_BROKERS, _CONTROLLERS = 1, 2
_CREATION_MS = 30_000  # nobody waits for a topic that makes itself
AT_ONCE: Final = 4 * STEPS_A_TURN
"""More partitions than this are told of in turns: a millisecond, or two."""

CreateTopics = Callable[[CreateTopicsRequest, int, Callable[[CreateTopicsResponse], None]], None]
"""Has the controller make topics: (request, wall_ms, reply)."""


class MetadataHandlers:
    """The handlers of this module and what they need."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        addresses: Addresses,
        authorizer: Authorizer,
        create_topics: CreateTopics,
        *,
        auto_create: bool,
        internal_topics: Callable[[str], CreatableTopic | None],
        partition_limit: int,
        soon: Soon,
    ) -> None:
        self._image = image
        self._addresses = addresses
        self._authorizer = authorizer
        self._create_topics = create_topics
        self._auto_create = auto_create
        self._internal_topics = internal_topics
        self._partition_limit = partition_limit
        self._soon = soon

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.METADATA, 0, 13, self.metadata),
            Route(ApiKey.DESCRIBE_CLUSTER, 0, 2, self.describe_cluster),
            Route(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, self.describe_topic_partitions),
        ]

    # ------------------------------------------------------------ Metadata
    def metadata(self, context: RequestContext, request: MetadataRequest) -> MetadataResponse | Pending:
        """Brokers, controller and topics; unknown topics may be made afterwards."""
        image = self._image()
        version = context.api_version
        if request.topics is None or (version == 0 and not request.topics):
            topics = [
                self._topic(context, request, topic)
                for name, topic in image.topics_by_name.items()
                if self._may(context, Operation.DESCRIBE, name)
            ]
            return self._metadata_answer(context, request, image, topics)
        if version < 12 and any(asked.name is None or asked.topic_id != ZERO_UUID for asked in request.topics):
            topics = [
                MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=asked.name or "")
                for asked in request.topics
            ]
            return self._metadata_answer(context, request, image, topics)
        topics = self._asked_topics(context, request, image)
        missing = self._topics_to_make(context, request, image)
        if missing:
            wanted = CreateTopicsRequest(topics=missing, timeout_ms=_CREATION_MS)
            self._create_topics(wanted, context.wall_ms, _tell_failures)
        return self._metadata_answer(context, request, image, topics)

    def _topics_to_make(
        self, context: RequestContext, request: MetadataRequest, image: MetadataImage
    ) -> list[CreatableTopic]:
        if not (self._auto_create and request.allow_auto_topic_creation):
            return []
        assert request.topics is not None
        names = {
            asked.name
            for asked in request.topics
            if asked.name is not None and asked.name not in image.topics_by_name
            and _absence(asked.name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and self._may(context, Operation.DESCRIBE, asked.name) and self._may_create(context, asked.name)
        }  # fmt: skip
        return [
            self._internal_topics(name) or CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in sorted(names)
        ]

    def _asked_topics(
        self, context: RequestContext, request: MetadataRequest, image: MetadataImage
    ) -> list[MetadataResponseTopic]:
        assert request.topics is not None
        by_id = [asked for asked in request.topics if asked.topic_id != ZERO_UUID]
        topics, seen = [], set()
        for asked in by_id or request.topics:  # Kafka: ids and names do not mix, ids win
            key = asked.topic_id if by_id else asked.name
            if key not in seen:
                seen.add(key)
                topics.append(self._asked_topic(context, request, image, asked))
        return topics

    def _asked_topic(
        self,
        context: RequestContext,
        request: MetadataRequest,
        image: MetadataImage,
        asked: MetadataRequestTopic,
    ) -> MetadataResponseTopic:
        if asked.topic_id != ZERO_UUID or asked.name is None:
            topic = image.topics_by_id.get(asked.topic_id)
            code = ErrorCode.UNKNOWN_TOPIC_ID
            if topic is not None and not self._may(context, Operation.DESCRIBE, topic.name):
                topic, code = None, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if topic is None:
                return MetadataResponseTopic(error_code=code, name=None, topic_id=asked.topic_id)
            return self._topic(context, request, topic)
        name = asked.name
        is_internal = name in INTERNAL_TOPICS
        if not self._may(context, Operation.DESCRIBE, name):
            return MetadataResponseTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name, is_internal=is_internal
            )
        topic = image.topics_by_name.get(name)
        if topic is not None:
            return self._topic(context, request, topic)
        error = _absence(name)
        if self._auto_create and request.allow_auto_topic_creation and not self._may_create(context, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return MetadataResponseTopic(error_code=error, name=name, is_internal=is_internal)

    def _topic(self, context: RequestContext, request: MetadataRequest, topic: TopicImage) -> MetadataResponseTopic:
        """Without its partitions, which come later."""
        operations = NOT_ASKED
        if request.include_topic_authorized_operations:
            operations = authorized_operations(self._authorizer, context.principal, Resource.TOPIC, topic.name)
        return MetadataResponseTopic(
            error_code=0,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[],
            topic_authorized_operations=operations,
        )

    def _metadata_answer(
        self,
        context: RequestContext,
        request: MetadataRequest,
        image: MetadataImage,
        topics: list[MetadataResponseTopic],
    ) -> MetadataResponse | Pending:
        brokers = self._addresses.all(image, context.connection)
        answer = MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=a.node_id, host=a.host, port=a.port, rack=a.rack) for a in brokers],
            cluster_id=image.cluster_id,
            controller_id=brokers[0].node_id if brokers else -1,
            topics=topics,
            cluster_authorized_operations=self._cluster_operations(
                context, asked=request.include_cluster_authorized_operations
            ),
        )
        found = [(topic, image.topics_by_id[topic.topic_id]) for topic in topics if topic.error_code == ErrorCode.NONE]
        steps = self._add_partitions(context, image, found)
        if sum(len(topic.partitions) for _, topic in found) <= AT_ONCE:
            for _ in steps:
                pass
            return answer
        pending = Pending()
        in_turns(_completing(pending, answer, steps), self._soon)
        return pending

    def _add_partitions(
        self, context: RequestContext, image: MetadataImage, found: list[tuple[MetadataResponseTopic, TopicImage]]
    ) -> Iterator[None]:
        """Tell of the partitions of topics, one a step."""
        reachable = self._reachable(context, image)
        for described, topic in found:
            add = described.partitions.append
            for index, state in topic.partitions.items():
                add(
                    MetadataResponsePartition(
                        error_code=_leader_error(state, reachable, context.api_version),
                        partition_index=index,
                        leader_id=state.leader if state.leader in reachable else -1,
                        leader_epoch=state.leader_epoch,
                        replica_nodes=list(state.replicas),
                        isr_nodes=list(state.isr),
                        offline_replicas=_offline(state, reachable, image),
                    )
                )
                yield

    # ------------------------------------------------------------ DescribeCluster
    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """The brokers of the cluster; controllers are asked at their own listener."""
        image = self._image()
        answer = DescribeClusterResponse(error_code=0, cluster_id=image.cluster_id, brokers=[])
        if request.endpoint_type != _BROKERS:
            is_known = request.endpoint_type == _CONTROLLERS
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
            answer.error_code = code
            answer.cluster_id = ""
            answer.error_message = (
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
                if is_known
                else f"Unsupported endpoint type {request.endpoint_type}"
            )
            return answer
        for broker_id, broker in sorted(image.brokers.items()):
            address = self._addresses.of(broker, context.connection)
            if address is not None and (request.include_fenced_brokers or not broker.is_fenced):
                answer.brokers.append(
                    DescribeClusterBroker(
                        broker_id=broker_id, host=address.host, port=address.port, rack=address.rack,
                        is_fenced=broker.is_fenced,
                    )
                )  # fmt: skip
        answer.controller_id = answer.brokers[0].broker_id if answer.brokers else -1
        answer.cluster_authorized_operations = self._cluster_operations(
            context, asked=request.include_cluster_authorized_operations
        )
        return answer

    # ------------------------------------------------------------ DescribeTopicPartitions
    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Topics by name, page by page (KIP-966)."""
        image = self._image()
        names, first = self._page(context, request, image)
        room = min(self._partition_limit, request.response_partition_limit)
        reachable = self._reachable(context, image)
        answer = DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if room <= 0:
                answer.next_cursor = Cursor(topic_name=name, partition_index=first)
                break
            topic = image.topics_by_name.get(name)
            described = self._described_topic(context, name, topic)
            answer.topics.append(described)
            if described.error_code == 0 and topic is not None:
                states = [(index, state) for index, state in topic.partitions.items() if index >= first]
                described.partitions = [
                    _described_partition(index, state, reachable, image) for index, state in states[:room]
                ]
                if len(states) > room:
                    answer.next_cursor = Cursor(topic_name=name, partition_index=states[room][0])
                    break
                room -= len(states)
            first = 0
        return answer

    def _page(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest, image: MetadataImage
    ) -> tuple[list[str], int]:
        """Topic names from the cursor on, and the partition to begin with in the first of them."""
        wanted = {asked.name for asked in request.topics}
        if not wanted:
            wanted = {name for name in image.topics_by_name if self._may(context, Operation.DESCRIBE, name)}
        names = sorted(wanted)
        cursor = request.cursor
        if cursor is None:
            return names, 0
        names = [name for name in names if name >= cursor.topic_name]
        is_there = bool(names) and names[0] == cursor.topic_name
        return names, max(0, cursor.partition_index) if is_there else 0

    def _described_topic(
        self, context: RequestContext, name: str, topic: TopicImage | None
    ) -> DescribeTopicPartitionsResponseTopic:
        described = DescribeTopicPartitionsResponseTopic(error_code=0, name=name, is_internal=name in INTERNAL_TOPICS)
        if not self._may(context, Operation.DESCRIBE, name):
            described.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return described
        if topic is None:
            described.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        else:
            described.topic_id = topic.topic_id
        described.topic_authorized_operations = authorized_operations(
            self._authorizer, context.principal, Resource.TOPIC, name
        )
        return described

    # ------------------------------------------------------------ small questions
    def _reachable(self, context: RequestContext, image: MetadataImage) -> frozenset[int]:
        """Brokers that clients of this listener may be sent to."""
        return frozenset(address.node_id for address in self._addresses.all(image, context.connection))

    def _may(self, context: RequestContext, operation: str, topic: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, Resource.TOPIC, topic)

    def _may_create(self, context: RequestContext, topic: str) -> bool:
        return self._authorizer.authorize(
            context.principal, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME
        ) or self._may(context, Operation.CREATE, topic)

    def _cluster_operations(self, context: RequestContext, *, asked: bool) -> int:
        if not asked:
            return NOT_ASKED
        return authorized_operations(self._authorizer, context.principal, Resource.CLUSTER, CLUSTER_NAME)


def _completing(pending: Pending, answer: MetadataResponse, steps: Iterator[None]) -> Iterator[None]:
    """The steps, as long as somebody is going to read the answer, and then the answer."""
    for _ in steps:
        if pending.is_done:
            return
        yield
    pending.complete(answer)


def _leader_error(state: PartitionState, reachable: frozenset[int], version: int) -> int:
    if state.leader in reachable:
        return ErrorCode.NONE
    return ErrorCode.LISTENER_NOT_FOUND if state.leader >= 0 and version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE


def _offline(state: PartitionState, reachable: frozenset[int], image: MetadataImage) -> list[int]:
    """Replicas whose broker, or whose log directory there, is out of service."""
    brokers = image.brokers
    return [
        replica
        for replica in state.replicas
        if replica not in reachable or not state.is_within(replica, brokers[replica].directories)
    ]


def _described_partition(
    index: int, state: PartitionState, reachable: frozenset[int], image: MetadataImage
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE,  # also without a leader: who asks sees that there is none
        partition_index=index,
        leader_id=state.leader if state.leader in reachable else -1,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.eligible_leaders),
        last_known_elr=list(state.last_known_leaders),
        offline_replicas=_offline(state, reachable, image),
    )


def _absence(name: str) -> ErrorCode:
    """What is said of a topic that is not there."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _tell_failures(made: CreateTopicsResponse) -> None:
    for result in made.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            _log.warning("topic %s does not make itself: %s", result.name, result.error_message)
