"""ElectLeaders: elections that a client asks for.

RULES    1. Type 0 wants the first replica to lead; type 1 wants any leader where there is none, also one that has lost
            records. Who leads as wanted already is not elected again.
         2. Checks and sentences are Apache Kafka 4.3's (ReplicationControlManager).
NOT HERE Who can lead (`partition_changes.py`), elections that happen by themselves (`elections.py`).
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
from replication.controller.decision_context import Environment
from replication.controller.partitions.elections import election
from replication.metadata.feature_levels import partition_version
from replication.metadata.image import NO_LEADER, MetadataImage, PartitionState
from replication.metadata.metadata_records import Versioned
from replication.state_machine import Decision

PREFERRED, UNCLEAN = 0, 1


def elect_leaders(
    image: MetadataImage, environment: Environment, request: ElectLeadersRequest
) -> Decision[ElectLeadersResponse]:
    """Decide on each election."""
    kind = request.election_type
    if kind not in (PREFERRED, UNCLEAN):
        code = ErrorCode.INVALID_REQUEST
        return Decision([], refusal(request, code, f"Unknown election type {kind}"))
    records: list[Versioned] = []
    results = []
    for name, indexes in _asked(image, request):
        found = [_elect(image, environment, name, index, kind, records) for index in indexes]
        if request.topic_partitions is None:
            found = [result for result in found if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        results.append(ReplicaElectionResult(topic=name, partition_result=found))
    response = ElectLeadersResponse(error_code=ErrorCode.NONE, replica_election_results=results)
    return Decision(records, response, is_atomic=False)


def refusal(request: ElectLeadersRequest, code: ErrorCode, sentence: str | None) -> ElectLeadersResponse:
    """The same answer for all that was asked for."""
    return ElectLeadersResponse(
        error_code=code,
        replica_election_results=[
            ReplicaElectionResult(
                topic=asked.topic, partition_result=[_result(index, code, sentence) for index in asked.partitions]
            )
            for asked in request.topic_partitions or ()
        ],
    )


def _asked(image: MetadataImage, request: ElectLeadersRequest) -> Iterable[tuple[str, Iterable[int]]]:
    if request.topic_partitions is None:
        return ((name, topic.partitions) for name, topic in image.topics_by_name.items())
    return ((asked.topic, asked.partitions) for asked in request.topic_partitions)


def _elect(
    image: MetadataImage, environment: Environment, name: str, index: int, kind: int, records: list[Versioned]
) -> ElectionPartitionResult:
    topic = image.topics_by_name.get(name)
    if topic is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}")
    state = topic.partitions.get(index)
    if state is None:
        return _result(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}")
    if _is_led_as_wanted(state, kind):
        sentence = "Leader election not needed for topic partition."
        return _result(index, ErrorCode.ELECTION_NOT_NEEDED, sentence)
    change = election(
        image, environment, topic, index, state, prefers_first=kind == PREFERRED, allows_unclean=kind == UNCLEAN
    )
    if change is None:
        code = (
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE if kind == PREFERRED else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
        )
        return _result(index, code, _SENTENCES[code])
    records.append((change, partition_version(image.metadata_version)))
    return _result(index, ErrorCode.NONE, None)


_SENTENCES = {
    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE: "The preferred leader was not available.",
    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE: "Eligible topic partition leaders are not available.",
}


def _is_led_as_wanted(state: PartitionState, kind: int) -> bool:
    return state.leader == state.replicas[0] if kind == PREFERRED else state.leader != NO_LEADER


def _result(index: int, code: ErrorCode, sentence: str | None) -> ElectionPartitionResult:
    return ElectionPartitionResult(partition_id=index, error_code=code, error_message=sentence)
