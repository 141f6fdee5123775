"""One replica of the metadata quorum at work: what Raft asks for is done in order, and answers leave behind it.

RULES    1. Effects and answers leave in their order: one that needs the disk holds up those behind it.
         2. A Fetch that finds nothing new waits until there is, or until its time is over.
         3. The owner is told when this replica leads (and then begins the epoch in the log), when it leads no longer, and up to
            where the log is committed; in this order, each when all is done that the one before made it do.
NOT HERE What to do (`raft/raft.py`), the log (`metadata_log.py`), sockets and threads (`broker/`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from protocol.errors import ErrorCode
from protocol.messages.produce_fetch import FetchRequest
from protocol.schema import Message
from replication.raft.follower_log_sync import ForkedLog
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
from replication.raft.roles import Leader
from replication.raft.voters import Address
from replication.timer_queue import Deadline, Deadlines

_NOBODY: Final = -1
_log = logging.getLogger("barnabas.quorum")

Done = Callable[[], None]
Reply = Callable[[Message], None]
Answered = Callable[[Message | None], None]
SendTo = Callable[[int, Address | None, Message, Answered], None]
"""Asks another replica by its id, at an address if that is known, or a bootstrap server (-2 is the first)."""


class Clock(Protocol):
    """The two clocks."""

    def mono_ms(self) -> int:
        """Monotonic milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class QuorumLog(Protocol):
    """What is done to the log for Raft; `done` is called when it is durable."""

    def append_fetched(self, fetched: Append, wall_ms: int, done: Done) -> None:
        """Take over what was fetched."""

    def truncate(self, offset: int, done: Done) -> None:
        """Cut it."""

    def keep_piece(self, kept: KeepSnapshot, wall_ms: int, done: Done) -> None:
        """Write a piece of a snapshot."""

    def name_voters(self, naming: NameVoters, wall_ms: int) -> None:
        """Write down other voters."""

    def lead_no_longer(self) -> None:
        """Another replica decides on what is not committed."""

    def committed(self, high_watermark: int) -> None:
        """What lies before is committed."""


class Owner(Protocol):
    """Whom the quorum works for."""

    def lead(self, lead: Lead) -> None:
        """Write the first records of an epoch that this replica leads."""

    def lead_no_longer(self) -> None:
        """Another one does, or will."""

    def committed(self, high_watermark: int) -> None:
        """What lies before is committed."""

    def failed(self, sentence: str) -> None:
        """The log cannot be gone on with: the node must stop."""


class _Reply(NamedTuple):
    """An answer that leaves when what stands before it is done."""

    reply: Reply
    message: Message


class _Parked(NamedTuple):
    """A Fetch that waits."""

    request: FetchRequest
    reply: Reply
    deadline: Deadline


