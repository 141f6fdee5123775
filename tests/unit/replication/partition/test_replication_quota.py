"""The rules of `ReplicationQuotaManager`, and its effect on a leader."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from replication.partition.replication_quota import LEADER, ReplicationQuotaManager
from tests.support.replica_harness import ReplicaHarness, fetched

LISTED = "leader.replication.throttled.replicas"


@pytest.mark.parametrize(
    ("listed", "waits"),
    [
        *(("*", True), ("0:1", True), ("1:1,0:1", True), ("0:1,,", True), ("00:01", True)),
        *(("0:2,1:1", False), ("", False), ("9" * 5000 + ":1", False)),
    ],
)
def test_only_listed_replicas_wait(listed: str, waits: bool) -> None:
    quota = ReplicationQuotaManager(LEADER, 1, lambda topic: {LISTED: listed})
    quota.set_rate(1000, 0)
    quota.record("t", 0, 500, 0)
    assert quota.wait_ms("t", 0, 0) == (500 if waits else 0)
    assert quota.wait_ms("t", 0, 500) == 0


def test_without_a_rate_no_replica_waits_and_nothing_is_recorded() -> None:
    quota = ReplicationQuotaManager(LEADER, 1, lambda topic: {LISTED: "*"})
    quota.record("t", 0, 1 << 40, 0)
    assert quota.wait_ms("t", 0, 0) == 0
    quota.set_rate(1000, 0)
    assert quota.wait_ms("t", 0, 0) == 0
    quota.record("t", 0, 1000, 0)
    quota.set_rate(math.inf, 0)
    assert quota.wait_ms("t", 0, 0) == 0


def test_a_throttled_leader_delays_only_followers_that_are_not_in_sync(tmp_path: Path) -> None:
    """Of three replicas, the third is not in sync and far behind."""
    harness = ReplicaHarness(tmp_path)
    config: Any = {LISTED.replace(".", "_"): "0:1"}
    harness.create(replicas=(1, 2, 3), isr=(1, 2), **config)
    harness.load(batches=20, size=1000)
    harness.replicas.leader_quota.set_rate(1000, 0)
    fetch = partial(harness.fetch, max_bytes=3000)
    assert fetched(fetch(replica=3)).records
    waiting = fetch(replica=3, max_wait_ms=500_000)
    assert not waiting.is_done
    assert fetched(fetch(replica=2)).records
    harness.pass_time(10_000)
    assert not fetched(waiting).records
    assert fetched(fetch(replica=3)).records
