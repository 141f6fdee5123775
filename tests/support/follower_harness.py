"""One test's follower, client and topics, in a cluster of one node and such followers: this broker, or Apache Kafka."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from barnabas.embedded import Broker
from protocol.errors import ErrorCode
from tests.support.batches import batch
from tests.support.controller_listener import WITH_CONTROLLER, controller_of
from tests.support.follower import Client, Follower, Seen
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.waiting import until

E = ErrorCode
SETTINGS: dict[str, object] = {
    "replica.lag.time.max.ms": 60_000,
    "broker.session.timeout.ms": 60_000,
    "broker.heartbeat.interval.ms": 500,
}
"""Nobody falls behind or silent, however slow the machine is."""
HASTY = {"replica_lag_time_max_ms": 2000, "broker_session_timeout_ms": 4000}
"""For those who wait for just that."""
_ids = itertools.count(2)

BOTH = ["barnabas", pytest.param("apache-kafka", marks=needs_kafka)]
"""Whom a test is run against."""


class Cluster(NamedTuple):
    """Where broker 1 is reached."""

    bootstrap: str
    controller: str
    is_ours: bool


@contextmanager
def running(kind: str, **more: object) -> Iterator[Cluster]:
    """One node with a controller listener; further settings have underscores for dots."""
    settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    if kind == "barnabas":
        with Broker(settings={**settings, **WITH_CONTROLLER}) as broker:
            yield Cluster(broker.bootstrap, controller_of(broker), is_ours=True)
    else:
        with ApacheKafka(settings) as kafka:
            yield Cluster(kafka.bootstrap, kafka.controller, is_ours=False)


class World:
    """One test's follower, client and topics."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = Client(cluster.bootstrap)
        self.id = next(_ids)
        self.follower = self.another()

    def another(self) -> Follower:
        """One more process that calls itself the same broker."""
        return Follower(self.cluster.bootstrap, self.cluster.controller, self.client.cluster_id(), self.id)

    def join(self, **registration: Any) -> World:
        """Register and become active."""
        assert self.follower.register(**registration).error_code == E.NONE
        answer = self.follower.live()
        assert (answer.error_code, answer.is_fenced) == (E.NONE, False)
        until(lambda: self.id in self.client.brokers(), "clients are told of the follower")
        return self

    def topic(self, replicas: list[int] | None = None, **settings: object) -> tuple[str, bytes]:
        """A topic of broker 1 and the follower."""
        name = f"t-{self.id}-{os.urandom(3).hex()}"
        topic_id = self.client.create(name, replicas or [1, self.id], **settings)
        if replicas is None or replicas[0] == 1:
            until(lambda: self.client.fetch(name, 0)[0] == E.NONE, f"broker 1 serves {name}")
        return name, topic_id

    def seen(self, topic: tuple[str, bytes]) -> Seen:
        """What clients are told of its partition."""
        found = self.client.seen(topic[0])
        assert found is not None
        return found

    def will_see(self, topic: tuple[str, bytes], expected: Seen) -> None:
        """Wait until clients are told just this: a broker hears of what its controller has done, and has answered, later."""
        until(lambda: self.client.seen(topic[0]) == expected, f"of {topic[0]} clients are told {expected}")

    def fetch_until(self, topic: tuple[str, bytes], offset: int, isr: list[int], **how: Any) -> Seen:
        """Live and fetch on until the ISR is this one."""

        def look() -> Seen | None:
            self.follower.live()
            self.follower.fetch(topic, offset, **how)
            seen = self.seen(topic)
            return seen if seen.isr == isr else None

        return until(look, f"the ISR of {topic[0]} is {isr}")

    def live_until(self, topic: tuple[str, bytes], isr: list[int]) -> Seen:
        """Live, but do not fetch, until the ISR is this one."""

        def look() -> Seen | None:
            self.follower.live()
            seen = self.seen(topic)
            return seen if seen.isr == isr else None

        return until(look, f"the ISR of {topic[0]} is {isr}")

    def produced(self, topic: tuple[str, bytes], acks: int = 1) -> int:
        """Three records; the error code."""
        return self.client.produce(topic[0], records(), acks)()


@contextmanager
def beginning(cluster: Cluster) -> Iterator[World]:
    """A follower that has not registered; when it goes it says so, else others would wait for it."""
    made = World(cluster)
    with made.follower:
        yield made
        made.follower.live(want_fence=True)
    made.client.raw.close()


def records() -> bytes:
    """A batch of three."""
    return bytes(batch(int(time.time() * 1000)))
