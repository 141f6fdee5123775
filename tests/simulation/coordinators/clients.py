"""Clients of simulated coordinators: members of both protocols, transactional producers, an administrator.

RULES    1. A client performs the next operation of its protocol, or a spontaneous one, at random.
         2. It knows only its responses. Acknowledged offsets are recorded in `Acknowledged`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages import groups
from protocol.messages.common import TopicPartitions
from tests.simulation.coordinators.invariants import Offsets
from tests.support import group_requests
from tests.support.group_harness import LocalGroupHarness

TOPICS: Final = {"t": 3, "u": 2}
_AGAIN = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.COORDINATOR_NOT_AVAILABLE}
_TIMEOUT_MS = 900_000
NO_PRODUCER: Final = (-1, -1)


class Acknowledged:
    """The acknowledged offsets."""

    def __init__(self) -> None:
        self.offsets: Offsets = {}
        self.pending: dict[str, Offsets] = {}
        self._next = 0

    def next_offset(self) -> int:
        """A new offset."""
        self._next += 1
        return self._next

    def committed(self, key: tuple[str, str, int], offset: int) -> None:
        """Record a commit; it overrides pending transactional offsets."""
        self.offsets[key] = offset
        for pending in self.pending.values():
            pending.pop(key, None)

    def ended(self, name: str) -> None:
        """Record the offsets of a committed transaction; a later one of another transaction, which is higher, stays."""
        for key, offset in self.pending[name].items():
            self.offsets[key] = max(self.offsets.get(key, offset), offset)

    def deleted(self, group: str, topic: str | None = None) -> None:
        """Offsets of a group were deleted."""
        for known in (self.offsets, *self.pending.values()):
            for key in [key for key in known if key[0] == group and topic in {None, key[1]}]:
                del known[key]


@dataclass
class Client:
    """One client."""

    harness: LocalGroupHarness
    random: Random
    acknowledged: Acknowledged
    name: str
    group: str
    instance: str | None = None

    def commit(self, member_id: str, generation: int) -> None:
        topic, partition, offset = self.next_commit()
        request = group_requests.commit_request(
            offset, self.group, partition, member_id, generation,
            topic=topic, metadata="n" * self.random.choice([0, 3]),
        )  # fmt: skip
        if not group_requests.error_of(self.harness.ask(request, 9, self.name)):
            self.acknowledged.committed((self.group, topic, partition), offset)

    def next_commit(self) -> tuple[str, int, int]:
        """A topic, a partition and a new offset."""
        topic = self.random.choice(list(TOPICS))
        return topic, self.random.randrange(TOPICS[topic]), self.acknowledged.next_offset()

    def act(self) -> None:
        self.commit("", -1)  # as an administrator


@dataclass
class ClassicClient(Client):
    """A consumer with the classic protocol."""

    member_id: str = ""
    generation: int = -1
    _must_sync: bool = False
    _members: list[str] = field(default_factory=list)

    def act(self) -> None:
        """Handle a response, or join, sync, heartbeat, commit or leave."""
        if self.name in self.harness.waiting:
            return
        answer = self.harness.take(self.name)
        if answer is not None:
            self._on_response(answer)
        elif self.generation < 0:
            self._join()
        elif self._must_sync:
            self._sync()
        else:
            self._do_member_operation()

    def _on_response(self, answer: Any) -> None:
        if isinstance(answer, groups.JoinGroupResponse):
            self.generation = -1
            if not answer.error_code:
                self.member_id, self.generation, self._must_sync = answer.member_id, answer.generation_id, True
                self._members = [item.member_id for item in answer.members]
            elif answer.error_code not in _AGAIN:
                self.member_id = ""
        elif isinstance(answer, groups.SyncGroupResponse):
            self._must_sync = False
            self._on_error(answer.error_code)

    def _on_error(self, error: int) -> None:
        if error:
            self.generation = -1
            if error not in _AGAIN:
                self.member_id = ""

    def _join(self) -> None:
        topics = self.random.choice([["t"], ["t", "u"]])
        request = group_requests.join_request(
            self.group, self.member_id, instance=self.instance, session_ms=30_000,
            protocols=[("range", group_requests.subscription(1, *topics))],
        )  # fmt: skip
        self.harness.send(self.name, request, 5 if self.instance is not None else 3)

    def _sync(self) -> None:
        assignments = {member_id: _assignment(number) for number, member_id in enumerate(self._members)}
        request = group_requests.sync_request(
            self.member_id, self.group, self.generation, assignments, instance=self.instance
        )
        self.harness.send(self.name, request, 3)

    def _do_member_operation(self) -> None:
        drawn = self.random.random()
        if drawn < 0.5:
            request = group_requests.heartbeat_request(self.member_id, self.generation, self.group, self.instance)
            self._on_error(self.harness.ask(request, 3, self.name).error_code)
        elif drawn < 0.8:
            self.commit(self.member_id, self.generation)
        elif drawn < 0.9:
            self._join()
        else:
            leaving = group_requests.leave_request(self.member_id, self.group, self.instance)
            self.harness.ask(leaving, 3, self.name)
            self.member_id, self.generation = "", -1


def _assignment(number: int) -> bytes:
    """The assignment that the leader computes for a member: one partition, if any is left."""
    given = [TopicPartitions(topic="t", partitions=[number])] if number < TOPICS["t"] else []
    return b"\0\1" + encode(groups.ConsumerProtocolAssignment(assigned_partitions=given), 1)


@dataclass
class ConsumerClient(Client):
    """A consumer with the consumer protocol."""

    epoch: int = 0
    held: set[tuple[bytes, int]] = field(default_factory=set)
    """The partitions that it was assigned and has not reported as revoked."""
    _owned: dict[bytes, list[int]] = field(default_factory=dict)

    @property
    def is_member(self) -> bool:
        """Whether the coordinator knows this member; the client may not know of its removal yet."""
        shards = self.harness.runtime.shards.values()
        groups = [shard.coordinator.consumer_groups.get(self.group) for shard in shards]
        return self.epoch > 0 and any(group is not None and self.name in group.members for group in groups)

    def act(self) -> None:
        """Send a heartbeat, commit or leave."""
        drawn = self.random.random()
        if self.epoch > 0 and drawn < 0.25:
            self.commit(self.name, self.epoch)
        elif self.epoch > 0 and drawn < 0.33:
            self._heartbeat(-2 if self.instance is not None and self.random.random() < 0.5 else -1)
        else:
            self._heartbeat(self.epoch)

    def _heartbeat(self, epoch: int) -> None:
        fields: dict[str, Any] = {"instance_id": self.instance}
        if epoch == 0:
            self._owned = {}
            fields["rebalance_timeout_ms"] = 10_000
            if self.random.random() < 0.2:
                fields["subscribed_topic_regex"] = self.random.choice(["t|u", "u", "x.*"])
            else:
                fields["subscribed_topic_names"] = self.random.choice([["t"], ["t", "u"]])
        reports = epoch == 0 or (epoch > 0 and self.random.random() < 0.7)
        request = group_requests.consumer_heartbeat(
            self.name, epoch, self.group, owned=self._owned if reports else None, **fields
        )
        if reports:
            self.held = self._partitions()
        answer = self.harness.ask(request, 1, self.name)
        if answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            return
        assert answer.error_code or epoch <= 0 or answer.member_epoch >= epoch, "the member epoch decreased"
        self.epoch = 0 if answer.error_code else max(answer.member_epoch, 0)
        if answer.assignment is not None:
            self._owned = {item.topic_id: list(item.partitions) for item in answer.assignment.topic_partitions}
        self.held = self.held | self._partitions() if self.epoch else set()

    def _partitions(self) -> set[tuple[bytes, int]]:
        return {(topic_id, partition) for topic_id, partitions in self._owned.items() for partition in partitions}


@dataclass
class Transactor(Client):
    """A transactional producer that commits offsets (transaction version 2)."""

    _producer: tuple[int, int] = NO_PRODUCER
    _is_open: bool = False

    def act(self) -> None:
        """Begin a transaction, commit an offset in it, or end it."""
        if self._producer == NO_PRODUCER:
            self._begin()
        elif not self._is_open or self.random.random() < 0.6:
            self._add()
        else:
            self._end()

    def _ask(self, request: Any) -> Any:
        """The response, if it arrives within a second."""
        self.harness.send(self.name, request, 5)
        return self.harness.take(self.name, 1_000)

    def _begin(self) -> None:
        self.acknowledged.pending[self.name] = {}
        self._is_open = False
        answer = self._ask(group_requests.init_request(self.name, _TIMEOUT_MS))
        if answer is not None and not answer.error_code:
            self._producer = answer.producer_id, answer.producer_epoch

    def _add(self) -> None:
        topic, partition, offset = self.next_commit()
        request = group_requests.txn_commit_request(
            self.name, self._producer, offset, self.group, partition, topic=topic
        )
        answer = self._ask(request)
        if answer is None or group_requests.error_of(answer):
            self._producer = NO_PRODUCER
        else:
            self._is_open = True
            self.acknowledged.pending[self.name][self.group, topic, partition] = offset

    def _end(self) -> None:
        is_commit = self.random.random() < 0.7
        answer = self._ask(group_requests.end_request(self.name, self._producer, commit=is_commit))
        if answer is None or answer.error_code:
            self._producer = NO_PRODUCER
            return
        self._producer, self._is_open = (answer.producer_id, answer.producer_epoch), False
        if is_commit:
            self.acknowledged.ended(self.name)
        self.acknowledged.pending[self.name] = {}
