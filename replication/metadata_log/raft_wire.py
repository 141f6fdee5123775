"""Raft's requests and responses as Kafka's messages, which always concern the one partition of the metadata topic.

RULES    1. A request for another cluster or partition is rejected here, as in Apache Kafka.
         2. A response that names the leader also names its endpoint, if known.
         3. A response without the metadata partition becomes a `Rejection`.
NOT HERE The content (`raft/rpc_messages.py`), and what a replica does with it (`raft/raft.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from protocol.api import APIS
from protocol.errors import ErrorCode
from protocol.messages import cluster, common, metadata, produce_fetch, raft
from protocol.messages.common import KRaftVersionFeature, ListenerEndpoint
from protocol.schema import Message, blank
from replication.metadata.topic_names import METADATA_TOPIC
from replication.raft import rpc_messages as rpc
from replication.raft.raft_log import EpochEnd
from replication.raft.voter_changes import KRAFT_VERSION
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter

METADATA_TOPIC_ID: Final = (1).to_bytes(16, "big")
_INDEXES: Final = ("partition_index", "partition", "index")


def single_partition(message: Any) -> Any:
    """The metadata partition in a request or response; None if it contains anything else (rule 1)."""
    topics: Any = message.responses if isinstance(message, produce_fetch.FetchResponse) else message.topics
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        return None
    topic, partition = topics[0], topics[0].partitions[0]
    if isinstance(message, produce_fetch.FetchRequest | produce_fetch.FetchResponse):
        is_metadata = topic.topic in (METADATA_TOPIC, "") and topic.topic_id in (METADATA_TOPIC_ID, bytes(16))
    else:
        is_metadata = (topic.name if hasattr(topic, "name") else topic.topic_name) == METADATA_TOPIC
    index = next(getattr(partition, name) for name in _INDEXES if hasattr(partition, name))
    return partition if is_metadata and index == 0 else None


# ---- requests received -----------------------------------------------------------------------------------------


def reject(message: Any, cluster_id: str, leader: rpc.LeaderAndEpoch) -> Message | None:
    """The response to a request for another cluster or partition; None if Raft must handle it (rule 1)."""
    is_change = isinstance(message, cluster.AddRaftVoterRequest | cluster.RemoveRaftVoterRequest)
    is_update = isinstance(message, raft.UpdateRaftVoterRequest)
    if message.cluster_id not in (None, cluster_id):
        code = ErrorCode.INCONSISTENT_CLUSTER_ID
        if is_update:
            return encode_response(message, rpc.UpdateVoterResponse(code, leader))
        text = f'The given id "{message.cluster_id}" doesn\'t match the cluster id "{cluster_id}"'
        return (
            encode_response(message, rpc.VoterChangeResponse(code, text))
            if is_change
            else error_response(message, code)
        )
    if is_change or is_update or single_partition(message) is not None:
        return None
    if isinstance(message, raft.FetchSnapshotRequest) and message.topics and message.topics[0].partitions:
        topic = message.topics[0]
        response: Any = encode_response(
            message, rpc.FetchSnapshotResponse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, leader, EpochEnd(0, 0), 0)
        )
        response.topics[0].name, partition = topic.name, response.topics[0].partitions[0]
        partition.index, partition.current_leader = topic.partitions[0].partition, None
        return response  # type: ignore[no-any-return]
    return error_response(message, ErrorCode.INVALID_REQUEST)


def error_response(request: Message, code: ErrorCode) -> Message:
    """The response to a request that is rejected as a whole."""
    response = blank(APIS[request.API_KEY].response)
    response.error_code = code  # type: ignore[attr-defined]
    return response


def decode_request(message: Any) -> rpc.Request:
    """A request that `reject` accepted."""
    if isinstance(message, cluster.AddRaftVoterRequest):
        voter = Voter(ReplicaKey(message.voter_id, message.voter_directory_id), _addresses(message.listeners))
        return rpc.AddVoter(voter, message.ack_when_committed, message.timeout_ms)
    if isinstance(message, cluster.RemoveRaftVoterRequest):
        return rpc.RemoveVoter(ReplicaKey(message.voter_id, message.voter_directory_id))
    if isinstance(message, raft.UpdateRaftVoterRequest):
        range_ = message.k_raft_version_feature
        versions = (range_.min_supported_version, range_.max_supported_version)
        key = ReplicaKey(message.voter_id, message.voter_directory_id)
        return rpc.UpdateVoter(message.current_leader_epoch, Voter(key, _addresses(message.listeners), versions))
    partition = single_partition(message)
    if isinstance(message, raft.VoteRequest):
        candidate = ReplicaKey(partition.replica_id, partition.replica_directory_id)
        end = EpochEnd(partition.last_offset_epoch, partition.last_offset)
        return rpc.Vote(candidate, _recipient(message, partition), partition.replica_epoch, end, partition.pre_vote)
    if isinstance(message, raft.BeginQuorumEpochRequest):
        addresses = _addresses(message.leader_endpoints)
        return rpc.BeginEpoch(partition.leader_id, partition.leader_epoch, addresses, _recipient(message, partition))
    if isinstance(message, raft.EndQuorumEpochRequest):
        keys = [ReplicaKey(key.candidate_id, key.candidate_directory_id) for key in partition.preferred_candidates]
        keys = keys or [ReplicaKey(node_id) for node_id in partition.preferred_successors]
        return rpc.EndEpoch(
            partition.leader_id, partition.leader_epoch, _addresses(message.leader_endpoints), tuple(keys)
        )
    if isinstance(message, raft.FetchSnapshotRequest):
        replica = ReplicaKey(message.replica_id, partition.replica_directory_id)
        snapshot = EpochEnd(partition.snapshot_id.epoch, partition.snapshot_id.end_offset)
        return rpc.FetchSnapshot(
            replica, partition.current_leader_epoch, snapshot, partition.position, message.max_bytes
        )
    assert isinstance(message, produce_fetch.FetchRequest), f"{message!r} is not a Raft request"
    return rpc.Fetch(
        ReplicaKey(replica_id_of(message), partition.replica_directory_id),
        partition.current_leader_epoch,
        EpochEnd(partition.last_fetched_epoch, partition.fetch_offset),
        partition.high_watermark,
        message.max_wait_ms,
        message.max_bytes,
    )


def replica_id_of(fetch: produce_fetch.FetchRequest) -> int:
    """The node that sends a Fetch; negative if it is no node."""
    return fetch.replica_id if fetch.replica_state is None else fetch.replica_state.replica_id


def _recipient(message: Any, partition: Any) -> ReplicaKey:
    return ReplicaKey(message.voter_id, partition.voter_directory_id)


def _addresses(endpoints: Iterable[Any]) -> tuple[ListenerAddress, ...]:
    return tuple(ListenerAddress(endpoint.name, endpoint.host, endpoint.port) for endpoint in endpoints)


# ---- responses sent --------------------------------------------------------------------------------------------


def encode_response(request: Message, response: rpc.Response) -> Message:
    """The message of a response to a request."""
    if isinstance(response, rpc.VoterChangeResponse):
        return APIS[request.API_KEY].response(error_code=response.code, error_message=response.message)
    assert not isinstance(response, rpc.ApiVersionsResponse | rpc.Rejection), "only responses of Raft are sent"
    code, leader = response.code, response.leader
    assert leader is not None, "a response of Raft names the leader"
    if isinstance(response, rpc.UpdateVoterResponse):
        current = raft.CurrentLeader(leader_id=leader.leader_id, leader_epoch=leader.epoch)
        if leader.address is not None and leader.leader_id >= 0:
            current.host, current.port = leader.address.host, leader.address.port
        return raft.UpdateRaftVoterResponse(error_code=code, current_leader=current)
    named: dict[str, int] = {"leader_id": leader.leader_id, "leader_epoch": leader.epoch}
    if isinstance(response, rpc.FetchResponse):
        return _encode_fetch_response(response, leader, named)
    if isinstance(response, rpc.FetchSnapshotResponse):
        chunk = raft.FetchSnapshotPartitionResponse(
            error_code=code,
            snapshot_id=raft.WantedSnapshot(end_offset=response.snapshot.offset, epoch=response.snapshot.epoch),
            current_leader=raft.QuorumLeader(**named),
            size=response.size,
            position=response.position,
            unaligned_records=response.chunk,
        )
        topics: list[Any] = [common.Topic(name=METADATA_TOPIC, partitions=[chunk])]
    elif isinstance(response, rpc.VoteResponse):
        vote = raft.VoteResponsePartition(error_code=code, vote_granted=response.is_granted, **named)
        topics = [common.QuorumTopic(topic_name=METADATA_TOPIC, partitions=[vote])]
    else:
        partition = raft.QuorumPartitionResponse(error_code=code, **named)
        topics = [common.QuorumTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return APIS[request.API_KEY].response(topics=topics, node_endpoints=_node_endpoints(raft.NodeEndpoint, leader))


def _encode_fetch_response(response: rpc.FetchResponse, leader: rpc.LeaderAndEpoch, named: dict[str, int]) -> Message:
    partition = produce_fetch.PartitionData(
        partition_index=0,
        error_code=response.code,
        high_watermark=response.high_watermark,
        log_start_offset=response.log_start_offset,
        current_leader=produce_fetch.LeaderIdAndEpoch(**named),
        records=response.records,
    )
    if (end := response.diverging) is not None:
        partition.diverging_epoch = produce_fetch.FetchEpochEndOffset(epoch=end.epoch, end_offset=end.offset)
    if (end := response.snapshot) is not None:
        partition.snapshot_id = produce_fetch.SnapshotId(end_offset=end.offset, epoch=end.epoch)
    topic = produce_fetch.FetchTopic(topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    endpoints = _node_endpoints(produce_fetch.NodeEndpoint, leader)
    return produce_fetch.FetchResponse(responses=[topic], node_endpoints=endpoints)


def _node_endpoints(endpoint: Any, leader: rpc.LeaderAndEpoch) -> list[Any]:
    """The NodeEndpoints of a response (rule 2)."""
    if leader.address is None or leader.leader_id < 0:
        return []
    return [endpoint(node_id=leader.leader_id, host=leader.address.host, port=leader.address.port)]


# ---- requests sent ---------------------------------------------------------------------------------------------


def encode_request(request: rpc.Request, cluster_id: str) -> Message:
    """The message of a request."""
    if isinstance(request, rpc.Fetch):
        return _encode_fetch(request, cluster_id)
    if isinstance(request, rpc.FetchSnapshot):
        return _encode_fetch_snapshot(request, cluster_id)
    if isinstance(request, rpc.Vote):
        return _encode_vote(request, cluster_id)
    if isinstance(request, rpc.BeginEpoch | rpc.EndEpoch):
        return _encode_epoch_request(request, cluster_id)
    if isinstance(request, rpc.ApiVersions):  # it is rejected without a client name
        return metadata.ApiVersionsRequest(client_software_name="barnabas", client_software_version="1")
    if isinstance(request, rpc.RemoveVoter):
        node_id, directory_id = request.key
        return cluster.RemoveRaftVoterRequest(cluster_id=cluster_id, voter_id=node_id, voter_directory_id=directory_id)
    (node_id, directory_id), addresses, (lowest, highest) = request.voter
    if isinstance(request, rpc.AddVoter):
        return cluster.AddRaftVoterRequest(
            cluster_id=cluster_id,
            timeout_ms=request.timeout_ms,
            voter_id=node_id,
            voter_directory_id=directory_id,
            listeners=_endpoints(addresses),
            ack_when_committed=request.ack_when_committed,
        )
    return raft.UpdateRaftVoterRequest(
        cluster_id=cluster_id,
        current_leader_epoch=request.epoch,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=_endpoints(addresses),
        k_raft_version_feature=KRaftVersionFeature(min_supported_version=lowest, max_supported_version=highest),
    )


def _encode_vote(vote: rpc.Vote, cluster_id: str) -> Message:
    partition = raft.VoteRequestPartition(
        replica_epoch=vote.epoch,
        replica_id=vote.candidate.node_id,
        replica_directory_id=vote.candidate.directory_id,
        voter_directory_id=vote.recipient.directory_id,
        last_offset_epoch=vote.end.epoch,
        last_offset=vote.end.offset,
        pre_vote=vote.is_pre_vote,
    )
    topics = [common.QuorumTopic(topic_name=METADATA_TOPIC, partitions=[partition])]
    return raft.VoteRequest(cluster_id=cluster_id, voter_id=vote.recipient.node_id, topics=topics)


def _encode_epoch_request(request: rpc.BeginEpoch | rpc.EndEpoch, cluster_id: str) -> Message:
    endpoints = _endpoints(request.addresses)
    if isinstance(request, rpc.BeginEpoch):
        begin = raft.BeginQuorumEpochPartition(
            voter_directory_id=request.recipient.directory_id,
            leader_id=request.leader_id,
            leader_epoch=request.epoch,
        )
        return raft.BeginQuorumEpochRequest(
            cluster_id=cluster_id,
            voter_id=request.recipient.node_id,
            topics=[common.QuorumTopic(topic_name=METADATA_TOPIC, partitions=[begin])],
            leader_endpoints=endpoints,
        )
    candidates = request.preferred_candidates
    end = raft.EndQuorumEpochPartition(
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=[key.node_id for key in candidates],
        preferred_candidates=[
            raft.PreferredCandidate(candidate_id=key.node_id, candidate_directory_id=key.directory_id)
            for key in candidates
        ],
    )
    topics = [common.QuorumTopic(topic_name=METADATA_TOPIC, partitions=[end])]
    return raft.EndQuorumEpochRequest(cluster_id=cluster_id, topics=topics, leader_endpoints=endpoints)


def _encode_fetch(fetch: rpc.Fetch, cluster_id: str) -> Message:
    partition = produce_fetch.FetchPartition(
        partition=0,
        current_leader_epoch=fetch.epoch,
        fetch_offset=fetch.end.offset,
        last_fetched_epoch=fetch.end.epoch,
        log_start_offset=-1,
        partition_max_bytes=0,
        replica_directory_id=fetch.replica.directory_id,
        high_watermark=fetch.high_watermark,
    )
    return produce_fetch.FetchRequest(
        cluster_id=cluster_id,
        replica_state=produce_fetch.ReplicaState(replica_id=fetch.replica.node_id),
        max_wait_ms=fetch.max_wait_ms,
        min_bytes=0,
        max_bytes=fetch.max_bytes,
        topics=[produce_fetch.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def _encode_fetch_snapshot(fetch: rpc.FetchSnapshot, cluster_id: str) -> Message:
    partition = raft.FetchSnapshotPartition(
        current_leader_epoch=fetch.epoch,
        snapshot_id=raft.WantedSnapshot(end_offset=fetch.snapshot.offset, epoch=fetch.snapshot.epoch),
        position=fetch.position,
        replica_directory_id=fetch.replica.directory_id,
    )
    topics = [common.Topic(name=METADATA_TOPIC, partitions=[partition])]
    return raft.FetchSnapshotRequest(
        cluster_id=cluster_id, replica_id=fetch.replica.node_id, max_bytes=fetch.max_bytes, topics=topics
    )


def _endpoints(addresses: Iterable[ListenerAddress]) -> list[ListenerEndpoint]:
    return [ListenerEndpoint(name=name, host=host, port=port) for name, host, port in addresses]


# ---- responses received ----------------------------------------------------------------------------------------


def decode_response(message: Any, listener: str) -> rpc.Response:
    """A response of a peer; the addresses that it names are those of `listener`."""
    if isinstance(message, metadata.ApiVersionsResponse):
        supported = {feature.name: feature for feature in message.supported_features}
        kraft = supported.get(KRAFT_VERSION)
        return rpc.ApiVersionsResponse(message.error_code, (kraft.min_version, kraft.max_version) if kraft else (0, 0))
    if isinstance(message, cluster.AddRaftVoterResponse | cluster.RemoveRaftVoterResponse):
        return rpc.VoterChangeResponse(message.error_code, message.error_message)
    if isinstance(message, raft.UpdateRaftVoterResponse):
        current = message.current_leader
        if current is None:
            return rpc.UpdateVoterResponse(message.error_code, None)
        address = ListenerAddress(listener, current.host, current.port) if current.host else None
        return rpc.UpdateVoterResponse(
            message.error_code, rpc.LeaderAndEpoch(current.leader_id, current.leader_epoch, address)
        )
    partition = single_partition(message)
    if partition is None:
        return rpc.Rejection(message.error_code)
    if isinstance(message, raft.VoteResponse):
        return rpc.VoteResponse(partition.error_code, _leader(message, partition, listener), partition.vote_granted)
    if not isinstance(message, produce_fetch.FetchResponse | raft.FetchSnapshotResponse):
        return rpc.EpochResponse(partition.error_code, _leader(message, partition, listener))
    leader = None if partition.current_leader is None else _leader(message, partition.current_leader, listener)
    if isinstance(message, raft.FetchSnapshotResponse):
        snapshot = EpochEnd(partition.snapshot_id.epoch, partition.snapshot_id.end_offset)
        return rpc.FetchSnapshotResponse(
            partition.error_code, leader, snapshot, partition.position, partition.size, partition.unaligned_records
        )
    return rpc.FetchResponse(
        partition.error_code,
        leader,
        partition.high_watermark,
        partition.log_start_offset,
        partition.records,
        _epoch_end(partition.diverging_epoch),
        _epoch_end(partition.snapshot_id),
    )


def _epoch_end(end: produce_fetch.FetchEpochEndOffset | produce_fetch.SnapshotId | None) -> EpochEnd | None:
    """The end that a Fetch response names; None if it names none."""
    return None if end is None or min(end.epoch, end.end_offset) < 0 else EpochEnd(end.epoch, end.end_offset)


def _leader(message: Any, named: Any, listener: str) -> rpc.LeaderAndEpoch:
    """The leader named in a response, with its endpoint if there is one (rule 2)."""
    found = (endpoint for endpoint in message.node_endpoints if endpoint.node_id == named.leader_id)
    addresses = (ListenerAddress(listener, endpoint.host, endpoint.port) for endpoint in found)
    return rpc.LeaderAndEpoch(named.leader_id, named.leader_epoch, next(addresses, None))
