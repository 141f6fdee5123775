"""Cluster administration: leader elections, reassignments, features, unregistering brokers, the quorum.

RULES    1. Changes require ALTER on the cluster, descriptions DESCRIBE; an unauthorized request gets only
            the authorization error.
         2. The response is sent after the controller's records are committed. After the timeout of an election or
            reassignment request it is REQUEST_TIMED_OUT; the request may still take effect.
NOT HERE The decisions (`replication/controller`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from broker.handlers.deferred import ControllerTimeout, submit
from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribedQuorum,
    DescribedQuorumTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    QuorumTopic,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
    RemoveRaftVoterRequest,
    RemoveRaftVoterResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from protocol.primitives import ZERO_UUID
from protocol.schema import Message, carries
from replication.controller.configs.features import UpgradeType
from replication.controller.controller_client import Controller
from replication.controller.partitions.elect_leaders import error_response
from replication.controller.partitions.reassignments import list_reassignments
from replication.timer_queue import TimerQueue

METADATA_TOPIC = "__cluster_metadata"

_AUTHORIZATION_ERROR = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NOT_AUTHORIZED = "Cluster authorization failed."
_TIMED_OUT = ErrorCode.REQUEST_TIMED_OUT
_TIMED_OUT_TEXT = "The request timed out."
_WITH_DIRECTORIES = 2
_NOT_HERE = "This server does not host this topic-partition."

M = TypeVar("M", bound=Message)


class ClusterHandlers:
    """The handlers of cluster administration."""

    def __init__(self, controller: Controller, authorizer: Authorizer, timers: TimerQueue) -> None:
        self._controller = controller
        self._authorizer = authorizer
        self._timers = timers

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.ELECT_LEADERS, 0, 2, self.elect_leaders),
            Route(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, self.alter_reassignments),
            Route(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, self.list_reassignments),
            Route(ApiKey.DESCRIBE_QUORUM, 0, 2, self.describe_quorum),
            Route(ApiKey.UPDATE_FEATURES, 0, 2, self.update_features),
            Route(ApiKey.UNREGISTER_BROKER, 0, 0, self.unregister_broker),
            Route(ApiKey.ADD_RAFT_VOTER, 0, 1, self.add_voter),
            Route(ApiKey.REMOVE_RAFT_VOTER, 0, 0, self.remove_voter),
        ]

    # ------------------------------------------------------------ partitions
    def elect_leaders(self, context: RequestContext, request: ElectLeadersRequest) -> Pending | ElectLeadersResponse:
        """Handle ElectLeaders."""
        if not self._is_authorized(context, Operation.ALTER):
            return _for_version(context.api_version, error_response(request, _AUTHORIZATION_ERROR, _NOT_AUTHORIZED))
        return self._submit(
            context, request, request.timeout_ms, lambda: error_response(request, _TIMED_OUT, _TIMED_OUT_TEXT)
        )

    def alter_reassignments(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> Pending | AlterPartitionReassignmentsResponse:
        """Handle AlterPartitionReassignments."""
        if not self._is_authorized(context, Operation.ALTER):
            return _reassignment_error(request, _AUTHORIZATION_ERROR, _NOT_AUTHORIZED)
        timed_out = partial(_reassignment_error, request, _TIMED_OUT, _TIMED_OUT_TEXT)
        return self._submit(context, request, request.timeout_ms, timed_out)

    def list_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """Handle ListPartitionReassignments."""
        if not self._is_authorized(context, Operation.DESCRIBE):
            return ListPartitionReassignmentsResponse(
                error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED, topics=[]
            )
        return list_reassignments(self._controller.image, request)

    # ------------------------------------------------------------ features
    def update_features(
        self, context: RequestContext, request: UpdateFeaturesRequest
    ) -> Pending | UpdateFeaturesResponse:
        """Handle UpdateFeatures; version 0 has only allow_downgrade."""
        if not self._is_authorized(context, Operation.ALTER):
            return UpdateFeaturesResponse(error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED)
        if context.api_version == 0:
            for update in request.feature_updates:
                update.upgrade_type = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
        return submit(self._controller, context, request)

    # ------------------------------------------------------------ nodes
    def unregister_broker(
        self, context: RequestContext, request: UnregisterBrokerRequest
    ) -> Pending | UnregisterBrokerResponse:
        """Handle UnregisterBroker."""
        if not self._is_authorized(context, Operation.ALTER):
            return UnregisterBrokerResponse(error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED)
        return submit(self._controller, context, request)

    def add_voter(self, context: RequestContext, request: AddRaftVoterRequest) -> Pending | AddRaftVoterResponse:
        """Handle AddRaftVoter."""
        if not self._is_authorized(context, Operation.ALTER):
            return AddRaftVoterResponse(error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED)
        return submit(self._controller, context, request)

    def remove_voter(
        self, context: RequestContext, request: RemoveRaftVoterRequest
    ) -> Pending | RemoveRaftVoterResponse:
        """Handle RemoveRaftVoter."""
        if not self._is_authorized(context, Operation.ALTER):
            return RemoveRaftVoterResponse(error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED)
        return submit(self._controller, context, request)

    def describe_quorum(
        self, context: RequestContext, request: DescribeQuorumRequest
    ) -> Pending | DescribeQuorumResponse:
        """Handle DescribeQuorum."""
        if not self._is_authorized(context, Operation.DESCRIBE):
            return DescribeQuorumResponse(error_code=_AUTHORIZATION_ERROR, error_message=_NOT_AUTHORIZED, topics=[])
        requested = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
        if requested != [(METADATA_TOPIC, [0])]:
            topics = [_unknown_topic(topic) for topic in request.topics]
            return DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message="", topics=topics)
        amend = _clear_directories if context.api_version < _WITH_DIRECTORIES else None
        return submit(self._controller, context, request, amend)

    def _submit(
        self, context: RequestContext, request: Message, timeout_ms: int, timed_out: Callable[[], Message]
    ) -> Pending:
        timeout = ControllerTimeout(self._timers, timeout_ms, timed_out)
        return submit(self._controller, context, request, partial(_for_version, context.api_version), timeout)

    def _is_authorized(self, context: RequestContext, operation: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, Resource.CLUSTER, CLUSTER_NAME)


def _for_version(version: int, answer: M) -> M:
    """Clear the error code where the version has none: ElectLeaders version 0 has only partition errors."""
    if not carries(type(answer), "error_code", version):
        answer.error_code = ErrorCode.NONE  # type: ignore[attr-defined]  # it has one in other versions
    return answer


def _reassignment_error(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, sentence: str
) -> AlterPartitionReassignmentsResponse:
    """The same error for all partitions."""
    topics = [
        ReassignableTopicResponse(
            name=topic.name,
            partitions=[
                ReassignablePartitionResponse(
                    partition_index=partition.partition_index, error_code=code, error_message=sentence
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return AlterPartitionReassignmentsResponse(error_code=code, error_message=sentence, responses=topics)


def _clear_directories(answer: DescribeQuorumResponse) -> None:
    """Before version 2 the response has no nodes and directories."""
    answer.nodes = []
    for topic in answer.topics:
        for quorum in topic.partitions:
            for replica in (*quorum.current_voters, *quorum.observers):
                replica.replica_directory_id = ZERO_UUID


def _unknown_topic(topic: QuorumTopic) -> DescribedQuorumTopic:
    partitions = [
        DescribedQuorum(
            partition_index=partition.partition_index,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=_NOT_HERE,
            leader_id=0,
            leader_epoch=0,
            high_watermark=0,
            current_voters=[],
            observers=[],
        )
        for partition in topic.partitions
    ]
    return DescribedQuorumTopic(topic_name=topic.topic_name, partitions=partitions)
