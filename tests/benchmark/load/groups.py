"""Groups over raw sockets: commits of offsets, and the time until every member of a large group has its share.

RULES    1. Every member has a connection of its own; all ask at the same time and are answered as the broker likes.
         2. What a group needs to be there is done before the clock starts.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from contextlib import ExitStack
from struct import Struct
from typing import Any, Final, Self

from protocol.codec import encode
from protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from protocol.messages.groups import (
    ConsumerProtocolSubscription,
    DescribeGroupsRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.messages.metadata import FindCoordinatorRequest
from protocol.schema import Message
from tests.benchmark.load.meter import Meter, Outcome
from tests.benchmark.load.raw import Peer, frame
from tests.benchmark.load.site import Site
from tests.support.raw_client import RawClient
from tests.support.waiting import until

_COMMIT, _JOIN, _SYNC, _BEAT = 8, 5, 3, 1
_ERROR: Final = Struct(">h")
_ASSIGNMENT = bytes(40)
"""About what a consumer's is with one partition."""
_LIMIT_S = 120.0
_TRIES = 5


def coordinated(site: Site, group: str) -> None:
    """Wait until the group has a coordinator that serves it."""
    with RawClient(site.bootstrap) as client:
        asked = FindCoordinatorRequest(coordinator_keys=[group])
        until(lambda: not client.ask(asked, 4).coordinators[0].error_code, "a coordinator", _LIMIT_S)
        shown = DescribeGroupsRequest(groups=[group])
        until(lambda: not client.ask(shown, 4).groups[0].error_code, "a coordinator that has loaded", _LIMIT_S)


# ---- commits


def commits(site: Site, topic: str, count: int, at_a_time: int) -> Outcome:
    """So many commits of one offset by each of some connections, one behind the other on each."""
    requests = []
    for number in range(at_a_time):
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=number, committed_metadata="")
        named = OffsetCommitRequestTopic(name=topic, partitions=[place])
        group = f"{topic}-{number}"
        coordinated(site, group)
        requests.append(frame(OffsetCommitRequest(group_id=group, member_id="", topics=[named]), _COMMIT))
    _commit_all(site, requests, count // 10)
    with Meter(site.pid) as meter:
        took_s = _commit_all(site, requests, count)
    return Outcome({"commits/s": len(took_s) / meter.wall_s, **meter.each(took_s).figures})


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


# ---- members


class Members:
    """The connections of a group's members."""

    def __init__(self, site: Site, count: int) -> None:
        self._stack = ExitStack()
        self._clients = [self._stack.enter_context(RawClient(site.bootstrap, _LIMIT_S)) for _ in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def ask(self, requests: Sequence[Message], version: int) -> list[Any]:
        """The answers to a request of each, all asked at the same time."""
        for client, request in zip(self._clients, requests, strict=True):
            client.send(request, version)
        return [client.receive(request, version) for client, request in zip(self._clients, requests, strict=True)]


def rebalance(site: Site, topic: str, size: int) -> Outcome:
    """Every member of a classic group joins anew, and is given its share by the leader."""
    coordinated(site, topic)
    with Members(site, size) as members:
        ids = [answer.member_id for answer in members.ask([_joining(topic, "", 0)] * size, _JOIN)]
        _join_and_sync(members, topic, ids, 0)
        with Meter(site.pid) as meter:
            _join_and_sync(members, topic, ids, 1)
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3})


def _joining(topic: str, member_id: str, number: int) -> JoinGroupRequest:
    subscription = encode(ConsumerProtocolSubscription(topics=[topic], user_data=b"%d" % number), 1)
    return JoinGroupRequest(
        group_id=topic, session_timeout_ms=60_000, rebalance_timeout_ms=60_000, member_id=member_id,
        protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"\0\1" + subscription)],
    )  # fmt: skip


def _join_and_sync(members: Members, topic: str, ids: Sequence[str], number: int) -> None:
    for _ in range(_TRIES):  # a broker may go on without those whose request it has not read yet
        joined = members.ask([_joining(topic, member_id, number) for member_id in ids], _JOIN)
        generation, leader = joined[0].generation_id, joined[0].leader
        told = {(one.error_code, one.generation_id) for one in joined}
        if told == {(0, generation)}:
            break
    assert told == {(0, generation)}, f"members are told {told}"
    given = [SyncGroupRequestAssignment(member_id=member_id, assignment=_ASSIGNMENT) for member_id in ids]
    synced = members.ask(
        [
            SyncGroupRequest(
                group_id=topic,
                generation_id=generation,
                member_id=member_id,
                assignments=given if member_id == leader else [],
            )
            for member_id in ids
        ],
        _SYNC,
    )
    assert {(one.error_code, bytes(one.assignment)) for one in synced} == {(0, _ASSIGNMENT)}


# ---- members of the consumer protocol (KIP-848)


def joins(site: Site, topic: str, size: int) -> Outcome:
    """So many members join a new consumer group over as many partitions; until each is in the last epoch and has one."""
    coordinated(site, topic)
    with Members(site, size) as members:
        beating = [_Beating(topic, number) for number in range(size)]
        with Meter(site.pid) as meter:
            rounds = _until_settled(members, beating)
    return Outcome({"ms": meter.wall_s * 1e3, "CPU ms": meter.cpu_s * 1e3, "rounds of heartbeats": rounds})


class _Beating:
    """One member, as a client keeps it."""

    def __init__(self, topic: str, number: int) -> None:
        self._topic, self._id = topic, f"member-{number:04}"
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self._has_news = False

    def request(self) -> ConsumerGroupHeartbeatRequest:
        """The next heartbeat."""
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

    def hear(self, answer: Any) -> None:
        """What the coordinator says."""
        assert not answer.error_code, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = {one.topic_id: list(one.partitions) for one in answer.assignment.topic_partitions}
            self._has_news = True


def _until_settled(members: Members, beating: Sequence[_Beating]) -> int:
    rounds = 0
    while not _is_settled(beating):
        answers = members.ask([one.request() for one in beating], _BEAT)
        for one, answer in zip(beating, answers, strict=True):
            one.hear(answer)
        rounds += 1
        assert rounds < 1000, "the group does not come to rest"
    return rounds


def _is_settled(beating: Sequence[_Beating]) -> bool:
    shares = {sum(map(len, one.owned.values())) for one in beating}
    return len({one.epoch for one in beating}) == 1 and shares == {1}
