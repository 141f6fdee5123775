"""Compaction in its own process, which may end at any moment, like the broker."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ResourceType

from barnabas import Broker
from broker.io.compaction_process import CleanerProcess
from broker.io.helper_main import BACKGROUND
from broker.io.helper_process import _ROOT, _START
from replication.completion import Completion, completed
from storage.compaction.cleaner_job import CleanerResources, CleaningFailed, CleaningResult, Replacement
from storage.log.log import Log
from tests.support.compaction import COMPACTED, closed, job_for, kept, put
from tests.support.librdkafka import create_topic, read_to_end, set_configs
from tests.support.logs import NOW_MS, log_at
from tests.support.waiting import until

pytestmark = pytest.mark.long

TOPIC = "compacted"
KEYS = 50
RECORDS = 40_000
SETTINGS: dict[str, Any] = {
    "log.cleaner.backoff.ms": 100,
    "log.segment.delete.delay.ms": 0,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "offsets.topic.segment.bytes": 1_048_576,
}


# ---- the helper alone ----------------------------------------------------------------------------------------


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A log of small segments, of which a third is left; all but the last one are cleanable."""
    log = log_at(tmp_path, config=replace(COMPACTED, segment_bytes=1000))
    for number in range(60):
        put(log, (f"k{number % 3}" if number % 3 else f"own{number}", f"{number}:" + "v" * 100))
    closed(log)
    return log


