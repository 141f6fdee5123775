"""Metadata, DescribeCluster and DescribeTopicPartitions, answered from the metadata image.

RULES    1. Responses are created from the image only.
         2. An unknown topic is auto-created through the controller. The response does not wait for it: it is
            UNKNOWN_TOPIC_OR_PARTITION until the client retries, as in Kafka. A topic that is being created is not submitted
            again. Partitions and replicas are those of this broker's settings, or of the controller's if this broker has none.
            Why it failed is logged once a minute, since clients ask again at once.
         3. An invalid topic name gets INVALID_TOPIC_EXCEPTION, also with auto-creation.
         4. A topic that the principal may not describe is left out, or gets TOPIC_AUTHORIZATION_FAILED if it was
            requested, as in Kafka; a request by id does not get its name.
         5. A response with many partitions is created in slices (replication/cooperative_tasks.py), from one image.
         6. Version 0 names only replicas on unfenced brokers; a partition with others gets REPLICA_NOT_AVAILABLE.
NOT HERE Changes (`topics.py`, `replication/controller`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

from broker.config.broker_config import BrokerConfig
from broker.handlers.authorization import ForwardingHandlers
from broker.handlers.router import RequestContext, Route
from broker.network.repeated_lines import RepeatedLines
from broker.peers.endpoints import AdvertisedEndpoints
from broker.security.authorizer import Authorizer, Operation, Resource
from broker.security.operations import NOT_REQUESTED
from protocol.api import ApiKey, error_response
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
from protocol.schema import Message
from replication.completion import Completion
from replication.controller.controller_client import Controller
from replication.cooperative_tasks import STEPS_PER_SLICE, CallSoon, run_in_slices
from replication.metadata.image import MetadataImage, PartitionState, TopicImage
from replication.metadata.topic_names import INTERNAL_TOPICS, check_topic_name

_log = logging.getLogger("barnabas.metadata")

BROKERS, CONTROLLERS = 1, 2
_ENDPOINT_NAMES = {BROKERS: "BROKER", CONTROLLERS: "CONTROLLER"}
_CREATION_TIMEOUT_MS = 30_000  # no client waits for auto-creation
MAX_PARTITIONS_AT_ONCE: Final = 4 * STEPS_PER_SLICE
"""Larger responses are created in slices; this many partitions take one or two milliseconds."""


class MetadataHandlers(ForwardingHandlers):
    """The handlers of this module."""

    def __init__(
        self,
        controller: Controller,
        addresses: AdvertisedEndpoints,
        authorizer: Authorizer,
        config: BrokerConfig,
        internal_topics: Callable[[str], CreatableTopic | None],
        soon: CallSoon,
    ) -> None:
        super().__init__(controller, authorizer)
        self._addresses = addresses
        self._auto_create = bool(config.value("auto.create.topics.enable"))
        self._num_partitions = _given_number(config, "num.partitions")
        self._replication_factor = _given_number(config, "default.replication.factor")
        self._internal_topics = internal_topics
        self._partition_limit = config.number("max.request.partition.size.limit")
        self._soon = soon
        self._inflight_topics: set[str] = set()
        """The topics that are being auto-created."""
        self._failure_lines = RepeatedLines()

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.METADATA, 0, 13, self.metadata),
            Route(ApiKey.DESCRIBE_CLUSTER, 0, 2, self.describe_cluster),
            Route(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, 0, self.describe_topic_partitions),
        ]

    # ------------------------------------------------------------ Metadata
    def metadata(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Completion[MetadataResponse]:
        """Handle Metadata; unknown topics may be auto-created."""
        image = self._controller.image
        version, requested = context.api_version, request.topics
        if requested is None or (version == 0 and not requested):
            topics = [
                self._topic(context, request, topic)
                for name, topic in image.topics_by_name.items()
                if self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, name, log_denied=False)
            ]
        elif version < 12 and any(one.name is None or one.topic_id != ZERO_UUID for one in requested):
            code = ErrorCode.INVALID_REQUEST
            topics = [
                MetadataResponseTopic(error_code=code, name=one.name or "", topic_id=one.topic_id) for one in requested
            ]
            return MetadataResponse(brokers=[], topics=topics)
        else:
            topics = self._requested_topics(context, request, requested)
            missing = self._topics_to_create(context, request, requested)
            if missing:
                self._create_topics(context, missing)
        return self._metadata_answer(context, request, image, topics)

    def _topics_to_create(
        self, context: RequestContext, request: MetadataRequest, requested: list[MetadataRequestTopic]
    ) -> list[CreatableTopic]:
        if not (self._auto_create and request.allow_auto_topic_creation):
            return []
        if any(one.topic_id != ZERO_UUID for one in requested):
            return []  # the names do not count
        existing = self._controller.image.topics_by_name
        names = {
            name
            for name in (one.name for one in requested)
            if name is not None
            and name not in existing
            and name not in self._inflight_topics
            and _unknown_topic_error(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            and self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, name, log_denied=False)
            and self._is_create_authorized(context, name, log_denied=False)
        }
        return [self._internal_topics(name) or self._topic_to_create(name) for name in sorted(names)]

    def _create_topics(self, context: RequestContext, topics: list[CreatableTopic]) -> None:
        names = {topic.name for topic in topics}

        def on_created(created: Completion[CreateTopicsResponse]) -> None:
            self._inflight_topics -= names
            self._log_failures(context, created)

        creation = self._submit_for(context, CreateTopicsRequest(topics=topics, timeout_ms=_CREATION_TIMEOUT_MS))
        self._inflight_topics |= names
        creation.then(on_created)

    def _log_failures(self, context: RequestContext, made: Completion[CreateTopicsResponse]) -> None:
        for result in made.result().topics:
            if result.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                continue
            failure = result.name, result.error_message
            if self._failure_lines.count_if_due(failure, context.mono_ms / 1000) is not None:
                _log.warning("auto-creation of topic %s failed: %s", *failure)

    def _topic_to_create(self, name: str) -> CreatableTopic:
        partitions, replicas = self._num_partitions, self._replication_factor
        return CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas)

    def _requested_topics(
        self, context: RequestContext, request: MetadataRequest, requested: list[MetadataRequestTopic]
    ) -> list[MetadataResponseTopic]:
        by_id = {one.topic_id: None for one in requested if one.topic_id != ZERO_UUID}
        if by_id:  # Kafka: ids and names do not mix, ids win
            return [self._topic_by_id(context, request, topic_id) for topic_id in by_id]
        names = dict.fromkeys(one.name for one in requested)
        return [
            self._topic_by_id(context, request, ZERO_UUID)
            if name is None
            else self._topic_by_name(context, request, name)
            for name in names
        ]

    def _topic_by_id(self, context: RequestContext, request: MetadataRequest, topic_id: bytes) -> MetadataResponseTopic:
        topic = self._controller.image.topics_by_id.get(topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
        if not self._may_describe(context, topic.name):
            return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=None, topic_id=topic_id)
        return self._topic(context, request, topic)

    def _topic_by_name(self, context: RequestContext, request: MetadataRequest, name: str) -> MetadataResponseTopic:
        topic = self._controller.image.topics_by_name.get(name)
        if not self._may_describe(context, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is not None:
            return self._topic(context, request, topic)
        elif self._auto_create and request.allow_auto_topic_creation and not self._is_create_authorized(context, name):
            error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        else:
            return MetadataResponseTopic(
                error_code=_unknown_topic_error(name),
                name=name,
                is_internal=name in INTERNAL_TOPICS,
                topic_authorized_operations=self._topic_operations(context, request, name),
            )
        return MetadataResponseTopic(error_code=error, name=name, is_internal=name in INTERNAL_TOPICS)

    def _topic_operations(self, context: RequestContext, request: MetadataRequest, name: str) -> int:
        if not request.include_topic_authorized_operations:
            return NOT_REQUESTED
        return self._authorized_operations(context, Resource.TOPIC, name)

    def _topic(self, context: RequestContext, request: MetadataRequest, topic: TopicImage) -> MetadataResponseTopic:
        """A topic without its partitions, which are added later."""
        return MetadataResponseTopic(
            error_code=0,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.name in INTERNAL_TOPICS,
            partitions=[],
            topic_authorized_operations=self._topic_operations(context, request, topic.name),
        )

    def _metadata_answer(
        self,
        context: RequestContext,
        request: MetadataRequest,
        image: MetadataImage,
        topics: list[MetadataResponseTopic],
    ) -> MetadataResponse | Completion[MetadataResponse]:
        brokers = self._addresses.all(image, context.connection)
        answer = MetadataResponse(
            brokers=[MetadataResponseBroker(**node._asdict()) for node in brokers],
            cluster_id=image.cluster_id,
            controller_id=brokers[0].node_id if brokers else -1,
            topics=topics,
            cluster_authorized_operations=self._cluster_operations(
                context, requested=request.include_cluster_authorized_operations
            ),
        )
        found = [(topic, image.topics_by_id[topic.topic_id]) for topic in topics if topic.error_code == ErrorCode.NONE]
        steps = self._add_partitions(context, image, found)
        if sum(len(topic.partitions) for _, topic in found) <= MAX_PARTITIONS_AT_ONCE:
            for _ in steps:
                pass
            return answer
        pending: Completion[MetadataResponse] = Completion()
        run_in_slices(_complete_after(pending, answer, steps), self._soon)
        return pending

    def _add_partitions(
        self, context: RequestContext, image: MetadataImage, found: list[tuple[MetadataResponseTopic, TopicImage]]
    ) -> Iterator[None]:
        """Add the partitions of topics, one per step."""
        reachable = self._reachable(context, image)
        for described, topic in found:
            add = described.partitions.append
            for index, state in topic.partitions.items():
                partition = MetadataResponsePartition(
                    error_code=_leader_error(state, reachable, context.api_version),
                    partition_index=index,
                    leader_id=state.leader if state.leader in reachable else -1,
                    leader_epoch=state.leader_epoch,
                    replica_nodes=list(state.replicas),
                    isr_nodes=list(state.isr),
                    offline_replicas=_offline_replicas(state, reachable, image),
                )
                if context.api_version == 0:
                    _remove_unreachable(partition, reachable)
                add(partition)
                yield

    # ------------------------------------------------------------ DescribeCluster
    def describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> Message:
        """Handle DescribeCluster for brokers; controllers are described on their own listener."""
        if request.endpoint_type != BROKERS:
            return error_response(context.api_key, *endpoint_error(request.endpoint_type, BROKERS))
        image = self._controller.image
        answer = DescribeClusterResponse(error_code=0, cluster_id=image.cluster_id, brokers=[])
        for broker_id, broker in sorted(image.brokers.items()):
            address = self._addresses.of(broker, context.connection)
            if address is not None and (request.include_fenced_brokers or not broker.is_fenced):
                answer.brokers.append(
                    DescribeClusterBroker(
                        broker_id=broker_id, host=address.host, port=address.port, rack=address.rack,
                        is_fenced=broker.is_fenced,
                    )
                )  # fmt: skip
        answer.controller_id = next((broker.broker_id for broker in answer.brokers if not broker.is_fenced), -1)
        answer.cluster_authorized_operations = self._cluster_operations(
            context, requested=request.include_cluster_authorized_operations
        )
        return answer

    # ------------------------------------------------------------ DescribeTopicPartitions
    def describe_topic_partitions(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest
    ) -> DescribeTopicPartitionsResponse:
        """Handle DescribeTopicPartitions, page by page (KIP-966)."""
        image = self._controller.image
        if not _is_cursor_valid(request):
            return _invalid_page(request)
        names, first = self._page(context, request, image)
        remaining = max(1, min(self._partition_limit, request.response_partition_limit))
        reachable = self._reachable(context, image)
        answer = DescribeTopicPartitionsResponse(topics=[])
        for name in names:
            if remaining <= 0:
                answer.next_cursor = Cursor(topic_name=name, partition_index=first)
                break
            topic = image.topics_by_name.get(name)
            described = self._described_topic(context, name, topic)
            answer.topics.append(described)
            if described.error_code == 0 and topic is not None:
                states = [(index, state) for index, state in topic.partitions.items() if index >= first]
                described.partitions = [
                    _described_partition(index, state, reachable, image) for index, state in states[:remaining]
                ]
                if len(states) > remaining:
                    answer.next_cursor = Cursor(topic_name=name, partition_index=states[remaining][0])
                    break
                remaining -= len(states)
            first = 0
        return answer

    def _page(
        self, context: RequestContext, request: DescribeTopicPartitionsRequest, image: MetadataImage
    ) -> tuple[list[str], int]:
        """The topic names from the cursor on, and the first partition of the first topic."""
        names = sorted({topic.name for topic in request.topics})
        if not names:
            names = sorted(name for name in image.topics_by_name if self._may_describe(context, name))
        cursor = request.cursor
        if cursor is None:
            return names, 0
        names = [name for name in names if name >= cursor.topic_name]
        is_there = bool(names) and names[0] == cursor.topic_name
        return names, cursor.partition_index if is_there else 0

    def _described_topic(
        self, context: RequestContext, name: str, topic: TopicImage | None
    ) -> DescribeTopicPartitionsResponseTopic:
        described = DescribeTopicPartitionsResponseTopic(error_code=0, name=name, is_internal=name in INTERNAL_TOPICS)
        if not self._may_describe(context, name):
            described.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return described
        if topic is None:
            described.error_code = _unknown_topic_error(name)
        else:
            described.topic_id = topic.topic_id
        described.topic_authorized_operations = self._authorized_operations(context, Resource.TOPIC, name)
        return described

    # ------------------------------------------------------------ helpers
    def _reachable(self, context: RequestContext, image: MetadataImage) -> frozenset[int]:
        """The brokers with an endpoint for clients of this listener."""
        return frozenset(address.node_id for address in self._addresses.all(image, context.connection))

    def _may_describe(self, context: RequestContext, topic: str) -> bool:
        return self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, topic)

    def _is_create_authorized(self, context: RequestContext, topic: str, *, log_denied: bool = True) -> bool:
        return self._is_authorized(context, Operation.CREATE, log_denied=False) or self._is_authorized(
            context, Operation.CREATE, Resource.TOPIC, topic, log_denied=log_denied
        )

    def _cluster_operations(self, context: RequestContext, *, requested: bool) -> int:
        if not requested:
            return NOT_REQUESTED
        return self._authorized_operations(context) if self._is_authorized(context, Operation.DESCRIBE) else 0


def endpoint_error(requested: int, served: int) -> tuple[ErrorCode, str]:
    """Code and message of a DescribeCluster for endpoints that this listener does not serve."""
    if requested not in _ENDPOINT_NAMES:
        return ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {requested}"
    sentence = (
        f"The request was sent to an endpoint of type {_ENDPOINT_NAMES[served]}, "
        f"but we wanted an endpoint of type {_ENDPOINT_NAMES[requested]}"
    )
    return ErrorCode.MISMATCHED_ENDPOINT_TYPE, sentence


def _given_number(config: BrokerConfig, name: str) -> int:
    """The value of a setting; -1, the controller's default, if it is not set."""
    return config.number(name) if name in config.given else -1


