"""Tests of the leader's and the followers' part of fetching, of replica progress, voter requests and control records."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.messages.cluster import AddRaftVoterRequest, AddRaftVoterResponse, RemoveRaftVoterRequest
from protocol.messages.produce_fetch import FetchRequest, SnapshotId
from protocol.messages.raft import FetchSnapshotRequest, UpdateRaftVoterRequest
from replication.raft.control_state_history import ControlStateHistory
from replication.raft.follower_log_sync import LogDivergence
from replication.raft.leader_fetch import validate_offset_and_epoch
from replication.raft.raft_log import AppendBatches, ElectionState, EpochEnd, SendRequest, Truncate, WriteSnapshotChunk
from replication.raft.replica_progress import ReplicaProgress
from replication.raft.roles import Follower, Leader, Prospective
from replication.raft.rpc_messages import LeaderAndEpoch, fetch_request, snapshot_request, update_voter_response
from replication.raft.voters import ListenerAddress, Voter, VoterSet, from_record, to_record
from tests.simulation.quorum.memory_log import Entry, MemoryLog
from tests.unit.replication.raft.replica import (
    CLUSTER,
    FOUR,
    LISTENER,
    ONE,
    THREE,
    TWO,
    VOTERS,
    Replica,
    leader,
    leader_with_commit,
    node,
    static_voters,
)


def log_with(*epochs: int, snapshot: EpochEnd | None = None) -> MemoryLog:
    """A flushed log with one record of each epoch, possibly with a snapshot below its start."""
    log = MemoryLog(VOTERS, 1)
    log.append([Entry(epoch, value) for value, epoch in enumerate(epochs)])
    log.flush(len(epochs))
    if snapshot is not None:
        log.take_snapshot(snapshot.offset)
    return log


def follower(
    local: Voter = TWO, *, epoch: int = 1, log: MemoryLog | None = None, **given: Any
) -> tuple[Replica, SendRequest]:
    """A replica that follows node 1 from time 0, and its first request."""
    raft = Replica(local, state=ElectionState(epoch, 1), log=log, **given)
    raft.tick(1)
    (outgoing,) = raft.take_requests()
    return raft, outgoing


def test_no_fetch_is_due_while_the_log_is_not_flushed() -> None:
    """A deadline in the past would make the caller loop."""
    log = log_with(1)
    log.append([Entry(1, 7)])
    raft = Replica(TWO, state=ElectionState(2, 1), log=log)
    for now_ms in (1, 1999):
        raft.tick(now_ms)
        assert not raft.effects
        due_ms = raft.next_deadline_ms
        assert due_ms is not None
        assert due_ms > now_ms
    log.flush(2)
    raft.on_flushed(1999)
    assert raft.take_requests()


def respond_fetch(raft: Replica, outgoing: SendRequest, now_ms: int = 2, **fields: Any) -> None:
    """Respond to a Fetch with these fields."""
    response: Any = leader_fetch_response()
    partition = response.responses[0].partitions[0]
    partition.current_leader.leader_epoch = raft.epoch
    for name, value in fields.items():
        setattr(partition, name, value)
    raft.on_response(outgoing.to, outgoing.token, response, now_ms)


def test_the_fetch_timeout_has_a_jitter() -> None:
    """Simultaneous candidates would split the vote."""
    for drawn in (0, 130):
        raft, outgoing = follower(jitter=lambda below, drawn=drawn: min(drawn, below - 1))
        respond_fetch(raft, outgoing, 6)
        raft.tick(2005 + drawn)
        assert isinstance(raft.role, Follower)
        raft.tick(2006 + drawn)
        assert isinstance(raft.role, Prospective)


def leader_fetch_response() -> Any:
    """The response to a fetch at the log end."""
    request = fetch_request(CLUSTER, TWO.key, epoch=1, end=EpochEnd(1, 2), high_watermark=0)
    return leader().handle_request(request, 1000)


# ---- leader --------------------------------------------------------------------------------------------------------


def test_a_fetch_offset_acknowledges_the_records_before_it() -> None:
    """The commit by a majority is in the next response."""
    raft = leader()
    assert raft.fetch(TWO, 1001, EpochEnd(0, 0)).high_watermark == -1
    assert raft.fetch(TWO, 1002).high_watermark == 2
    assert raft.high_watermark == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"fetch_offset": -5}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": -1}, ErrorCode.INVALID_REQUEST),
        ({"last_fetched_epoch": 2}, ErrorCode.INVALID_REQUEST),
        ({"current_leader_epoch": 2}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"current_leader_epoch": 0}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"max_wait_ms": -1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_invalid_fetch_is_rejected_as_in_kafka(given: dict[str, int], code: ErrorCode) -> None:
    """Each error names the leader and its endpoint."""
    request: Any = fetch_request(CLUSTER, TWO.key, epoch=1, end=EpochEnd(0, 0), high_watermark=0)
    for name, value in given.items():
        setattr(request if name == "max_wait_ms" else request.topics[0].partitions[0], name, value)
    response: Any = leader().handle_request(request, 1001)
    partition = response.responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (code, -1)
    assert (partition.current_leader.leader_id, partition.current_leader.leader_epoch) == (1, 1)
    assert [(one.node_id, one.port) for one in response.node_endpoints] == [(1, 9001)]


def test_only_the_leader_serves_fetches() -> None:
    raft = Replica(TWO, state=ElectionState(1, 1))
    assert raft.fetch(THREE, 5).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_at_the_log_end_waits_for_records_or_a_commit() -> None:
    """Errors never wait, nor max_wait_ms 0, nor a follower with an older high watermark."""
    raft = leader()
    assert raft.fetch(TWO, 1001, EpochEnd(0, 0), may_wait=True).records
    request = fetch_request(CLUSTER, THREE.key, epoch=1, end=EpochEnd(1, 2), high_watermark=0x7FFF_FFFF)
    raft = leader()
    assert raft.handle_request(request, 1002, may_wait=True) is None
    known = fetch_request(CLUSTER, TWO.key, epoch=1, end=EpochEnd(1, 2), high_watermark=1)
    assert raft.handle_request(known, 1003, may_wait=True) is not None
    assert raft.handle_request(request, 1004, may_wait=True) is None
    request.max_wait_ms = 0
    assert raft.handle_request(request, 1005, may_wait=True) is not None
    request.max_wait_ms = 500
    raft.resign(1006)
    assert raft.handle_request(request, 1007, may_wait=True) is not None


def test_consumers_are_not_counted_and_the_leader_cannot_fetch_from_itself() -> None:
    """A consumer has replica id -1."""
    raft = leader()
    raft.fetch(ONE._replace(key=ONE.key._replace(node_id=-1)), 1001)
    assert isinstance(raft.role, Leader)
    assert raft.role.progress.replicas == {}
    assert raft.fetch(node(1, 77), 1002).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (EpochEnd(3, 6), None),
        (EpochEnd(3, 5), None),
        (EpochEnd(3, 7), EpochEnd(3, 6)),
        (EpochEnd(2, 5), EpochEnd(2, 4)),
        (EpochEnd(5, 9), EpochEnd(3, 6)),
        (EpochEnd(0, 0), None),
        (EpochEnd(1, 2), None),
        (EpochEnd(1, 3), EpochEnd(1, 2)),
    ],
)
def test_a_diverged_log_gets_the_diverging_epoch(requested: EpochEnd, expected: EpochEnd | None) -> None:
    """The leader's log has the epochs 1 1 2 2 3 3."""
    response = validate_offset_and_epoch(log_with(1, 1, 2, 2, 3, 3), requested)
    found = response.diverging if response is not None else None
    assert (found and EpochEnd(found.epoch, found.end_offset)) == expected


