"""Topic and config changes: authorization here, decisions in the controller.

RULES    1. Unauthorized topics and resources fail here and are not sent to the controller.
         2. The response is sent after the controller's records are committed and applied. After the client's timeout it
            is REQUEST_TIMED_OUT; the change still takes effect, as in Apache Kafka.
         3. Log levels of loggers belong to this process; they are changed here, not by the controller.
NOT HERE The decisions (`replication/controller`), describing configs (`configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.deferred import ControllerTimeout, submit
from broker.handlers.router import Pending, RequestContext, Route
from broker.process.log_levels import change_log_levels
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
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
    IncrementalAlterConfigsRequest,
    ReplacedConfigsResource,
)
from protocol.primitives import ZERO_UUID
from protocol.schema import Message
from replication.controller.configs.config_changes import validate_changes
from replication.controller.controller_client import ControllerClient
from replication.metadata.image import MetadataImage, ResourceType
from replication.timer_queue import TimerQueue

_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
_TIMED_OUT_TEXT = "The request timed out."

T = TypeVar("T", CreatableTopic, CreatePartitionsTopic)
R = TypeVar("R", AlterConfigsResource, ReplacedConfigsResource)


class TopicHandlers:
    """The handlers of topic and config changes."""

    def __init__(
        self,
        node_id: int,
        controller: ControllerClient,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        *,
        deletion_enabled: bool,
        timers: TimerQueue,
        broker_config_validator: BrokerConfigValidator | None = None,
    ) -> None:
        """`broker_config_validator` is None on the controller listener."""
        self._node_id = node_id
        self._own_settings = broker_config_validator
        self._controller = controller
        self._image = image
        self._authorizer = authorizer
        self._deletion_enabled = deletion_enabled
        self._timers = timers

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.CREATE_TOPICS, 2, 7, self.create_topics),
            Route(ApiKey.DELETE_TOPICS, 1, 6, self.delete_topics),
            Route(ApiKey.ALTER_CONFIGS, 0, 2, self.alter_configs),
            Route(ApiKey.CREATE_PARTITIONS, 0, 3, self.create_partitions),
            Route(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, self.incremental_alter_configs),
        ]

    # ------------------------------------------------------------ topics
    def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> Pending:
        """Handle CreateTopics."""
        denied: list[CreatableTopic] = []
        if not self._is_authorized(context, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            request.topics, denied = self._split(context, Operation.CREATE, request.topics)
        failed = [
            CreatableTopicResult(name=topic.name, error_code=_TOPIC_DENIED, error_message="Authorization failed.")
            for topic in denied
        ]

        def timed_out() -> CreateTopicsResponse:
            results = [
                CreatableTopicResult(name=topic.name, error_code=_TIMED_OUT, error_message=_TIMED_OUT_TEXT)
                for topic in request.topics
            ]
            return CreateTopicsResponse(topics=results)

        return self._submit(
            context, request, lambda response: response.topics.extend(failed), request.timeout_ms, timed_out
        )

    def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> Pending | DeleteTopicsResponse:
        """Handle DeleteTopics, by name or from version 6 on by id."""
        if context.api_version < 6:
            request.topics = [DeleteTopicState(name=name) for name in request.topic_names]
            request.topic_names = []
        if not self._deletion_enabled:
            code = ErrorCode.INVALID_REQUEST if context.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
            return DeleteTopicsResponse(responses=[_delete_result(topic, code) for topic in request.topics])
        failed, allowed = [], []
        for topic in request.topics:
            code = self._delete_error(context, topic)
            if code == ErrorCode.NONE:
                allowed.append(topic)
            else:
                failed.append(_delete_result(topic, code))
        request.topics = allowed

        def timed_out() -> DeleteTopicsResponse:
            return DeleteTopicsResponse(responses=[_delete_result(topic, _TIMED_OUT) for topic in request.topics])

        return self._submit(
            context, request, lambda response: response.responses.extend(failed), request.timeout_ms, timed_out
        )

    def _delete_error(self, context: RequestContext, topic: DeleteTopicState) -> ErrorCode:
        name = topic.name
        if topic.topic_id != ZERO_UUID and name is None:
            topic_image = self._image().topics_by_id.get(topic.topic_id)
            if topic_image is None:
                return ErrorCode.NONE  # the controller returns UNKNOWN_TOPIC_ID
            name = topic_image.name
        if name is not None and not self._is_authorized(context, Operation.DELETE, Resource.TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.NONE

    def create_partitions(self, context: RequestContext, request: CreatePartitionsRequest) -> Pending:
        """Handle CreatePartitions."""
        request.topics, denied = self._split(context, Operation.ALTER, request.topics)
        failed = [CreatePartitionsTopicResult(name=topic.name, error_code=_TOPIC_DENIED) for topic in denied]

        def timed_out() -> CreatePartitionsResponse:
            results = [
                CreatePartitionsTopicResult(name=topic.name, error_code=_TIMED_OUT, error_message=_TIMED_OUT_TEXT)
                for topic in request.topics
            ]
            return CreatePartitionsResponse(results=results)

        return self._submit(
            context, request, lambda response: response.results.extend(failed), request.timeout_ms, timed_out
        )

    # ------------------------------------------------------------ configs
    def alter_configs(self, context: RequestContext, request: AlterConfigsRequest) -> Pending:
        """Handle AlterConfigs."""
        request.resources, failed = self._allowed_resources(context, request.resources)
        return self._submit(context, request, lambda response: response.responses.extend(failed))

    def incremental_alter_configs(self, context: RequestContext, request: IncrementalAlterConfigsRequest) -> Pending:
        """Handle IncrementalAlterConfigs, including log levels."""
        allowed, responses = self._allowed_resources(context, request.resources)
        counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        request.resources = []
        for resource in allowed:
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                is_repeated = counts[resource.resource_type, resource.resource_name] > 1
                responses.append(
                    self._alter_loggers(resource, is_repeated=is_repeated, validate_only=request.validate_only)
                )
            else:
                request.resources.append(resource)
        return self._submit(context, request, lambda response: response.responses.extend(responses))

    def _alter_loggers(
        self, resource: AlterConfigsResource, *, is_repeated: bool, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        response = AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            validate_changes(resource.configs, is_repeated=is_repeated)
            change_log_levels(self._node_id, resource.resource_name, resource.configs, validate_only=validate_only)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        return response

    def _allowed_resources(
        self, context: RequestContext, resources: list[R]
    ) -> tuple[list[R], list[AlterConfigsResourceResponse]]:
        failed, allowed = [], []
        counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        for resource in resources:
            kind, name = resource.resource_type, resource.resource_name
            code, sentence = self._alter_error(context, resource), None
            if code == ErrorCode.NONE and self._own_settings is not None:
                try:
                    self._own_settings.check(self._image(), resource, is_repeated=counts[kind, name] > 1)
                except KafkaError as error:
                    code, sentence = error.code, error.message
            if code == ErrorCode.NONE:
                allowed.append(resource)
            else:
                failed.append(
                    AlterConfigsResourceResponse(
                        error_code=code, error_message=sentence, resource_type=kind, resource_name=name
                    )
                )
        return allowed, failed

    def _alter_error(
        self, context: RequestContext, resource: AlterConfigsResource | ReplacedConfigsResource
    ) -> ErrorCode:
        kind, name = resource.resource_type, resource.resource_name
        if kind == ResourceType.TOPIC:
            is_allowed = self._is_authorized(context, Operation.ALTER_CONFIGS, Resource.TOPIC, name)
            return ErrorCode.NONE if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if kind == ResourceType.GROUP:
            is_allowed = self._is_authorized(context, Operation.ALTER_CONFIGS, Resource.GROUP, name)
            return ErrorCode.NONE if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        is_allowed = self._is_authorized(context, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        return ErrorCode.NONE if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def _submit(
        self,
        context: RequestContext,
        request: Message,
        add_failed: Callable[[Any], None],
        timeout_ms: int = 0,
        timed_out: Callable[[], Message] | None = None,
    ) -> Pending:
        """Submit the authorized part; `add_failed` adds the rest to the response."""
        timeout = None if timed_out is None else ControllerTimeout(self._timers, timeout_ms, timed_out)
        return submit(self._controller, context, request, add_failed, timeout)

    def _split(self, context: RequestContext, operation: str, topics: list[T]) -> tuple[list[T], list[T]]:
        """The authorized topics, and the others."""
        allowed: list[T] = []
        denied: list[T] = []
        for topic in topics:
            is_allowed = self._is_authorized(context, operation, Resource.TOPIC, topic.name)
            (allowed if is_allowed else denied).append(topic)
        return allowed, denied

    def _is_authorized(self, context: RequestContext, operation: str, resource_type: str, name: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, resource_type, name)


def _delete_result(topic: DeleteTopicState, code: ErrorCode) -> DeletableTopicResult:
    messages = {ErrorCode.TOPIC_DELETION_DISABLED: "Topic deletion is disabled.", _TIMED_OUT: _TIMED_OUT_TEXT}
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=messages.get(code)
    )
