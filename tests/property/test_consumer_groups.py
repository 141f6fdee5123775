"""A consumer group with random members: requests in random order, lost responses, broker restarts."""

from __future__ import annotations

import random

import pytest

from protocol.errors import ErrorCode
from tests.support.group_harness import LocalGroupHarness, local_world
from tests.support.group_requests import consumer_heartbeat

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.topic.num.partitions": 1,
}
TOPICS = ("one", "two", "three")


class Client:
    """A member that behaves like a consumer: it revokes partitions before it acknowledges them."""

    def __init__(self, harness: LocalGroupHarness, rng: random.Random, member_id: str) -> None:
        self.harness, self.rng, self.member_id = harness, rng, member_id
        self.epoch = 0
        self.owned: set[tuple[bytes, int]] = set()
        self.topics: list[str] = []

    def subscribe(self) -> None:
        """Choose topics."""
        self.topics = self.rng.sample(TOPICS, self.rng.randint(1, len(TOPICS)))

    def beat(self, *, loses_answer: bool = False) -> None:
        """Send a full heartbeat."""
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, partition in sorted(self.owned):
            by_topic.setdefault(topic_id, []).append(partition)
        request = consumer_heartbeat(
            self.member_id,
            self.epoch,
            owned=by_topic,
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=self.topics,
        )
        answer = self.harness.ask(request, 1)
        if loses_answer:
            return
        if answer.error_code:
            assert answer.error_code in {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}, answer
            self.epoch, self.owned = 0, set()
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            assigned = answer.assignment.topic_partitions
            self.owned = {(one.topic_id, partition) for one in assigned for partition in one.partitions}

    def leave(self) -> None:
        """Leave the group."""
        self.harness.ask(consumer_heartbeat(self.member_id, -1), 1)


@pytest.mark.parametrize("seed", range(25))
def test_no_partition_has_two_owners_and_the_group_converges(seed: int) -> None:
    rng = random.Random(seed)
    harness = local_world(SETTINGS)
    for topic in TOPICS:
        harness.create_topic(topic, rng.randint(1, 7))
    clients: list[Client] = []
    for number in range(150):
        act = rng.random()
        if len(clients) < 2 or (act < 0.08 and len(clients) < 6):
            clients.append(Client(harness, rng, f"m{number}"))
            clients[-1].subscribe()
        elif act < 0.12:
            clients.pop(rng.randrange(len(clients))).leave()
        elif act < 0.16:
            rng.choice(clients).subscribe()
        elif act < 0.17:
            harness.restart()
        elif act < 0.20:
            harness.advance(rng.randint(1, 2_000))
        rng.choice(clients).beat(loses_answer=rng.random() < 0.1)
        everything = [partition for client in clients for partition in client.owned]
        assert len(everything) == len(set(everything)), f"two owners, seed {seed}"
    for _ in range(8):
        harness.advance(1_000)
        for client in clients:
            client.beat()
    read = {topic for client in clients for topic in client.topics}
    image = harness.holder.image
    expected_owners = {
        (harness.topic_id(topic), part) for topic in read for part in image.topics_by_name[topic].partitions
    }
    assert {partition for client in clients for partition in client.owned} == expected_owners, f"seed {seed}"
    for client in clients:
        subscribed = {harness.topic_id(topic) for topic in client.topics}
        assert {topic_id for topic_id, _ in client.owned} <= subscribed, f"seed {seed}"
