"""Raft replicas for tests: no jitter, effects carried out by hand."""

from __future__ import annotations

from typing import Any

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from protocol.messages.raft import BeginQuorumEpochRequest, VoteRequest
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
from replication.raft.rpc_messages import add_voter_request, fetch_request, remove_voter_request, vote_request
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog
from tests.support.messages import message

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


class Replica(Raft):
    """A replica that a test drives from time 0, with the voters in its log unless another log is given."""

    def __init__(
        self,
        local: Voter = ONE,
        voters: VoterSet = VOTERS,
        state: ElectionState | None = None,
        *,
        log: MemoryLog | None = None,
        **given: Any,
    ) -> None:
        self.log = log or MemoryLog(voters, 1)
        fields: dict[str, Any] = {"times": QuorumTimes(), "jitter": lambda _below: 0, "mono_ms": 0, **given}
        super().__init__(local, CLUSTER, self.log, state or ElectionState(), **fields)

    def take_effects(self) -> list[Effect]:
        """Remove the effects; records that the replica appends as leader are added to its log and flushed."""
        effects = list(self.effects)
        self.effects.clear()
        for effect in effects:
            if isinstance(effect, BecomeLeader):
                self.log.append([Entry(effect.epoch, -1)])
            append_voters = effect.append_voters if isinstance(effect, BecomeLeader) else effect
            if isinstance(append_voters, AppendVoters):
                self.log.append([Entry(self.epoch, -2, append_voters)])
        self.log.flush(self.log.end.offset)
        return effects

    def take_requests(self) -> list[SendRequest]:
        return [effect for effect in self.take_effects() if isinstance(effect, SendRequest)]

    def take_responses(self) -> list[Any]:
        return [effect.response for effect in self.take_effects() if isinstance(effect, SendResponse)]

    def respond(self, outgoing: SendRequest, other: Raft, now_ms: int) -> None:
        """Let another replica handle a request."""
        self.on_response(outgoing.to, outgoing.token, other.handle_request(outgoing.request, now_ms), now_ms)

    def fetch(self, voter: Voter, now_ms: int, end: EpochEnd | None = None, **given: Any) -> Any:
        """Let a replica with this log end (default: the leader's) fetch; returns the partition of the response."""
        its_end = self.log.end if end is None else end
        request = fetch_request(CLUSTER, voter.key, epoch=self.epoch, end=its_end, high_watermark=0)
        response: Any = self.handle_request(request, now_ms, **given)
        return None if response is None else response.responses[0].partitions[0]


def leader(voters: VoterSet = VOTERS, *, log: MemoryLog | None = None) -> Replica:
    """Node 1, elected in epoch 1 at time 1000, with no record committed."""
    raft = Replica(ONE, voters, log=log)
    if len(voters) > 1:
        raft.tick(1000)
        for pre_vote in raft.take_requests():
            if not isinstance(raft.role, Leader):
                raft.respond(pre_vote, Replica(node(pre_vote.to), voters), 1000)
        for vote in raft.take_requests():
            if isinstance(vote.request, VoteRequest) and not isinstance(raft.role, Leader):
                raft.respond(vote, Replica(node(vote.to), voters), 1000)
    assert isinstance(raft.role, Leader)
    for outgoing in raft.take_requests():
        assert isinstance(outgoing.request, BeginQuorumEpochRequest)
        raft.respond(outgoing, Replica(node(outgoing.to)), 1000)
    return raft


def leader_with_commit(voters: VoterSet = VOTERS, *, log: MemoryLog | None = None) -> Replica:
    """A leader with a committed record of its epoch, at time 1001."""
    raft = leader(voters, log=log)
    for node_id in raft.voters.node_ids:
        if node_id != 1:
            raft.fetch(node(node_id), 1001)
    raft.on_flushed(1001)
    raft.take_effects()
    assert raft.high_watermark == raft.log.end.offset
    return raft


def vote(
    candidate: Voter, requested: Voter | None, epoch: int, end: EpochEnd, *, is_pre_vote: bool = False
) -> VoteRequest:
    """A Vote request."""
    key = ReplicaKey(-1) if requested is None else requested.key
    return vote_request(CLUSTER, candidate.key, key, epoch=epoch, end=end, is_pre_vote=is_pre_vote)


def add_request(voter: Voter, *, cluster_id: str = CLUSTER, ack_when_committed: bool = True) -> AddRaftVoterRequest:
    request = add_voter_request(cluster_id, voter, timeout_ms=1000)
    request.ack_when_committed = ack_when_committed
    return request


def remove_request(voter: Voter, *, cluster_id: str = CLUSTER) -> RemoveRaftVoterRequest:
    return remove_voter_request(cluster_id, voter.key)


def respond_api_versions(
    raft: Replica, now_ms: int, versions: tuple[int, int] | None = (0, 1), code: int = 0
) -> list[Effect]:
    """Respond to the ApiVersions request to a new voter; returns the effects."""
    (outgoing,) = (one for one in raft.take_requests() if isinstance(one.request, ApiVersionsRequest))
    features = (
        [] if versions is None else [{"name": "kraft.version", "min_version": versions[0], "max_version": versions[1]}]
    )
    response = message(ApiVersionsResponse, error_code=code, api_keys=[], supported_features=features)
    raft.on_response(outgoing.to, outgoing.token, response, now_ms)
    return raft.take_effects()
