"""Replicas of the metadata log for tests, without jitter, whose effects are carried out by hand."""

from __future__ import annotations

from typing import Any

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest, VoterListener
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.raft import BeginQuorumEpochRequest, VoteRequest
from protocol.schema import Message
from replication.raft.raft import Raft
from replication.raft.raft_log import Answer, Effect, ElectionState, EpochEnd, Lead, NameVoters, Send
from replication.raft.replica_state import QuorumTimes
from replication.raft.roles import Leader
from replication.raft.rpc_messages import fetch_request, vote_request
from replication.raft.voters import Address, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog

CLUSTER = "c"
LISTENER = "CONTROLLER"


def node(node_id: int, directory: int = 0) -> Voter:
    """A controller and where it listens."""
    key = ReplicaKey(node_id, bytes([directory or node_id] * 16))
    return Voter(key, (Address(LISTENER, f"host{node_id}", 9000 + node_id),), (0, 1))


ONE, TWO, THREE, FOUR = (node(node_id) for node_id in (1, 2, 3, 4))
VOTERS = VoterSet((ONE, TWO, THREE))


def settings_of(voters: VoterSet) -> VoterSet:
    """The voters as controller.quorum.voters names them."""
    return VoterSet(Voter(ReplicaKey(voter.key.node_id), voter.addresses) for voter in voters)


def replica(
    own: Voter = ONE,
    voters: VoterSet = VOTERS,
    state: ElectionState | None = None,
    *,
    log: MemoryLog | None = None,
    **given: Any,
) -> Raft:
    """A replica that begins at time 0, in a quorum whose voters stand in the log, unless it has another log."""
    known = state or ElectionState()
    its_log = log or MemoryLog(voters, 1)
    return Raft(
        own, CLUSTER, its_log, known, times=QuorumTimes(), **{"jitter": lambda _below: 0, "mono_ms": 0, **given}
    )


def log_of(raft: Raft) -> MemoryLog:
    """Its log."""
    log = raft._log
    assert isinstance(log, MemoryLog)
    return log


def taken(raft: Raft) -> list[Effect]:
    """What it wants to be done since it was looked at last; what it appends as leader is in the log then, and durable."""
    effects = list(raft.effects)
    raft.effects.clear()
    log = log_of(raft)
    for effect in effects:
        if isinstance(effect, Lead):
            log.append([Entry(effect.epoch, -1)])
        naming = effect.naming if isinstance(effect, Lead) else effect
        if isinstance(naming, NameVoters):
            log.append([Entry(raft.epoch, -2, naming)])
    log.flush(log.end.offset)
    return effects


def sent(raft: Raft) -> list[Send]:
    """What it asked."""
    return [effect for effect in taken(raft) if isinstance(effect, Send)]


def answers(raft: Raft) -> list[Any]:
    """What it answered late."""
    return [effect.response for effect in taken(raft) if isinstance(effect, Answer)]


def answer(raft: Raft, ask: Send, other: Raft, now_ms: int) -> None:
    """Another replica answers."""
    raft.answered(ask.to, ask.token, other.receive(ask.request, now_ms), now_ms)


def leader(voters: VoterSet = VOTERS, *, log: MemoryLog | None = None) -> Raft:
    """Node 1 leads epoch 1, elected at time 1000; nothing of it is committed."""
    raft = replica(ONE, voters, log=log)
    if len(voters) > 1:
        raft.tick(1000)
        for pre_vote in sent(raft):
            if not isinstance(raft.role, Leader):
                answer(raft, pre_vote, replica(node(pre_vote.to), voters), 1000)
        for vote in sent(raft):
            if isinstance(vote.request, VoteRequest) and not isinstance(raft.role, Leader):
                answer(raft, vote, replica(node(vote.to), voters), 1000)
    assert isinstance(raft.role, Leader)
    quiet(raft, 1000)
    return raft


def quiet(raft: Raft, now_ms: int) -> None:
    """Answer the requests that tell of the epoch."""
    for ask in sent(raft):
        assert isinstance(ask.request, BeginQuorumEpochRequest)
        answer(raft, ask, replica(node(ask.to)), now_ms)


def fetch(raft: Raft, who: Voter, now_ms: int, end: EpochEnd | None = None, **given: Any) -> Any:
    """A replica whose log ends so, or like the leader's, fetches; the answer's partition."""
    its_end = log_of(raft).end if end is None else end
    request = fetch_request(CLUSTER, who.key, epoch=raft.epoch, end=its_end, high_watermark=0)
    response: Any = raft.receive(request, now_ms, **given)
    return None if response is None else response.responses[0].partitions[0]


def committing_leader(voters: VoterSet = VOTERS, *, log: MemoryLog | None = None) -> Raft:
    """A leader that has committed something of its epoch, at time 1001."""
    raft = leader(voters, log=log)
    for voter in list(raft.voters):
        if voter.key.node_id != 1:
            fetch(raft, node(voter.key.node_id), 1001)
    raft.flushed(1001)
    taken(raft)
    assert raft.high_watermark == log_of(raft).end.offset
    return raft


def vote(asker: Voter, asked: Voter | None, epoch: int, end: EpochEnd, *, is_pre_vote: bool = False) -> VoteRequest:
    """A request for a vote."""
    key = ReplicaKey(-1) if asked is None else asked.key
    return vote_request(CLUSTER, asker.key, key, epoch=epoch, end=end, is_pre_vote=is_pre_vote)


def addition(voter: Voter, *, cluster_id: str | None = CLUSTER, is_patient: bool = True) -> AddRaftVoterRequest:
    """Somebody is to have a vote."""
    return AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout_ms=1000,
        voter_id=voter.key.node_id,
        voter_directory_id=voter.key.directory_id,
        listeners=[VoterListener(name=name, host=host, port=port) for name, host, port in voter.addresses],
        ack_when_committed=is_patient,
    )


def removal(voter: Voter, *, cluster_id: str | None = CLUSTER) -> RemoveRaftVoterRequest:
    """Somebody is to have no vote any more."""
    return RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter.key.node_id, voter_directory_id=voter.key.directory_id
    )


def says_what_it_supports(
    raft: Raft, now_ms: int, versions: tuple[int, int] | None = (0, 1), code: int = 0
) -> list[Effect]:
    """The new voter answers ApiVersions; what the leader does then."""
    (ask,) = (one for one in sent(raft) if isinstance(one.request, ApiVersionsRequest))
    features = [] if versions is None else [
        SupportedFeatureKey(name="kraft.version", min_version=versions[0], max_version=versions[1])
    ]  # fmt: skip
    response: Message = ApiVersionsResponse(error_code=code, api_keys=[], supported_features=features)
    raft.answered(ask.to, ask.token, response, now_ms)
    return taken(raft)