@pytest.mark.parametrize(
    ("requested", "is_snapshot", "diverging"),
    [
        (EpochEnd(0, 0), True, None),
        (EpochEnd(1, 1), True, None),
        (EpochEnd(1, 2), True, None),
        (EpochEnd(2, 3), False, None),
        (EpochEnd(1, 3), True, None),
        (EpochEnd(1, 5), True, None),
        (EpochEnd(2, 5), False, EpochEnd(2, 4)),
        (EpochEnd(3, 5), False, None),
        (EpochEnd(4, 9), False, EpochEnd(3, 6)),
    ],
)
def test_a_fetch_below_the_log_start_gets_the_latest_snapshot_id(
    requested: EpochEnd, is_snapshot: bool, diverging: EpochEnd | None
) -> None:
    """The log starts at offset 3 in epoch 2."""
    response = validate_offset_and_epoch(log_with(1, 1, 2, 2, 3, 3, snapshot=EpochEnd(2, 3)), requested)
    assert (response is not None and response.snapshot == SnapshotId(end_offset=3, epoch=2)) is is_snapshot
    found = response.diverging if response is not None else None
    assert (found and EpochEnd(found.epoch, found.end_offset)) == diverging


def test_an_empty_log_gets_a_snapshot_but_never_the_bootstrap_checkpoint() -> None:
    log = log_with(1, 1, 1)
    log.oldest_snapshot = EpochEnd(1, 2)
    response = validate_offset_and_epoch(log, EpochEnd(0, 0))
    assert response is not None
    assert response.snapshot == SnapshotId(end_offset=2, epoch=1)
    log.oldest_snapshot = EpochEnd(0, 0)
    assert validate_offset_and_epoch(log, EpochEnd(0, 0)) is None


