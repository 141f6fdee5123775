"""Cluster administration: leader elections, reassignments, features, the metadata quorum, broker removal."""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import (
    ErrorMessageResponse,
    ListenerEndpoint,
    PartitionError,
    PartitionErrorMessage,
    PartitionIndex,
    PartitionIndexes,
    QuorumTopic,
    Response,
    Topic,
    TopicPartitions,
)
from protocol.primitives import ZERO_UUID
from protocol.schema import EMPTY, Ignorable, Int8, Int16, Int32, Int64, Message, Since, Until, Uuid

# ---- elections -------------------------------------------------------------------------------------------


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible=2):
    """Elect preferred leaders (type 0), or any replica for partitions without leader (type 1); null means all partitions."""

    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: list[TopicPartitions[Int32]] | None
    timeout_ms: Int32 = 60000


class ElectionPartitionResult(Message):
    """The result for one partition."""

    partition_id: Int32
    error_code: Int16
    error_message: str | None = None


class ReplicaElectionResult(Message):
    """The results for one topic."""

    topic: str
    partition_result: list[ElectionPartitionResult]


class ElectLeadersResponse(Response, request=ElectLeadersRequest):
    error_code: Annotated[Int16, Since(1)] = 0
    replica_election_results: list[ReplicaElectionResult]


# ---- reassignments ---------------------------------------------------------------------------------------


class ReassignablePartition(Message):
    """The new replicas of a partition; null cancels a reassignment in progress."""

    partition_index: Int32
    replicas: list[Int32] | None = None


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible=0):
    """Start or cancel reassignments."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[bool, Since(1)] = True
    topics: list[Topic[ReassignablePartition]]


class AlterPartitionReassignmentsResponse(Response, request=AlterPartitionReassignmentsRequest):
    allow_replication_factor_change: Annotated[bool, Since(1), Ignorable] = True
    error_code: Int16
    error_message: str | None = None
    responses: list[Topic[PartitionErrorMessage]]


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible=0):
    """List reassignments in progress; null means all partitions."""

    timeout_ms: Int32 = 60000
    topics: list[PartitionIndexes] | None = None


class OngoingPartitionReassignment(Message):
    """A reassignment in progress."""

    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class ListPartitionReassignmentsResponse(ErrorMessageResponse, request=ListPartitionReassignmentsRequest):
    topics: list[Topic[OngoingPartitionReassignment]]


# ---- features --------------------------------------------------------------------------------------------


class FeatureUpdateKey(Message):
    """The new level of a feature; upgrade_type: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    feature: str
    max_version_level: Int16
    allow_downgrade: Annotated[bool, Until(0)] = False
    upgrade_type: Annotated[Int8, Since(1)] = 1


class UpdateFeaturesRequest(Message, api_key=57, versions=(0, 2), flexible=0):
    """Change feature levels of the cluster."""

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: Annotated[bool, Since(1)] = False


class UpdatableFeatureResult(Message):
    """The result for one feature."""

    feature: str
    error_code: Int16
    error_message: str | None = None


class UpdateFeaturesResponse(ErrorMessageResponse, request=UpdateFeaturesRequest):
    """From version 2 on one error applies to all features."""

    results: Annotated[list[UpdatableFeatureResult], Until(1), Ignorable] = EMPTY


# ---- the quorum ------------------------------------------------------------------------------------------


class DescribeQuorumRequest(Message, api_key=55, versions=(0, 2), flexible=0):
    """Describe the leader, voters and observers of the metadata quorum."""

    topics: list[QuorumTopic[PartitionIndex]]


class QuorumReplica(Message):
    """A voter or observer; -1 means unknown."""

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Since(2)] = ZERO_UUID
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, Since(1), Ignorable] = -1
    last_caught_up_timestamp: Annotated[Int64, Since(1), Ignorable] = -1


class DescribedQuorum(PartitionError):
    """A partition with its voters and observers."""

    error_message: Annotated[str | None, Since(2), Ignorable] = None
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: list[QuorumReplica]
    observers: list[QuorumReplica]


class QuorumNode(Message):
    """A voter."""

    node_id: Int32
    listeners: list[ListenerEndpoint]


class DescribeQuorumResponse(Message, request=DescribeQuorumRequest):
    error_code: Int16
    error_message: Annotated[str | None, Since(2), Ignorable] = None
    topics: list[QuorumTopic[DescribedQuorum]]
    nodes: Annotated[list[QuorumNode], Since(2)] = EMPTY


class AddRaftVoterRequest(Message, api_key=80, versions=(0, 1), flexible=0):
    """Add a voter; by default the response waits until the change is committed."""

    cluster_id: str | None
    timeout_ms: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: list[ListenerEndpoint]
    ack_when_committed: Annotated[bool, Since(1)] = True


class AddRaftVoterResponse(ErrorMessageResponse, request=AddRaftVoterRequest):
    pass


class RemoveRaftVoterRequest(Message, api_key=81, versions=(0, 0), flexible=0):
    """Remove a voter."""

    cluster_id: str | None
    voter_id: Int32
    voter_directory_id: Uuid


class RemoveRaftVoterResponse(ErrorMessageResponse, request=RemoveRaftVoterRequest):
    pass


class UnregisterBrokerRequest(Message, api_key=64, versions=(0, 0), flexible=0):
    """Remove the registration of a broker."""

    broker_id: Int32


class UnregisterBrokerResponse(ErrorMessageResponse, request=UnregisterBrokerRequest):
    pass
