"""Exactly once: worker and broker are killed again and again, and every record arrives once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas import Broker
from tests.conformance.test_transaction_clients import read
from tests.process.carrying_worker import FAILED, SOURCE, TARGET

RECORDS = 400
KILLS = 4
WAIT_S = 60
WORKER = Path(__file__).with_name("carrying_worker.py")
SETTINGS = {"group.initial.rebalance.delay.ms": 0, "offsets.topic.num.partitions": 3}


class Worker:
    """The program as a process that can be killed, and is begun anew when it fails."""

    def __init__(self, bootstrap: str) -> None:
        self._command = [sys.executable, str(WORKER), bootstrap, str(RECORDS)]
        self._begin()

    def _begin(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def commits(self, count: int) -> None:
        """Wait for so many commits, or for the end."""
        while count:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if line:
                count -= 1
            elif self._process.wait() == FAILED:
                self._begin()
            else:
                return

    def kill(self) -> None:
        """SIGKILL, and another one goes on."""
        self._process.kill()
        self._process.communicate()
        self._begin()

    def finish(self) -> None:
        """Until everything is carried."""
        self.commits(RECORDS + 1)
        assert self._process.returncode == 0


def test_every_record_arrives_once_however_often_somebody_is_killed() -> None:
    """Consume, transform, produce with SIGKILL at random moments, of the worker and of the broker in turns."""
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    values = [f"{number:04}" for number in range(RECORDS)]
    with Broker(settings=SETTINGS) as broker:
        topics = [NewTopic(SOURCE, 1, 1), NewTopic(TARGET, 3, 1)]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for made in admin.create_topics(topics).values():
            made.result(WAIT_S)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for value in values:
            producer.produce(SOURCE, value, partition=0)
        assert producer.flush(WAIT_S) == 0
        worker = Worker(broker.bootstrap)
        for kill in range(KILLS):
            worker.commits(dice.randint(1, 8))
            if kill % 2:
                broker.kill()
                broker.start()
            else:
                worker.kill()
        worker.finish()
        assert read(broker.bootstrap, TARGET, committed=True) == [f"<{value}>" for value in values]
