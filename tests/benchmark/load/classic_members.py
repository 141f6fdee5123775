"""Members of a classic group over raw sockets, each as a client keeps it, until all are in one generation.

RULES    1. A member joins without an id, joins again with the one that it is given, syncs, and then sends heartbeats. Told that
            a rebalance is under way, or that it is unknown, it joins again; that is a client's life, so how often it
            happened is told as well.
         2. Every member has a connection of its own, and all live at the same time.
         3. A group is at rest when all its members have their shares of the same generation, and nobody else is in it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages.groups import (
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.schema import Message
from tests.benchmark.load.running_broker import Site
from tests.support.raw_client import RawClient

JOIN, SYNC, BEAT, LEAVE = 5, 3, 3, 3
BEAT_S: Final = 0.1
"""Between two heartbeats; clients' is 3 s, which would be all that one sees."""
SOON_S: Final = 0.01
ASSIGNMENT: Final = bytes(40)
"""About what a consumer's is with one partition."""
LIMIT_S: Final = 60.0


class _Phase(Enum):
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()


class _Member:
    def __init__(self, site: Site, group: str) -> None:
        self.client = RawClient(site.bootstrap, LIMIT_S)
        self.phase = _Phase.JOINING
        self.id = ""
        self.generation = -1
        self.seen = 0
        """As a leader, how many members its generation has."""
        self.joins = 0
        self.beats_at_s = 0.0
        self._group = group
        self._sent: tuple[Message, int] | None = None

    @property
    def waits(self) -> bool:
        """Whether it is owed an answer."""
        return self._sent is not None

    def _send(self, request: Message, version: int) -> None:
        self._sent = request, version
        self.client.send(request, version)

    def join(self) -> None:
        """Ask for a place in the next generation."""
        self.phase, self.seen = _Phase.JOINING, 0
        self.joins += 1
        subscription = encode(ConsumerProtocolSubscription(topics=[self._group]), 1)
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"\0\1" + subscription)
        request = JoinGroupRequest(
            group_id=self._group, session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id=self.id,
            protocol_type="consumer", protocols=[protocol],
        )  # fmt: skip
        self._send(request, JOIN)

    def beat(self) -> None:
        request = HeartbeatRequest(group_id=self._group, generation_id=self.generation, member_id=self.id)
        self._send(request, BEAT)

    def hear(self) -> None:
        """Read an answer and do what a client does then."""
        assert self._sent is not None, "nothing was asked"
        (request, version), self._sent = self._sent, None
        answer = self.client.receive(request, version)
        error = answer.error_code
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            self.joins -= 1
            self.join()
        elif error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS}:
            self.id = "" if error == ErrorCode.UNKNOWN_MEMBER_ID else self.id
            self.join()
        else:
            assert not error, ErrorCode(error).name
            self._go_on(answer)

    def _go_on(self, answer: Any) -> None:
        if self.phase is _Phase.JOINING:
            self.id, self.generation, self.phase = answer.member_id, answer.generation_id, _Phase.SYNCING
            self.seen = len(answer.members)
            given = [
                SyncGroupRequestAssignment(member_id=one.member_id, assignment=ASSIGNMENT) for one in answer.members
            ]
            request = SyncGroupRequest(
                group_id=self._group, generation_id=self.generation, member_id=self.id, assignments=given
            )
            self._send(request, SYNC)
            return
        if self.phase is _Phase.SYNCING:
            assert bytes(answer.assignment) == ASSIGNMENT, "not its share"
            self.phase = _Phase.STABLE
        self.beats_at_s = time.monotonic() + BEAT_S

    def leave(self) -> None:
        if self._sent is not None:
            self.client.receive(*self._sent)
        request = LeaveGroupRequest(group_id=self._group, members=[MemberIdentity(member_id=self.id)])
        self.client.ask(request, LEAVE)
        self.client.close()


class ClassicGroup:
    """A group and its members."""

    def __init__(self, site: Site, group: str) -> None:
        self._site, self._group = site, group
        self._members: list[_Member] = []
        self._poll = select.epoll()
        self._by_fileno: dict[int, _Member] = {}

    def connect(self, count: int) -> None:
        """So many members more, which have not joined yet."""
        for _ in range(count):
            member = _Member(self._site, self._group)
            number = member.client.socket.fileno()
            self._members.append(member)
            self._by_fileno[number] = member
            self._poll.register(number, select.EPOLLIN)

    def settle(self) -> int:
        """Have those who have not joined do so, and live until the group is at rest; how often members joined."""
        before = sum(member.joins for member in self._members)
        for member in self._members:
            if member.generation < 0 and not member.waits:
                member.join()
        began_s = time.monotonic()
        for member in self._members:  # whoever is there already is told soon: when its heartbeat is due would be chance
            member.beats_at_s = began_s + SOON_S
        ends_s = began_s + LIMIT_S
        while not self._is_at_rest():
            now_s = time.monotonic()
            assert now_s < ends_s, "the group does not come to rest"
            for number, _ in self._poll.poll(BEAT_S / 10):
                self._by_fileno[number].hear()
            self._beat(now_s)
        return sum(member.joins for member in self._members) - before

    def _beat(self, now_s: float) -> None:
        for member in self._members:
            if member.phase is _Phase.STABLE and not member.waits and member.beats_at_s <= now_s:
                member.beat()

    def _is_at_rest(self) -> bool:
        members: Sequence[_Member] = self._members
        return (
            all(member.phase is _Phase.STABLE for member in members)
            and len({member.generation for member in members}) == 1
            and sum(member.seen for member in members) == len(members)
        )

    def lose_one(self) -> None:
        member = self._members.pop()
        number = member.client.socket.fileno()
        self._poll.unregister(number)
        del self._by_fileno[number]
        member.leave()

    def close(self) -> None:
        self._poll.close()
        for member in self._members:
            member.client.close()
