"""A node of the simulated quorum: it carries out what its Raft asks for, one effect after the other, each in its time.

RULES    1. Effects and answers leave in their order; one that needs the disk holds up those behind it.
         2. A crash loses what was not carried out; what the disk holds is there after the restart.
         3. A node that loses its disk comes back with another directory, and knows no voters but those that are a setting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple, Protocol

from protocol.messages.cluster import AddRaftVoterRequest, RemoveRaftVoterRequest
from protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message
from replication.raft.raft import Raft
from replication.raft.raft_log import (
    Answer,
    Append,
    Effect,
    ElectionState,
    KeepSnapshot,
    Lead,
    NameVoters,
    Persist,
    Send,
    Truncate,
)
from replication.raft.replica_state import QuorumTimes
from replication.raft.roles import Leader
from replication.raft.voters import Address, ReplicaKey, Voter, VoterSet
from tests.simulation.quorum.memory_log import Entry, MemoryLog

CLUSTER_ID = "simulated"
FETCH_WAIT_MS = 500
Reply = Callable[[Message], None]


class Network(Protocol):
    """What a node asks of the world around it."""

    random: Random
    most_jitter_ms: int
    slow_disk_ms: int
    touched: set[int]

    @property
    def now_ms(self) -> int:
        """The time."""

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something later."""

    def began_to_lead(self, node: Node) -> None:
        """A node has written the first record of its epoch."""

    def send(self, source: int, effect: Send, answered: Callable[[Message | None], None]) -> None:
        """Carry a request to another node; None: no answer came in time."""


class _Answer(NamedTuple):
    """An answer that leaves when what stands before it is done."""

    reply: Reply
    message: Message


