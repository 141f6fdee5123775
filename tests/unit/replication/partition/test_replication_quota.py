"""Guards replication/partition/replication_quota.py, and what a leader does with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from replication.partition.replication_quota import LEADER, ReplicationThrottle
from tests.support.replica_harness import Answer, World, fetched

LISTED = "leader.replication.throttled.replicas"


@pytest.mark.parametrize(
    ("listed", "waits"), [("*", True), ("0:1", True), ("1:1,0:1", True), ("0:2,1:1", False), ("", False)]
)
def test_who_is_listed_waits(listed: str, waits: bool) -> None:
    """Rule 1: the broker is the one on this side."""
    throttle = ReplicationThrottle(LEADER, 1, lambda topic: {LISTED: listed})
    throttle.set_rate(1000, 0)
    throttle.took("t", 0, 500, 0)
    assert throttle.wait_ms("t", 0, 0) == (500 if waits else 0)
    assert throttle.wait_ms("t", 0, 500) == 0


def test_without_a_rate_nobody_waits() -> None:
    """Rule 3: nor is what was moved before held against anybody."""
    throttle = ReplicationThrottle(LEADER, 1, lambda topic: {LISTED: "*"})
    throttle.took("t", 0, 1 << 40, 0)
    assert throttle.wait_ms("t", 0, 0) == 0
    throttle.set_rate(1000, 0)
    assert throttle.wait_ms("t", 0, 0) == 0
    throttle.took("t", 0, 1000, 0)
    throttle.set_rate(math.inf, 0)
    assert throttle.wait_ms("t", 0, 0) == 0


class Led:
    """A partition of three replicas, of which the third is not in sync, and has much to fetch."""

    def __init__(self, path: Path) -> None:
        self.world = World(path)
        config: Any = {LISTED.replace(".", "_"): "0:1"}
        self.world.create(replicas=(1, 2, 3), isr=(1, 2), **config)
        self.world.load(batches=20, size=1000)
        self.world.replicas.leader_throttle.set_rate(1000, 0)

    def fetch(self, follower: int, **request: Any) -> Answer:
        return self.world.fetch(replica=follower, max_bytes=3000, **request)


def test_a_follower_that_is_not_in_sync_is_sent_no_more_than_the_rate(tmp_path: Path) -> None:
    """Rule 2: it waits no longer than until there may be something, and one that is in sync does not wait."""
    led = Led(tmp_path)
    first = fetched(led.fetch(3, max_wait_ms=500))
    assert first.records
    waiting = led.fetch(3, max_wait_ms=500_000)
    assert not waiting.is_done
    assert fetched(led.fetch(2, max_wait_ms=500)).records
    led.world.pass_time(10_000)
    assert waiting.is_done
    assert not fetched(waiting).records
    assert fetched(led.fetch(3, max_wait_ms=500)).records
