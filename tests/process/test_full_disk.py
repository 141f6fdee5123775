"""A disk that fills up: one sentence, nothing acknowledged is lost, and the directory serves again when there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.embedded import Broker
from tests.process.test_crash import read_all

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")


def mount(*arguments: str | Path) -> None:
    """Mount or remount a tmpfs, or skip where that cannot be."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", tmp_path)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def fill(bootstrap: str) -> dict[tuple[int, int], bytes]:
    """Produce until a record is refused; what was acknowledged."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "message.timeout.ms": 3000})
    acknowledged: dict[tuple[int, int], bytes] = {}
    refused: list[object] = []

    def delivered(error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            acknowledged[message.partition(), message.offset()] = message.value()
        else:
            refused.append(error)

    number = 0
    while not refused:
        if len(producer) < 200:
            producer.produce("filling", os.urandom(20_000), partition=number % 3, on_delivery=delivered)
            number += 1
        producer.poll(0.001)
    producer.purge()
    producer.flush(5)
    return acknowledged


def test_a_disk_that_fills_up_costs_no_acknowledged_record(small_disk: Path) -> None:
    """design D12: the failing directory goes offline; it was the only one, so the broker ends and says why."""
    with Broker(small_disk / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("filling", 3, 1)])["filling"].result(30)
        acknowledged = fill(broker.bootstrap)
        assert acknowledged
        sentences = [line for line in broker.log().splitlines() if line.startswith("barnabas: ")]
        assert len(sentences) == 1
        assert "No space left on device" in sentences[0]
        assert "Traceback" not in broker.log()
        broker.kill()
        mount("-o", "remount,size=64m", small_disk)
        broker.start()
        found = read_all(broker.bootstrap, "filling")
        assert {place for place, value in acknowledged.items() if found.get(place) != value} == set()
