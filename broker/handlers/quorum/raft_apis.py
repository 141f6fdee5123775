"""Raft APIs of the metadata log: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot (KIP-595, KIP-630).

RULES    1. All require CLUSTER_ACTION on the cluster, else CLUSTER_AUTHORIZATION_FAILED.
         2. They are on the controller listener only; a Fetch there reads the metadata log, and is counted as a follower's.
NOT HERE The responses (`replication/metadata_log/kraft_replica.py`), other requests between nodes (`controller_apis.py`).
"""

from __future__ import annotations

from functools import partial

from broker.handlers.authorization import AuthorizingHandlers
from broker.handlers.router import RequestContext, Route
from broker.security.authorizer import Authorizer, Operation
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchRequest, FetchResponse, PartitionData
from protocol.schema import Message, carries
from replication.completion import Completion
from replication.metadata_log.kraft_replica import KRaftReplica
from replication.metadata_log.raft_wire import error_response, replica_id_of


class RaftHandlers(AuthorizingHandlers):
    """The handlers of the Raft APIs."""

    def __init__(self, quorum: KRaftReplica, authorizer: Authorizer) -> None:
        self._quorum = quorum
        super().__init__(authorizer)

    def routes(self) -> list[Route]:
        """The routes of this module; a Fetch before version 12 lacks required fields and gets INVALID_REQUEST."""
        return [
            Route(ApiKey.FETCH, 4, 18, self.receive),
            Route(ApiKey.VOTE, 0, 2, self.receive),
            Route(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, self.receive),
            Route(ApiKey.END_QUORUM_EPOCH, 0, 1, self.receive),
            Route(ApiKey.FETCH_SNAPSHOT, 0, 1, self.receive),
            Route(ApiKey.UPDATE_RAFT_VOTER, 0, 0, self.receive),
        ]

    def receive(self, context: RequestContext, request: Message) -> Message | Completion[Message]:
        """Pass a request to the Raft replica."""
        if isinstance(request, FetchRequest) and replica_id_of(request) >= 0:
            context.connection.metrics = context.metrics.of_follower()
        if not self._is_authorized(context, Operation.CLUSTER_ACTION):
            return error_response(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return self._quorum.handle_request(request).map(partial(_without_unsupported, context.api_version))


def _without_unsupported(version: int, response: Message) -> Message:
    """Clear the fields that the version of the response does not have."""
    if hasattr(response, "node_endpoints") and not carries(type(response), "node_endpoints", version):
        response.node_endpoints = []
    if isinstance(response, FetchResponse) and not carries(PartitionData, "current_leader", version):
        for topic in response.responses:
            for partition in topic.partitions:
                partition.diverging_epoch = partition.current_leader = partition.snapshot_id = None
    return response
