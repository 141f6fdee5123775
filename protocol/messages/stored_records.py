"""Stored records: of the metadata log, of `__consumer_offsets` and of `__transaction_state`, and control records.

FORMAT   metadata record     null key; value: uvarint frame version (1), uvarint type, uvarint version, message
         coordinator record  key: i16 type, message (version 0); value: i16 version, message, or null (tombstone)
         control record      key: i16 version (0), i16 type; value: message. The value has a field `version`: the
                             version that the message is written in
RULES    1. No bytes may follow a metadata record; an unknown type is an error.
NOT HERE The framing (`replication/metadata/metadata_records.py`, `broker/coordinators/`, `protocol/records.py`).
"""

from __future__ import annotations

from typing import Annotated

from protocol.messages.common import KRaftVersionFeature, ListenerEndpoint, TopicById
from protocol.primitives import ZERO_UUID
from protocol.schema import (
    EMPTY,
    Float64,
    Ignorable,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Nullable,
    Since,
    Tag,
    Until,
    Uuid,
)


class BrokerEndpoint(ListenerEndpoint):
    """A listener of a broker; security_protocol: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    security_protocol: Int16


class BrokerFeature(Message):
    """A feature and the levels that a broker supports."""

    name: str
    min_supported_version: Int16
    max_supported_version: Int16


class RegisterBrokerRecord(Message, api_key=0, versions=(0, 4), flexible=0):
    """A broker registered; its epoch is the offset of this record."""

    broker_id: Int32
    is_migrating_zk_broker: Annotated[bool, Since(2)] = False
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: list[BrokerEndpoint]
    features: list[BrokerFeature]
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: Annotated[bool, Since(1)] = False
    log_dirs: Annotated[list[Uuid], Since(3), Tag(0)] = EMPTY
    cordoned_log_dirs: Annotated[list[Uuid] | None, Since(4), Tag(1)] = None


class UnregisterBrokerRecord(Message, api_key=1, versions=(0, 0), flexible=0):
    """A broker was unregistered."""

    broker_id: Int32
    broker_epoch: Int64


class TopicRecord(Message, api_key=2, versions=(0, 0), flexible=0):
    """A topic was created."""

    name: str
    topic_id: Uuid


class PartitionRecord(Message, api_key=3, versions=(0, 2), flexible=0):
    """A partition's full state: of a new partition, or in a snapshot."""

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: list[Int32]
    isr: list[Int32]
    removing_replicas: list[Int32] = EMPTY
    adding_replicas: list[Int32] = EMPTY
    leader: Int32 = -1
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[list[Uuid], Since(1)] = EMPTY
    eligible_leader_replicas: Annotated[list[Int32] | None, Since(2), Tag(1)] = None
    last_known_elr: Annotated[list[Int32] | None, Since(2), Tag(2)] = None


