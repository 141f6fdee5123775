"""A test's follower, client and topics in a cluster of one node: this broker, or Apache Kafka."""

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
from tests.support.follower import Client, Follower, PartitionView
from tests.support.kafka import ApacheKafka, needs_kafka
from tests.support.waiting import until

E = ErrorCode
SETTINGS: dict[str, object] = {
    "replica.lag.time.max.ms": 60_000,
    "broker.session.timeout.ms": 60_000,
    "broker.heartbeat.interval.ms": 500,
}
"""Timeouts that a slow machine does not reach."""
SHORT_TIMEOUTS = {"replica_lag_time_max_ms": 2000, "broker_session_timeout_ms": 4000}
"""For tests that wait for a timeout."""
_ids = itertools.count(2)

BOTH = ["barnabas", pytest.param("apache-kafka", marks=needs_kafka)]
"""The brokers that a test runs against."""


class Cluster(NamedTuple):
    """The addresses of broker 1."""

    bootstrap: str
    controller: str
    is_ours: bool


@contextmanager
def running(kind: str, **more: object) -> Iterator[Cluster]:
    """One node with a controller listener; names of further settings have underscores for dots."""
    settings = {**SETTINGS, **{name.replace("_", "."): value for name, value in more.items()}}
    if kind == "barnabas":
        with Broker(settings={**settings, **WITH_CONTROLLER}) as broker:
            yield Cluster(broker.bootstrap, controller_of(broker), is_ours=True)
    else:
        with ApacheKafka(settings) as kafka:
            yield Cluster(kafka.bootstrap, kafka.controller, is_ours=False)


class FollowerHarness:
    """A test's follower, client and topics."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = Client(cluster.bootstrap)
        self.id = next(_ids)
        self.follower = self.new_follower()

    def new_follower(self) -> Follower:
        """Another process with the same broker id."""
        return Follower(self.cluster.bootstrap, self.cluster.controller, self.client.cluster_id(), self.id)

    def join(self, **registration: Any) -> FollowerHarness:
        """Register and become active."""
        assert self.follower.register(**registration).error_code == E.NONE
        answer = self.follower.heartbeat()
        assert (answer.error_code, answer.is_fenced) == (E.NONE, False)
        until(lambda: self.id in self.client.brokers(), "client metadata contains the follower")
        return self

    def topic(self, replicas: list[int] | None = None, **settings: object) -> tuple[str, bytes]:
        """A topic on broker 1 and the follower."""
        name = f"t-{self.id}-{os.urandom(3).hex()}"
        topic_id = self.client.create(name, replicas or [1, self.id], **settings)
        if replicas is None or replicas[0] == 1:
            until(lambda: self.client.fetch(name, 0)[0] == E.NONE, f"broker 1 serves {name}")
        return name, topic_id

    def describe(self, topic: tuple[str, bytes]) -> PartitionView:
        """The topic's partition in client metadata."""
        found = self.client.describe(topic[0])
        assert found is not None
        return found

    def wait_for_view(self, topic: tuple[str, bytes], expected: PartitionView) -> None:
        """Wait until client metadata is this; a broker applies changes after the controller has answered."""
        until(lambda: self.client.describe(topic[0]) == expected, f"client metadata of {topic[0]} is {expected}")

    def fetch_until(self, topic: tuple[str, bytes], offset: int, isr: list[int], **how: Any) -> PartitionView:
        """Send heartbeats and fetches until the ISR is this one."""

        def look() -> PartitionView | None:
            self.follower.fetch(topic, offset, **how)
            return self._heartbeat_and_describe(topic, isr)

        return until(look, f"the ISR of {topic[0]} is {isr}")

    def heartbeat_until(self, topic: tuple[str, bytes], isr: list[int]) -> PartitionView:
        """Send heartbeats, but no fetches, until the ISR is this one."""
        return until(lambda: self._heartbeat_and_describe(topic, isr), f"the ISR of {topic[0]} is {isr}")

    def _heartbeat_and_describe(self, topic: tuple[str, bytes], isr: list[int]) -> PartitionView | None:
        self.follower.heartbeat()
        seen = self.describe(topic)
        return seen if seen.isr == isr else None

    def produced(self, topic: tuple[str, bytes], acks: int = 1) -> int:
        """Produce three records; returns the error code."""
        return self.client.produce(topic[0], records(), acks)()


@contextmanager
def unregistered_follower(cluster: Cluster) -> Iterator[FollowerHarness]:
    """A follower that has not registered; it is fenced at the end, so that other tests do not wait for it."""
    made = FollowerHarness(cluster)
    with made.follower:
        yield made
        made.follower.heartbeat(want_fence=True)
    made.client.raw.close()


def records() -> bytes:
    """A batch of three."""
    return bytes(batch(int(time.time() * 1000)))
