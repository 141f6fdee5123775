"""SIGKILL at random moments under load: acknowledged state is compared with the state afterwards.

    python -m tests.process.killing --count 200 [--seed N]        or: make kill COUNT=200

RULES    1. The clients of `killed_clients.py` run all the time. A turn waits, kills the broker (sometimes its compaction
            process first, sometimes SIGTERM instead), starts it, often kills it again during the start, and then checks
            everything that was acknowledged before the kill.
         2. A check reads what may have changed since the previous one; every tenth reads everything.
         3. Every tenth time the broker is stopped cleanly, and Apache Kafka's DumpLogSegments reads all files; at the end
            Apache Kafka itself starts on the directories and must serve the same.
         4. The broker always starts, and its log has no internal error.
         5. The seed determines the actions, not their interleaving with the clients.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from barnabas.embedded import Broker, BrokerError
from tests.process.acknowledged_state import AcknowledgedState, PartitionRecords
from tests.process.crash_readers import KafkaDumpLog, read_back
from tests.process.killed_clients import QUICK, Administrator, Client, GroupReader, PythonWriter, Writer
from tests.support.kafka import ApacheKafka, why_no_kafka
from tests.support.librdkafka import create_topic
from tests.support.seeds import run_options
from tests.support.storage_engine import default_engine
from tests.support.waiting import until

SMALL = {"internal.segment.bytes": "20000", "index.interval.bytes": "300"}
MIDDLE = {"internal.segment.bytes": "500000"}
"""DumpLogSegments reads a segment once for each entry of its time index."""
TOPICS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (3, MIDDLE),
    "flushed": (1, {**MIDDLE, "flush.messages": "1"}),
    "small": (2, SMALL),
    "short": (1, {**SMALL, "retention.bytes": "60000"}),
    "trimmed": (1, SMALL),
    "compacted": (1, {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
    "both": (1, {**SMALL, "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01"}),
    "moving": (1, {"internal.segment.bytes": "200000"}),
    "python": (1, MIDDLE),
}
SETTINGS: dict[str, Any] = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,
    "offsets.topic.segment.bytes": 1_048_576,
    "log.cleaner.backoff.ms": 100,
    "log.retention.check.interval.ms": 300,
    "log.segment.delete.delay.ms": 500,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "log.flush.start.offset.checkpoint.interval.ms": 500,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "metadata.log.max.record.bytes.between.snapshots": 20_000,
}
DIRECTORIES = ("a", "b")
FIRM_S = 2.0
"""What a log's beginning was so long before a kill stays: it has been written down."""
THOROUGH = 10
_FAULT = re.compile(r"Traceback|fault|CRITICAL| ERROR |[Ee]xception")
_FULL = re.compile(r"log directory \S+ is full: ")
_WAIT_S = 20
_BEHIND = 1000
"""The number of offsets before the end of the previous check at which the next one starts."""