class PartitionChangeRecord(Message, api_key=5, versions=(0, 2), flexible=0):
    """Changes to a partition; leader -2 and null fields are unchanged."""

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: Annotated[list[Int32] | None, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = -2
    replicas: Annotated[list[Int32] | None, Tag(2)] = None
    removing_replicas: Annotated[list[Int32] | None, Tag(3)] = None
    adding_replicas: Annotated[list[Int32] | None, Tag(4)] = None
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    directories: Annotated[list[Uuid] | None, Since(1), Tag(8)] = None
    eligible_leader_replicas: Annotated[list[Int32] | None, Since(2), Tag(6)] = None
    last_known_elr: Annotated[list[Int32] | None, Since(2), Tag(7)] = None


class RemoveTopicRecord(Message, api_key=9, versions=(0, 0), flexible=0):
    """A topic was deleted, with its partitions and configs."""

    topic_id: Uuid


class ConfigRecord(Message, api_key=4, versions=(0, 0), flexible=0):
    """A config of a topic (2), broker (4), ...; a null value removes it."""

    resource_type: Int8
    resource_name: str
    name: str
    value: str | None


class FeatureLevelRecord(Message, api_key=12, versions=(0, 0), flexible=0):
    """The new finalized level of a feature; 0 removes it."""

    name: str
    feature_level: Int16


class ProducerIdsRecord(Message, api_key=15, versions=(0, 0), flexible=0):
    """A block of producer ids was allocated; the next block starts at next_producer_id."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


class BrokerRegistrationChangeRecord(Message, api_key=17, versions=(0, 3), flexible=0):
    """Changes to a registration; fenced and in_controlled_shutdown: 1 set, -1 unset, 0 unchanged."""

    broker_id: Int32
    broker_epoch: Int64
    fenced: Annotated[Int8, Tag(0)] = 0
    in_controlled_shutdown: Annotated[Int8, Since(1), Tag(1)] = 0
    log_dirs: Annotated[list[Uuid], Since(2), Tag(2)] = EMPTY
    cordoned_log_dirs: Annotated[list[Uuid] | None, Since(3), Tag(3)] = None


class NoOpRecord(Message, api_key=20, versions=(0, 0), flexible=0):
    """No effect except a higher offset."""


class ZkMigrationStateRecord(Message, api_key=21, versions=(0, 0), flexible=0):
    """The ZooKeeper migration state; a new cluster writes 0 once."""

    zk_migration_state: Int8 = 0


class BeginTransactionRecord(Message, api_key=23, versions=(0, 0), flexible=0):
    """Starts a metadata transaction: later records take effect with EndTransactionRecord."""

    name: Annotated[str | None, Tag(0)] = None


class EndTransactionRecord(Message, api_key=24, versions=(0, 0), flexible=0):
    """Commits the records since BeginTransactionRecord."""


class AbortTransactionRecord(Message, api_key=25, versions=(0, 0), flexible=0):
    """Discards the records since BeginTransactionRecord."""

    reason: Annotated[str | None, Tag(0)] = None


class RegisterControllerRecord(Message, api_key=27, versions=(0, 0), flexible=0):
    """A controller registered."""

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: bool = False
    end_points: list[BrokerEndpoint]
    features: list[BrokerFeature]


class ClearElrRecord(Message, api_key=28, versions=(0, 0), flexible=0):
    """Clears the eligible leader replicas of one topic, or of all if the name is empty."""

    topic_name: str


class FenceBrokerRecord(Message, api_key=7, versions=(0, 0), flexible=0):
    """A broker was fenced; replaced by BrokerRegistrationChangeRecord since metadata.version 7."""

    id: Int32
    epoch: Int64


class UnfenceBrokerRecord(Message, api_key=8, versions=(0, 0), flexible=0):
    """A broker was unfenced; replaced by BrokerRegistrationChangeRecord since metadata.version 7."""

    id: Int32
    epoch: Int64


class DelegationTokenRecord(Message, api_key=10, versions=(0, 0), flexible=0):
    """A delegation token was created or renewed."""

    owner: str
    requester: str
    renewers: list[str]
    issue_timestamp: Int64
    max_timestamp: Int64
    expiration_timestamp: Int64
    token_id: str


class RemoveDelegationTokenRecord(Message, api_key=26, versions=(0, 0), flexible=0):
    """A delegation token was removed."""

    token_id: str


class UserScramCredentialRecord(Message, api_key=11, versions=(0, 0), flexible=0):
    """A user's SCRAM credential; mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    name: str
    mechanism: Int8
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int32


class RemoveUserScramCredentialRecord(Message, api_key=22, versions=(0, 0), flexible=0):
    """A user's SCRAM credential was removed."""

    name: str
    mechanism: Int8


class EntityData(Message):
    """Part of a quota's entity: "user", "client-id" or "ip"; a null name is the default entity."""

    entity_type: str
    entity_name: str | None


class ClientQuotaRecord(Message, api_key=14, versions=(0, 0), flexible=0):
    """One quota of an entity was set or removed."""

    entity: list[EntityData]
    key: str
    value: Float64
    remove: bool


class AccessControlEntryRecord(Message, api_key=18, versions=(0, 0), flexible=0):
    """An access control entry was created; numbers as on the wire."""

    id: Uuid
    resource_type: Int8
    resource_name: str
    pattern_type: Int8
    principal: str
    host: str
    operation: Int8
    permission_type: Int8


class RemoveAccessControlEntryRecord(Message, api_key=19, versions=(0, 0), flexible=0):
    """An access control entry was removed."""

    id: Uuid


class UnregisterControllerRecord(Message, api_key=29, versions=(0, 0), flexible=0):
    """A controller was unregistered (since Apache Kafka 4.4)."""

    controller_id: Int32


class LeaderChangeVoter(Message):
    """A voter of the metadata quorum."""

    voter_id: Int32
    voter_directory_id: Annotated[Uuid, Since(1)] = ZERO_UUID


class LeaderChangeMessage(Message, versions=(0, 1), flexible=0):
    """Control record: the first record of a new leader's epoch in the metadata log."""

    version: Int16 = 0
    leader_id: Int32
    voters: list[LeaderChangeVoter]
    granting_voters: list[LeaderChangeVoter]


class SnapshotHeaderRecord(Message, versions=(0, 0), flexible=0):
    """Control record: the first record of a snapshot."""

    version: Int16 = 0
    last_contained_log_timestamp: Int64


class SnapshotFooterRecord(Message, versions=(0, 0), flexible=0):
    """Control record: the last record of a snapshot."""

    version: Int16 = 0


class KRaftVersionRecord(Message, versions=(0, 0), flexible=0):
    """Control record: the kraft.version of the quorum."""

    version: Int16 = 0
    kraft_version: Int16


class VotersVoter(Message):
    """A voter, its log directory id and its listeners."""

    voter_id: Int32
    voter_directory_id: Uuid
    endpoints: list[ListenerEndpoint]
    kraft_version_feature: KRaftVersionFeature


class VotersRecord(Message, versions=(0, 0), flexible=0):
    """Control record: the voters of the metadata quorum."""

    version: Int16 = 0
    voters: list[VotersVoter]


class LegacyOffsetCommitKey(Message, api_key=0, versions=(0, 0)):
    """Key type 0, before Kafka 0.9: like OffsetCommitKey."""

    group: str
    topic: str
    partition: Int32


class LegacyOffsetCommitValue(Message, api_key=0, versions=(0, 0)):
    """Value type 0, before Kafka 0.9."""

    offset: Int64
    metadata: str
    commit_timestamp: Int64


class OffsetCommitKey(LegacyOffsetCommitKey, api_key=1, versions=(0, 0)):
    """Key type 1: group, topic and partition of a committed offset."""


class OffsetCommitValue(Message, api_key=1, versions=(0, 4), flexible=4):
    """A committed offset; only version 1 has expire_timestamp."""

    offset: Int64
    leader_epoch: Annotated[Int32, Since(3), Ignorable] = -1
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Since(1), Until(1), Ignorable] = -1
    topic_id: Annotated[Uuid, Since(4), Tag(0), Ignorable] = ZERO_UUID