class Conversation:
    """A compaction process with one job, and its messages."""

    def __init__(self, log: Log, bytes_per_second: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.log = log
        self.cleaner = CleanerProcess(self.loop, bytes_per_second)
        self.answers = True
        self.replacements: list[Replacement] = []
        self.first = asyncio.Event()

    def start(self) -> None:
        """Starts the job; `outcome` is its result."""
        self.outcome: asyncio.Future[CleaningResult | CleaningFailed | None] = self.loop.create_future()
        ended = self.cleaner.start(job_for(self.log, resources=CleanerResources(buffer_bytes=4096)), self._replace)
        ended.then(lambda done: self.outcome.set_result(done.value))

    def _replace(self, new: Replacement) -> Completion[bool]:
        self.replacements.append(new)
        self.first.set()
        if self.answers:
            assert self.log.open().replace(new.replaced, new.size, NOW_MS, has_aborted=new.has_aborted)
        return completed(self.answers)

    async def running_helpers(self) -> list[psutil.Process]:
        """Waits for a child process."""
        return await self.loop.run_in_executor(None, lambda: until(self.helpers, "a helper"))

    def helpers(self) -> list[psutil.Process]:
        """Its child processes; other tests may have left other children."""
        return [child for child in psutil.Process().children() if "compaction_main" in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:  # it has ended
        return []


async def test_a_compaction_process_is_nice_and_ends_after_its_job(log: Log) -> None:
    expected = sorted({key: (offset, key, value) for offset, key, value in kept(log)}.values())
    talk = Conversation(log, 1e12)
    talk.start()
    await talk.first.wait()
    assert [helper.nice() for helper in talk.helpers()] == [min(19, psutil.Process().nice() + BACKGROUND)]
    outcome = await talk.outcome
    assert isinstance(outcome, CleaningResult)
    assert kept(log) == expected
    assert len(talk.replacements) > 2
    talk.cleaner.on_idle()
    talk.cleaner.stop()
    assert talk.helpers() == []


async def test_a_refused_replacement_leaves_no_files(log: Log) -> None:
    before = kept(log)
    talk = Conversation(log, 1e12)
    talk.answers = False
    talk.start()
    assert await talk.outcome is None
    assert not [name for name in os.listdir(log.path) if name.endswith(".cleaned")]
    assert kept(log) == before
    talk.answers = True
    talk.start()
    assert isinstance(await talk.outcome, CleaningResult)
    talk.cleaner.stop()


@pytest.mark.parametrize("peer", ["the broker does not read", "the broker does not answer"])
def test_a_compaction_process_ends_silently_with_its_broker(log: Log, peer: str) -> None:
    command = [sys.executable, "-P", "-c", _START, _ROOT, "broker.io.compaction_main", "1e12"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        assert helper.stderr is not None
        if peer == "the broker does not read":
            helper.stdout.close()
        pickle.dump(job_for(log), helper.stdin)
        helper.stdin.flush()
        if peer == "the broker does not answer":
            assert isinstance(pickle.load(helper.stdout), Replacement)
        else:
            helper.wait(30)
        helper.stdin.close()
        assert helper.stderr.read() == b""
        assert helper.wait(30) == 0
    assert list(Path(log.path).glob("*.cleaned"))


async def test_a_compaction_process_is_throttled(log: Log) -> None:
    size = log.open().engine.size_bytes
    talk = Conversation(log, 4.0 * size)
    started = time.monotonic()
    talk.start()
    await talk.outcome
    assert time.monotonic() - started >= 0.4, "all of it is read twice, at a quarter of a second each"
    talk.cleaner.stop()


async def test_a_killed_compaction_process_fails_its_job(log: Log) -> None:
    talk = Conversation(log, 10.0)
    talk.start()
    helper = await talk.running_helpers()
    helper[0].kill()
    outcome = await talk.outcome
    assert isinstance(outcome, CleaningFailed)
    assert (outcome.is_damage, outcome.errno) == (False, None)
    assert outcome.text == "the compaction process was killed by SIGKILL"
    talk.start()
    assert await talk.running_helpers() != helper
    talk.cleaner.stop()


async def test_a_compaction_process_that_exits_fails_its_job_permanently(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.io.helper_process._START", "raise SystemExit(3)")
    talk = Conversation(log, 10.0)
    talk.start()
    outcome = await talk.outcome
    assert isinstance(outcome, CleaningFailed)
    assert outcome.is_damage
    assert "the compaction process failed" in outcome.text
    talk.cleaner.stop()


async def test_stop_does_not_wait_for_a_slow_compaction(log: Log) -> None:
    before = kept(log)
    talk = Conversation(log, 10.0)
    talk.start()
    await talk.running_helpers()
    talk.cleaner.stop()
    assert await talk.outcome is None
    assert kept(log) == before


# ---- the daemon ----------------------------------------------------------------------------------------------


def create(bootstrap: str) -> None:
    """A compacted topic of small segments."""
    configs: dict[str, Any] = {"segment_bytes": "1048576", "min_cleanable_dirty_ratio": "0.01"}
    create_topic(bootstrap, TOPIC, cleanup_policy="compact", **configs)


def create_and_produce(bootstrap: str) -> dict[bytes, bytes]:
    """Many values of few keys in a compacted topic; returns the last value of each."""
    create(bootstrap)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "enable.idempotence": True})
    last = {}
    for number in range(RECORDS):
        key, value = b"k%d" % (number % KEYS), b"%d:" % number + os.urandom(60)
        producer.produce(TOPIC, key=key, value=value)
        last[key] = value
        if not number % 5000:
            producer.flush()
    assert producer.flush(30) == 0
    return last


def consumed(bootstrap: str) -> tuple[int, dict[bytes | None, bytes | None]]:
    """The number of records, and the last value of each key."""
    found = read_to_end(bootstrap, TOPIC)
    assert all(one.offset() < other.offset() for one, other in pairwise(found))
    return len(found), {record.key(): record.value() for record in found}


def size_of(directory: Path, name: str) -> int:
    """Bytes of a partition's log files, which may be renamed or deleted meanwhile."""
    size = 0
    for path in (directory / name).glob("*.log"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def test_a_served_topic_is_compacted_to_its_last_values(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, settings=SETTINGS) as broker:
        last = create_and_produce(broker.bootstrap)
        until(lambda: size_of(data, f"{TOPIC}-0") < 1_300_000, "compacted")
        count, found = consumed(broker.bootstrap)
        assert found == last
        assert count < RECORDS / 2
        children = psutil.Process(broker.pid).children
        until(lambda: not children(), "the helper is gone")
    with Broker(data, settings=SETTINGS) as broker:
        count_again, found = consumed(broker.bootstrap)
        assert found == last
        assert count_again <= count, "another compaction may have come between"


def test_a_changed_throttle_applies_to_a_running_compaction(tmp_path: Path) -> None:
    data = tmp_path / "data"
    pace = "log.cleaner.io.max.bytes.per.second"
    with Broker(data, settings={**SETTINGS, pace: 100}) as broker:
        last = create_and_produce(broker.bootstrap)
        until(lambda: psutil.Process(broker.pid).children(), "a helper is at work")
        set_configs(broker.bootstrap, ResourceType.BROKER, "1", {pace: "1e9"})
        until(lambda: size_of(data, f"{TOPIC}-0") < 1_300_000, "compacted")
        assert consumed(broker.bootstrap)[1] == last


def test_a_broker_killed_during_a_compaction_loses_nothing(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, settings={**SETTINGS, "log.cleaner.io.max.bytes.per.second": 500_000}) as broker:
        last = create_and_produce(broker.bootstrap)
        process = psutil.Process(broker.pid)
        until(lambda: list((data / f"{TOPIC}-0").glob("*.cleaned")), "a compaction is under way", every_s=0.005)
        helpers = process.children()
        process.kill()
        gone, _ = psutil.wait_procs(helpers, timeout=60)
        assert len(gone) == len(helpers) == 1
    with Broker(data, settings=SETTINGS) as broker:
        assert consumed(broker.bootstrap)[1] == last
        until(lambda: size_of(data, f"{TOPIC}-0") < 1_300_000, "compacted")
        assert consumed(broker.bootstrap)[1] == last


def test_committed_offsets_survive_compaction(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Broker(data, settings=SETTINGS) as broker:
        create(broker.bootstrap)
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
        for offset in range(400):
            position = TopicPartition(TOPIC, 0, offset, metadata="m" * 4000)
            consumer.commit(offsets=[position], asynchronous=False)
        consumer.close()
        until(lambda: size_of(data, "__consumer_offsets-0") < 800_000, "compacted")
    with Broker(data, settings=SETTINGS) as broker:
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        (found,) = consumer.committed([TopicPartition(TOPIC, 0)], 30)
        consumer.close()
        assert (found.offset, found.metadata) == (399, "m" * 4000)