class Run:
    """A broker, its clients and their memory."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.paths = [str(root / name) for name in DIRECTORIES]
        self.broker = Broker(",".join(self.paths), settings=SETTINGS, start_timeout_s=60)
        self.memory = AcknowledgedState()
        self.clients: list[Client] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.started_s = 0.0
        self._dump = KafkaDumpLog(self.paths)
        self._starts: dict[tuple[str, int], int] = {}  # as they were seen last
        self.acts: Counter[str] = Counter()

    # ------------------------------------------------------------ the load
    def prepare(self) -> None:
        """Creates the topics, and starts the clients."""
        self._start()
        for name, (count, config) in TOPICS.items():
            create_topic(self.broker.bootstrap, name, count, **config)
            for index in range(count):
                is_compacted = config.get("cleanup.policy", "").startswith("compact")
                self.memory.ledgers[name, index] = PartitionRecords(f"{name}-{index}", is_compacted=is_compacted)
        self._employ()
        for client in self.clients:
            client.thread.start()

    def _employ(self) -> None:
        where = self.broker.bootstrap
        places = [place for place in self.memory.ledgers if place[0] != "python"]
        writers: dict[str, tuple[dict[str, Any], list[tuple[str, int]]]] = {
            "once": ({"enable.idempotence": True}, places),
            "once-packed": ({"enable.idempotence": True, "compression.type": "lz4"}, places),
            "all": ({"acks": "all"}, places),
            "one": ({"acks": 1}, places),
        }
        for name, (settings, own) in writers.items():
            self.clients.append(Writer(where, self.memory, self._seed(), name, own, settings))
        self.clients.append(PythonWriter(where, self.memory, self._seed(), "python", ("python", 0)))
        self.clients.append(GroupReader(where, self.memory, self._seed(), ["plain", "small", "flushed", "moving"]))
        self.clients.append(Administrator(where, self.memory, self._seed(), self.paths, "trimmed", "moving"))

    def _wait(self, seconds: float) -> None:
        """Waits while the clients run; fails if one has ended."""
        self.clients[0].over.wait(seconds)

    def _seed(self) -> int:
        return self.rng.randrange(2**32)

    # ------------------------------------------------------------ killing
    def turn(self, number: int) -> None:
        """One kill, start and check."""
        self._wait(self.rng.random() ** 2 * 3)
        self._raise()
        act = self.rng.choices((self._kill, self._stop, self._kill_helper), (8, 1, 1))[0]
        act()
        self._start_at_last()
        self.look(is_thorough=number % THOROUGH == 0)
        self._raise()

    def _kill(self) -> None:
        self.broker.kill()
        self.acts["kill"] += 1

    def _stop(self) -> None:
        self.broker.stop()
        self.acts["stop"] += 1

    def _kill_helper(self) -> None:
        for child in psutil.Process(self.broker.pid).children():
            with suppress(psutil.Error):
                child.kill()
                self.acts["kill the helper"] += 1
        self._wait(self.rng.random() * 0.2)
        self._kill()

    def _start_at_last(self) -> None:
        while self.rng.random() < 0.35:
            self._kill_while_it_starts(self.rng.random() ** 2)
        self._start()

    def _kill_while_it_starts(self, after_s: float) -> None:
        """Kills it some time after its start, ready or not."""

        def kill() -> None:
            self._wait(after_s)
            with suppress(BrokerError, ProcessLookupError):
                os.kill(self.broker.pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with suppress(BrokerError):
            self.broker.start()
        killer.join()
        self.broker.kill()
        self.acts["kill at the start"] += 1

    def _start(self) -> None:
        self.broker.start()
        self.started_s = time.monotonic()

    def _raise(self) -> None:
        """Raises the error of a client."""
        faults = [line for line in self.broker.log().splitlines() if _FAULT.search(line) and not _FULL.search(line)]
        assert not faults, "\n".join(faults[:20])
        with self.memory.lock:
            assert not self.memory.failures, "\n".join(self.memory.failures[:5])

    # ------------------------------------------------------------ looking
    def look(self, *, is_thorough: bool, bootstrap: str = "") -> None:
        """Compares the state with what was acknowledged."""
        where = bootstrap or self.broker.bootstrap
        with self.memory.lock:
            committed = dict(self.memory.committed)
            topics = dict(self.memory.topics)
        self._look_at_topics(where, topics)
        self._look_at_groups(where, committed)
        self._look_at_records(where, is_thorough=is_thorough)

    def _look_at_records(self, where: str, *, is_thorough: bool) -> None:
        with self.memory.lock:
            acknowledged = {place: set(ledger.acknowledged) for place, ledger in self.memory.ledgers.items()}
        begins = {place: 0 if is_thorough else max(0, self.ends.get(place, 0) - _BEHIND) for place in acknowledged}
        for place, (start, end, found) in read_back(where, begins).items():
            with self.memory.lock:
                ledger = self.memory.ledgers[place]
                ledger.check(begins[place], start, end, found, acknowledged[place])
                if time.monotonic() - self.started_s > FIRM_S:
                    ledger.start = max(ledger.start, self._starts.get(place, 0))
                self._starts[place] = start
            self.ends[place] = end

    def _look_at_topics(self, where: str, topics: dict[str, dict[str, str] | None]) -> None:
        admin = AdminClient({"bootstrap.servers": where, **QUICK})
        there = admin.list_topics(timeout=_WAIT_S).topics
        with self.memory.lock:  # a partition that is written now is not in the ledger yet
            topics = {
                name: settings for name, settings in topics.items() if self.memory.topics.get(name, 0) == settings
            }
        missing = [name for name, settings in topics.items() if settings is not None and name not in there]
        back = [name for name, settings in topics.items() if settings is None and name in there]
        assert not missing, f"topics are lost: {missing}"
        assert not back, f"deleted topics are back: {back}"
        kept = [(name, settings) for name, settings in topics.items() if settings is not None]
        for name, settings in self.rng.sample(kept, min(5, len(kept))):
            resource = ConfigResource(ResourceType.TOPIC, name)
            try:
                output = admin.describe_configs([resource])[resource].result(_WAIT_S)
            except confluent_kafka.KafkaException as error:
                if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                    raise
                output = {}
            with self.memory.lock:
                if self.memory.topics.get(name, 0) == settings:
                    assert {key: output[key].value for key in settings} == settings, name

    def _look_at_groups(self, where: str, committed: dict[tuple[str, str, int], int]) -> None:
        groups = {group for group, _, _ in committed}
        for group in groups:
            asker = confluent_kafka.Consumer({"bootstrap.servers": where, "group.id": group, **QUICK})
            places = [confluent_kafka.TopicPartition(*key[1:]) for key in committed if key[0] == group]
            for place in until(partial(committed_offsets, asker, places), "the committed offsets are fetched"):
                before = committed[group, place.topic, place.partition]
                assert place.offset >= before, f"{group} stands at {place} and had committed {before}"
            asker.close()

    # ------------------------------------------------------------ the end
    def let_kafka_look(self) -> None:
        """Stops cleanly, and reads every file with Apache Kafka's tool."""
        self.broker.stop()
        self._dump()
        self._start()

    def end(self, *, with_kafka: bool) -> None:
        """Stops the clients, checks everything, stops the broker; then Apache Kafka serves the directories."""
        for client in self.clients:
            client.over.set()
        for client in self.clients:
            client.thread.join(90)
            assert not client.thread.is_alive(), client
        self._raise()
        self.look(is_thorough=True)
        self.broker.stop()
        self._raise()
        if with_kafka:
            self._dump()
            with ApacheKafka(
                {"log.dirs": ",".join(self.paths), "offsets.topic.num.partitions": 2, "log.cleaner.enable": "false"},
                data_dir=Path(self.paths[0]),
            ) as kafka:
                self.look(is_thorough=True, bootstrap=kafka.bootstrap)


