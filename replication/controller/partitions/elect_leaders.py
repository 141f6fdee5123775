"""ElectLeaders: elections requested by clients.

RULES    1. Type 0 elects the preferred replica. Type 1 elects a leader for leaderless partitions, also one that may have lost
            records. A partition that already has the wanted leader is not changed.
         2. The checks and messages are Apache Kafka 4.3's (ReplicationControlManager).
NOT HERE The election (`partition_changes.py`), elections without a request (`elections.py`, `periodic_tasks.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ErrorCode
from protocol.messages.cluster import (
    ElectionPartitionResult,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReplicaElectionResult,
)
from replication.controller.decision_context import DecisionContext
from replication.controller.partitions.elections import leader_change
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import NO_LEADER, MetadataImage
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

PREFERRED, UNCLEAN = 0, 1


def elect_leaders(context: DecisionContext, request: ElectLeadersRequest) -> Decision[ElectLeadersResponse]:
    """Decide on the elections."""
    election_type = request.election_type
    if election_type not in (PREFERRED, UNCLEAN):
        code = ErrorCode.INVALID_REQUEST
        return Decision([], error_response(request, code, f"Unknown election type {election_type}"))
    records: list[Versioned] = []
    results = []
    for name, indexes in _requested(context.image, request):
        found = [_elect(context, name, index, election_type, records) for index in indexes]
        if request.topic_partitions is None:
            found = [result for result in found if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(ReplicaElectionResult(topic=name, partition_result=found))
    response = ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=results)
    return Decision(records, response, is_atomic=False)


def error_response(request: ElectLeadersRequest, code: ErrorCode, message: str | None) -> ElectLeadersResponse:
    """The response with the same error for all requested partitions."""
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=requested.topic,
                partition_result=[_result(index, code, message) for index in requested.partitions],
            )
            for requested in request.topic_partitions or ()
        ],
    )


def _requested(image: MetadataImage, request: ElectLeadersRequest) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        return ((name, topic.partitions) for name, topic in image.topics_by_name.items())
    return ((requested.topic, requested.partitions) for requested in request.topic_partitions)


def _elect(
    context: DecisionContext, name: str, index: int, election_type: int, records: list[Versioned]
) -> ElectionPartitionResult:
    topic = context.image.topics_by_name.get(name)
    if topic is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    state = topic.partitions.get(index)
    if state is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    is_preferred = election_type == PREFERRED
    is_led = state.leader == state.replicas[0] if is_preferred else state.leader != NO_LEADER
    if is_led:
        message = "Leader election not needed for topic partition."
        return _result(index, ErrorCode.ELECTION_NOT_NEEDED, message)
    change = leader_change(context, topic, index, state, prefers_first=is_preferred, allows_unclean=not is_preferred)
    if change is None and is_preferred:
        message = "The preferred leader was not available."
        return _result(index, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, message)
    if change is None:
        message = "Eligible topic partition leaders are not available."
        return _result(index, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, message)
    records.append((change, partition_version(context.image.metadata_version)))
    return _result(index, ErrorCode.NONE, None)


def _result(index: int, code: ErrorCode, message: str | None) -> ElectionPartitionResult:
    return ElectionPartitionResult(partition_id=index, error_code=code, error_message=message)
