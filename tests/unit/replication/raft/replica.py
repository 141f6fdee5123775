"""Raft replicas for tests: no jitter, effects carried out by hand."""

from __future__ import annotations

from typing import Any

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest, VoterListener
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.raft import BeginQuorumEpochRequest, VoteRequest
from protocol.schema import Message
from replication.raft.quorum_state import QuorumTimes
from replication.raft.raft import Raft
from replication.raft.raft_log import (
    AppendVoters,
    BecomeLeader,
    Effect,
    ElectionState,
    EpochEnd,
    SendRequest,
    SendResponse,
)
from replication.raft.roles import Leader
from replication.raft.rpc_messages import fetch_request, vote_request
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog

CLUSTER = "c"
LISTENER = "CONTROLLER"


def node(node_id: int, directory: int = 0) -> Voter:
    """The voter on a node."""
    key = ReplicaKey(node_id, bytes([directory or node_id] * 16))
    return Voter(key, (ListenerAddress(LISTENER, f"host{node_id}", 9000 + node_id),), (0, 1))


ONE, TWO, THREE, FOUR = (node(node_id) for node_id in (1, 2, 3, 4))
VOTERS = VoterSet((ONE, TWO, THREE))


def static_voters(voters: VoterSet) -> VoterSet:
    """The voters as in controller.quorum.voters."""
    return VoterSet(Voter(ReplicaKey(voter.key.node_id), voter.addresses) for voter in voters)


def replica(
    local: Voter = ONE,
    voters: VoterSet = VOTERS,
    state: ElectionState | None = None,
    *,
    log: MemoryLog | None = None,
    **given: Any,
) -> Raft:
    """A replica at time 0, with the voters in its log unless another log is given."""
    known = state or ElectionState()
    its_log = log or MemoryLog(voters, 1)
    return Raft(
        local, CLUSTER, its_log, known, times=QuorumTimes(), **{"jitter": lambda _below: 0, "mono_ms": 0, **given}
    )


def log_of(raft: Raft) -> MemoryLog:
    log = raft._log
    assert isinstance(log, MemoryLog)
    return log


def take_effects(raft: Raft) -> list[Effect]:
    """Remove the effects; records that the replica appends as leader are added to its log and flushed."""
    effects = list(raft.effects)
    raft.effects.clear()
    log = log_of(raft)
    for effect in effects:
        if isinstance(effect, BecomeLeader):
            log.append([Entry(effect.epoch, -1)])
        append_voters = effect.append_voters if isinstance(effect, BecomeLeader) else effect
        if isinstance(append_voters, AppendVoters):
            log.append([Entry(raft.epoch, -2, append_voters)])
    log.flush(log.end.offset)
    return effects


def take_requests(raft: Raft) -> list[SendRequest]:
    return [effect for effect in take_effects(raft) if isinstance(effect, SendRequest)]


def take_responses(raft: Raft) -> list[Any]:
    return [effect.response for effect in take_effects(raft) if isinstance(effect, SendResponse)]


def respond(raft: Raft, outgoing: SendRequest, other: Raft, now_ms: int) -> None:
    """Let another replica handle a request."""
    raft.on_response(outgoing.to, outgoing.token, other.handle_request(outgoing.request, now_ms), now_ms)


def leader(voters: VoterSet = VOTERS, *, log: MemoryLog | None = None) -> Raft:
    """Node 1, elected in epoch 1 at time 1000, with no record committed."""
    raft = replica(ONE, voters, log=log)
    if len(voters) > 1:
        raft.tick(1000)
        for pre_vote in take_requests(raft):
            if not isinstance(raft.role, Leader):
                respond(raft, pre_vote, replica(node(pre_vote.to), voters), 1000)
        for vote in take_requests(raft):
            if isinstance(vote.request, VoteRequest) and not isinstance(raft.role, Leader):
                respond(raft, vote, replica(node(vote.to), voters), 1000)
    assert isinstance(raft.role, Leader)
    acknowledge_begin_epoch(raft, 1000)
    return raft


def acknowledge_begin_epoch(raft: Raft, now_ms: int) -> None:
    """Respond to the BeginQuorumEpoch requests."""
    for outgoing in take_requests(raft):
        assert isinstance(outgoing.request, BeginQuorumEpochRequest)
        respond(raft, outgoing, replica(node(outgoing.to)), now_ms)


def fetch(raft: Raft, voter: Voter, now_ms: int, end: EpochEnd | None = None, **given: Any) -> Any:
    """Let a replica with this log end (default: the leader's) fetch; returns the partition of the response."""
    its_end = log_of(raft).end if end is None else end
    request = fetch_request(CLUSTER, voter.key, epoch=raft.epoch, end=its_end, high_watermark=0)
    response: Any = raft.handle_request(request, now_ms, **given)
    return None if response is None else response.responses[0].partitions[0]


def leader_with_commit(voters: VoterSet = VOTERS, *, log: MemoryLog | None = None) -> Raft:
    """A leader with a committed record of its epoch, at time 1001."""
    raft = leader(voters, log=log)
    for voter in list(raft.voters):
        if voter.key.node_id != 1:
            fetch(raft, node(voter.key.node_id), 1001)
    raft.on_flushed(1001)
    take_effects(raft)
    assert raft.high_watermark == log_of(raft).end.offset
    return raft


def vote(
    candidate: Voter, requested: Voter | None, epoch: int, end: EpochEnd, *, is_pre_vote: bool = False
) -> VoteRequest:
    """A Vote request."""
    key = ReplicaKey(-1) if requested is None else requested.key
    return vote_request(CLUSTER, candidate.key, key, epoch=epoch, end=end, is_pre_vote=is_pre_vote)


def add_request(
    voter: Voter, *, cluster_id: str | None = CLUSTER, ack_when_committed: bool = True
) -> AddRaftVoterRequest:
    return AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=1000,
        voter_id=voter.key.node_id,
        voter_directory_id=voter.key.directory_id,
        listeners=[VoterListener(name=name, host=host, port=port) for name, host, port in voter.addresses],
        ack_when_committed=ack_when_committed,
    )


def remove_request(voter: Voter, *, cluster_id: str | None = CLUSTER) -> RemoveRaftVoterRequest:
    return RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter.key.node_id, voter_directory_id=voter.key.directory_id
    )


def respond_api_versions(
    raft: Raft, now_ms: int, versions: tuple[int, int] | None = (0, 1), code: int = 0
) -> list[Effect]:
    """Respond to the ApiVersions request to a new voter; returns the effects."""
    (outgoing,) = (one for one in take_requests(raft) if isinstance(one.request, ApiVersionsRequest))
    features = [] if versions is None else [
        SupportedFeatureKey(name="kraft.version", min_version=versions[0], max_version=versions[1])
    ]  # fmt: skip
    response: Message = ApiVersionsResponse(error_code=code, api_keys=[], supported_features=features)
    raft.on_response(outgoing.to, outgoing.token, response, now_ms)
    return take_effects(raft)