def _complete_after(
    pending: Completion[MetadataResponse], answer: MetadataResponse, steps: Iterator[None]
) -> Iterator[None]:
    """Run the steps while the response is needed, then complete it."""
    for _ in steps:
        if pending.is_done:
            return
        yield
    pending.complete(answer)


def _leader_error(state: PartitionState, reachable: frozenset[int], version: int) -> int:
    if state.leader in reachable:
        return ErrorCode.NONE
    return ErrorCode.LISTENER_NOT_FOUND if state.leader >= 0 and version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE


def _remove_unreachable(partition: MetadataResponsePartition, reachable: frozenset[int]) -> None:
    """Name only brokers that the response contains (rule 6)."""
    if partition.error_code == ErrorCode.NONE and not reachable.issuperset(
        partition.replica_nodes + partition.isr_nodes
    ):
        partition.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    partition.replica_nodes = [replica for replica in partition.replica_nodes if replica in reachable]
    partition.isr_nodes = [replica for replica in partition.isr_nodes if replica in reachable]


def _offline_replicas(state: PartitionState, reachable: frozenset[int], image: MetadataImage) -> list[int]:
    """Replicas whose broker or log directory is offline."""
    brokers = image.brokers
    return [
        replica
        for replica in state.replicas
        if replica not in reachable or not state.is_in_directories(replica, brokers[replica].directories)
    ]


def _described_partition(
    index: int, state: PartitionState, reachable: frozenset[int], image: MetadataImage
) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE,  # also without a leader, as in Kafka
        partition_index=index,
        leader_id=state.leader if state.leader in reachable else -1,
        leader_epoch=state.leader_epoch,
        replica_nodes=list(state.replicas),
        isr_nodes=list(state.isr),
        eligible_leader_replicas=list(state.eligible_leaders),
        last_known_elr=list(state.last_known_leaders),
        offline_replicas=_offline_replicas(state, reachable, image),
    )


def _is_cursor_valid(request: DescribeTopicPartitionsRequest) -> bool:
    """Whether the cursor is in the requested topics, if there are any, and its partition can exist."""
    cursor = request.cursor
    if cursor is None:
        return True
    is_requested = not request.topics or any(topic.name == cursor.topic_name for topic in request.topics)
    return is_requested and cursor.partition_index >= 0


def _invalid_page(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name)
            for topic in request.topics
        ]
    )


def _unknown_topic_error(name: str) -> ErrorCode:
    """The error of a topic that does not exist."""
    try:
        check_topic_name(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
