"""kill -9 under load: acknowledged records and committed offsets survive."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import threading
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from barnabas.embedded import Broker
from tests.support.kafka import needs_kafka, run_tool

PARTITIONS = 3
KILLS = 3
ACKNOWLEDGED_BEFORE_KILL = 3000


class Load:
    """An idempotent producer that records the acknowledged offsets."""

    def __init__(self, bootstrap: str, topic: str, number: int) -> None:
        self._topic = topic
        self._number = number
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "batch.num.messages": 50}
        )
        self._stop = threading.Event()
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._stop.is_set():
            value = b"%d-%d-" % (self._number, count) + b"x" * (count % 300)
            try:
                self._producer.produce(self._topic, value, partition=count % PARTITIONS, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.01)
                continue
            count += 1
            self._producer.poll(0)
        self._producer.purge()
        self._producer.flush(0)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged[message.partition(), message.offset()] = message.value()
            if len(self.acknowledged) >= ACKNOWLEDGED_BEFORE_KILL:
                self._enough.set()

    def wait_for_enough(self) -> None:
        """Waits until enough records are acknowledged."""
        assert self._enough.wait(60), f"only {len(self.acknowledged)} records were acknowledged"

    def stop(self) -> dict[tuple[int, int], bytes]:
        """Stops; returns what was acknowledged."""
        self._stop.set()
        self._thread.join()
        return self.acknowledged


def read_all(bootstrap: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Every record of the topic by partition and offset."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True}
    )
    found: dict[tuple[int, int], bytes] = {}
    for partition in range(PARTITIONS):
        place = confluent_kafka.TopicPartition(topic, partition, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        offset = 0
        while offset < end:
            messages = consumer.consume(min(500, end - offset), timeout=60)
            assert messages, f"nothing more of partition {partition} after offset {offset} of {end}"
            for message in messages:
                assert message.error() is None, message.error()
                found[partition, message.offset()] = message.value()
                offset = message.offset() + 1
        consumer.unassign()
    consumer.close()
    return found


def commit(bootstrap: str, group: str, offsets: list[confluent_kafka.TopicPartition]) -> None:
    """Commits offsets of a group without members."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def committed(bootstrap: str, group: str, topic: str) -> list[int]:
    """The committed offsets of a group."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [confluent_kafka.TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    found = [place.offset for place in consumer.committed(places, timeout=30)]
    consumer.close()
    return found


def test_acknowledged_records_and_commits_survive_kill_9(tmp_path: Path) -> None:
    number = 4
    rng = random.Random(number)
    settings = {"group.initial.rebalance.delay.ms": 0}
    acknowledged: dict[tuple[int, int], bytes] = {}
    with Broker(tmp_path / "data", settings=settings) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("load", PARTITIONS, 1)])["load"].result(30)
        for turn in range(KILLS):
            load = Load(broker.bootstrap, "load", turn)
            load.wait_for_enough()
            offsets = [rng.randrange(1000) for _ in range(PARTITIONS)]
            commit(
                broker.bootstrap, "standing",
                [confluent_kafka.TopicPartition("load", p, offset) for p, offset in enumerate(offsets)],
            )  # fmt: skip
            broker.kill()
            acknowledged |= load.stop()
            broker.start()
            found = read_all(broker.bootstrap, "load")
            missing = {place for place, value in acknowledged.items() if found.get(place) != value}
            assert not missing, f"seed {number}, turn {turn}: {len(missing)} lost, such as {sorted(missing)[:3]}"
            assert committed(broker.bootstrap, "standing", "load") == offsets


@needs_kafka
def test_kafkas_dump_tool_reads_every_file_after_a_crash(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", settings={"group.initial.rebalance.delay.ms": 0}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("load", PARTITIONS, 1, config={"segment.bytes": "1048576"})])["load"].result(30)
        load = Load(broker.bootstrap, "load", 0)
        load.wait_for_enough()
        broker.kill()
        load.stop()
        broker.start()
        commit(broker.bootstrap, "standing", [confluent_kafka.TopicPartition("load", 0, 5)])
        broker.stop()
    dump = "org.apache.kafka.tools.DumpLogSegments"
    logs = [path for path in (tmp_path / "data").rglob("*.log") if path.stat().st_size]
    plain = [path for path in logs if not path.parent.name.startswith("__")]
    assert {path.parent.name for path in plain} == {f"load-{partition}" for partition in range(PARTITIONS)}
    names = ",".join(str(path) for path in logs + [index for path in plain for index in _beside(path)])
    done = run_tool(dump, "--deep-iteration", "--files", names, timeout_s=120)
    assert done.returncode == 0, done.stderr
    wrong = re.findall(
        r".*(?:Mismatches|mismatch|invalid|isvalid: false|not valid|Exception|Non-consecutive).*", done.stdout
    )
    assert not wrong, wrong[:5]


def _beside(log: Path) -> list[Path]:
    return [log.with_suffix(suffix) for suffix in (".index", ".timeindex") if log.with_suffix(suffix).exists()]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_with_flush_messages_1_the_sync_precedes_the_response(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with Broker(tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("safe", 1, 1, config={"flush.messages": "1"})])["safe"].result(30)
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "acks": "1", "linger.ms": 0})
        producer.produce("safe", b"warm up")
        producer.flush(30)
        calls = "trace=pwrite64,pwritev,io_submit,io_getevents,sendto,sendmsg,write"
        command = ["strace", "-f", "-y", "-s", "200", "-e", calls, "-o", str(trace), "-p", str(broker.pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            producer.produce("safe", b"needle-in-the-log")
            assert producer.flush(30) == 0
            tracer.terminate()
    lines = trace.read_text().splitlines()
    written = next(n for n, line in enumerate(lines) if "needle-in-the-log" in line and "safe-0" in line)
    synced = next(
        n for n, line in enumerate(lines)
        if n > written and "safe-0" in line and "IOCB_CMD_FDSYNC" in line
    )  # fmt: skip
    finished = next(n for n, line in enumerate(lines) if n > synced and re.search(r"io_getevents.*res=0.* = 1$", line))
    answered = next(
        n for n, line in enumerate(lines) if n > written and re.search(r"send(to|msg)\(\d+<(TCP|socket)", line)
    )
    assert written < synced < finished < answered
