"""Runs one replica of the metadata quorum: executes Raft's effects in order and sends its responses behind them.

RULES    1. Effects and responses leave in their order: one that needs the disk delays those behind it.
         2. The listener is notified when this replica becomes leader (and writes the epoch's first records), when it loses
            leadership, and when the high watermark advances; in this order, each after the effects of the one before.
         3. A replica becomes leader when its log is idle: appends of an earlier epoch as leader may wait for disk space, and
            the leader loads them from the log.
         4. While a thread truncates the log, the high watermark waits.
         5. A thread reads what a Fetch needs from the disk before Raft processes it.
NOT HERE Decisions (`raft/raft.py`), messages (`raft_wire.py`), the log (`metadata_log.py`), sockets and threads (`broker/`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final, NamedTuple, Protocol

from protocol.errors import ErrorCode
from protocol.schema import Message
from replication.completion import Completion
from replication.cooperative_tasks import no_op
from replication.io_executor import IoExecutor, IoResult
from replication.metadata_log import raft_wire
from replication.metadata_log.metadata_log import MetadataLog
from replication.raft import events
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState
from replication.raft.roles import Leader
from replication.raft.rpc_messages import Fetch
from replication.raft.voters import ListenerAddress
from replication.timer_queue import Clock, Timer, TimerQueue
from storage.io.disk import Disk
from storage.io.disk_lookup import DiskLookup

_NO_LEADER: Final = -1
_log = logging.getLogger("barnabas.quorum")

SendTo = Callable[[int, ListenerAddress | None, Message], Completion[Message | None]]
"""Sends a request to a replica by id, at an address if known, or to a bootstrap server (-2 is the first).

