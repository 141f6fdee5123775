"""The table of APIs: the request and response class of each API key, and header versions.

RULES    1. An API is two classes in `messages/` and a row here.
         2. The response to ApiVersions always has header version 0, because the client does not know the broker's
            versions yet.
         3. The versions of a row are those of its request class; the response class has the same (a test checks it).
NOT HERE Which APIs and versions this broker serves (`broker/api_table.py`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from protocol.errors import MalformedRequest
from protocol.messages import (
    admin,
    cluster,
    consumer_groups,
    forwarding,
    groups,
    logs,
    metadata,
    produce_fetch,
    quorum,
    quotas_scram,
    raft,
    sasl,
    telemetry,
    transactions,
)
from protocol.schema import Message


class ApiKey(IntEnum):
    """Kafka's API keys; 4 to 7 are retired."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92
    STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE = 93
    UNREGISTER_CONTROLLER = 94


class Api(NamedTuple):
    """The messages of one API."""

    request: type[Message]
    response: type[Message]


APIS: dict[int, Api] = {
    ApiKey.PRODUCE: Api(produce_fetch.ProduceRequest, produce_fetch.ProduceResponse),
    ApiKey.FETCH: Api(produce_fetch.FetchRequest, produce_fetch.FetchResponse),
    ApiKey.LIST_OFFSETS: Api(produce_fetch.ListOffsetsRequest, produce_fetch.ListOffsetsResponse),
    ApiKey.METADATA: Api(metadata.MetadataRequest, metadata.MetadataResponse),
    ApiKey.OFFSET_COMMIT: Api(groups.OffsetCommitRequest, groups.OffsetCommitResponse),
    ApiKey.OFFSET_FETCH: Api(groups.OffsetFetchRequest, groups.OffsetFetchResponse),
    ApiKey.FIND_COORDINATOR: Api(metadata.FindCoordinatorRequest, metadata.FindCoordinatorResponse),
    ApiKey.JOIN_GROUP: Api(groups.JoinGroupRequest, groups.JoinGroupResponse),
    ApiKey.HEARTBEAT: Api(groups.HeartbeatRequest, groups.HeartbeatResponse),
    ApiKey.LEAVE_GROUP: Api(groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    ApiKey.SYNC_GROUP: Api(groups.SyncGroupRequest, groups.SyncGroupResponse),
    ApiKey.DESCRIBE_GROUPS: Api(groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    ApiKey.LIST_GROUPS: Api(groups.ListGroupsRequest, groups.ListGroupsResponse),
    ApiKey.SASL_HANDSHAKE: Api(sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse),
    ApiKey.API_VERSIONS: Api(metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    ApiKey.CREATE_TOPICS: Api(admin.CreateTopicsRequest, admin.CreateTopicsResponse),
    ApiKey.DELETE_TOPICS: Api(admin.DeleteTopicsRequest, admin.DeleteTopicsResponse),
    ApiKey.DELETE_RECORDS: Api(logs.DeleteRecordsRequest, logs.DeleteRecordsResponse),
    ApiKey.INIT_PRODUCER_ID: Api(transactions.InitProducerIdRequest, transactions.InitProducerIdResponse),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Api(
        produce_fetch.OffsetForLeaderEpochRequest, produce_fetch.OffsetForLeaderEpochResponse
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Api(transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
    ApiKey.ADD_OFFSETS_TO_TXN: Api(transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
    ApiKey.END_TXN: Api(transactions.EndTxnRequest, transactions.EndTxnResponse),
    ApiKey.WRITE_TXN_MARKERS: Api(transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
    ApiKey.TXN_OFFSET_COMMIT: Api(transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    ApiKey.DESCRIBE_CONFIGS: Api(admin.DescribeConfigsRequest, admin.DescribeConfigsResponse),
    ApiKey.ALTER_CONFIGS: Api(admin.AlterConfigsRequest, admin.AlterConfigsResponse),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Api(logs.AlterReplicaLogDirsRequest, logs.AlterReplicaLogDirsResponse),
    ApiKey.DESCRIBE_LOG_DIRS: Api(logs.DescribeLogDirsRequest, logs.DescribeLogDirsResponse),
    ApiKey.SASL_AUTHENTICATE: Api(sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse),
    ApiKey.CREATE_PARTITIONS: Api(admin.CreatePartitionsRequest, admin.CreatePartitionsResponse),
    ApiKey.DELETE_GROUPS: Api(groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    ApiKey.OFFSET_DELETE: Api(groups.OffsetDeleteRequest, groups.OffsetDeleteResponse),
    ApiKey.ELECT_LEADERS: Api(cluster.ElectLeadersRequest, cluster.ElectLeadersResponse),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Api(admin.IncrementalAlterConfigsRequest, admin.IncrementalAlterConfigsResponse),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Api(
        cluster.AlterPartitionReassignmentsRequest, cluster.AlterPartitionReassignmentsResponse
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Api(
        cluster.ListPartitionReassignmentsRequest, cluster.ListPartitionReassignmentsResponse
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Api(
        quotas_scram.DescribeClientQuotasRequest, quotas_scram.DescribeClientQuotasResponse
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Api(quotas_scram.AlterClientQuotasRequest, quotas_scram.AlterClientQuotasResponse),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Api(
        quotas_scram.DescribeUserScramCredentialsRequest, quotas_scram.DescribeUserScramCredentialsResponse
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Api(
        quotas_scram.AlterUserScramCredentialsRequest, quotas_scram.AlterUserScramCredentialsResponse
    ),
    ApiKey.VOTE: Api(raft.VoteRequest, raft.VoteResponse),
    ApiKey.BEGIN_QUORUM_EPOCH: Api(raft.BeginQuorumEpochRequest, raft.BeginQuorumEpochResponse),
    ApiKey.END_QUORUM_EPOCH: Api(raft.EndQuorumEpochRequest, raft.EndQuorumEpochResponse),
    ApiKey.DESCRIBE_QUORUM: Api(cluster.DescribeQuorumRequest, cluster.DescribeQuorumResponse),
    ApiKey.ALTER_PARTITION: Api(quorum.AlterPartitionRequest, quorum.AlterPartitionResponse),
    ApiKey.UPDATE_FEATURES: Api(cluster.UpdateFeaturesRequest, cluster.UpdateFeaturesResponse),
    ApiKey.ENVELOPE: Api(forwarding.EnvelopeRequest, forwarding.EnvelopeResponse),
    ApiKey.FETCH_SNAPSHOT: Api(raft.FetchSnapshotRequest, raft.FetchSnapshotResponse),
    ApiKey.DESCRIBE_CLUSTER: Api(metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
    ApiKey.BROKER_REGISTRATION: Api(quorum.BrokerRegistrationRequest, quorum.BrokerRegistrationResponse),
    ApiKey.BROKER_HEARTBEAT: Api(quorum.BrokerHeartbeatRequest, quorum.BrokerHeartbeatResponse),
    ApiKey.DESCRIBE_PRODUCERS: Api(transactions.DescribeProducersRequest, transactions.DescribeProducersResponse),
    ApiKey.UNREGISTER_BROKER: Api(cluster.UnregisterBrokerRequest, cluster.UnregisterBrokerResponse),
    ApiKey.DESCRIBE_TRANSACTIONS: Api(
        transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse
    ),
    ApiKey.LIST_TRANSACTIONS: Api(transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
    ApiKey.ALLOCATE_PRODUCER_IDS: Api(quorum.AllocateProducerIdsRequest, quorum.AllocateProducerIdsResponse),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Api(
        consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Api(
        consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(
        telemetry.GetTelemetrySubscriptionsRequest, telemetry.GetTelemetrySubscriptionsResponse
    ),
    ApiKey.PUSH_TELEMETRY: Api(telemetry.PushTelemetryRequest, telemetry.PushTelemetryResponse),
    ApiKey.CONTROLLER_REGISTRATION: Api(quorum.ControllerRegistrationRequest, quorum.ControllerRegistrationResponse),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Api(quorum.AssignReplicasToDirsRequest, quorum.AssignReplicasToDirsResponse),
    ApiKey.LIST_CONFIG_RESOURCES: Api(admin.ListConfigResourcesRequest, admin.ListConfigResourcesResponse),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Api(
        metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse
    ),
    ApiKey.ADD_RAFT_VOTER: Api(cluster.AddRaftVoterRequest, cluster.AddRaftVoterResponse),
    ApiKey.REMOVE_RAFT_VOTER: Api(cluster.RemoveRaftVoterRequest, cluster.RemoveRaftVoterResponse),
    ApiKey.UPDATE_RAFT_VOTER: Api(raft.UpdateRaftVoterRequest, raft.UpdateRaftVoterResponse),
}


def request_header_version(api_key: int, api_version: int) -> int:
    """2 for a flexible request, else 1, also for unknown higher versions; an unknown API raises MalformedRequest."""
    return 2 if _is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    """1 for a flexible response, else 0; always 0 for ApiVersions."""
    return 1 if api_key != ApiKey.API_VERSIONS and _is_flexible(api_key, api_version) else 0


def _is_flexible(api_key: int, api_version: int) -> bool:
    api = APIS.get(api_key)
    if api is None:
        raise MalformedRequest(f"API key {api_key} is not known")
    since = api.request.FLEXIBLE_SINCE
    return since is not None and api_version >= since
