"""Partitions move between log directories under a producer and a consumer."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from barnabas import Broker
from protocol.messages.admin import CreateTopicsRequest
from protocol.messages.logs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from tests.support.admin_cases import topic
from tests.support.raw_client import RawClient
from tests.support.waiting import until

pytestmark = pytest.mark.long

MOVES = 6
WAIT_S = 30


class Writing(threading.Thread):
    """An idempotent producer that writes numbers until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 20_000, "linger.ms": 1}
        )
        self.acknowledged: list[tuple[int, int]] = []
        self.errors: list[str] = []
        self.is_over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.is_over.is_set():
            for _ in range(20):
                self._producer.produce("t", b"%d" % number + bytes(200), partition=0, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0.005)
        self._producer.flush(WAIT_S)

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        value, offset = message.value(), message.offset()  # type: ignore[attr-defined]
        self.acknowledged.append((offset, int(value.rstrip(b"\0"))))


def move(client: RawClient, path: str) -> None:
    wanted = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name="t", partitions=[0])])
    answer = client.ask(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)
    assert answer.results[0].partitions[0].error_code == 0


def lies_in(client: RawClient) -> list[str]:
    requested = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="t", partitions=[0])])
    return [result.log_dir for result in client.ask(requested, 5).results for _ in result.topics]


def read_all(bootstrap: str, count: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = []
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert message.error() is None
        found.append((message.offset(), int(message.value().rstrip(b"\0"))))
    consumer.close()
    return found


@pytest.mark.parametrize("end", ["stopped", "killed while it moves"])
def test_records_stay_complete_unique_and_in_order_during_moves(tmp_path: Path, end: str) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b")]
    with Broker(data_dir=",".join(paths)) as broker, RawClient(broker.bootstrap) as client:
        client.ask(CreateTopicsRequest(topics=[topic("t", configs=[("segment.bytes", "1048576")])]), 7)
        (here,) = until(lambda: lies_in(client), "the topic is made")
        writing = Writing(broker.bootstrap)
        writing.start()
        for number in range(MOVES):
            before = len(writing.acknowledged)
            until(lambda before=before: len(writing.acknowledged) > before + 200, "records are written")
            here = paths[1 - paths.index(here)]
            move(client, here)
            if number < MOVES - 1 or end == "stopped":
                until(lambda here=here: lies_in(client) == [here], "it is moved")
        writing.is_over.set()
        writing.join(WAIT_S)
        assert writing.errors == []
        assert read_all(broker.bootstrap, len(writing.acknowledged)) == sorted(writing.acknowledged)
        if end != "stopped":
            os.kill(broker.pid, signal.SIGKILL)
            until(lambda: not Path(f"/proc/{broker.pid}/cmdline").read_bytes(), "the broker is dead")
    numbers = [number for _, number in sorted(writing.acknowledged)]
    assert numbers == list(range(len(numbers)))
    with Broker(data_dir=",".join(paths)) as broker:
        assert read_all(broker.bootstrap, len(writing.acknowledged)) == sorted(writing.acknowledged)
