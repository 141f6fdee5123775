"""Groups over raw sockets: commits of offsets, and the time until every member of a group has its share.

RULES    1. Every member has a connection of its own; all ask at the same time and are answered as the broker likes.
         2. What a group needs to be there is done before the clock starts.
         3. Members of the consumer protocol send the next heartbeat soon after all are answered: clients wait for 5 s,
            which would be all that one sees.
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
from tests.benchmark.load.running_broker import Site
from tests.support.raw_client import RawClient
from tests.support.waiting import until

_COMMIT, _BEAT = 8, 1
_ERROR: Final = Struct(">h")
_LIMIT_S = 120.0
_PACE_S = 0.02


def coordinated(site: Site, group: str) -> None:
    """Wait until the group has a coordinator that serves it."""
    with RawClient(site.bootstrap) as client:
        query = FindCoordinatorRequest(coordinator_keys=[group])
        until(lambda: not client.ask(query, 4).coordinators[0].error_code, "a coordinator", _LIMIT_S)
        shown = DescribeGroupsRequest(groups=[group])
        until(lambda: not client.ask(shown, 4).groups[0].error_code, "a coordinator that has loaded", _LIMIT_S)


# ---- commits


def commits(site: Site, topic: str, count: int, at_a_time: int, partitions: int) -> Outcome:
    """So many commits of some partitions' offsets by each of some connections, one behind the other on each."""
    requests = [commit_frame(f"{topic}-{number}", topic, range(partitions)) for number in range(at_a_time)]
    for number in range(at_a_time):
        coordinated(site, f"{topic}-{number}")
    _commit_all(site, requests, count // 10)
    with Meter(site.pid) as meter:
        took_s = _commit_all(site, requests, count)
    return Outcome({"commits/s": len(took_s) / meter.wall_s, **meter.each(took_s).figures})


def commit_frame(group: str, topic: str, partitions: Sequence[int]) -> bytes:
    """A commit of one offset for each of some partitions, by nobody's member."""
    positions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=index, committed_metadata="")
        for index in partitions
    ]
    named = OffsetCommitRequestTopic(name=topic, partitions=positions)
    return frame(OffsetCommitRequest(group_id=group, member_id="", topics=[named]), _COMMIT)


def _commit_all(site: Site, requests: Sequence[bytes], count: int) -> list[float]:
    clock = time.perf_counter
    took_s: list[float] = []
    with select.epoll() as poll:
        peers = {}
        for request in requests:
            peer = Peer(site.bootstrap)
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


def classic(site: Site, topic: str, size: int) -> dict[str, Outcome]:
    """So many members come to a new group; then one more comes, and one goes."""
    coordinated(site, topic)
    group = ClassicGroup(site, topic)
    try:
        group.connect(size)
        found = {"come": _settling(site, group)}
        group.connect(1)
        found["one more comes"] = _settling(site, group)
        group.lose_one()
        found["one goes"] = _settling(site, group)
    finally:
        group.close()
    return found


def _settling(site: Site, group: ClassicGroup) -> Outcome:
    with Meter(site.pid) as meter:
        joins = group.settle()
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "joins": joins})


# ---- members of the consumer protocol (KIP-848)


class Members:
    """The connections of a group's members."""

    def __init__(self, site: Site, count: int) -> None:
        self._stack = ExitStack()
        self._clients = [self._stack.enter_context(RawClient(site.bootstrap, _LIMIT_S)) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, requests: Sequence[Message], version: int, first: int = 0) -> list[Any]:
        """The answers to a request of each from the first on, all asked at the same time."""
        query = list(zip(self._clients[first:], requests, strict=False))
        for client, request in query:
            client.send(request, version)
        return [client.receive(request, version) for client, request in query]


def consumer(site: Site, topic: str, size: int) -> dict[str, Outcome]:
    """So many members join a new group over one partition more; then one more comes, and one goes.

    The clock runs until all are in the same epoch and have all partitions among them.
    """
    coordinated(site, topic)
    with Members(site, size + 1) as members:
        beating = [_Beating(topic, number) for number in range(size)]
        found = {"come": _settled(site, members, beating, size + 1)}
        beating.append(_Beating(topic, size))
        found["one more comes"] = _settled(site, members, beating, size + 1)
        members.ask([beating.pop().leaving()], _BEAT, size)
        found["one goes"] = _settled(site, members, beating, size + 1)
    return found


def _settled(site: Site, members: Members, beating: Sequence[_Beating], partitions: int) -> Outcome:
    with Meter(site.pid) as meter:
        rounds = _until_settled(members, beating, partitions)
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "rounds of heartbeats": rounds})


class _Beating:
    """One member, as a client keeps it."""

    def __init__(self, topic: str, number: int) -> None:
        self._topic, self._id = topic, f"member-{number:04}"
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self._has_news = False

    def request(self) -> ConsumerGroupHeartbeatRequest:
        request = ConsumerGroupHeartbeatRequest(group_id=self._topic, member_id=self._id, member_epoch=self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names, request.topic_partitions = [self._topic], []
        elif self._has_news:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in self.owned.items()
            ]
        self._has_news = False
        return request

    def leaving(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(group_id=self._topic, member_id=self._id, member_epoch=-1)

    def hear(self, answer: Any) -> None:
        assert not answer.error_code, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}
            self._has_news = True


def _until_settled(members: Members, beating: Sequence[_Beating], partitions: int) -> int:
    rounds, ends_s = 0, time.monotonic() + _LIMIT_S
    while not _is_settled(beating, partitions):
        answers = members.ask([one.request() for one in beating], _BEAT)
        for one, answer in zip(beating, answers, strict=True):
            one.hear(answer)
        rounds += 1
        assert time.monotonic() < ends_s, "the group does not come to rest"
        time.sleep(_PACE_S)
    return rounds


def _is_settled(beating: Sequence[_Beating], partitions: int) -> bool:
    shares = [sum(map(len, one.owned.values())) for one in beating]
    return len({one.epoch for one in beating}) == 1 and min(shares) > 0 and sum(shares) == partitions
