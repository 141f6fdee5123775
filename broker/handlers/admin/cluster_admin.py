"""Requests about the cluster itself: elections, reassignments, features, brokers that are given up, the quorum.

RULES    1. What is changed wants ALTER on the cluster, what is shown DESCRIBE; who may not is told so in the answer's
            own place for it, and of nothing that is there.
         2. The answer comes when the controller's records are committed. Who asks for elections or reassignments and says how
            long it waits is told REQUEST_TIMED_OUT then, and what it asked for may be done all the same.
NOT HERE What the controller decides (`replication/controller`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from broker.handlers.controller_api import Controller
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
from replication.controller.partitions.elect_leaders import refusal
from replication.controller.partitions.reassignments import list_reassignments
from replication.timer_queue import Deadline, Deadlines

METADATA_TOPIC = "__cluster_metadata"

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_NO_RIGHT = "Cluster authorization failed."
_LATE = ErrorCode.REQUEST_TIMED_OUT
_LATE_TEXT = "The request timed out."
_WITH_DIRECTORIES = 2
_NOT_HERE = "This server does not host this topic-partition."

M = TypeVar("M", bound=Message)


class ClusterHandlers:
    """The handlers of this module and what they need."""

    def __init__(self, controller: Controller, authorizer: Authorizer, deadlines: Deadlines) -> None:
        self._controller = controller
        self._authorizer = authorizer
        self._deadlines = deadlines

    def routes(self) -> list[Route]:
        """The rows of this module."""
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
        """Elect leaders."""
        if not self._may(context, Operation.ALTER):
            return _as_in(context.api_version, refusal(request, _REFUSED, _NO_RIGHT))
        return self._submit_for(context, request, request.timeout_ms, lambda: refusal(request, _LATE, _LATE_TEXT))

    def alter_reassignments(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> Pending | AlterPartitionReassignmentsResponse:
        """Give partitions other replicas."""
        if not self._may(context, Operation.ALTER):
            return _not_reassigned(request, _REFUSED, _NO_RIGHT)
        late = partial(_not_reassigned, request, _LATE, _LATE_TEXT)
        return self._submit_for(context, request, request.timeout_ms, late)

    def list_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """Partitions that are getting other replicas."""
        if not self._may(context, Operation.DESCRIBE):
            return ListPartitionReassignmentsResponse(error_code=_REFUSED, error_message=_NO_RIGHT, topics=[])
        return list_reassignments(self._controller.image, request)

    # ------------------------------------------------------------ features
    def update_features(
        self, context: RequestContext, request: UpdateFeaturesRequest
    ) -> Pending | UpdateFeaturesResponse:
        """Give features other levels; version 0 says only whether one may go down."""
        if not self._may(context, Operation.ALTER):
            return UpdateFeaturesResponse(error_code=_REFUSED, error_message=_NO_RIGHT)
        if context.api_version == 0:
            for update in request.feature_updates:
                update.upgrade_type = UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
        return self._submit(context, request)

    # ------------------------------------------------------------ nodes
    def unregister_broker(
        self, context: RequestContext, request: UnregisterBrokerRequest
    ) -> Pending | UnregisterBrokerResponse:
        """Give up a broker."""
        if not self._may(context, Operation.ALTER):
            return UnregisterBrokerResponse(error_code=_REFUSED, error_message=_NO_RIGHT)
        return self._submit(context, request)

    def add_voter(self, context: RequestContext, request: AddRaftVoterRequest) -> Pending | AddRaftVoterResponse:
        """Another voter of the metadata log."""
        if not self._may(context, Operation.ALTER):
            return AddRaftVoterResponse(error_code=_REFUSED, error_message=_NO_RIGHT)
        return self._submit(context, request)

    def remove_voter(
        self, context: RequestContext, request: RemoveRaftVoterRequest
    ) -> Pending | RemoveRaftVoterResponse:
        """A voter less."""
        if not self._may(context, Operation.ALTER):
            return RemoveRaftVoterResponse(error_code=_REFUSED, error_message=_NO_RIGHT)
        return self._submit(context, request)

    def describe_quorum(
        self, context: RequestContext, request: DescribeQuorumRequest
    ) -> Pending | DescribeQuorumResponse:
        """The quorum, as its leader sees it."""
        if not self._may(context, Operation.DESCRIBE):
            return DescribeQuorumResponse(error_code=_REFUSED, error_message=_NO_RIGHT, topics=[])
        asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in request.topics]
        if asked != [(METADATA_TOPIC, [0])]:
            topics = [_unknown(topic) for topic in request.topics]
            return DescribeQuorumResponse(error_code=ErrorCode.NONE, error_message="", topics=topics)
        pending = Pending()

        def reply(answer: DescribeQuorumResponse) -> None:
            if context.api_version < _WITH_DIRECTORIES:
                _forget_directories(answer)
            pending.complete(answer)

        self._controller.submit(request, wall_ms=context.wall_ms, reply=reply)
        return pending

    def _submit(self, context: RequestContext, request: Message) -> Pending:
        pending = Pending()
        self._controller.submit(request, wall_ms=context.wall_ms, reply=pending.complete)
        return pending

    def _submit_for(
        self, context: RequestContext, request: Message, timeout_ms: int, timed_out: Callable[[], Message]
    ) -> Pending:
        """Submit, and answer with `timed_out` when nothing was decided for so long."""
        pending = Pending()
        waiting: list[Deadline] = []

        def reply(answer: Message) -> None:
            for deadline in waiting:
                deadline.cancel()
            pending.complete(_as_in(context.api_version, answer))

        self._controller.submit(request, wall_ms=context.wall_ms, reply=reply)
        if timeout_ms > 0 and not pending.is_done:
            waiting.append(self._deadlines.schedule(context.mono_ms + timeout_ms, lambda: reply(timed_out())))
            pending.on_cancel = waiting[0].cancel
        return pending

    def _may(self, context: RequestContext, operation: str) -> bool:
        return self._authorizer.authorize(context.principal, operation, Resource.CLUSTER, CLUSTER_NAME)


def _as_in(version: int, answer: M) -> M:
    """An answer as its version has it: the first one of ElectLeaders has errors of partitions only."""
    if not carries(type(answer), "error_code", version):
        answer.error_code = ErrorCode.NONE  # type: ignore[attr-defined]  # it has one in other versions
    return answer


def _not_reassigned(
    request: AlterPartitionReassignmentsRequest, code: ErrorCode, sentence: str
) -> AlterPartitionReassignmentsResponse:
    """The same answer for all that was asked for."""
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


def _forget_directories(answer: DescribeQuorumResponse) -> None:
    """As before version 2."""
    answer.nodes = []
    for topic in answer.topics:
        for quorum in topic.partitions:
            for replica in (*quorum.current_voters, *quorum.observers):
                replica.replica_directory_id = ZERO_UUID


def _unknown(topic: QuorumTopic) -> DescribedQuorumTopic:
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