The response is None if none arrives in time.
"""


class RaftListener(Protocol):
    """Receives the events of the quorum (Kafka: RaftClient.Listener)."""

    def on_become_leader(self, effect: events.BecomeLeader) -> None:
        """Write the first records of an epoch that this replica leads."""

    def on_leadership_lost(self) -> None:
        """The replica leads no longer."""

    def on_commit(self, high_watermark: int) -> None:
        """All records below the high watermark are committed."""

    def on_failed(self, reason: str) -> None:
        """The log is unusable: the node must stop."""


class _ReceivedRequest(NamedTuple):
    """A request, and its response, which does not exist yet."""

    request: Message
    response: Completion[Message]


class _Rejection(NamedTuple):
    """A response without Raft, which is sent after the effects before it."""

    response: Completion[Message]
    message: Message


class Dependencies(NamedTuple):
    """What a node of the quorum needs from its environment."""

    disk: Disk
    executor: IoExecutor
    timers: TimerQueue
    clock: Clock
    random_below: Callable[[int], int]
    send: SendTo


@dataclass(eq=False)
class KRaftReplica:
    """One replica: its Raft instance, log and listener; nothing runs before `start`."""

    raft: Raft
    _cluster_id: str
    """That of all accepted requests."""
    _log: MetadataLog
    _listener: RaftListener
    _persist: Callable[[ElectionState], Completion[None]]
    """Makes an election state durable."""
    _dependencies: Dependencies

    def __post_init__(self) -> None:
        self._clock = self._dependencies.clock
        self._queue: deque[events.Effect | _Rejection] = deque()
        self._is_busy = False
        self._is_processing = self._must_process = False
        self._request_ids = count()
        self._requests: dict[int, _ReceivedRequest] = {}
        """The requests without a response, by id."""
        self._led_epoch = -1
        self._committed_offset = 0
        self._timer: Timer | None = None
        self._announced_leader_id = _NO_LEADER
        self._foreign_peers: set[int] = set()
        """Peers with another cluster id; each is logged once."""
        self.on_leader_changed: Callable[[int], None] = no_op
        """Receives the leader's id; -1: unknown, or this replica before its epoch's first records are written."""

    # ------------------------------------------------------------ events
    def start(self) -> None:
        """Start ticking."""
        self._tick()

    def handle_request(self, request: Message) -> Completion[Message]:
        """Process a request of another replica, or a voter change."""
        response: Completion[Message] = Completion()
        rejection = raft_wire.reject(request, self._cluster_id, self.raft.state.leader_and_epoch)
        if rejection is not None:
            self._queue.append(_Rejection(response, rejection))
            self._process()
            return response
        request_id = next(self._request_ids)
        self._requests[request_id] = _ReceivedRequest(request, response)
        event = events.RequestReceived(request_id, raft_wire.decode_request(request))
        if self.is_leading and isinstance(event.request, Fetch):
            lookup = self._log.lookup(event.request.end.offset, event.request.max_bytes)
            if lookup is not None:
                read = self._dependencies.executor.read(self._log.directory, lookup.run)
                read.then(partial(self._on_read, event, lookup))
                return response
        self.step(event)
        return response

    def _on_read(self, event: events.RequestReceived, lookup: DiskLookup, read: IoResult) -> None:
        """Process a Fetch whose records a thread has read (rule 5)."""
        if read.value is not None:
            self._log.fail(read.value)
            return
        lookup.finish()
        self.step(event)
        lookup.done()

    def raise_kraft_version(self, level: int) -> None:
        """Write a new kraft.version; `Raft.check_kraft_version` has accepted it before."""
        assert self.raft.check_kraft_version(level) is None, "the level was checked before"
        self.step(events.UpgradeKraftVersion(level))

    def resign(self) -> None:
        """Give up leadership, if this replica leads."""
        self.step(events.Signal.RESIGN)

    @property
    def is_leading(self) -> bool:
        """Whether this replica leads and its epoch has begun in the log."""
        return self._led_epoch == self.raft.state.epoch and isinstance(self.raft.state.role, Leader)

    # ------------------------------------------------------------ one step
    def _tick(self) -> None:
        self.step(events.Signal.TICK)

    def step(self, event: events.Event) -> None:
        """Handle an event: execute the effects and notify the listener."""
        self._queue.extend(self.raft.step(event, self._clock.mono_ms()))
        self._process()

    def _process(self) -> None:
        """Execute effects and notify; a nested call only requests another pass (rule 2)."""
        self._must_process = True
        if self._is_processing:
            return
        self._is_processing = True
        try:
            while self._must_process:
                self._must_process = False
                self._process_once()
        finally:
            self._is_processing = False

    def _process_once(self) -> None:
        if self._led_epoch >= 0 and not self.is_leading:
            self._led_epoch = -1
            self._log.on_leadership_lost()
            self._listener.on_leadership_lost()
        self._run_effects()
        if self.raft.state.high_watermark > self._committed_offset and not self._log.is_truncating:
            self._committed_offset = self.raft.state.high_watermark
            self._log.on_commit(self._committed_offset, self._clock.wall_ms())
            self._listener.on_commit(self._committed_offset)
        leader_id = self.raft.state.leader_id
        if leader_id == self.raft.state.local.key.node_id and not self.is_leading:
            leader_id = _NO_LEADER
        if leader_id != self._announced_leader_id:
            self._announced_leader_id = leader_id
            _log.info("%s leads the metadata quorum in epoch %d", _describe_node(leader_id), self.raft.state.epoch)
            self.on_leader_changed(leader_id)
        self._schedule_tick()

    def _schedule_tick(self) -> None:
        deadline_ms = self.raft.next_deadline_ms
        if self._timer is not None and self._timer.is_pending:
            if self._timer.at_mono_ms == deadline_ms:
                return
            self._timer.cancel()
        self._timer = None if deadline_ms is None else self._dependencies.timers.schedule(deadline_ms, self._tick)

    # ------------------------------------------------------------ effects
    def _run_effects(self) -> None:
        while self._queue and not self._is_busy:
            effect = self._queue.popleft()
            if isinstance(effect, _Rejection):
                effect.response.complete(effect.message)
            elif isinstance(effect, events.SendResponse):
                received = self._requests.pop(effect.request_id)
                received.response.complete(raft_wire.encode_response(received.request, effect.response))
            elif isinstance(effect, events.SendRequest):
                message = raft_wire.encode_request(effect.request, self._cluster_id)
                sent = self._dependencies.send(effect.to, effect.address, message)
                sent.then(partial(self._on_response, effect.to, effect.token))
            elif isinstance(effect, events.Fail):
                self._listener.on_failed(effect.reason)
            elif isinstance(effect, events.AppendVoters):
                if self._still_leads(effect.epoch):
                    self._log.append_voters(effect, self._clock.wall_ms())
            elif isinstance(effect, events.BecomeLeader):
                self._is_busy = True
                self._log.run_when_idle(partial(self._become_leader, effect))
            else:
                self._is_busy = True
                self._run_io(effect)

    def _still_leads(self, epoch: int) -> bool:
        return epoch == self.raft.state.epoch and isinstance(self.raft.state.role, Leader)

    def _become_leader(self, effect: events.BecomeLeader) -> None:
        self._is_busy = False
        if self._still_leads(effect.epoch):
            self._led_epoch = effect.epoch
            self._listener.on_become_leader(effect)
        self._process()

    def _run_io(
        self, effect: events.Persist | events.AppendBatches | events.Truncate | events.WriteSnapshotChunk
    ) -> None:
        wall_ms = self._clock.wall_ms()
        if isinstance(effect, events.Persist):
            self._persist(effect.state).then(self._on_persisted)
        elif isinstance(effect, events.AppendBatches):
            self._log.append_fetched(effect, wall_ms).then(self._on_effect_done)
        elif isinstance(effect, events.Truncate):
            self._log.truncate(effect.offset).then(self._on_effect_done)
        else:
            self._log.write_snapshot_chunk(effect, wall_ms).then(self._on_effect_done)

    def _on_persisted(self, _: Completion[None]) -> None:
        self._is_busy = False
        self._process()

    def _on_effect_done(self, _: Completion[None]) -> None:
        self._is_busy = False
        self.step(events.Signal.WRITE_COMPLETED)

    def _on_response(self, peer: int, token: int, sent: Completion[Message | None]) -> None:
        message = sent.result()
        is_foreign = getattr(message, "error_code", ErrorCode.NONE) == ErrorCode.INCONSISTENT_CLUSTER_ID
        if is_foreign and peer not in self._foreign_peers:
            self._foreign_peers.add(peer)
            _log.warning(
                "%s belongs to another cluster: compare cluster.id in the meta.properties of both nodes",
                _describe_node(peer),
            )
        response = None if message is None else raft_wire.decode_response(message, self.raft.state.listener)
        self.step(events.ResponseReceived(peer, token, response))


def _describe_node(leader_id: int) -> str:
    if leader_id < _NO_LEADER:
        return f"bootstrap server {_NO_LEADER - leader_id}"
    return "no known node" if leader_id == _NO_LEADER else f"node {leader_id}"