def committed_offsets(
    asker: confluent_kafka.Consumer, places: list[confluent_kafka.TopicPartition]
) -> list[confluent_kafka.TopicPartition]:
    """The committed offsets of a group; empty while it is loading."""
    try:
        return list(asker.committed(places, timeout=5))
    except confluent_kafka.KafkaException:
        return []


def run(root: Path, seed: int, count: int, *, with_kafka: bool) -> Counter[str]:
    """A whole run; returns what was done."""
    this = Run(root, seed)
    with_kafka = with_kafka and default_engine() == "segments"  # Apache Kafka does not start with a commit log
    try:
        this.prepare()
        for number in range(1, count + 1):
            this.turn(number)
            if number % THOROUGH == 0:
                print(number, dict(this.acts), flush=True)
            if with_kafka and number % (5 * THOROUGH) == 0:
                this.let_kafka_look()
        this.end(with_kafka=with_kafka)
    except BaseException:
        kept = Path(tempfile.mkdtemp(prefix="barnabas-killed-"))
        (kept / "broker.log").write_text(this.broker.log())
        this.broker.kill()
        for path in this.paths:
            shutil.copytree(path, kept / Path(path).name)
        print(f"The broker's log and its directories are in {kept}.", file=sys.stderr)
        raise
    finally:
        for client in this.clients:
            client.over.set()
        this.broker.close()
    this.acts["records"] = sum(len(ledger.acknowledged) for ledger in this.memory.ledgers.values())
    return this.acts


def main() -> None:
    """Runs a number of kills, prints what was done."""
    options = run_options("SIGKILL at random moments under load.", count=100)
    with tempfile.TemporaryDirectory(prefix="barnabas-killing-") as folder:
        print(dict(run(Path(folder), options.seed, options.count, with_kafka=why_no_kafka() is None)))


if __name__ == "__main__":
    main()