@pytest.mark.parametrize(
    ("epoch", "snapshot", "position", "code"),
    [
        (1, EpochEnd(1, 2), 0, ErrorCode.NONE),
        (1, EpochEnd(1, 2), 1, ErrorCode.NONE),
        (1, EpochEnd(1, 2), 2, ErrorCode.POSITION_OUT_OF_RANGE),
        (1, EpochEnd(1, 2), -1, ErrorCode.POSITION_OUT_OF_RANGE),
        (1, EpochEnd(1, 1), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (1, EpochEnd(0, 0), 0, ErrorCode.SNAPSHOT_NOT_FOUND),
        (0, EpochEnd(1, 2), 0, ErrorCode.FENCED_LEADER_EPOCH),
        (2, EpochEnd(1, 2), 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_snapshot_chunks_are_served(epoch: int, snapshot: EpochEnd, position: int, code: ErrorCode) -> None:
    """Errors are Kafka's."""
    raft = leader_with_commit()
    raft.log.take_snapshot(2)
    request = snapshot_request(CLUSTER, FOUR.key, epoch=epoch, snapshot=snapshot, position=position)
    response: Any = raft.handle_request(request, 1010)
    partition = response.topics[0].partitions[0]
    assert (partition.error_code, partition.position) == (code, position)
    assert len(partition.unaligned_records) == (2 - position if code == ErrorCode.NONE else 0)
    assert partition.current_leader.leader_id == 1


def test_a_snapshot_of_another_topic_is_unknown() -> None:
    """The error is that of the partition."""
    request = snapshot_request(CLUSTER, FOUR.key, epoch=1, snapshot=EpochEnd(1, 2), position=0)
    request.topics[0].name = "other"
    response: Any = leader().handle_request(request, 1010)
    assert response.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request.cluster_id = "other"
    response = leader().handle_request(request, 1010)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID


def test_snapshot_fetches_keep_the_leader_in_office() -> None:
    raft = leader()
    raft.log.take_snapshot(2)
    request = snapshot_request(CLUSTER, TWO.key, epoch=1, snapshot=EpochEnd(1, 2), position=0)
    raft.handle_request(request, 3000)
    raft.tick(4500)
    assert isinstance(raft.role, Leader)
    raft.tick(6000)
    assert not isinstance(raft.role, Leader)


# ---- high watermark ------------------------------------------------------------------------------------------------


def test_records_of_older_epochs_are_committed_only_with_a_record_of_the_own_epoch() -> None:
    """Replica, section 5.4.2."""
    progress = ReplicaProgress(ONE.key, epoch_start_offset=10, mono_ms=0)
    progress.on_fetch(TWO.key, 10, leader_end=11, mono_ms=1)
    assert not progress.update_high_watermark(VOTERS, 11)
    progress.on_fetch(TWO.key, 11, leader_end=11, mono_ms=2)
    assert progress.update_high_watermark(VOTERS, 11)
    assert progress.high_watermark == 11


def test_the_high_watermark_does_not_decrease() -> None:
    """The follower may have lost its log."""
    progress = ReplicaProgress(ONE.key, epoch_start_offset=0, mono_ms=0)
    progress.on_fetch(TWO.key, 5, leader_end=5, mono_ms=1)
    assert progress.update_high_watermark(VOTERS, 5)
    progress.on_fetch(TWO.key, 2, leader_end=5, mono_ms=2)
    assert not progress.update_high_watermark(VOTERS, 5)
    assert progress.high_watermark == 5


def test_a_leader_without_a_vote_does_not_count_itself() -> None:
    """It leads until its removal is committed (KIP-853)."""
    progress = ReplicaProgress(ONE.key, epoch_start_offset=0, mono_ms=0)
    others = VOTERS.without(1)
    progress.on_fetch(TWO.key, 5, leader_end=5, mono_ms=1)
    assert not progress.update_high_watermark(others, 5)
    progress.on_fetch(THREE.key, 5, leader_end=5, mono_ms=1)
    assert progress.update_high_watermark(others, 5)


def test_a_replica_with_another_directory_is_not_the_voter() -> None:
    """In a static quorum, the replica of the node that fetched last counts (KIP-853)."""
    progress = ReplicaProgress(ONE.key, epoch_start_offset=0, mono_ms=0)
    progress.on_fetch(node(2, 77).key, 5, leader_end=5, mono_ms=1)
    assert not progress.update_high_watermark(VOTERS, 5)
    assert node(2, 77).key not in VOTERS
    static = static_voters(VOTERS)
    assert node(2, 77).key in static
    progress.on_fetch(TWO.key, 9, leader_end=9, mono_ms=0)
    assert progress.update_high_watermark(static, 9)
    assert progress.high_watermark == 5


def test_a_replica_is_caught_up_at_the_log_end_of_its_previous_fetch() -> None:
    """An observer without a fetch in five minutes is removed."""
    progress = ReplicaProgress(ONE.key, epoch_start_offset=0, mono_ms=0)
    progress.on_fetch(FOUR.key, 0, leader_end=5, mono_ms=10)
    assert progress.replicas[FOUR.key].caught_up_ms is None
    progress.on_fetch(FOUR.key, 5, leader_end=9, mono_ms=20)
    assert progress.replicas[FOUR.key].caught_up_ms == 10
    progress.on_fetch(FOUR.key, 9, leader_end=9, mono_ms=30)
    assert progress.replicas[FOUR.key].caught_up_ms == 30
    progress.expire_observers(VOTERS, 30 + 299_999)
    assert FOUR.key in progress.replicas
    progress.expire_observers(VOTERS, 30 + 300_000)
    assert FOUR.key not in progress.replicas


# ---- follower ------------------------------------------------------------------------------------------------------


def test_a_follower_fetches_from_its_log_end_and_appends_the_records() -> None:
    """It sends no request during the write or before the flush; the high watermark is limited to the log end."""
    log = log_with(1)
    raft, outgoing = follower(log=log)
    requested: Any = outgoing.request
    partition = requested.topics[0].partitions[0]
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch) == (1, 1, 1)
    assert (outgoing.to, outgoing.address) == (1, ONE.addresses[0])
    records = [Entry(1, 7)]
    respond_fetch(raft, outgoing, records=records, high_watermark=9)
    assert raft.take_effects() == [AppendBatches(records, 1)]
    raft.tick(1000)
    assert raft.take_requests() == []
    log.append(records)
    raft.on_written(1001)
    assert raft.high_watermark == 2
    assert raft.take_requests() == [], "a fetch offset acknowledges flushed records"
    log.flush(2)
    raft.on_flushed(1002)
    assert len(raft.take_requests()) == 1


def test_a_follower_truncates_at_the_divergence_but_never_committed_records() -> None:
    log = log_with(1, 1, 2)
    raft, outgoing = follower(epoch=3, log=log)
    other: Any = leader_fetch_response().responses[0].partitions[0]
    other.diverging_epoch = validate_offset_and_epoch(log_with(1, 1, 1), EpochEnd(2, 3)).diverging  # type: ignore[union-attr]
    respond_fetch(raft, outgoing, diverging_epoch=other.diverging_epoch)
    assert raft.take_effects() == [Truncate(2)]
    committed, outgoing = follower(epoch=3, log=log_with(1, 1, 2))
    respond_fetch(committed, outgoing, records=[], high_watermark=3)
    (outgoing,) = committed.take_requests()
    with pytest.raises(LogDivergence):
        respond_fetch(committed, outgoing, 3, diverging_epoch=other.diverging_epoch)


def respond_snapshot(raft: Replica, outgoing: SendRequest, now_ms: int = 3, **fields: Any) -> None:
    """Respond to a FetchSnapshot with these fields."""
    leading = leader_with_commit()
    leading.log.take_snapshot(2)
    request = snapshot_request(CLUSTER, TWO.key, epoch=1, snapshot=EpochEnd(1, 2), position=0)
    response: Any = leading.handle_request(request, 1010)
    partition = response.topics[0].partitions[0]
    for name, value in fields.items():
        setattr(partition, name, value)
    raft.on_response(outgoing.to, outgoing.token, response, now_ms)


def start_snapshot_download() -> tuple[Replica, SendRequest]:
    """A follower and its request for the first chunk of the snapshot (1, 2)."""
    raft, outgoing = follower()
    respond_fetch(raft, outgoing, snapshot_id=SnapshotId(end_offset=2, epoch=1))
    (outgoing,) = raft.take_requests()
    assert isinstance(outgoing.request, FetchSnapshotRequest)
    return raft, outgoing


def test_snapshot_chunks_are_written_and_the_next_one_is_fetched() -> None:
    raft, outgoing = start_snapshot_download()
    respond_snapshot(raft, outgoing, size=5, unaligned_records=[Entry(1, 0)] * 3)
    assert raft.take_effects() == [WriteSnapshotChunk(EpochEnd(1, 2), 0, [Entry(1, 0)] * 3, False)]
    raft.on_written(4)
    (outgoing,) = raft.take_requests()
    assert outgoing.request.topics[0].partitions[0].position == 3  # type: ignore[attr-defined]
    respond_snapshot(raft, outgoing, 5, size=5, position=3, unaligned_records=[Entry(1, 0)] * 2)
    assert raft.take_effects() == [WriteSnapshotChunk(EpochEnd(1, 2), 3, [Entry(1, 0)] * 2, True)]


@pytest.mark.parametrize(
    "fields", [{"error_code": ErrorCode.SNAPSHOT_NOT_FOUND}, {"position": 1}, {"error_code": 0, "position": -1}]
)
def test_a_snapshot_download_restarts_if_the_snapshot_is_gone_or_another(fields: dict[str, int]) -> None:
    """The next Fetch gets the latest snapshot id."""
    raft, outgoing = start_snapshot_download()
    respond_snapshot(raft, outgoing, **fields)
    raft.tick(100)
    assert [type(one.request) for one in raft.take_requests()] == [FetchRequest]


def test_an_incomplete_snapshot_id_is_ignored() -> None:
    for half in (SnapshotId(end_offset=-1, epoch=1), SnapshotId(end_offset=2, epoch=-1)):
        raft, outgoing = follower()
        respond_fetch(raft, outgoing, snapshot_id=half)
        raft.tick(100)
        assert [type(one.request) for one in raft.take_requests()] == [FetchRequest]


def test_a_follower_queries_other_peers_if_its_leader_does_not_respond() -> None:
    """Then it queries the leader again."""
    raft, outgoing = follower(bootstrap_servers=1)
    raft.on_response(outgoing.to, outgoing.token, None, 10)
    (other,) = raft.take_requests()
    assert other.to in (3, -2)
    assert isinstance(other.request, FetchRequest)
    raft.on_response(other.to, other.token, None, 50)
    assert [one.to for one in raft.take_requests()] == [1]


def test_an_observer_finds_the_leader_through_a_bootstrap_server() -> None:
    """The response contains the leader's endpoint."""
    raft = Replica(FOUR, log=MemoryLog(VoterSet()), bootstrap_servers=1)
    raft.tick(1)
    (outgoing,) = raft.take_requests()
    assert (outgoing.to, outgoing.address) == (-2, None)
    raft.respond(outgoing, Replica(TWO, state=ElectionState(1, 1)), 2)
    assert (type(raft.role), raft.leader_id, raft.epoch) == (Follower, 1, 1)
    (outgoing,) = raft.take_requests()
    assert (outgoing.to, outgoing.address) == (1, ONE.addresses[0])
    raft.respond(outgoing, leader(), 1003)
    assert any(isinstance(effect, AppendBatches) for effect in raft.take_effects())


def test_a_response_with_an_older_epoch_is_dropped_and_a_newer_one_is_followed() -> None:
    raft, outgoing = follower(epoch=5)
    raft.respond(outgoing, Replica(ONE, state=ElectionState(4, 3)), 2)
    assert (raft.epoch, raft.leader_id) == (5, 1)
    raft.tick(100)
    outgoing = raft.take_requests()[0]
    raft.respond(outgoing, Replica(ONE, state=ElectionState(6, 3)), 101)
    assert (raft.epoch, raft.leader_id) == (6, 3)


def test_an_election_waits_for_pending_writes() -> None:
    """The log end must not change during an election."""
    raft, outgoing = follower()
    respond_fetch(raft, outgoing, records=[Entry(1, 0)])
    raft.take_effects()
    assert raft.next_deadline_ms is None
    raft.tick(60_000)
    assert isinstance(raft.role, Follower)


# ---- voter requests ------------------------------------------------------------------------------------------------


def request_after_fetch_timeout(raft: Replica, outgoing: SendRequest) -> SendRequest:
    """The first request after a fetch timeout."""
    respond_fetch(raft, outgoing, 1500)
    (outgoing,) = raft.take_requests()
    respond_fetch(raft, outgoing, 2001)
    (outgoing,) = raft.take_requests()
    return outgoing


def test_a_voter_with_a_new_endpoint_sends_update_raft_voter() -> None:
    """Once per fetch timeout, until the log has the endpoint."""
    moved = TWO._replace(addresses=(ListenerAddress(LISTENER, "elsewhere", 1),))
    raft, outgoing = follower(moved)
    requested = request_after_fetch_timeout(raft, outgoing)
    assert isinstance(requested.request, UpdateRaftVoterRequest)
    raft.on_response(
        requested.to,
        requested.token,
        update_voter_response(ErrorCode.NONE, LeaderAndEpoch(1, 1, ONE.addresses[0])),
        2002,
    )
    (outgoing,) = raft.take_requests()
    assert isinstance(outgoing.request, FetchRequest)
    raft.log.append([Entry(1, -2)])
    raft.log.flush(1)
    raft.log.voters.append(0, VOTERS.with_voter(moved))
    respond_fetch(raft, outgoing, 4100)
    assert [type(one.request) for one in raft.take_requests()] == [FetchRequest]


def test_an_unchanged_voter_sends_no_update() -> None:
    assert isinstance(request_after_fetch_timeout(*follower()).request, FetchRequest)


def test_in_a_static_quorum_each_leader_gets_one_update() -> None:
    """The leader needs the kraft.version ranges; a leader without support is not asked again."""
    for code in (ErrorCode.NONE, ErrorCode.UNSUPPORTED_VERSION):
        raft, outgoing = follower(log=MemoryLog(static_voters(VOTERS)))
        requested = request_after_fetch_timeout(raft, outgoing)
        assert isinstance(requested.request, UpdateRaftVoterRequest)
        raft.on_response(requested.to, requested.token, update_voter_response(code, LeaderAndEpoch(1, 1, None)), 2002)
        (outgoing,) = raft.take_requests()
        respond_fetch(raft, outgoing, 3900)
        (outgoing,) = raft.take_requests()
        respond_fetch(raft, outgoing, 4100)
        assert [type(one.request) for one in raft.take_requests()] == [FetchRequest]


def test_an_update_response_may_name_another_leader() -> None:
    raft, outgoing = follower(log=MemoryLog(static_voters(VOTERS)))
    requested = request_after_fetch_timeout(raft, outgoing)
    response = update_voter_response(ErrorCode.NOT_LEADER_OR_FOLLOWER, LeaderAndEpoch(3, 2, THREE.addresses[0]))
    raft.on_response(requested.to, requested.token, response, 2002)
    assert (raft.leader_id, raft.epoch) == (3, 2)


def test_auto_join_removes_the_old_directory_before_it_adds_the_new_one() -> None:
    """KIP-853, controller.quorum.auto.join.enable; it does not wait for the commit."""
    raft, outgoing = follower(node(3, 77), auto_join=True)
    requested = request_after_fetch_timeout(raft, outgoing)
    assert isinstance(requested.request, RemoveRaftVoterRequest)
    assert requested.request.voter_directory_id == THREE.key.directory_id
    raft, outgoing = follower(FOUR, auto_join=True)
    requested = request_after_fetch_timeout(raft, outgoing)
    assert isinstance(requested.request, AddRaftVoterRequest)
    assert not requested.request.ack_when_committed
    raft.on_response(requested.to, requested.token, AddRaftVoterResponse(error_code=ErrorCode.REQUEST_TIMED_OUT), 2002)
    (outgoing,) = raft.take_requests()
    assert isinstance(outgoing.request, FetchRequest)


@pytest.mark.parametrize("kraft_version", [0, 1])
def test_auto_join_needs_the_config_and_kraft_version_1(kraft_version: int) -> None:
    log = MemoryLog(VOTERS, 1) if kraft_version else MemoryLog(static_voters(VOTERS))
    raft, outgoing = follower(FOUR, log=log, auto_join=not kraft_version)
    assert isinstance(request_after_fetch_timeout(raft, outgoing).request, FetchRequest)


# ---- control records -----------------------------------------------------------------------------------------------


def test_truncation_restores_the_previous_voters() -> None:
    """Voters are effective while their record is in the log."""
    history = ControlStateHistory(VOTERS)
    fewer = VOTERS.without(3)
    history.append(7, fewer)
    assert history.latest == fewer
    assert history.at(7) == VOTERS
    assert history.at(8) == fewer
    history.truncate_to(7)
    assert history.latest == VOTERS


def test_a_snapshot_replaces_the_voters_before_its_end() -> None:
    """Later records stay effective."""
    history = ControlStateHistory(VOTERS)
    fewer = VOTERS.without(3)
    history.append(7, fewer)
    history.reset_to(5, VOTERS)
    assert (history.latest, history.at(5)) == (fewer, VOTERS)
    history.reset_to(9, fewer)
    assert (history.latest, history.latest_offset) == (fewer, 8)


def test_a_voters_record_round_trips() -> None:
    assert from_record(to_record(VOTERS)) == VOTERS
