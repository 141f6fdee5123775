"""A node of the simulated quorum: carries out the effects of its Raft replica, one after another.

RULES    1. Effects and responses are carried out in order; one that needs the disk delays the next ones.
         2. A crash loses pending effects; the disk's content survives.
         3. A node with a lost disk returns with a new directory id and only its static voters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from replication.raft import events
from replication.raft.quorum_state import QuorumState, QuorumTimes
from replication.raft.raft import Raft
from replication.raft.raft_log import ElectionState
from replication.raft.roles import Leader
from replication.raft.rpc_messages import ApiVersions, ApiVersionsResponse, Request, Response
from replication.raft.voters import ListenerAddress, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog

if TYPE_CHECKING:
    from tests.simulation.quorum.simulator import Simulation

Reply = Callable[[Response], None]


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
        self.state = ElectionState()
        self.process = 0
        """The number of starts; callbacks of earlier processes are ignored."""
        self.raft: Raft | None = None
        self._queue: deque[events.Effect] = deque()
        self._is_busy = False
        self._request_ids = count()
        self.requests: dict[int, tuple[Request, Reply]] = {}
        """The requests without a response, by id."""
        self._led_epoch = 0

    # ------------------------------------------------------------ processes
    def start(self) -> None:
        simulation = self._simulation
        self.process += 1
        state = QuorumState(
            self.local,
            self.log,
            self.state,
            times=self._times,
            jitter=lambda below: simulation.random.randrange(min(below, simulation.max_jitter_ms)),
            mono_ms=simulation.now_ms,
        )
        self.raft = Raft(state, bootstrap_servers=2, auto_join=self._auto_join)
        self.step(events.Signal.TICK)

    def crash(self) -> None:
        self.process += 1
        self.raft = None
        self._queue.clear()
        self.requests.clear()
        self._is_busy = False
        self._led_epoch = 0
        self.log.crash(self._simulation.random)

    def lose_disk(self, directory_id: bytes, settings: VoterSet) -> None:
        """Crash and lose the disk (rule 3)."""
        self.crash()
        self.local = self.local._replace(key=ReplicaKey(self.key.node_id, directory_id))
        self.log, self.state = MemoryLog(settings), ElectionState()

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
        return (
            self.raft is not None
            and isinstance(self.raft.state.role, Leader)
            and self._led_epoch == self.raft.state.epoch
        )

    @property
    def undecided_requests(self) -> list[Request]:
        """The requests without a decided response; a decided one may wait for the disk."""
        decided = {effect.request_id for effect in self._queue if isinstance(effect, events.SendResponse)}
        return [request for request_id, (request, _) in self.requests.items() if request_id not in decided]

    def write(self, value: int) -> None:
        """Append a record as leader; it is flushed later."""
        assert self.raft is not None
        self.log.append([Entry(self.raft.state.epoch, value)])
        self._sync()
        self.step(events.Signal.LOG_APPENDED)

    def take_snapshot(self) -> None:
        """Take a snapshot of a committed prefix."""
        if self.raft is not None and self.raft.state.high_watermark > self.log.start_offset and not self._is_busy:
            self.log.take_snapshot(
                self._simulation.random.randint(self.log.start_offset + 1, self.raft.state.high_watermark)
            )

    # ------------------------------------------------------------ from the simulation
    def receive(self, request: Request, reply: Reply) -> None:
        """Handle a request of another node or an administrator."""
        if isinstance(request, ApiVersions):
            reply(ApiVersionsResponse(0, (0, 1)))
        elif self.raft is not None:
            request_id = next(self._request_ids)
            self.requests[request_id] = request, reply
            self.step(events.RequestReceived(request_id, request))

    # ------------------------------------------------------------ one step
    def step(self, event: events.Event) -> None:
        """Pass an event to Raft and carry out the effects."""
        raft = self.raft
        assert raft is not None
        self._simulation.touched.add(self.key.node_id)
        self._queue.extend(raft.step(event, self._simulation.now_ms))
        self._run_effects()
        if (due_ms := raft.next_deadline_ms) is not None:
            delay_ms = max(1, due_ms - self._simulation.now_ms)
            self._after(delay_ms, self._tick_if_due)

    def _tick_if_due(self) -> None:
        due_ms = self.raft.next_deadline_ms if self.raft is not None else None
        if due_ms is not None and due_ms <= self._simulation.now_ms:
            self.step(events.Signal.TICK)

    def _after(self, delay_ms: int, act: Callable[[], None]) -> None:
        process = self.process
        self._simulation.after(delay_ms, lambda: act() if self.process == process else None)

    def _run_effects(self) -> None:
        while self._queue and not self._is_busy:
            effect = self._queue.popleft()
            if isinstance(effect, events.SendRequest):
                self._send(effect)
            elif isinstance(effect, events.SendResponse):
                _, reply = self.requests.pop(effect.request_id)
                reply(effect.response)
            elif isinstance(effect, events.AppendVoters):
                self._append_as_leader(effect.epoch, [Entry(effect.epoch, -2, effect)])
            elif isinstance(effect, events.BecomeLeader):
                append_voters = [] if effect.append_voters is None else [Entry(effect.epoch, -2, effect.append_voters)]
                self._append_as_leader(effect.epoch, [Entry(effect.epoch, -1), *append_voters])
                self._led_epoch = effect.epoch
                self._simulation.on_leader(self)
            else:
                assert not isinstance(effect, events.Fail), effect.reason
                self._is_busy = True
                self._after(self._disk_ms(), lambda effect=effect: self._on_disk_done(effect))  # type: ignore[misc]

    def _append_as_leader(self, epoch: int, entries: list[Entry]) -> None:
        assert self.raft is not None
        if isinstance(self.raft.state.role, Leader) and self.raft.state.epoch == epoch:
            self.log.append(entries)
            self._sync()

    def _disk_ms(self) -> int:
        random = self._simulation.random
        return (
            random.choice((0, 1, 2, 5)) if random.random() < 0.95 else random.randrange(self._simulation.slow_disk_ms)
        )

    def _on_disk_done(self, effect: events.Effect) -> None:
        """The disk completed an effect."""
        self._is_busy = False
        log = self.log
        if isinstance(effect, events.Persist):
            self.state = effect.state
            self._simulation.touched.add(self.key.node_id)
            self._run_effects()
            return
        if isinstance(effect, events.AppendBatches):
            log.append(effect.records)
            log.flush(log.end.offset)
        elif isinstance(effect, events.Truncate):
            log.truncate(effect.offset)
        elif isinstance(effect, events.WriteSnapshotChunk):
            log.write_snapshot_chunk(effect.snapshot, effect.position, effect.piece, is_last=effect.is_last)
        self.step(events.Signal.WRITE_COMPLETED)

    def _sync(self) -> None:
        """Flush the current log end after a delay."""
        end_offset, epoch = self.log.end.offset, self.log.end.epoch

        def on_synced() -> None:
            if self.log.end.offset >= end_offset and self.log.end.epoch == epoch:
                self.log.flush(end_offset)
                self.step(events.Signal.LOG_FLUSHED)

        self._after(self._disk_ms(), on_synced)

    def _send(self, effect: events.SendRequest) -> None:
        process = self.process

        def on_response(response: Response | None) -> None:
            if self.process == process:
                self.step(events.ResponseReceived(effect.to, effect.token, response))

        self._simulation.send(self.key.node_id, effect, on_response)