class GroupMetadataKey(Message, api_key=2, versions=(0, 0)):
    """Key type 2: a classic group."""

    group: str


class MemberMetadata(Message):
    """A member of a stable group; times are milliseconds."""

    member_id: str
    group_instance_id: Annotated[str | None, Since(3), Ignorable] = None
    client_id: str
    client_host: str
    rebalance_timeout: Annotated[Int32, Since(1), Ignorable] = -1
    session_timeout: Int32
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(Message, api_key=2, versions=(0, 4), flexible=4):
    """A classic group at its last rebalance."""

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp: Annotated[Int64, Since(2), Ignorable] = -1
    members: list[MemberMetadata]


class ConsumerGroupMetadataKey(Message, api_key=3, versions=(0, 0)):
    """Key type 3: a consumer group."""

    group_id: str


class ConsumerGroupMetadataValue(Message, api_key=3, versions=(0, 0), flexible=0):
    """The group epoch, and a hash of the metadata of the subscribed topics."""

    epoch: Int32
    metadata_hash: Annotated[Int64, Tag(0)] = 0


class ConsumerGroupMemberMetadataKey(Message, api_key=5, versions=(0, 0)):
    """Key type 5: a member of a consumer group."""

    group_id: str
    member_id: str


class ClassicProtocol(Message):
    """An assignor that a member with the classic protocol supports, with its subscription."""

    name: str
    metadata: bytes


