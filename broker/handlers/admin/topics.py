"""Changes to topics and settings: authorised here, decided by the controller (design D2).

RULES    1. What the principal may not do is answered here and never reaches the controller.
         2. The answer comes when the controller's records are committed and the partitions can be served. A request that
            says how long it waits is told REQUEST_TIMED_OUT then, and what it asked for is done all the same, as with
            Apache Kafka.
         3. Levels of loggers are this process's own: they change here, and the controller never hears of them.
NOT HERE What the controller decides (`replication/controller`), showing settings (`configs.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from broker.handlers.admin.broker_config_validation import OwnSettings
from broker.handlers.controller_api import Decider
from broker.handlers.router import Pending, RequestContext, Route
from broker.process.log_levels import change_log_levels
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
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
from replication.controller.configs.config_changes import check_form
from replication.metadata.image import MetadataImage, ResourceType
from replication.timer_queue import Deadline, Deadlines

_LATE = ErrorCode.REQUEST_TIMED_OUT
_LATE_TEXT = "The request timed out."

R = TypeVar("R", AlterConfigsResource, ReplacedConfigsResource)


class AdminHandlers:
    """The handlers of this module and what they need."""

    def __init__(
        self,
        node_id: int,
        controller: Decider,
        image: Callable[[], MetadataImage],
        authorizer: Authorizer,
        *,
        deletion_enabled: bool,
        deadlines: Deadlines,
        own_settings: OwnSettings | None = None,
    ) -> None:
        """Where `own_settings` is None it is the controller that is asked, not a broker."""
        self._node_id = node_id
        self._own_settings = own_settings
        self._controller = controller
        self._image = image
        self._authorizer = authorizer
        self._deletion_enabled = deletion_enabled
        self._deadlines = deadlines

    def routes(self) -> list[Route]:
        """The rows of this module."""
        return [
            Route(ApiKey.CREATE_TOPICS, 2, 7, self.create_topics),
            Route(ApiKey.DELETE_TOPICS, 1, 6, self.delete_topics),
            Route(ApiKey.ALTER_CONFIGS, 0, 2, self.alter_configs),
            Route(ApiKey.CREATE_PARTITIONS, 0, 3, self.create_partitions),
            Route(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, self.incremental_alter_configs),
        ]

    # ------------------------------------------------------------ topics
    def create_topics(self, context: RequestContext, request: CreateTopicsRequest) -> Pending:
        """Create topics."""
        refused = []
        if not self._may(context, Operation.CREATE, Resource.CLUSTER, CLUSTER_NAME):
            allowed = []
            for topic in request.topics:
                if self._may(context, Operation.CREATE, Resource.TOPIC, topic.name):
                    allowed.append(topic)
                else:
                    refused.append(
                        CreatableTopicResult(
                            name=topic.name,
                            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                            error_message="Authorization failed.",
                        )
                    )
            request.topics = allowed

        def timed_out() -> CreateTopicsResponse:
            late = [
                CreatableTopicResult(name=t.name, error_code=_LATE, error_message=_LATE_TEXT) for t in request.topics
            ]
            return CreateTopicsResponse(topics=late)

        return self._submit(
            context, request, lambda response: response.topics.extend(refused), request.timeout_ms, timed_out
        )

    def delete_topics(self, context: RequestContext, request: DeleteTopicsRequest) -> Pending | DeleteTopicsResponse:
        """Delete topics by name or, from version 6, by id."""
        if context.api_version < 6:
            request.topics = [DeleteTopicState(name=name) for name in request.topic_names]
            request.topic_names = []
        if not self._deletion_enabled:
            code = ErrorCode.INVALID_REQUEST if context.api_version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
            return DeleteTopicsResponse(responses=[_not_deleted(topic, code) for topic in request.topics])
        refused, allowed = [], []
        for topic in request.topics:
            code = self._why_not_delete(context, topic)
            if code == ErrorCode.NONE:
                allowed.append(topic)
            else:
                refused.append(_not_deleted(topic, code))
        request.topics = allowed

        def timed_out() -> DeleteTopicsResponse:
            return DeleteTopicsResponse(responses=[_not_deleted(topic, _LATE) for topic in request.topics])

        return self._submit(
            context, request, lambda response: response.responses.extend(refused), request.timeout_ms, timed_out
        )

    def _why_not_delete(self, context: RequestContext, topic: DeleteTopicState) -> ErrorCode:
        name = topic.name
        if topic.topic_id != ZERO_UUID and name is None:
            known = self._image().topics_by_id.get(topic.topic_id)
            if known is None:
                return ErrorCode.NONE  # the controller says UNKNOWN_TOPIC_ID
            name = known.name
        if name is not None and not self._may(context, Operation.DELETE, Resource.TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.NONE

    def create_partitions(self, context: RequestContext, request: CreatePartitionsRequest) -> Pending:
        """Give topics more partitions."""
        refused, allowed = [], []
        for topic in request.topics:
            if self._may(context, Operation.ALTER, Resource.TOPIC, topic.name):
                allowed.append(topic)
            else:
                refused.append(
                    CreatePartitionsTopicResult(name=topic.name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                )
        request.topics = allowed

        def timed_out() -> CreatePartitionsResponse:
            late = [
                CreatePartitionsTopicResult(name=topic.name, error_code=_LATE, error_message=_LATE_TEXT)
                for topic in request.topics
            ]
            return CreatePartitionsResponse(results=late)

        return self._submit(
            context, request, lambda response: response.results.extend(refused), request.timeout_ms, timed_out
        )

    # ------------------------------------------------------------ settings
    def alter_configs(self, context: RequestContext, request: AlterConfigsRequest) -> Pending:
        """Replace all settings of topics, brokers, groups and subscriptions."""
        request.resources, refused = self._allowed_resources(context, request.resources)
        return self._submit(context, request, lambda response: response.responses.extend(refused))

    def incremental_alter_configs(self, context: RequestContext, request: IncrementalAlterConfigsRequest) -> Pending:
        """Change single settings of topics, brokers, groups and subscriptions, and levels of loggers."""
        allowed, answered = self._allowed_resources(context, request.resources)
        asked = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
        request.resources = []
        for resource in allowed:
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                is_repeated = asked[resource.resource_type, resource.resource_name] > 1
                answered.append(
                    self._alter_loggers(resource, is_repeated=is_repeated, validate_only=request.validate_only)
                )
            else:
                request.resources.append(resource)
        return self._submit(context, request, lambda response: response.responses.extend(answered))

    def _alter_loggers(
        self, resource: AlterConfigsResource, *, is_repeated: bool, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        response = AlterConfigsResourceResponse(
            error_code=ErrorCode.NONE, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        try:
            check_form(resource.configs, is_repeated=is_repeated)
            change_log_levels(self._node_id, resource.resource_name, resource.configs, validate_only=validate_only)
        except KafkaError as error:
            response.error_code, response.error_message = error.code, error.message
        return response

    def _allowed_resources(
        self, context: RequestContext, resources: list[R]
    ) -> tuple[list[R], list[AlterConfigsResourceResponse]]:
        refused, allowed = [], []
        asked = Counter((resource.resource_type, resource.resource_name) for resource in resources)
        for resource in resources:
            kind, name = resource.resource_type, resource.resource_name
            code, sentence = self._why_not_alter(context, resource), None
            if code == ErrorCode.NONE and self._own_settings is not None:
                try:
                    self._own_settings.check(self._image(), resource, is_repeated=asked[kind, name] > 1)
                except KafkaError as error:
                    code, sentence = error.code, error.message
            if code == ErrorCode.NONE:
                allowed.append(resource)
            else:
                refused.append(
                    AlterConfigsResourceResponse(
                        error_code=code, error_message=sentence, resource_type=kind, resource_name=name
                    )
                )
        return allowed, refused

    def _why_not_alter(
        self, context: RequestContext, resource: AlterConfigsResource | ReplacedConfigsResource
    ) -> ErrorCode:
        kind, name = resource.resource_type, resource.resource_name
        if kind == ResourceType.TOPIC:
            is_allowed = self._may(context, Operation.ALTER_CONFIGS, Resource.TOPIC, name)
            return ErrorCode.NONE if is_allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if kind == ResourceType.GROUP:
            is_allowed = self._may(context, Operation.ALTER_CONFIGS, Resource.GROUP, name)
            return ErrorCode.NONE if is_allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
        is_allowed = self._may(context, Operation.ALTER_CONFIGS, Resource.CLUSTER, CLUSTER_NAME)
        return ErrorCode.NONE if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED

    def _submit(
        self,
        context: RequestContext,
        request: Message,
        add_refused: Callable[[Any], None],
        timeout_ms: int = 0,
        timed_out: Callable[[], Message] | None = None,
    ) -> Pending:
        """Have the controller decide on what is allowed, and answer together with what is not.

        After `timeout_ms`, where the client has named one, what is allowed is answered with `timed_out`.
        """
        pending = Pending()
        waiting: list[Deadline] = []

        def reply(response: Message) -> None:
            for deadline in waiting:
                deadline.cancel()
            add_refused(response)
            pending.complete(response)

        self._controller.submit(request, wall_ms=context.wall_ms, reply=reply)
        if timed_out is not None and timeout_ms > 0 and not pending.is_done:
            waiting.append(self._deadlines.schedule(context.mono_ms + timeout_ms, lambda: reply(timed_out())))
            pending.on_cancel = waiting[0].cancel
        return pending

    def _may(self, context: RequestContext, operation: str, resource_type: str, name: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, resource_type, name)


def _not_deleted(topic: DeleteTopicState, code: ErrorCode) -> DeletableTopicResult:
    messages = {ErrorCode.TOPIC_DELETION_DISABLED: "Topic deletion is disabled.", _LATE: _LATE_TEXT}
    return DeletableTopicResult(
        name=topic.name, topic_id=topic.topic_id, error_code=code, error_message=messages.get(code)
    )
