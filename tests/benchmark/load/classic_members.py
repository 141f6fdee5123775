"""Members of a classic group over raw sockets, until all are in one generation.

RULES    1. A member joins without an id, joins again with the id from the response, syncs, and then sends heartbeats. On
            REBALANCE_IN_PROGRESS or UNKNOWN_MEMBER_ID it joins again, as clients do; the number of joins is a figure too.
         2. Every member has its own connection, and all are members at the same time.
         3. A group is stable when all its members have assignments of the same generation, which has no other member.
"""

from __future__ import annotations

import select
import time
from enum import Enum, auto
from typing import Any, Final

from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages import groups
from protocol.schema import Message
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.messages import message
from tests.support.raw_client import RawClient

JOIN, SYNC, HEARTBEAT, LEAVE = 5, 3, 3, 3
HEARTBEAT_INTERVAL_S: Final = 0.1
"""Clients' is 3 s, which would dominate the result."""
FIRST_HEARTBEAT_S: Final = 0.01
ASSIGNMENT: Final = bytes(40)
"""About the size of a consumer's with one partition."""
LIMIT_S: Final = 60.0


class _Phase(Enum):
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()


class _Member:
    def __init__(self, broker: RunningBroker, group: str) -> None:
        self.client = RawClient(broker.bootstrap, LIMIT_S)
        self.phase = _Phase.JOINING
        self.id = ""
        self.generation = -1
        self.seen = 0
        """If it is the leader: the number of members of its generation."""
        self.joins = 0
        self.next_heartbeat_s = 0.0
        self._group = group
        self._sent: tuple[Message, int] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a response is outstanding."""
        return self._sent is not None

    def _send(self, version: int, cls: type[Message], **fields: Any) -> None:
        self._sent = message(cls, group_id=self._group, **fields), version
        self.client.send(*self._sent)

    def join(self) -> None:
        self.phase, self.seen = _Phase.JOINING, 0
        self.joins += 1
        subscription = encode(groups.ConsumerProtocolSubscription(topics=[self._group]), 1)
        self._send(
            JOIN, groups.JoinGroupRequest, session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id=self.id,
            protocol_type="consumer", protocols=[{"name": "range", "metadata": b"\0\1" + subscription}],
        )  # fmt: skip

    def heartbeat(self) -> None:
        self._send(HEARTBEAT, groups.HeartbeatRequest, generation_id=self.generation, member_id=self.id)

    def receive(self) -> None:
        """Reads a response and reacts as a client does."""
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
            self._apply_response(answer)

    def _apply_response(self, answer: Any) -> None:
        if self.phase is _Phase.JOINING:
            self.id, self.generation, self.phase = answer.member_id, answer.generation_id, _Phase.SYNCING
            self.seen = len(answer.members)
            given = [{"member_id": one.member_id, "assignment": ASSIGNMENT} for one in answer.members]
            identity = {"generation_id": self.generation, "member_id": self.id}
            self._send(SYNC, groups.SyncGroupRequest, **identity, assignments=given)
            return
        if self.phase is _Phase.SYNCING:
            assert bytes(answer.assignment) == ASSIGNMENT, "not its share"
            self.phase = _Phase.STABLE
        self.next_heartbeat_s = time.monotonic() + HEARTBEAT_INTERVAL_S

    def leave(self) -> None:
        if self._sent is not None:
            self.client.receive(*self._sent)
        leave = message(groups.LeaveGroupRequest, group_id=self._group, members=[{"member_id": self.id}])
        self.client.ask(leave, LEAVE)
        self.client.close()


class ClassicGroup:
    def __init__(self, broker: RunningBroker, group: str) -> None:
        self._broker, self._group = broker, group
        self._members: list[_Member] = []
        self._poll = select.epoll()
        self._by_fileno: dict[int, _Member] = {}

    def connect(self, count: int) -> None:
        """Adds members that have not joined yet."""
        for _ in range(count):
            member = _Member(self._broker, self._group)
            number = member.client.socket.fileno()
            self._members.append(member)
            self._by_fileno[number] = member
            self._poll.register(number, select.EPOLLIN)

    def rebalance(self) -> int:
        """New members join; runs until the group is stable; returns the number of joins."""
        before = sum(member.joins for member in self._members)
        for member in self._members:
            if member.generation < 0 and not member.is_waiting:
                member.join()
        began_s = time.monotonic()
        for member in self._members:  # existing members learn soon of the rebalance
            member.next_heartbeat_s = began_s + FIRST_HEARTBEAT_S
        ends_s = began_s + LIMIT_S
        while not self._is_stable():
            now_s = time.monotonic()
            assert now_s < ends_s, "the group does not become stable"
            for number, _ in self._poll.poll(HEARTBEAT_INTERVAL_S / 10):
                self._by_fileno[number].receive()
            self._send_heartbeats(now_s)
        return sum(member.joins for member in self._members) - before

    def _send_heartbeats(self, now_s: float) -> None:
        for member in self._members:
            if member.phase is _Phase.STABLE and not member.is_waiting and member.next_heartbeat_s <= now_s:
                member.heartbeat()

    def _is_stable(self) -> bool:
        members = self._members
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
