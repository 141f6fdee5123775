"""Cluster administration: leader elections, reassignments, features, unregistering brokers, the quorum.

RULES    1. Changes require ALTER on the cluster, descriptions DESCRIBE; an unauthorized request gets only the authorization
            error.
         2. The response is sent after the controller's records are committed. After the timeout of an election or
            reassignment request it is REQUEST_TIMED_OUT; the request may still take effect.
NOT HERE The decisions (`replication/controller`).
"""

from __future__ import annotations

from functools import partial

from broker.handlers.authorization import NOT_AUTHORIZED, TimedForwardingHandlers, authorization_error
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Operation
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import cluster, common
from protocol.primitives import ZERO_UUID
from protocol.schema import Message, blank
from replication.completion import Completion
from replication.controller.configs.features import UpgradeType
from replication.controller.partitions.elect_leaders import error_response
from replication.controller.partitions.reassignments import list_reassignments
from replication.metadata.topic_names import METADATA_TOPIC

_AUTHORIZATION_ERROR = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_WITH_DIRECTORIES = 2
_NOT_HERE = "This server does not host this topic-partition."


class ClusterHandlers(TimedForwardingHandlers):
    """The handlers of cluster administration."""

    def routes(self) -> list[Route]:
        """The routes of this module."""
        return [
            Route(ApiKey.ELECT_LEADERS, 0, 2, self.elect_leaders),
            Route(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, self.alter_reassignments),
            Route(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, self.list_reassignments),
            Route(ApiKey.DESCRIBE_QUORUM, 0, 2, self.describe_quorum),
            Route(ApiKey.UPDATE_FEATURES, 0, 2, self.update_features),
            Route(ApiKey.UNREGISTER_BROKER, 0, 0, self.alter),
            Route(ApiKey.ADD_RAFT_VOTER, 0, 1, self.alter),
            Route(ApiKey.REMOVE_RAFT_VOTER, 0, 0, self.alter),
        ]

    # ------------------------------------------------------------ partitions
    def elect_leaders(
        self, context: RequestContext, request: cluster.ElectLeadersRequest
    ) -> cluster.ElectLeadersResponse | Completion[cluster.ElectLeadersResponse]:
        """Handle ElectLeaders."""
        if not self._is_authorized(context, Operation.ALTER):
            return _for_version(context.api_version, error_response(request, _AUTHORIZATION_ERROR, NOT_AUTHORIZED))
        response = self._submit_with_timeout(context, request, error_response)
        return response.map(partial(_for_version, context.api_version))

    def alter_reassignments(
        self, context: RequestContext, request: cluster.AlterPartitionReassignmentsRequest
    ) -> cluster.AlterPartitionReassignmentsResponse | Completion[cluster.AlterPartitionReassignmentsResponse]:
        """Handle AlterPartitionReassignments."""
        if not self._is_authorized(context, Operation.ALTER):
            return _reassignment_error(request, _AUTHORIZATION_ERROR, NOT_AUTHORIZED)
        return self._submit_with_timeout(context, request, _reassignment_error)

    def list_reassignments(
        self, context: RequestContext, request: cluster.ListPartitionReassignmentsRequest
    ) -> Message:
        """Handle ListPartitionReassignments."""
        if not self._is_authorized(context, Operation.DESCRIBE):
            return authorization_error(request)
        return list_reassignments(self._controller.image, request)

    # ------------------------------------------------------------ features and nodes
    def update_features(
        self, context: RequestContext, request: cluster.UpdateFeaturesRequest
    ) -> Message | Completion[Message]:
        """Handle UpdateFeatures; version 0 has only allow_downgrade."""
        if context.api_version == 0:
            for update in request.feature_updates:
                update.upgrade_type = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
        return self.alter(context, request)

    def alter(self, context: RequestContext, request: Message) -> Message | Completion[Message]:
        """Handle UnregisterBroker, AddRaftVoter and RemoveRaftVoter."""
        return self._forward(context, request, Operation.ALTER)

    def describe_quorum(
        self, context: RequestContext, request: cluster.DescribeQuorumRequest
    ) -> Message | Completion[Message]:
        """Handle DescribeQuorum."""
        if not self._is_authorized(context, Operation.DESCRIBE):
            return authorization_error(request)
        requested = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
        if requested != [(METADATA_TOPIC, [0])]:
            topics = [_unknown_topic(topic) for topic in request.topics]
            return cluster.DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message="", topics=topics)
        response = self._submit_for(context, request)
        return response.map(_clear_directories) if context.api_version < _WITH_DIRECTORIES else response


def _for_version(version: int, answer: cluster.ElectLeadersResponse) -> cluster.ElectLeadersResponse:
    """Version 0 has only partition errors."""
    if version == 0:
        answer.error_code = ErrorCode.NONE
    return answer


def _reassignment_error(
    request: cluster.AlterPartitionReassignmentsRequest, code: ErrorCode, sentence: str
) -> cluster.AlterPartitionReassignmentsResponse:
    """The same error for all partitions."""
    topics = [
        common.Topic(
            name=topic.name,
            partitions=[
                common.PartitionErrorMessage(
                    partition_index=partition.partition_index, error_code=code, error_message=sentence
                )
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return cluster.AlterPartitionReassignmentsResponse(error_code=code, error_message=sentence, responses=topics)


def _clear_directories(answer: cluster.DescribeQuorumResponse) -> cluster.DescribeQuorumResponse:
    """Before version 2 the response has no nodes and directories."""
    answer.nodes = []
    for topic in answer.topics:
        for quorum in topic.partitions:
            for replica in (*quorum.current_voters, *quorum.observers):
                replica.replica_directory_id = ZERO_UUID
    return answer


def _unknown_topic(topic: common.QuorumTopic[common.PartitionIndex]) -> common.QuorumTopic[cluster.DescribedQuorum]:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partitions = [
        blank(cluster.DescribedQuorum, partition_index=one.partition_index, error_code=code, error_message=_NOT_HERE)
        for one in topic.partitions
    ]
    return common.QuorumTopic(topic_name=topic.topic_name, partitions=partitions)
