"""Topic and config changes: authorization here, decisions in the controller.

RULES    1. Unauthorized topics and resources fail here and are not sent to the controller.
         2. The response is sent after the controller's records are committed and applied. After the client's timeout it
            is REQUEST_TIMED_OUT; the change still takes effect, as in Apache Kafka.
         3. A client whose quota of changed partitions the controller finds exceeded is muted.
         4. Log levels of loggers belong to this process; they are changed here, not by the controller.
NOT HERE The decisions (`replication/controller`), describing configs (`configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from broker.config.broker_config import BrokerConfig
from broker.handlers.admin.broker_config_validation import BrokerConfigValidator, check_node_id
from broker.handlers.authorization import TimedForwardingHandlers
from broker.handlers.router import RequestContext, Route
from broker.process.log_levels import change_log_levels
from broker.security.authorizer import Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages import admin
from protocol.schema import Message
from replication.completion import Completion, gather
from replication.controller.configs.config_changes import AlterConfigOp, validate_changes
from replication.controller.controller_client import Controller
from replication.controller.error_responses import error_response, error_results, results_of
from replication.metadata.acls import CLUSTER_NAME
from replication.metadata.image import ResourceType
from replication.timer_queue import TimerQueue
from storage.config.log_config import DELIVER_TO

_TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_NOT_AUTHORIZED = "Topic authorization failed."
_NOT_SHOWN = -1
_AUTHORIZED_BY_NAME = {ResourceType.TOPIC: Resource.TOPIC, ResourceType.GROUP: Resource.GROUP}
"""Resource types whose configs are authorized by resource; the others by the cluster."""

T = TypeVar("T")
_Check = tuple[Any, Completion["str | None"]]
"""A resource, and why its stores cannot be used; None if they can."""


class TopicHandlers(TimedForwardingHandlers):
    """The handlers of topic and config changes."""

    def __init__(
        self,
        controller: Controller,
        authorizer: Authorizer,
        timers: TimerQueue,
        config: BrokerConfig,
        broker_configs: BrokerConfigValidator | None,
    ) -> None:
        """`broker_configs` is None on the controller listener."""
        super().__init__(controller, authorizer, timers)
        self._config = config
        self._own_settings = broker_configs

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
        """Handle CreateTopics; the configs of new topics are shown to clients that may describe them."""
        denied: list[admin.CreatableTopic] = []
        if not self._is_authorized(context, Operation.CREATE, log_denied=False):
            request.topics, denied = _split(request.topics, partial(self._may_change, context, Operation.CREATE))
        shown = {
            topic.name
            for topic in request.topics
            if self._is_authorized(context, Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic.name, log_denied=False)
        }

        def hide_configs(response: admin.CreateTopicsResponse) -> admin.CreateTopicsResponse:
            for result in response.topics:
                if result.error_code == ErrorCode.NONE and result.name not in shown:
                    result.topic_config_error_code = _TOPIC_DENIED
                    result.num_partitions = result.replication_factor = _NOT_SHOWN
                    result.configs = None
            return response

        failed = error_results(request, denied, _TOPIC_DENIED, "Authorization failed.")
        for topic in list(request.topics):
            try:
                self._require_target(context, topic.configs)
            except KafkaError as error:
                request.topics = [one for one in request.topics if one is not topic]
                failed += error_results(request, [topic], error.code, error.message)
        return self._submit(context, request, failed).map(hide_configs)

    def delete_topics(
        self, context: RequestContext, request: admin.DeleteTopicsRequest
    ) -> Message | Completion[admin.DeleteTopicsResponse]:
        """Handle DeleteTopics, by name or from version 6 on by id."""
        if context.api_version < 6:
            request.topics = [admin.DeleteTopicState(name=name) for name in request.topic_names]
            request.topic_names = []
        if not self._config.value("delete.topic.enable"):
            if context.api_version < 3:
                return error_response(request, ErrorCode.INVALID_REQUEST)
            return error_response(request, ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
        denied: list[Message] = []
        if not self._is_authorized(context, Operation.DELETE, log_denied=False):
            is_denied = partial(self._deletion_denial, context, request)
            results = [is_denied(topic) for topic in request.topics]
            denied = [result for result in results if result is not None]
            allowed = zip(request.topics, results, strict=True)
            request.topics = [topic for topic, result in allowed if result is None]
        return self._submit(context, request, denied)

    def _may_change(self, context: RequestContext, operation: str, topic: Any) -> bool:
        return self._is_authorized(context, operation, Resource.TOPIC, topic.name)

    def _deletion_denial(
        self, context: RequestContext, request: admin.DeleteTopicsRequest, topic: admin.DeleteTopicState
    ) -> Message | None:
        """The result for a topic that the client may not delete; its name only if it may be described."""
        image, name = self._controller.image, topic.name
        found = image.topics_by_id.get(topic.topic_id) if name is None else image.topics_by_name.get(name)
        if name is None and found is not None:
            name = found.name
        if name is None:
            return None  # the controller returns UNKNOWN_TOPIC_ID
        may_describe = self._is_authorized(context, Operation.DESCRIBE, Resource.TOPIC, name)
        may_delete = self._is_authorized(context, Operation.DELETE, Resource.TOPIC, name)
        if may_describe and (may_delete or found is None):
            return None  # the controller deletes it, or returns UNKNOWN_TOPIC_OR_PARTITION
        if may_describe:
            topic.name = name
        (result,) = error_results(request, [topic], _TOPIC_DENIED, _NOT_AUTHORIZED)
        return result

    def create_partitions(self, context: RequestContext, request: admin.CreatePartitionsRequest) -> Completion[Any]:
        """Handle CreatePartitions."""
        request.topics, denied = _split(request.topics, partial(self._may_change, context, Operation.ALTER))
        return self._submit(context, request, error_results(request, denied, _TOPIC_DENIED))

    # ------------------------------------------------------------ configs
    def alter_configs(self, context: RequestContext, request: admin.AlterConfigsRequest) -> Completion[Any]:
        """Handle AlterConfigs, which has no log levels."""
        loggers = [one for one in request.resources if one.resource_type == ResourceType.BROKER_LOGGER]
        is_broker = self._own_settings is not None
        sentence = "Unknown resource type 8" if is_broker else "Unexpected resource type BROKER_LOGGER."
        unknown = error_results(request, loggers, ErrorCode.INVALID_REQUEST, sentence)
        request.resources = [one for one in request.resources if one.resource_type != ResourceType.BROKER_LOGGER]
        request.resources, failed, checks = self._allowed_resources(context, request)
        return self._submit_checked(context, request, [*unknown, *failed], checks)

    def incremental_alter_configs(
        self, context: RequestContext, request: admin.IncrementalAlterConfigsRequest
    ) -> Completion[Any]:
        """Handle IncrementalAlterConfigs, including log levels."""
        is_repeated = _repeated(request.resources)
        allowed, results, checks = self._allowed_resources(context, request)
        request.resources = [one for one in allowed if one.resource_type != ResourceType.BROKER_LOGGER]
        for resource in allowed:
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                code, sentence = ErrorCode.NONE, None
                try:
                    validate_changes(resource.configs, is_repeated=is_repeated(resource))
                    node_id = self._config.node_id
                    check_node_id(resource.resource_name, node_id, "Node", f"node id. Expected {node_id}, but")
                    change_log_levels(resource.configs, validate_only=request.validate_only)
                except KafkaError as error:
                    code, sentence = error.code, error.message
                results += error_results(request, [resource], code, sentence)
        return self._submit_checked(context, request, results, checks)

    def _allowed_resources(self, context: RequestContext, request: Any) -> tuple[list[Any], list[Any], list[_Check]]:
        """The authorized resources with valid changes of this broker's configs, the results of the others, and checks of
        resources whose key and trust stores must be read first.
        """
        failed: list[Message] = []
        allowed = []
        checks: list[_Check] = []
        is_repeated = _repeated(request.resources)
        for resource in request.resources:
            try:
                self._check_authorized(context, resource)
                if resource.resource_type == ResourceType.TOPIC:
                    self._require_target(context, resource.configs)
                if self._own_settings is not None:
                    image, is_twice = self._controller.image, is_repeated(resource)
                    check = self._own_settings.check(image, resource, is_repeated=is_twice)
                    if check is not None:
                        checks.append((resource, check))
                allowed.append(resource)
            except KafkaError as error:
                failed += error_results(request, [resource], error.code, error.message)
        return allowed, failed, checks

    def _submit_checked(
        self, context: RequestContext, request: Any, results: list[Any], checks: list[_Check]
    ) -> Completion[Any]:
        """Submit the resources whose stores are usable, when all are read."""

        def on_checked(errors: list[str | None]) -> Completion[Any]:
            for (resource, _), error in zip(checks, errors, strict=True):
                if error is not None:
                    request.resources = [one for one in request.resources if one is not resource]
                    results.extend(error_results(request, [resource], ErrorCode.INVALID_REQUEST, error))
            return self._submit(context, request, results)

        return gather([check for _, check in checks], on_checked).compose(lambda submitted: submitted)

    def _check_authorized(self, context: RequestContext, resource: Any) -> None:
        resource_type = _AUTHORIZED_BY_NAME.get(resource.resource_type, Resource.CLUSTER)
        name = CLUSTER_NAME if resource_type == Resource.CLUSTER else resource.resource_name
        is_logger = resource.resource_type == ResourceType.BROKER_LOGGER
        of_controller = is_logger and self._own_settings is None
        operation = Operation.CLUSTER_ACTION if of_controller else Operation.ALTER_CONFIGS
        if is_logger and not of_controller:
            if not self._is_authorized(context, operation):
                raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        else:
            self._require(context, operation, resource_type, name)

    def _require_target(self, context: RequestContext, configs: Iterable[Any]) -> None:
        """Raise a KafkaError if the configs make a schedule topic of a topic, and the client may not write to its target."""
        for config in configs:
            is_set = getattr(config, "config_operation", AlterConfigOp.SET) == AlterConfigOp.SET
            if config.name == DELIVER_TO and is_set and config.value:
                self._require(context, Operation.WRITE, Resource.TOPIC, config.value)

    def _submit(self, context: RequestContext, request: Any, failed: list[Any]) -> Completion[Any]:
        """Submit the authorized part, with the client's timeout if the request has one; `failed` is added to the results."""

        def with_failed(response: Message) -> Message:
            results_of(request, response).extend(failed)
            throttle_ms = getattr(response, "throttle_time_ms", 0)
            if throttle_ms:
                context.connection.mute(throttle_ms)
            return response

        if hasattr(request, "timeout_ms"):
            response = self._submit_with_timeout(context, request, error_response)
        else:
            response = self._submit_for(context, request)
        return response.map(with_failed)


def _split(requested: list[T], is_allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """The allowed ones, and the others."""
    allowed: list[T] = []
    denied: list[T] = []
    for one in requested:
        (allowed if is_allowed(one) else denied).append(one)
    return allowed, denied


def _repeated(resources: Iterable[Any]) -> Callable[[Any], bool]:
    """Whether a resource is more than once in a request."""
    counts = Counter((one.resource_type, one.resource_name) for one in resources)
    return lambda resource: counts[resource.resource_type, resource.resource_name] > 1