class Quorum:
    """One replica: its Raft, its log, its owner."""

    def __init__(
        self,
        raft: Raft,
        log: QuorumLog,
        owner: Owner,
        keep: Callable[[ElectionState, Done], None],
        send: SendTo,
        deadlines: Deadlines,
        clock: Clock,
    ) -> None:
        """Make it; nothing happens before `start`.

        Args:
            raft: who decides.
            log: its log.
            owner: who is told.
            keep: makes an election's state durable.
            send: asks another replica; None: no answer came in time.
            deadlines: where its own are.
            clock: the time.
        """
        self.raft = raft
        self._log = log
        self._owner = owner
        self._keep = keep
        self._send = send
        self._deadlines = deadlines
        self._clock = clock
        self._queue: deque[Effect | _Reply] = deque()
        self._is_busy = False
        self._is_going_on = self._has_news = False
        self._parked: list[_Parked] = []
        self._unanswered: dict[int, tuple[Message, Reply]] = {}
        """Requests that an effect answers, by identity."""
        self._served = (-1, -1)
        self._led_epoch = -1
        self._committed = 0
        self._due: Deadline | None = None
        self._known_leader = _NOBODY
        self._strangers: set[int] = set()
        """Who is of another cluster; each is told of once."""
        self.on_leader: Callable[[int], None] = _ignore
        """Told who leads, when that changes; -1: nobody known, or this replica, whose epoch has not begun in the log."""

    # ------------------------------------------------------------ what happens to it
    def start(self) -> None:
        """Begin."""
        self._step()

    def receive(self, request: Message, reply: Reply) -> None:
        """Another replica asks."""
        self._answer(request, reply)
        self._go_on()

    def written(self) -> None:
        """A leader's records can be read: who waits for them is served."""
        if self._parked:
            self._serve_now()

    def flushed(self) -> None:
        """More of the log is durable."""
        self.raft.flushed(self._clock.mono_ms())
        self._go_on()

    def raise_kraft_version(self, level: int) -> None:
        """Write it down; the leader was asked whether it can be (`Raft.upgrade`)."""
        refusal = self.raft.upgrade(level)
        assert refusal is None, "it was asked"
        self._go_on()

    def resign(self) -> None:
        """Stop leading, and say so, if this replica leads."""
        if isinstance(self.raft.role, Leader):
            self.raft.resign(self._clock.mono_ms())
            self._go_on()

    @property
    def is_leading(self) -> bool:
        """Whether this replica leads, and its epoch has begun in the log."""
        return self._led_epoch == self.raft.epoch and isinstance(self.raft.role, Leader)

    # ------------------------------------------------------------ one step
    def _step(self) -> None:
        self.raft.tick(self._clock.mono_ms())
        self._go_on()

    def _answer(self, request: Message, reply: Reply, until_ms: int | None = None) -> None:
        """Answer, or park a Fetch; `until_ms` is the end of one that waited already."""
        now_ms = self._clock.mono_ms()
        message = self.raft.receive(request, now_ms, may_wait=until_ms is None or now_ms < until_ms)
        self._take_effects()
        if message is not None:
            self._queue.append(_Reply(reply, message))
            return
        if not isinstance(request, FetchRequest):
            self._unanswered[id(request)] = request, reply
            return
        until_ms = until_ms or now_ms + request.max_wait_ms
        deadline = self._deadlines.schedule(until_ms, self._serve_now)
        self._parked.append(_Parked(request, reply, deadline))

    def _serve(self) -> None:
        """Look again at the Fetches that wait."""
        parked, self._parked = self._parked, []
        for request, reply, deadline in parked:
            deadline.cancel()
            self._answer(request, reply, deadline.at_mono_ms)

    def _serve_now(self) -> None:
        self._serve()
        self._go_on()

    def _take_effects(self) -> None:
        self._queue.extend(self.raft.effects)
        self.raft.effects.clear()

    def _go_on(self) -> None:
        """Do what is asked for, and tell what has changed; who says so from within is heard when that is done (rule 3)."""
        self._has_news = True
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._has_news:
                self._has_news = False
                self._go_on_once()
        finally:
            self._is_going_on = False

    def _go_on_once(self) -> None:
        self._take_effects()
        if self._led_epoch >= 0 and not self.is_leading:
            self._led_epoch = -1
            self._log.lead_no_longer()
            self._owner.lead_no_longer()
        if self._served != (self.raft.epoch, self.raft.high_watermark):
            self._served = self.raft.epoch, self.raft.high_watermark
            self._serve()
        self._carry_out()
        if self.raft.high_watermark > self._committed:
            self._committed = self.raft.high_watermark
            self._log.committed(self._committed)
            self._owner.committed(self._committed)
        leader_id = self.raft.leader_id
        if leader_id == self.raft.own.key.node_id and not self.is_leading:
            leader_id = _NOBODY
        if leader_id != self._known_leader:
            self._known_leader = leader_id
            _log.info("%s leads the metadata quorum in epoch %d", _named(leader_id), self.raft.epoch)
            self.on_leader(leader_id)
        self._wait()

    def _wait(self) -> None:
        due_ms = self.raft.next_deadline_ms
        if self._due is not None and self._due.is_pending:
            if self._due.at_mono_ms == due_ms:
                return
            self._due.cancel()
        self._due = None if due_ms is None else self._deadlines.schedule(due_ms, self._step)

    # ------------------------------------------------------------ effects
    def _carry_out(self) -> None:
        while self._queue and not self._is_busy:
            effect = self._queue.popleft()
            if isinstance(effect, _Reply):
                effect.reply(effect.message)
            elif isinstance(effect, Send):
                self._send(effect.to, effect.address, effect.request, partial(self._answered, effect.to, effect.token))
            elif isinstance(effect, Answer):
                _, reply = self._unanswered.pop(id(effect.request))
                reply(effect.response)
            elif isinstance(effect, Lead | NameVoters):
                self._write_as_leader(effect)
            else:
                self._is_busy = True
                self._do(effect)

    def _write_as_leader(self, effect: Lead | NameVoters) -> None:
        if effect.epoch != self.raft.epoch or not isinstance(self.raft.role, Leader):
            return
        if isinstance(effect, NameVoters):
            self._log.name_voters(effect, self._clock.wall_ms())
        else:
            self._led_epoch = effect.epoch
            self._owner.lead(effect)

    def _do(self, effect: Persist | Append | Truncate | KeepSnapshot) -> None:
        wall_ms = self._clock.wall_ms()
        if isinstance(effect, Persist):
            self._keep(effect.state, self._kept)
        elif isinstance(effect, Append):
            self._log.append_fetched(effect, wall_ms, self._written)
        elif isinstance(effect, Truncate):
            self._log.truncate(effect.offset, self._written)
        else:
            self._log.keep_piece(effect, wall_ms, self._written)

    def _kept(self) -> None:
        self._is_busy = False
        self._go_on()

    def _written(self) -> None:
        self._is_busy = False
        self.raft.written(self._clock.mono_ms())
        self._go_on()

    def _answered(self, peer: int, token: int, message: Message | None) -> None:
        is_stranger = getattr(message, "error_code", ErrorCode.NONE) == ErrorCode.INCONSISTENT_CLUSTER_ID
        if is_stranger and peer not in self._strangers:
            self._strangers.add(peer)
            _log.warning(
                "%s is of another cluster than this node: compare cluster.id in their meta.properties", _named(peer)
            )
        try:
            self.raft.answered(peer, token, message, self._clock.mono_ms())
        except ForkedLog as error:
            self._owner.failed(str(error))
            return
        self._go_on()


def _named(leader_id: int) -> str:
    if leader_id < _NOBODY:
        return f"bootstrap server {_NOBODY - leader_id}"
    return "nobody known" if leader_id == _NOBODY else f"node {leader_id}"


def _ignore(_leader_id: int) -> None:
    pass
