"""A node of the simulated quorum: carries out the effects of its Raft replica, one after another.

RULES    1. Effects and responses are carried out in order; one that needs the disk delays the next ones.
         2. A crash loses pending effects; the disk's content survives.
         3. A node with a lost disk returns with a new directory id and only its static voters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message
from replication.raft import raft_log
from replication.raft.quorum_state import QuorumTimes
from replication.raft.raft import Raft
from replication.raft.roles import Leader
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog

if TYPE_CHECKING:
    from tests.simulation.quorum.simulator import Simulation

CLUSTER_ID = "simulated"
FETCH_WAIT_MS = 500
Reply = Callable[[Message], None]


class _QueuedResponse(NamedTuple):
    """A response that waits for the effects before it."""

    reply: Reply
    message: Message


class Node:
    """A replica with its disk and process."""

    def __init__(
        self, simulation: Simulation, local: Voter, log: MemoryLog, times: QuorumTimes, *, auto_join: bool
    ) -> None:
        self._simulation = simulation
        self._times = times
        self._auto_join = auto_join
        self.local = local
        self.log = log
        self.state = raft_log.ElectionState()
        self.process = 0
        """The number of starts; callbacks of earlier processes are ignored."""
        self.raft: Raft | None = None
        self._queue: deque[raft_log.Effect | _QueuedResponse] = deque()
        self._is_busy = False
        self._waiting_fetches: list[tuple[FetchRequest, Reply, int]] = []
        self.pending_responses: dict[int, tuple[Message, Reply]] = {}
        """The requests whose response follows as an effect, by identity."""
        self._led_epoch = 0

    # ------------------------------------------------------------ processes
    def start(self) -> None:
        simulation = self._simulation
        self.process += 1
        self.raft = Raft(
            self.local,
            CLUSTER_ID,
            self.log,
            self.state,
            times=self._times,
            bootstrap_servers=2,
            auto_join=self._auto_join,
            jitter=lambda below: simulation.random.randrange(min(below, simulation.max_jitter_ms)),
            mono_ms=simulation.now_ms,
        )
        self.tick()

    def crash(self) -> None:
        self.process += 1
        self.raft = None
        self._queue.clear()
        self._waiting_fetches.clear()
        self.pending_responses.clear()
        self._is_busy = False
        self._led_epoch = 0
        self.log.crash(self._simulation.random)

    def lose_disk(self, directory_id: bytes, settings: VoterSet) -> None:
        """Crash and lose the disk (rule 3)."""
        self.crash()
        self.local = self.local._replace(key=ReplicaKey(self.key.node_id, directory_id))
        self.log, self.state = MemoryLog(settings), raft_log.ElectionState()

    def change_port(self, port: int) -> None:
        """Change the port; effective at the next start."""
        address = self.local.addresses[0]
        self.local = self.local._replace(addresses=(ListenerAddress(address.listener, address.host, port),))

    @property
    def key(self) -> ReplicaKey:
        return self.local.key

    @property
    def port(self) -> int:
        return self.local.addresses[0].port

    @property
    def is_leading(self) -> bool:
        """Whether the node leads and its epoch has started in the log."""
        return self.raft is not None and isinstance(self.raft.role, Leader) and self._led_epoch == self.raft.epoch

    def write(self, value: int) -> None:
        """Append a record as leader; it is flushed later."""
        assert self.raft is not None
        self.log.append([Entry(self.raft.epoch, value)])
        self._sync()
        self._step(lambda _: None)

    def take_snapshot(self) -> None:
        """Take a snapshot of a committed prefix."""
        if self.raft is not None and self.raft.high_watermark > self.log.start_offset and not self._is_busy:
            self.log.take_snapshot(self._simulation.random.randint(self.log.start_offset + 1, self.raft.high_watermark))

    # ------------------------------------------------------------ from the simulation
    def receive(self, request: Message, reply: Reply) -> None:
        """Handle a request of another node or an administrator."""
        if isinstance(request, ApiVersionsRequest):
            supported = SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)
            reply(ApiVersionsResponse(error_code=0, api_keys=[], supported_features=[supported]))
        elif self.raft is not None:
            self._step(lambda raft: self._answer(raft, request, reply, None))

    def _answer(self, raft: Raft, request: Message, reply: Reply, until_ms: int | None) -> None:
        now_ms = self._simulation.now_ms
        may_wait = until_ms is None or now_ms < until_ms
        if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            self.pending_responses[id(request)] = request, reply
        message = raft.handle_request(request, now_ms, may_wait=may_wait)
        self._queue.extend(raft.effects)
        raft.effects.clear()
        if message is not None:
            self.pending_responses.pop(id(request), None)
            self._queue.append(_QueuedResponse(reply, message))
        elif isinstance(request, FetchRequest):
            self._waiting_fetches.append((request, reply, until_ms or now_ms + FETCH_WAIT_MS))
            if until_ms is None:
                self._after(FETCH_WAIT_MS, lambda: self._step(lambda _: None))

    # ------------------------------------------------------------ one step
    def _step(self, act: Callable[[Raft], None]) -> None:
        raft = self.raft
        assert raft is not None
        self._simulation.touched.add(self.key.node_id)
        act(raft)
        self._queue.extend(raft.effects)
        raft.effects.clear()
        parked, self._waiting_fetches = self._waiting_fetches, []
        for request, reply, until_ms in parked:
            self._answer(raft, request, reply, until_ms)
        self._run_effects()
        if (due_ms := raft.next_deadline_ms) is not None:
            delay_ms = max(1, due_ms - self._simulation.now_ms)
            self._after(delay_ms, self._tick_if_due)

    def tick(self) -> None:
        self._step(lambda raft: raft.tick(self._simulation.now_ms))

    def _tick_if_due(self) -> None:
        due_ms = self.raft.next_deadline_ms if self.raft is not None else None
        if due_ms is not None and due_ms <= self._simulation.now_ms:
            self.tick()

    def _after(self, delay_ms: int, act: Callable[[], None]) -> None:
        process = self.process
        self._simulation.after(delay_ms, lambda: act() if self.process == process else None)

    def _run_effects(self) -> None:
        while self._queue and not self._is_busy:
            effect = self._queue.popleft()
            if isinstance(effect, _QueuedResponse):
                effect.reply(effect.message)
            elif isinstance(effect, raft_log.SendRequest):
                self._send(effect)
            elif isinstance(effect, raft_log.SendResponse):
                _, reply = self.pending_responses.pop(id(effect.request))
                reply(effect.response)
            elif isinstance(effect, raft_log.AppendVoters):
                self._append_as_leader(effect.epoch, [Entry(effect.epoch, -2, effect)])
            elif isinstance(effect, raft_log.BecomeLeader):
                append_voters = [] if effect.append_voters is None else [Entry(effect.epoch, -2, effect.append_voters)]
                self._append_as_leader(effect.epoch, [Entry(effect.epoch, -1), *append_voters])
                self._led_epoch = effect.epoch
                self._simulation.on_leader(self)
            else:
                self._is_busy = True
                self._after(self._disk_ms(), lambda effect=effect: self._on_disk_done(effect))  # type: ignore[misc]

    def _append_as_leader(self, epoch: int, entries: list[Entry]) -> None:
        assert self.raft is not None
        if isinstance(self.raft.role, Leader) and self.raft.epoch == epoch:
            self.log.append(entries)
            self._sync()

    def _disk_ms(self) -> int:
        random = self._simulation.random
        return (
            random.choice((0, 1, 2, 5)) if random.random() < 0.95 else random.randrange(self._simulation.slow_disk_ms)
        )

    def _on_disk_done(self, effect: raft_log.Effect) -> None:
        """The disk completed an effect."""
        self._is_busy = False
        log = self.log
        if isinstance(effect, raft_log.Persist):
            self.state = effect.state
            self._simulation.touched.add(self.key.node_id)
            self._run_effects()
            return
        if isinstance(effect, raft_log.AppendBatches):
            log.append(effect.records)
            log.flush(log.end.offset)
        elif isinstance(effect, raft_log.Truncate):
            log.truncate(effect.offset)
        elif isinstance(effect, raft_log.WriteSnapshotChunk):
            log.write_snapshot_chunk(effect.snapshot, effect.position, effect.piece, is_last=effect.is_last)
        self._step(lambda raft: raft.on_written(self._simulation.now_ms))

    def _sync(self) -> None:
        """Flush the current log end after a delay."""
        end_offset, epoch = self.log.end.offset, self.log.end.epoch

        def on_synced() -> None:
            if self.log.end.offset >= end_offset and self.log.end.epoch == epoch:
                self.log.flush(end_offset)
                self._step(lambda raft: raft.on_flushed(self._simulation.now_ms))

        self._after(self._disk_ms(), on_synced)

    def _send(self, effect: raft_log.SendRequest) -> None:
        process = self.process

        def on_response(message: Any) -> None:
            if self.process == process:
                self._step(lambda raft: raft.on_response(effect.to, effect.token, message, self._simulation.now_ms))

        self._simulation.send(self.key.node_id, effect, on_response)