class ClassicMemberMetadata(Message):
    """The state of a consumer group's member that uses the classic protocol."""

    session_timeout_ms: Int32
    supported_protocols: list[ClassicProtocol]


class ConsumerGroupMemberMetadataValue(Message, api_key=5, versions=(0, 0), flexible=0):
    """A member's subscription and client data."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: list[str]
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tag(0), Nullable(0)] = None


class ConsumerGroupTargetAssignmentMetadataKey(Message, api_key=6, versions=(0, 0)):
    """Key type 6: a group's target assignment."""

    group_id: str


class ConsumerGroupTargetAssignmentMetadataValue(Message, api_key=6, versions=(0, 0), flexible=0):
    """The group epoch and the time of the target assignment."""

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tag(0)] = 0


class ConsumerGroupTargetAssignmentMemberKey(Message, api_key=7, versions=(0, 0)):
    """Key type 7: a member's target assignment."""

    group_id: str
    member_id: str


class ConsumerGroupTargetAssignmentMemberValue(Message, api_key=7, versions=(0, 0), flexible=0):
    """A member's target assignment."""

    topic_partitions: list[TopicById[Int32]]


class ConsumerGroupCurrentMemberAssignmentKey(Message, api_key=8, versions=(0, 0)):
    """Key type 8: a member's current assignment."""

    group_id: str
    member_id: str


class CurrentAssignmentTopicPartitions(Message):
    """Partitions of a topic; assignment_epochs: the epoch of each partition's assignment, in the same order."""

    topic_id: Uuid
    partitions: list[Int32]
    assignment_epochs: Annotated[list[Int32] | None, Tag(0)] = EMPTY


class ConsumerGroupCurrentMemberAssignmentValue(Message, api_key=8, versions=(0, 0), flexible=0):
    """A member's current assignment and partitions to revoke; state: 0 stable, 1 unrevoked, 2 unreleased partitions."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[CurrentAssignmentTopicPartitions]
    partitions_pending_revocation: list[CurrentAssignmentTopicPartitions]


class ConsumerGroupRegularExpressionKey(Message, api_key=16, versions=(0, 0)):
    """Key type 16: a regular expression of a group."""

    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(Message, api_key=16, versions=(0, 0), flexible=0):
    """The topics that matched; version: the metadata offset of the match."""

    topics: list[str]
    version: Int64
    timestamp: Int64


class TransactionLogKey(Message, api_key=0, versions=(0, 0)):
    """Key type 0 of `__transaction_state`: a transactional id."""

    transactional_id: str


class TransactionPartitions(Message):
    """Partitions of a topic that are part of a transaction."""

    topic: str
    partition_ids: list[Int32]


class TransactionLogValue(Message, api_key=0, versions=(0, 1), flexible=1):
    """The state of a transaction; transaction_partitions is null if it has none."""

    producer_id: Int64
    previous_producer_id: Annotated[Int64, Since(1), Tag(0)] = -1
    next_producer_id: Annotated[Int64, Since(1), Tag(1)] = -1
    producer_epoch: Int16
    next_producer_epoch: Annotated[Int16, Since(1), Tag(3)] = -1
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: list[TransactionPartitions] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Annotated[Int16, Since(1), Tag(2)] = 0
