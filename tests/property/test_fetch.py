"""Every consumer reads every record once and in order, with any versions, limits, waits and sessions."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.support.replica_harness import Answer, Client, ReplicaHarness, offsets
from tests.support.seeds import seed_of

PARTITIONS = 6
VERSIONS = (6, 7, 12, 13, 18)


class Consumer:
    """Reads all partitions of a topic, with a fetch session from version 7 on."""

    def __init__(self, harness: ReplicaHarness, version: int, seed: int) -> None:
        self.client = Client(harness, version)
        self.has_session = version >= 7
        self.seed = seed
        self.next = dict.fromkeys(range(PARTITIONS), 0)
        self.requested: dict[int, int] = {}
        self.response: Answer | None = None

    def send_fetch(self, **limits: Any) -> None:
        """Send the next Fetch; in a session only changed positions."""
        if not self.has_session:
            self.client.session = (0, -1)
            self.requested = {}
        changed = {("t", index): offset for index, offset in self.next.items() if self.requested.get(index) != offset}
        self.requested = dict(self.next)
        self.response = self.client.fetch(changed, **limits)

    def receive(self) -> None:
        """Process a response: its offsets must be the next ones."""
        response = self.response
        if response is None or not response.is_done:
            return
        self.response = None
        assert response.message.error_code == 0, f"seed {self.seed}"
        if self.has_session:
            self.client.session = (response.message.session_id, self.client.session[1])
        for topic in response.message.responses:
            for data in topic.partitions:
                assert data.error_code == 0, f"seed {self.seed}"
                for offset in offsets(data):
                    assert offset == self.next[data.partition_index], f"seed {self.seed}"
                    self.next[data.partition_index] += 1


def test_consumers_with_and_without_sessions_read_every_record_once_in_order(tmp_path: Path) -> None:
    seed = seed_of()
    rng = random.Random(seed)
    harness = ReplicaHarness(tmp_path)
    harness.create("t", partitions=PARTITIONS)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    consumers = [Consumer(harness, version, seed) for version in VERSIONS]
    for turn in range(400):
        if turn < 300 and rng.random() < 0.5:
            index = rng.randrange(PARTITIONS)
            harness.load("t", index, size=rng.choice((1, 100, 3000)))
            ends[index] += 1
        if rng.random() < 0.5:
            harness.drain_purgatory()
        if rng.random() < 0.3:
            harness.pass_time(rng.randrange(300))
        for consumer in consumers:
            consumer.receive()
            if consumer.response is None:
                consumer.send_fetch(
                    max_wait_ms=rng.choice((0, 1, 200)),
                    min_bytes=rng.choice((0, 1, 5000)),
                    max_bytes=rng.choice((1, 4000, 10**6)),
                    partition_max_bytes=rng.choice((1, 500, 10**6)),
                )
    for _ in range(50):
        harness.pass_time(200)
        for consumer in consumers:
            consumer.receive()
            if consumer.response is None:
                consumer.send_fetch(max_wait_ms=0, max_bytes=10**7, partition_max_bytes=10**7)
    assert [consumer.next for consumer in consumers] == [ends] * len(consumers), f"seed {seed}"
    assert len(harness.purgatory) == 0
