"""What replicas of the metadata log ask each other: votes, epochs, the log, its snapshots (KIP-595, KIP-630).

RULES    1. All of it is for the cluster's own nodes: CLUSTER_ACTION on the cluster, else CLUSTER_AUTHORIZATION_FAILED.
         2. These APIs are on the controller's listener and on no other; a Fetch there is one of the metadata log.
NOT HERE What is answered (`replication/raft`), other requests of nodes (`controller_apis.py`).
"""

from __future__ import annotations

from typing import Any

from broker.handlers.router import Pending, RequestContext, Route
from broker.security.authorizer import CLUSTER_NAME, Authorizer, Operation, Resource
from protocol.api import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchResponse, PartitionData
from protocol.schema import Message, carries
from replication.metadata_log.kraft_replica import Quorum
from replication.raft.rpc_messages import refused


class RaftHandlers:
    """The handlers of this module and what they need."""

    def __init__(self, quorum: Quorum, authorizer: Authorizer) -> None:
        self._quorum = quorum
        self._authorizer = authorizer

    def routes(self) -> list[Route]:
        """The rows of this module; before version 12 a Fetch does not say what it needs to, and is INVALID_REQUEST."""
        return [
            Route(ApiKey.FETCH, 4, 18, self.receive),
            Route(ApiKey.VOTE, 0, 2, self.receive),
            Route(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, self.receive),
            Route(ApiKey.END_QUORUM_EPOCH, 0, 1, self.receive),
            Route(ApiKey.FETCH_SNAPSHOT, 0, 1, self.receive),
            Route(ApiKey.UPDATE_RAFT_VOTER, 0, 0, self.receive),
        ]

    def receive(self, context: RequestContext, request: Message) -> Pending | Message:
        """Answer another replica."""
        if not self._authorizer.authorize(context.principal, Operation.CLUSTER_ACTION, Resource.CLUSTER, CLUSTER_NAME):
            return refused(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        pending = Pending()

        def reply(answer: Any) -> None:
            _leave_out(answer, context.api_version)
            pending.complete(answer)

        self._quorum.receive(request, reply)
        return pending


def _leave_out(answer: Message, version: int) -> None:
    """Make an answer one that its version can carry: who asks in an older one knows where the leader is, or asks again."""
    if hasattr(answer, "node_endpoints") and not carries(type(answer), "node_endpoints", version):
        answer.node_endpoints = []
    if isinstance(answer, FetchResponse) and not carries(PartitionData, "current_leader", version):
        for topic in answer.responses:
            for partition in topic.partitions:
                partition.diverging_epoch = partition.current_leader = partition.snapshot_id = None
