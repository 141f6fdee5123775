"""KRaft for one replica of the metadata log: pre-vote, pull-based replication, dynamic voters (KIP-595, 853, 996).

RULES    1. `step` takes one event and the time, and returns the effects in order. It performs no I/O.
         2. Each epoch has one leader. Election state is durable before messages that depend on it (`quorum_state.py`).
         3. A leader resigns if no majority fetched from it for 1.5 fetch timeouts (check quorum).
         4. A role does not end during a write to the log: an election compares log ends, which must not change meanwhile.
         5. The parts share a `QuorumState`: functions over it (`elections.py`, `voter_changes.py`), or classes with a state
            of their own (`leader_fetch.py`, `follower_fetch.py`, `follower_log_sync.py`, `request_tracker.py`,
            `replica_progress.py`).
NOT HERE Events and effects (`events.py`), messages (`rpc_messages.py`) and their bytes (`metadata_log/raft_wire.py`).
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from replication.raft import elections, events, leader_fetch, voter_changes
from replication.raft import rpc_messages as rpc
from replication.raft.follower_fetch import FollowerFetch
from replication.raft.leader_fetch import LeaderFetch
from replication.raft.quorum_state import QuorumState
from replication.raft.roles import Candidate, Follower, Leader, Prospective, Resigned


class Raft:
    """One replica of the metadata log, a voter or an observer (Kafka: KafkaRaftClient)."""

    def __init__(self, state: QuorumState, *, bootstrap_servers: int = 0, auto_join: bool = False) -> None:
        """Continue from a state, which is changed only here and by the parts; the first step is a TICK.

        `bootstrap_servers`: the number of bootstrap servers to query for the leader, besides the voters; `auto_join`: whether
        this controller adds itself to the voters (controller.quorum.auto.join.enable).
        """
        self.state = state
        self._leader_fetch = LeaderFetch(state)
        self._follower_fetch = FollowerFetch(state, bootstrap_servers=bootstrap_servers, auto_join=auto_join)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next TICK; None if only another event can change anything."""
        state, role = self.state, self.state.role
        waits = [*state.requests.backoff_until_ms.values(), *self._leader_fetch.deadlines_ms]
        if isinstance(role, Leader):
            waits += role.next_begin_epoch_ms.values()
            waits += [] if role.change is None else [role.change.deadline_ms]
            if (deadline_ms := self._check_quorum_deadline_ms(role)) is not None:
                waits.append(deadline_ms)
        elif not state.log_sync.is_writing:
            if state.is_voter or isinstance(role, Resigned | Candidate | Prospective):
                waits.append(role.deadline_ms)
            if isinstance(role, Follower) and self._follower_fetch.can_fetch:
                waits += [role.next_voter_request_ms] if state.requests.can_send(role.leader_id) else []
        return min(waits, default=None)

    def check_kraft_version(self, version: int) -> KafkaError | None:
        """The reason why kraft.version cannot be raised to this version; None if it can."""
        return voter_changes.check_upgrade(self.state, version)

    # ------------------------------------------------------------ steps
    def step(self, event: events.Event, mono_ms: int) -> list[events.Effect]:
        """Handle an event at a monotonic time; returns the effects in order."""
        state = self.state
        state.mono_ms = mono_ms
        if isinstance(event, events.RequestReceived):
            self._handle_request(event.request_id, event.request)
        else:
            if isinstance(event, events.ResponseReceived):
                self._on_response(event)
            elif event is events.Signal.LOG_FLUSHED and isinstance(state.role, Leader):
                leader_fetch.update_high_watermark(state, state.role)
            elif event is events.Signal.WRITE_COMPLETED:
                state.log_sync.on_written()
            elif event is events.Signal.RESIGN and isinstance(state.role, Leader):
                state.resign()
            elif isinstance(event, events.UpgradeKraftVersion):
                voter_changes.upgrade(state, event.version)
            self._tick()
        for fetch in self._leader_fetch.take_ready(is_appended=event is events.Signal.LOG_APPENDED):
            self._handle_request(*fetch)
        effects, state.effects = state.effects, []
        return effects

    def _tick(self) -> None:
        """Handle expired timeouts and send the requests that are due."""
        state = self.state
        state.requests.expire_backoffs(state.mono_ms)
        while self._end_expired_role():
            pass
        role = self.state.role
        if isinstance(role, Leader):
            voter_changes.expire(state, role)
            elections.send_begin_epoch(state, role)
        elif isinstance(role, Resigned):
            elections.send_end_epoch(state, role)
        elif isinstance(role, Prospective | Candidate):
            elections.request_votes(state, role)
        else:
            self._follower_fetch.send_next(role)

    def _end_expired_role(self) -> bool:
        """End the role if its deadline has passed; returns whether it ended."""
        state, role = self.state, self.state.role
        if isinstance(role, Leader):
            deadline_ms = self._check_quorum_deadline_ms(role)
            if deadline_ms is None or state.mono_ms < deadline_ms:
                return False
            state.resign()
            return True
        if state.mono_ms < role.deadline_ms or state.log_sync.is_writing:  # rule 4
            return False
        if isinstance(role, Resigned):
            state.become_unattached(state.epoch + 1)
        elif isinstance(role, Prospective):
            state.pre_vote_lost(role)
        elif state.is_voter:
            state.become_prospective()
        else:
            return False
        return True

    def _check_quorum_deadline_ms(self, role: Leader) -> int | None:
        """The time at which the leader resigns unless a majority fetches (rule 3); None for a single voter."""
        fetched_ms = role.progress.majority_fetch_ms(self.state.voters)
        return None if fetched_ms is None else fetched_ms + self.state.times.fetch_timeout_ms * 3 // 2

    # ------------------------------------------------------------ requests
    def _handle_request(self, request_id: int, request: rpc.Request, fetch_deadline_ms: int | None = None) -> None:
        """Handle a request; the response follows the effects that precede it, unless it is given in a later step."""
        if isinstance(request, rpc.Fetch):
            response: rpc.Response | None = self._leader_fetch.handle(request_id, request, fetch_deadline_ms)
        else:
            response = self._respond_to(request_id, request)
        self._tick()
        if response is not None:
            self.state.respond(request_id, response)

    def _respond_to(self, request_id: int, request: rpc.Request) -> rpc.Response | None:
        state = self.state
        if isinstance(request, rpc.FetchSnapshot):
            return leader_fetch.on_fetch_snapshot(state, request)
        if isinstance(request, rpc.Vote):
            return elections.on_vote(state, request)
        if isinstance(request, rpc.BeginEpoch):
            return elections.on_begin_epoch(state, request)
        if isinstance(request, rpc.EndEpoch):
            return elections.on_end_epoch(state, request)
        if isinstance(request, rpc.AddVoter):
            return voter_changes.on_add(state, request_id, request)
        if isinstance(request, rpc.RemoveVoter):
            return voter_changes.on_remove(state, request_id, request)
        assert isinstance(request, rpc.UpdateVoter), f"{request!r} is not for Raft"
        return voter_changes.on_update(state, request)

    # ------------------------------------------------------------ responses
    def _on_response(self, event: events.ResponseReceived) -> None:
        state, peer, response = self.state, event.peer, event.response
        request = state.requests.complete(peer, event.token)
        if isinstance(request, rpc.ApiVersions):
            assert response is None or isinstance(response, rpc.ApiVersionsResponse), (
                "ApiVersions has an ApiVersionsResponse"
            )
            voter_changes.on_api_versions_response(state, peer, response)
        elif isinstance(request, rpc.Vote) and response == rpc.Rejection(ErrorCode.UNSUPPORTED_VERSION):
            elections.on_pre_vote_unsupported(state)
        elif request is not None and (response is None or isinstance(response, rpc.Rejection)):
            state.requests.back_off(peer, state.mono_ms)
            self._follower_fetch.try_next_peer()
        elif request is not None and response is not None:
            self._on_answer(peer, response)

    def _on_answer(self, peer: int, response: rpc.Response) -> None:
        state = self.state
        leader: rpc.LeaderAndEpoch | None = getattr(response, "leader", None)
        is_new = leader is not None and state.learn_leader(
            leader.epoch, leader.leader_id, () if leader.address is None else (leader.address,)
        )
        if isinstance(response, rpc.FetchResponse | rpc.FetchSnapshotResponse):
            self._follower_fetch.on_response(peer, response)
        elif is_new:
            return
        elif isinstance(response, rpc.VoteResponse):
            elections.on_vote_response(state, peer, response)
        elif isinstance(response, rpc.EpochResponse):
            elections.on_epoch_response(state, peer)
        elif isinstance(response, rpc.VoterChangeResponse | rpc.UpdateVoterResponse):
            self._follower_fetch.on_voter_response(peer, response)
