"""Topic and config changes: authorization here, decisions in the controller.

RULES    1. Unauthorized topics and resources fail here and are not sent to the controller.
         2. The response is sent after the controller's records are committed and applied. After the client's timeout it
            is REQUEST_TIMED_OUT; the change still takes effect, as in Apache Kafka.
         3. Log levels of loggers belong to this process; they are changed here, not by the controller.
NOT HERE The decisions (`replication/controller`), describing configs (`configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from broker.handlers.admin.broker_config_validation import BrokerConfigValidator
from broker.handlers.authorization import ForwardingHandlers
from broker.handlers.deferred import ControllerTimeout, submit
from broker.handlers.router import RequestContext, Route
from broker.process.log_levels import change_log_levels
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import APIS, ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin
from protocol.primitives import ZERO_UUID
from protocol.schema import Message, blank
from replication.completion import Completion
from replication.controller.configs.config_changes import validate_changes
from replication.controller.controller_client import Controller
from replication.metadata.image import ResourceType
from replication.timer_queue import TimerQueue

_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_TIMEOUT = ErrorCode.REQUEST_TIMED_OUT, "The request timed out."
_AUTHORIZED_BY_NAME = {ResourceType.TOPIC: Resource.TOPIC, ResourceType.GROUP: Resource.GROUP}
"""Resource types whose configs are authorized by resource; the others by the cluster."""

T = TypeVar("T", admin.CreatableTopic, admin.CreatePartitionsTopic)
M = TypeVar("M", bound=Message)
R = TypeVar("R", admin.AlterConfigsResource, admin.ReplacedConfigsResource)


class TopicHandlers(ForwardingHandlers):
    """The handlers of topic and config changes."""

    def __init__(
        self,
        node_id: int,
        controller: Controller,
        authorizer: Authorizer,
        *,
        deletion_enabled: bool,
        timers: TimerQueue,
        broker_config_validator: BrokerConfigValidator | None = None,
    ) -> None:
        """`broker_config_validator` is None on the controller listener."""
        super().__init__(controller, authorizer)
        self._node_id = node_id
        self._own_settings = broker_config_validator
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
    def create_topics(self, context: RequestContext, request: admin.CreateTopicsRequest) -> Completion[Any]:
        """Handle CreateTopics."""
        denied: list[admin.CreatableTopic] = []
        if not self._is_authorized(context, Operation.CREATE):
            request.topics, denied = self._split(context, Operation.CREATE, request.topics)
        failed = _results(admin.CreatableTopicResult, denied, _TOPIC_DENIED, "Authorization failed.")
        timed_out = partial(_results, admin.CreatableTopicResult, request.topics, *_TIMEOUT)
        return self._submit(context, request, "topics", failed, timed_out)

    def delete_topics(
        self, context: RequestContext, request: admin.DeleteTopicsRequest
    ) -> admin.DeleteTopicsResponse | Completion[admin.DeleteTopicsResponse]:
        """Handle DeleteTopics, by name or from version 6 on by id."""
        if context.api_version < 6:
            request.topics = [admin.DeleteTopicState(name=name) for name in request.topic_names]
            request.topic_names = []
        if not self._deletion_enabled:
            code = ErrorCode.INVALID_REQUEST if context.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
            return admin.DeleteTopicsResponse(responses=[_delete_result(topic, code) for topic in request.topics])
        failed, allowed = [], []
        for topic in request.topics:
            code = self._delete_error(context, topic)
            if code == ErrorCode.NONE:
                allowed.append(topic)
            else:
                failed.append(_delete_result(topic, code))
        request.topics = allowed
        return self._submit(
            context, request, "responses", failed, lambda: [_delete_result(topic, _TIMEOUT[0]) for topic in allowed]
        )

    def _delete_error(self, context: RequestContext, topic: admin.DeleteTopicState) -> ErrorCode:
        name = topic.name
        if topic.topic_id != ZERO_UUID and name is None:
            topic_image = self._controller.image.topics_by_id.get(topic.topic_id)
            if topic_image is None:
                return ErrorCode.NONE  # the controller returns UNKNOWN_TOPIC_ID
            name = topic_image.name
        return ErrorCode.NONE if name is None else self._denial(context, Operation.DELETE, Resource.TOPIC, name)

    def create_partitions(self, context: RequestContext, request: admin.CreatePartitionsRequest) -> Completion[Any]:
        """Handle CreatePartitions."""
        request.topics, denied = self._split(context, Operation.ALTER, request.topics)
        failed = _results(admin.CreatePartitionsTopicResult, denied, _TOPIC_DENIED)
        timed_out = partial(_results, admin.CreatePartitionsTopicResult, request.topics, *_TIMEOUT)
        return self._submit(context, request, "results", failed, timed_out)

    # ------------------------------------------------------------ configs
    def alter_configs(self, context: RequestContext, request: admin.AlterConfigsRequest) -> Completion[Any]:
        """Handle AlterConfigs."""
        request.resources, failed = self._allowed_resources(context, request.resources)
        return self._submit(context, request, "responses", failed)

    def incremental_alter_configs(
        self, context: RequestContext, request: admin.IncrementalAlterConfigsRequest
    ) -> Completion[Any]:
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
        return self._submit(context, request, "responses", responses)

    def _alter_loggers(
        self, resource: admin.AlterConfigsResource, *, is_repeated: bool, validate_only: bool
    ) -> admin.AlterConfigsResourceResponse:
        response = admin.AlterConfigsResourceResponse(
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
    ) -> tuple[list[R], list[admin.AlterConfigsResourceResponse]]:
        failed, allowed = [], []
        counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        for resource in resources:
            kind, name = resource.resource_type, resource.resource_name
            code, sentence = self._alter_error(context, resource), None
            if code == ErrorCode.NONE and self._own_settings is not None:
                try:
                    self._own_settings.check(self._controller.image, resource, is_repeated=counts[kind, name] > 1)
                except KafkaError as error:
                    code, sentence = error.code, error.message
            if code == ErrorCode.NONE:
                allowed.append(resource)
            else:
                failed.append(
                    admin.AlterConfigsResourceResponse(
                        error_code=code, error_message=sentence, resource_type=kind, resource_name=name
                    )
                )
        return allowed, failed

    def _alter_error(
        self, context: RequestContext, resource: admin.AlterConfigsResource | admin.ReplacedConfigsResource
    ) -> ErrorCode:
        resource_type = _AUTHORIZED_BY_NAME.get(resource.resource_type)
        if resource_type is None:
            return self._denial(context, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        return self._denial(context, Operation.ALTER_CONFIGS, resource_type, resource.resource_name)

    def _submit(
        self,
        context: RequestContext,
        request: Any,
        field: str,
        failed: list[Any],
        timed_out: Callable[[], list[Any]] | None = None,
    ) -> Completion[Any]:
        """Submit the authorized part; `failed` is added to the results, the response's `field`."""
        timeout = None
        if timed_out is not None:
            response = APIS[context.api_key].response
            timeout = ControllerTimeout(
                self._timers, request.timeout_ms, lambda: blank(response, **{field: timed_out()})
            )

        def with_failed(response: Any) -> Any:
            getattr(response, field).extend(failed)
            return response

        return submit(self._controller, context, request, timeout).map(with_failed)

    def _split(self, context: RequestContext, operation: str, topics: list[T]) -> tuple[list[T], list[T]]:
        """The authorized topics, and the others."""
        allowed: list[T] = []
        denied: list[T] = []
        for topic in topics:
            is_allowed = self._is_authorized(context, operation, Resource.TOPIC, topic.name)
            (allowed if is_allowed else denied).append(topic)
        return allowed, denied


def _results(cls: type[M], topics: Iterable[Any], code: ErrorCode, message: str | None = None) -> list[M]:
    """The same error for all topics."""
    return [cls(name=topic.name, error_code=code, error_message=message) for topic in topics]


def _delete_result(topic: admin.DeleteTopicState, code: ErrorCode) -> admin.DeletableTopicResult:
    messages = {_TIMEOUT[0]: _TIMEOUT[1], ErrorCode.TOPIC_DELETION_DISABLED: "Topic deletion is disabled."}
    return admin.DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=messages.get(code)
    )