class Node:
    """A replica with its disk and its process."""

    def __init__(self, network: Network, own: Voter, log: MemoryLog, times: QuorumTimes, *, joins: bool) -> None:
        self._network = network
        self._times = times
        self._joins = joins
        self.own = own
        self.log = log
        self.state = ElectionState()
        self.process = 0
        """Counts starts: what an earlier process began does not touch a later one."""
        self.raft: Raft | None = None
        self._queue: deque[Effect | _Answer] = deque()
        self._is_busy = False
        self._parked: list[tuple[FetchRequest, Reply, int]] = []
        self.unanswered: dict[int, tuple[Message, Reply]] = {}
        """Requests that an effect answers, by identity."""
        self._leading = 0

    # ------------------------------------------------------------ life
    def start(self) -> None:
        """A process begins with what the disk holds."""
        network = self._network
        self.process += 1
        self.raft = Raft(
            self.own,
            CLUSTER_ID,
            self.log,
            self.state,
            times=self._times,
            bootstrap_servers=2,
            joins=self._joins,
            jitter=lambda below: network.random.randrange(min(below, network.most_jitter_ms)),
            mono_ms=network.now_ms,
        )
        self.tick()

    def crash(self) -> None:
        """Rule 2."""
        self.process += 1
        self.raft = None
        self._queue.clear()
        self._parked.clear()
        self.unanswered.clear()
        self._is_busy = False
        self._leading = 0
        self.log.crash(self._network.random)

    def lose_disk(self, directory_id: bytes, settings: VoterSet) -> None:
        """Rule 3."""
        self.crash()
        self.own = self.own._replace(key=ReplicaKey(self.key.node_id, directory_id))
        self.log, self.state = MemoryLog(settings), ElectionState()

    def move(self, port: int) -> None:
        """The node listens somewhere else when it starts again."""
        address = self.own.addresses[0]
        self.own = self.own._replace(addresses=(Address(address.listener, address.host, port),))

    @property
    def key(self) -> ReplicaKey:
        """Which replica it is."""
        return self.own.key

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.own.addresses[0].port

    @property
    def is_leading(self) -> bool:
        """Whether it may write: it leads, and its epoch has begun in the log."""
        return self.raft is not None and isinstance(self.raft.role, Leader) and self._leading == self.raft.epoch

    def write(self, value: int) -> None:
        """As leader, append a record; it is synced in some time."""
        assert self.raft is not None
        self.log.append([Entry(self.raft.epoch, value)])
        self._sync()
        self._step(lambda _: None)

    def summarize(self) -> None:
        """Take a snapshot of what is committed, or of a part."""
        if self.raft is not None and self.raft.high_watermark > self.log.start_offset and not self._is_busy:
            self.log.summarize(self._network.random.randint(self.log.start_offset + 1, self.raft.high_watermark))

    # ------------------------------------------------------------ from the network
    def receive(self, request: Message, reply: Reply) -> None:
        """A request of another node, or of somebody who looks after the cluster."""
        if isinstance(request, ApiVersionsRequest):
            supported = SupportedFeatureKey(name="kraft.version", min_version=0, max_version=1)
            reply(ApiVersionsResponse(error_code=0, api_keys=[], supported_features=[supported]))
        elif self.raft is not None:
            self._step(lambda raft: self._answer(raft, request, reply, None))

    def _answer(self, raft: Raft, request: Message, reply: Reply, until_ms: int | None) -> None:
        now_ms = self._network.now_ms
        may_wait = until_ms is None or now_ms < until_ms
        if isinstance(request, AddRaftVoterRequest | RemoveRaftVoterRequest):
            self.unanswered[id(request)] = request, reply
        message = raft.receive(request, now_ms, may_wait=may_wait)
        self._queue.extend(raft.effects)
        raft.effects.clear()
        if message is not None:
            self.unanswered.pop(id(request), None)
            self._queue.append(_Answer(reply, message))
        elif isinstance(request, FetchRequest):
            self._parked.append((request, reply, until_ms or now_ms + FETCH_WAIT_MS))
            if until_ms is None:
                self._later(FETCH_WAIT_MS, lambda: self._step(lambda _: None))

    # ------------------------------------------------------------ one step
    def _step(self, act: Callable[[Raft], None]) -> None:
        raft = self.raft
        assert raft is not None
        self._network.touched.add(self.key.node_id)
        act(raft)
        self._queue.extend(raft.effects)
        raft.effects.clear()
        parked, self._parked = self._parked, []
        for request, reply, until_ms in parked:
            self._answer(raft, request, reply, until_ms)
        self._carry_out()
        if (due_ms := raft.next_deadline_ms) is not None:
            delay_ms = max(1, due_ms - self._network.now_ms)
            self._later(delay_ms, self._tick_if_due)

    def tick(self) -> None:
        """Carry out what somebody has asked its Raft for."""
        self._step(lambda raft: raft.tick(self._network.now_ms))

    def _tick_if_due(self) -> None:
        due_ms = self.raft.next_deadline_ms if self.raft is not None else None
        if due_ms is not None and due_ms <= self._network.now_ms:
            self.tick()

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        process = self.process
        self._network.after(delay_ms, lambda: act() if self.process == process else None)

    def _carry_out(self) -> None:
        while self._queue and not self._is_busy:
            effect = self._queue.popleft()
            if isinstance(effect, _Answer):
                effect.reply(effect.message)
            elif isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Answer):
                _, reply = self.unanswered.pop(id(effect.request))
                reply(effect.response)
            elif isinstance(effect, NameVoters):
                self._begin_to_append(effect.epoch, [Entry(effect.epoch, -2, effect)])
            elif isinstance(effect, Lead):
                naming = [] if effect.naming is None else [Entry(effect.epoch, -2, effect.naming)]
                self._begin_to_append(effect.epoch, [Entry(effect.epoch, -1), *naming])
                self._leading = effect.epoch
                self._network.began_to_lead(self)
            else:
                self._is_busy = True
                self._later(self._disk_ms(), lambda effect=effect: self._done(effect))  # type: ignore[misc]

    def _begin_to_append(self, epoch: int, entries: list[Entry]) -> None:
        assert self.raft is not None
        if isinstance(self.raft.role, Leader) and self.raft.epoch == epoch:
            self.log.append(entries)
            self._sync()

    def _disk_ms(self) -> int:
        random = self._network.random
        return random.choice((0, 1, 2, 5)) if random.random() < 0.95 else random.randrange(self._network.slow_disk_ms)

    def _done(self, effect: Persist | Append | Truncate | KeepSnapshot) -> None:
        """The disk has done it."""
        self._is_busy = False
        log = self.log
        if isinstance(effect, Persist):
            self.state = effect.state
            self._network.touched.add(self.key.node_id)
            self._carry_out()
            return
        if isinstance(effect, Append):
            log.append(effect.records)
            log.flush(log.end.offset)
        elif isinstance(effect, Truncate):
            log.truncate(effect.offset)
        else:
            log.keep_piece(effect.snapshot, effect.position, effect.piece, is_last=effect.is_last)
        self._step(lambda raft: raft.written(self._network.now_ms))

    def _sync(self) -> None:
        """Make what is in the log now durable, in some time."""
        end_offset, epoch = self.log.end.offset, self.log.end.epoch

        def synced() -> None:
            if self.log.end.offset >= end_offset and self.log.end.epoch == epoch:
                self.log.flush(end_offset)
                self._step(lambda raft: raft.flushed(self._network.now_ms))

        self._later(self._disk_ms(), synced)

    def _send(self, effect: Send) -> None:
        process = self.process

        def answered(message: Any) -> None:
            if self.process == process:
                self._step(lambda raft: raft.answered(effect.to, effect.token, message, self._network.now_ms))

        self._network.send(self.key.node_id, effect, answered)
