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
from typing import Any, Final

from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.groups import DescribeGroupsRequest, OffsetCommitRequest
from protocol.messages.metadata import FindCoordinatorRequest
from tests.benchmark.load.classic_members import ClassicGroup
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.raw import Peer, frame
from tests.benchmark.load.running_broker import RunningBroker
from tests.support.messages import message
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
    committed = [
        {"partition_index": index, "committed_offset": index, "committed_metadata": ""} for index in partitions
    ]
    topics = [{"name": topic, "partitions": committed}]
    return frame(message(OffsetCommitRequest, group_id=group, member_id="", topics=topics), _COMMIT)


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
        found = {"members join": _time_to_settle_classic(broker, group)}
        group.connect(1)
        found["one joins"] = _time_to_settle_classic(broker, group)
        group.lose_one()
        found["one leaves"] = _time_to_settle_classic(broker, group)
    finally:
        group.close()
    return found


def _time_to_settle_classic(broker: RunningBroker, group: ClassicGroup) -> Outcome:
    with Meter(broker.pid) as meter:
        joins = group.rebalance()
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "joins": joins})


# ---- members of the consumer protocol (KIP-848)


def consumer(broker: RunningBroker, topic: str, size: int) -> dict[str, Outcome]:
    """Members join a new group with one more partition than members; then another one joins, and one leaves.

    The clock runs until all are in the same epoch and all partitions are assigned.
    """
    await_coordinator(broker, topic)
    with ExitStack() as held:
        clients = [held.enter_context(RawClient(broker.bootstrap, _LIMIT_S)) for _ in range(size + 1)]
        members = [_ConsumerMember(client, topic, number) for number, client in enumerate(clients)]
        found = {"members join": _time_to_settle(broker, members[:-1], size + 1)}
        found["one joins"] = _time_to_settle(broker, members, size + 1)
        members.pop().leave()
        found["one leaves"] = _time_to_settle(broker, members, size + 1)
    return found


def _time_to_settle(broker: RunningBroker, members: Sequence[_ConsumerMember], partitions: int) -> Outcome:
    with Meter(broker.pid) as meter:
        rounds = _until_settled(members, partitions)
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "rounds of heartbeats": rounds})


class _ConsumerMember:
    """One member, as a client implements it."""

    def __init__(self, client: RawClient, topic: str, number: int) -> None:
        self._client, self._topic, self._id = client, topic, f"member-{number:04}"
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self._assignment_changed = False
        self._sent = self._request(-1)

    def _request(self, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        common = {"group_id": self._topic, "member_id": self._id, "member_epoch": epoch}
        return message(ConsumerGroupHeartbeatRequest, **common, **fields)

    def send(self) -> None:
        fields: dict[str, Any] = {}
        if self.epoch == 0:
            fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [self._topic], "topic_partitions": []}
        elif self._assignment_changed:
            fields["topic_partitions"] = [{"topic_id": one, "partitions": owned} for one, owned in self.owned.items()]
        self._assignment_changed = False
        self._sent = self._request(self.epoch, **fields)
        self._client.send(self._sent, _HEARTBEAT)

    def leave(self) -> None:
        self._client.ask(self._request(-1), _HEARTBEAT)

    def receive(self) -> None:
        answer = self._client.receive(self._sent, _HEARTBEAT)
        assert not answer.error_code, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}
            self._assignment_changed = True


def _until_settled(members: Sequence[_ConsumerMember], partitions: int) -> int:
    rounds, ends_s = 0, time.monotonic() + _LIMIT_S
    while not _is_settled(members, partitions):
        for one in members:
            one.send()
        for one in members:
            one.receive()
        rounds += 1
        assert time.monotonic() < ends_s, "the group does not become stable"
        time.sleep(_PACE_S)
    return rounds


def _is_settled(members: Sequence[_ConsumerMember], partitions: int) -> bool:
    shares = [sum(map(len, one.owned.values())) for one in members]
    return len({one.epoch for one in members}) == 1 and min(shares) > 0 and sum(shares) == partitions
