"""Messages about the cluster itself: who leads and holds partitions, features, the quorum, brokers that are given up."""

from __future__ import annotations

from protocol.primitives import ZERO_UUID
from protocol.schema import (
    EMPTY,
    Annotated,
    Ignorable,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Since,
    UInt16,
    Until,
    Uuid,
)

# ---- elections -------------------------------------------------------------------------------------------


class ElectedPartitions(Message):
    """Partitions of a topic that want a leader."""

    topic: str
    partitions: list[Int32]


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible=2):
    """Elect the preferred leaders (type 0) or, where there is none, any (1); null: of all partitions."""

    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: list[ElectedPartitions] | None
    timeout_ms: Int32 = 60000


class ElectionPartitionResult(Message):
    """What became of one election."""

    partition_id: Int32
    error_code: Int16
    error_message: str | None = None


class ReplicaElectionResult(Message):
    """What became of a topic's elections."""

    topic: str
    partition_result: list[ElectionPartitionResult]


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible=2):
    """The answer to ElectLeadersRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(1)] = 0
    replica_election_results: list[ReplicaElectionResult]


# ---- reassignments ---------------------------------------------------------------------------------------


class ReassignablePartition(Message):
    """The replicas that a partition shall have; null ends what is under way."""

    partition_index: Int32
    replicas: list[Int32] | None = None


class ReassignableTopic(Message):
    """A topic's partitions."""

    name: str
    partitions: list[ReassignablePartition]


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible=0):
    """Give partitions other replicas."""

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[bool, Since(1)] = True
    topics: list[ReassignableTopic]


class ReassignablePartitionResponse(Message):
    """What became of one partition's wish."""

    partition_index: Int32
    error_code: Int16
    error_message: str | None = None


class ReassignableTopicResponse(Message):
    """What became of a topic's."""

    name: str
    partitions: list[ReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=(0, 1), flexible=0):
    """The answer to AlterPartitionReassignmentsRequest."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[bool, Since(1), Ignorable] = True
    error_code: Int16
    error_message: str | None = None
    responses: list[ReassignableTopicResponse]


class ListPartitionReassignmentsTopics(Message):
    """Partitions of a topic that are asked about."""

    name: str
    partition_indexes: list[Int32]


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible=0):
    """Which partitions are getting other replicas? null: of all."""

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message):
    """A partition that is."""

    partition_index: Int32
    replicas: list[Int32]
    adding_replicas: list[Int32]
    removing_replicas: list[Int32]


class OngoingTopicReassignment(Message):
    """A topic that has such partitions."""

    name: str
    partitions: list[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=(0, 0), flexible=0):
    """The answer to ListPartitionReassignmentsRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    topics: list[OngoingTopicReassignment]


# ---- features --------------------------------------------------------------------------------------------


class FeatureUpdateKey(Message):
    """The level that a feature shall have; upgrade_type: 1 up, 2 down without loss, 3 down."""

    feature: str
    max_version_level: Int16
    allow_downgrade: Annotated[bool, Until(0)] = False
    upgrade_type: Annotated[Int8, Since(1)] = 1


class UpdateFeaturesRequest(Message, api_key=57, versions=(0, 2), flexible=0):
    """Change the levels of the cluster's features."""

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey]
    validate_only: Annotated[bool, Since(1)] = False


class UpdatableFeatureResult(Message):
    """What became of one feature."""

    feature: str
    error_code: Int16
    error_message: str | None = None


class UpdateFeaturesResponse(Message, api_key=57, versions=(0, 2), flexible=0):
    """The answer to UpdateFeaturesRequest; from version 2 on one error is everybody's."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
    results: Annotated[list[UpdatableFeatureResult], Until(1), Ignorable] = EMPTY


# ---- the quorum ------------------------------------------------------------------------------------------


class QuorumPartition(Message):
    """A partition that is asked about."""

    partition_index: Int32


class QuorumTopic(Message):
    """A topic that is asked about: __cluster_metadata is the only one."""

    topic_name: str
    partitions: list[QuorumPartition]


class DescribeQuorumRequest(Message, api_key=55, versions=(0, 2), flexible=0):
    """Who keeps the metadata log, and how far."""

    topics: list[QuorumTopic]


class QuorumReplica(Message):
    """A node that keeps it; -1 is what is not known."""

    replica_id: Int32
    replica_directory_id: Annotated[Uuid, Since(2)] = ZERO_UUID
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, Since(1), Ignorable] = -1
    last_caught_up_timestamp: Annotated[Int64, Since(1), Ignorable] = -1


class DescribedQuorum(Message):
    """A partition and its voters and observers."""

    partition_index: Int32
    error_code: Int16
    error_message: Annotated[str | None, Since(2), Ignorable] = None
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: list[QuorumReplica]
    observers: list[QuorumReplica]


class DescribedQuorumTopic(Message):
    """The topic."""

    topic_name: str
    partitions: list[DescribedQuorum]


class QuorumListener(Message):
    """Where a controller listens."""

    name: Annotated[str, Since(2)] = ""
    host: Annotated[str, Since(2)] = ""
    port: Annotated[UInt16, Since(2)] = 0


class QuorumNode(Message):
    """A controller that votes."""

    node_id: Annotated[Int32, Since(2)] = 0
    listeners: Annotated[list[QuorumListener], Since(2)] = EMPTY


class DescribeQuorumResponse(Message, api_key=55, versions=(0, 2), flexible=0):
    """The answer to DescribeQuorumRequest."""

    error_code: Int16
    error_message: Annotated[str | None, Since(2), Ignorable] = None
    topics: list[DescribedQuorumTopic]
    nodes: Annotated[list[QuorumNode], Since(2)] = EMPTY


class VoterListener(Message):
    """Where a new voter listens."""

    name: str
    host: str
    port: UInt16


class AddRaftVoterRequest(Message, api_key=80, versions=(0, 1), flexible=0):
    """Another voter; by default the answer waits until it is one."""

    cluster_id: str | None
    timeout_ms: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: list[VoterListener]
    ack_when_committed: Annotated[bool, Since(1)] = True


class AddRaftVoterResponse(Message, api_key=80, versions=(0, 1), flexible=0):
    """The answer to AddRaftVoterRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: Annotated[str | None, Ignorable] = None


class RemoveRaftVoterRequest(Message, api_key=81, versions=(0, 0), flexible=0):
    """A voter that shall be none any more."""

    cluster_id: str | None
    voter_id: Int32
    voter_directory_id: Uuid


class RemoveRaftVoterResponse(Message, api_key=81, versions=(0, 0), flexible=0):
    """The answer to RemoveRaftVoterRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: Annotated[str | None, Ignorable] = None


class UnregisterBrokerRequest(Message, api_key=64, versions=(0, 0), flexible=0):
    """Give up a broker that will not come back."""

    broker_id: Int32


class UnregisterBrokerResponse(Message, api_key=64, versions=(0, 0), flexible=0):
    """The answer to UnregisterBrokerRequest."""

    throttle_time_ms: Int32 = 0
    error_code: Int16
    error_message: str | None = None
