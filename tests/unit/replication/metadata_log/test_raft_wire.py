"""Tests of raft_wire.py and control_state.py: Raft's requests, responses and voters as Kafka's messages."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.metadata import ApiVersionsResponse
from protocol.messages.produce_fetch import SnapshotId
from replication.metadata_log import raft_wire
from replication.metadata_log.control_state import from_record, to_record
from replication.raft import rpc_messages as rpc
from replication.raft.raft_log import EpochEnd
from replication.raft.rpc_messages import LeaderAndEpoch
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.support.messages import message

CLUSTER = "c"
LISTENER = "CONTROLLER"
KEY, OTHER = ReplicaKey(2, b"2" * 16), ReplicaKey(3, b"3" * 16)
ADDRESS = ListenerAddress(LISTENER, "host1", 9001)
VOTER = Voter(KEY, (ADDRESS, ListenerAddress("OTHER", "host2", 2)), (0, 1))
LEADER = LeaderAndEpoch(1, 5, ADDRESS)
UNKNOWN = LeaderAndEpoch(-1, 5)
END = EpochEnd(4, 7)

VOTE = rpc.Vote(KEY, OTHER, 5, END, is_pre_vote=True)
BEGIN = rpc.BeginEpoch(1, 5, VOTER.addresses, OTHER)
END_EPOCH = rpc.EndEpoch(1, 5, VOTER.addresses, (KEY, OTHER))
FETCH = rpc.Fetch(KEY, 5, END, 6, max_wait_ms=7, max_bytes=8)
FETCH_SNAPSHOT = rpc.FetchSnapshot(KEY, 5, END, 9, max_bytes=8)
ADD = rpc.AddVoter(VOTER._replace(kraft_versions=(0, 0)), ack_when_committed=False, timeout_ms=9)
REMOVE = rpc.RemoveVoter(KEY)
UPDATE = rpc.UpdateVoter(5, VOTER)
PARTITIONED = [VOTE, BEGIN, END_EPOCH, FETCH, FETCH_SNAPSHOT]


@pytest.mark.parametrize("request_", [*PARTITIONED, ADD, REMOVE, UPDATE], ids=lambda one: type(one).__name__)
def test_a_request_survives_its_message(request_: Any) -> None:
    encoded = raft_wire.encode_request(request_, CLUSTER)
    assert raft_wire.reject(encoded, CLUSTER, LEADER) is None
    assert raft_wire.decode_request(encoded) == request_


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (VOTE, rpc.VoteResponse(0, LEADER, is_granted=True)),
        (VOTE, rpc.VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, UNKNOWN)),
        (BEGIN, rpc.EpochResponse(0, LEADER)),
        (END_EPOCH, rpc.EpochResponse(ErrorCode.INVALID_REQUEST, UNKNOWN)),
        (FETCH, rpc.FetchResponse(0, LEADER, 6, 3, b"records")),
        (FETCH, rpc.FetchResponse(0, LEADER, 6, 3, diverging=END)),
        (FETCH, rpc.FetchResponse(0, UNKNOWN, 6, 3, snapshot=END)),
        (FETCH_SNAPSHOT, rpc.FetchSnapshotResponse(0, LEADER, END, 9, 20, b"chunk")),
        (ADD, rpc.VoterChangeResponse(ErrorCode.DUPLICATE_VOTER, "twice")),
        (REMOVE, rpc.VoterChangeResponse(0)),
        (UPDATE, rpc.UpdateVoterResponse(0, LEADER)),
        (UPDATE, rpc.UpdateVoterResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, UNKNOWN)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_response_survives_its_message(request_: Any, response: Any) -> None:
    """It names the leader's endpoint, if it is known."""
    encoded = raft_wire.encode_response(raft_wire.encode_request(request_, CLUSTER), response)
    assert raft_wire.decode_response(encoded, LISTENER) == response


def test_the_versions_of_a_new_voter_are_those_of_kraft_version() -> None:
    feature = {"name": "kraft.version", "min_version": 0, "max_version": 1}
    response = message(ApiVersionsResponse, error_code=0, api_keys=[], supported_features=[feature])
    assert raft_wire.decode_response(response, LISTENER) == rpc.ApiVersionsResponse(0, (0, 1))
    response.supported_features = []
    assert raft_wire.decode_response(response, LISTENER) == rpc.ApiVersionsResponse(0, (0, 0))


@pytest.mark.parametrize("request_", PARTITIONED, ids=lambda one: type(one).__name__)
def test_requests_for_another_cluster_or_partition_are_rejected(request_: Any) -> None:
    """A missing cluster id is accepted. The error of a snapshot's partition is in the partition."""
    encoded: Any = raft_wire.encode_request(request_, "other")
    rejection: Any = raft_wire.reject(encoded, CLUSTER, LEADER)
    assert raft_wire.decode_response(rejection, LISTENER) == rpc.Rejection(ErrorCode.INCONSISTENT_CLUSTER_ID)
    encoded.cluster_id = None
    assert raft_wire.reject(encoded, CLUSTER, LEADER) is None
    topic = encoded.topics[0]
    if hasattr(topic, "topic_id"):
        topic.topic_id = b"x" * 16
    else:
        setattr(topic, "name" if hasattr(topic, "name") else "topic_name", "other")
    rejection = raft_wire.reject(encoded, CLUSTER, LEADER)
    if request_ is FETCH_SNAPSHOT:
        (partition,) = rejection.topics[0].partitions
        assert (rejection.topics[0].name, partition.error_code) == ("other", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        assert (partition.current_leader, rejection.node_endpoints[0].port) == (None, 9001)
    else:
        assert rejection.error_code == ErrorCode.INVALID_REQUEST
    encoded.topics = []
    rejection = raft_wire.reject(encoded, CLUSTER, LEADER)
    assert rejection.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("request_", [ADD, REMOVE, UPDATE], ids=lambda one: type(one).__name__)
def test_voter_changes_of_another_cluster_are_rejected(request_: Any) -> None:
    rejection: Any = raft_wire.reject(raft_wire.encode_request(request_, "other"), CLUSTER, LEADER)
    assert rejection.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    if request_ is UPDATE:
        assert rejection.current_leader.leader_id == 1
    else:
        assert rejection.error_message == 'The given id "other" doesn\'t match the cluster id "c"'


def test_an_incomplete_snapshot_id_is_ignored() -> None:
    response: Any = raft_wire.encode_response(
        raft_wire.encode_request(FETCH, CLUSTER), rpc.FetchResponse(0, LEADER, snapshot=END)
    )
    for half in (SnapshotId(end_offset=-1, epoch=1), SnapshotId(end_offset=2, epoch=-1)):
        response.responses[0].partitions[0].snapshot_id = half
        decoded = raft_wire.decode_response(response, LISTENER)
        assert isinstance(decoded, rpc.FetchResponse)
        assert decoded.snapshot is None


def test_preferred_candidates_are_known_by_their_node_ids_in_version_0() -> None:
    encoded: Any = raft_wire.encode_request(END_EPOCH, CLUSTER)
    encoded.topics[0].partitions[0].preferred_candidates = []
    decoded = raft_wire.decode_request(encoded)
    assert isinstance(decoded, rpc.EndEpoch)
    assert decoded.preferred_candidates == (ReplicaKey(2), ReplicaKey(3))


def test_a_voters_record_round_trips() -> None:
    voters = VoterSet((VOTER, Voter(OTHER, (ADDRESS,), (0, 1))))
    assert from_record(to_record(voters)) == voters
