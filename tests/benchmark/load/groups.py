"""Groups over raw sockets: offset commits, and the time until every member of a group has its assignment.

RULES    1. Every member has its own connection; all send their requests at the same time.
         2. A group's topic and coordinator exist before the clock starts.
         3. Members of the consumer protocol send the next heartbeat soon after all responses: the 5 s of clients
            would dominate the result.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from struct import Struct
from typing import Any, Final, Self

from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from protocol.messages.groups import (
    DescribeGroupsRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.schema import Message
from tests.benchmark.load.classic_members import ClassicGroup
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.raw import Peer, frame
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.raw_client import RawClient
from tests.support.waiting import until

_COMMIT, _HEARTBEAT = 8, 1
_ERROR: Final = Struct(">h")
_LIMIT_S = 120.0
_PACE_S = 0.02


def await_coordinator(broker: RunningBroker, group: str) -> None:
    """Waits until the group's coordinator serves it."""
    with RawClient(broker.bootstrap) as client:
        query = FindCoordinatorRequest(coordinator_keys=[group])
        until(lambda: not client.ask(query, 4).coordinators[0].error_code, "a coordinator", _LIMIT_S)
        shown = DescribeGroupsRequest(groups=[group])
        until(lambda: not client.ask(shown, 4).groups[0].error_code, "a coordinator that has loaded", _LIMIT_S)


# ---- commits


def commits(broker: RunningBroker, topic: str, count: int, at_a_time: int, partitions: int) -> Outcome:
    """Commits of some partitions' offsets by each of some connections, in sequence on each."""
    requests = [commit_frame(f"{topic}-{number}", topic, range(partitions)) for number in range(at_a_time)]
    for number in range(at_a_time):
        await_coordinator(broker, f"{topic}-{number}")
    _commit_all(broker, requests, count // 10)
    with Meter(broker.pid) as meter:
        took_s = _commit_all(broker, requests, count)
    return Outcome({"commits/s": len(took_s) / meter.wall_s, **meter.each(took_s).figures})


def commit_frame(group: str, topic: str, partitions: Sequence[int]) -> bytes:
    """A commit of one offset for each of some partitions, without a member id."""
    positions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="")
        for index in partitions
    ]
    named = OffsetCommitRequestTopic(name=topic, partitions=positions)
    return frame(OffsetCommitRequest(group_id=group, member_id="", topics=[named]), _COMMIT)


def _commit_all(broker: RunningBroker, requests: Sequence[bytes], count: int) -> list[float]:
    clock = time.perf_counter
    took_s: list[float] = []
    with select.epoll() as poll:
        peers = {}
        for request in requests:
            peer = Peer(broker.bootstrap)
            peers[peer.fileno()] = (peer, request)
            poll.register(peer.fileno(), select.EPOLLIN)
        left = dict.fromkeys(peers, count)
        sent = {}
        for number, (peer, request) in peers.items():
            sent[number] = clock()
            peer.send(request)
        while left:
            for number, _ in poll.poll():
                peer, request = peers[number]
                length = peer.answer()
                took_s.append(clock() - sent[number])
                assert not _ERROR.unpack_from(peer.buffer, length - _ERROR.size)[0], "a commit was refused"
                left[number] -= 1
                if left[number]:
                    sent[number] = clock()
                    peer.send(request)
                else:
                    del left[number]
                    peer.close()
    return took_s


# ---- members of the classic protocol


def classic(broker: RunningBroker, topic: str, size: int) -> dict[str, Outcome]:
    """Members join a new group; then another one joins, and one leaves."""
    await_coordinator(broker, topic)
    group = ClassicGroup(broker, topic)
    try:
        group.connect(size)
        found = {"come": _time_to_settle_classic(broker, group)}
        group.connect(1)
        found["one more comes"] = _time_to_settle_classic(broker, group)
        group.lose_one()
        found["one goes"] = _time_to_settle_classic(broker, group)
    finally:
        group.close()
    return found


def _time_to_settle_classic(broker: RunningBroker, group: ClassicGroup) -> Outcome:
    with Meter(broker.pid) as meter:
        joins = group.rebalance()
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "joins": joins})


# ---- members of the consumer protocol (KIP-848)


class Connections:
    """The connections of a group's members."""

    def __init__(self, broker: RunningBroker, count: int) -> None:
        self._stack = ExitStack()
        self._clients = [self._stack.enter_context(RawClient(broker.bootstrap, _LIMIT_S)) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, requests: Sequence[Message], version: int, first: int = 0) -> list[Any]:
        """The responses to one request of each member from `first` on, all sent at the same time."""
        query = list(zip(self._clients[first:], requests, strict=False))
        for client, request in query:
            client.send(request, version)
        return [client.receive(request, version) for client, request in query]


def consumer(broker: RunningBroker, topic: str, size: int) -> dict[str, Outcome]:
    """Members join a new group with one more partition than members; then another one joins, and one leaves.

    The clock runs until all are in the same epoch and all partitions are assigned.
    """
    await_coordinator(broker, topic)
    with Connections(broker, size + 1) as connections:
        members = [_ConsumerMember(topic, number) for number in range(size)]
        found = {"come": _time_to_settle(broker, connections, members, size + 1)}
        members.append(_ConsumerMember(topic, size))
        found["one more comes"] = _time_to_settle(broker, connections, members, size + 1)
        connections.ask([members.pop().leave_request()], _HEARTBEAT, size)
        found["one goes"] = _time_to_settle(broker, connections, members, size + 1)
    return found


def _time_to_settle(
    broker: RunningBroker, connections: Connections, members: Sequence[_ConsumerMember], partitions: int
) -> Outcome:
    with Meter(broker.pid) as meter:
        rounds = _until_settled(connections, members, partitions)
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "rounds of heartbeats": rounds})


class _ConsumerMember:
    """One member, as a client implements it."""

    def __init__(self, topic: str, number: int) -> None:
        self._topic, self._id = topic, f"member-{number:04}"
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self._assignment_changed = False

    def request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(group_id=self._topic, member_id=self._id, member_epoch=self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names, request.topic_partitions = [self._topic], []
        elif self._assignment_changed:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in self.owned.items()
            ]
        self._assignment_changed = False
        return request

    def leave_request(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(group_id=self._topic, member_id=self._id, member_epoch=-1)

    def apply_response(self, answer: Any) -> None:
        assert not answer.error_code, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}
            self._assignment_changed = True


def _until_settled(connections: Connections, members: Sequence[_ConsumerMember], partitions: int) -> int:
    rounds, ends_s = 0, time.monotonic() + _LIMIT_S
    while not _is_settled(members, partitions):
        answers = connections.ask([one.request() for one in members], _HEARTBEAT)
        for one, answer in zip(members, answers, strict=True):
            one.apply_response(answer)
        rounds += 1
        assert time.monotonic() < ends_s, "the group does not become stable"
        time.sleep(_PACE_S)
    return rounds


def _is_settled(members: Sequence[_ConsumerMember], partitions: int) -> bool:
    shares = [sum(map(len, one.owned.values())) for one in members]
    return len({one.epoch for one in members}) == 1 and min(shares) > 0 and sum(shares) == partitions
