"""20,000 partitions in one log directory, through librdkafka: make bench ARGS="many"

Twenty topics, every second one with flush.messages=1. Each step is one line of a Markdown table: its time, the CPU time of the
broker, the longest stall of its event loop, then its memory (PSS) and open files. All records are counted when they are
read. `--nodes 3` measures a cluster with a replica on each node, without the steps that need one node; memory and files are
those of the first node. `--starts` only creates, writes, kills, starts and lists offsets, with a request for each topic:
librdkafka takes minutes to write to 50,000 partitions.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import psutil
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import barnabas
from barnabas.embedded import MAIN
from protocol.errors import ErrorCode
from protocol.messages.common import Topic
from protocol.messages.logs import DescribeLogDirsRequest
from protocol.messages.produce_fetch import ListOffsetsPartition, ListOffsetsRequest
from tests.benchmark.load.meter import Meter
from tests.support.librdkafka import assert_arrived
from tests.support.loading import one_record, produce
from tests.support.raw_client import RawClient
from tests.support.stall_lines import lines_of

_TOPICS = 20
_GROUP = "all"
_PATIENCE_S = 300.0
_SETTLE_S = 2.5
"""Longer than the watchdog's pause after a log line."""
_LONGEST = re.compile(r"(\d+) ms")
_DESCRIBE_VERSION = 4
_LIST_VERSION = 7
_RETENTION_S = 45
"""Retention begins 30 s after a start."""


class ManyPartitions:
    """The steps, on one broker or on a cluster."""

    def __init__(self, nodes: Sequence[barnabas.Broker], partitions: int) -> None:
        self._nodes = nodes
        self._node = nodes[0]
        self._bootstrap = ",".join(node.bootstrap for node in nodes)
        self._admin = AdminClient({"bootstrap.servers": self._bootstrap})
        self._width = partitions // _TOPICS
        self._topics = [f"{'synced' if number % 2 else 'plain'}-{number}" for number in range(_TOPICS)]
        self._written = 0  # records in each partition

    def run(self) -> None:
        """Prints the table."""
        self._begin()
        self._step("an idempotent record to each", self._produce)
        self._step("another one", self._produce)
        if len(self._nodes) == 1:
            self._step("restart after SIGKILL", self._restart_killed)
        self._step("read all", self._read_all)
        if len(self._nodes) == 1:
            self._step("clean restart", self._restart)
        self._step("a group commits an offset of each", self._commit)
        self._step("the offsets of the group", self._list_offsets)
        self._step("DescribeLogDirs", self._describe)
        self._step("DeleteRecords of all", self._delete_records)
        if len(self._nodes) == 1:
            self._step("stop, doctor, start", self._examine)
        self._step("delete half, write to the rest", self._delete_half)
        self._step("a minute later", lambda: time.sleep(60))

    def run_starts(self) -> None:
        """Prints the table of `--starts`."""
        self._begin()
        self._step("a record to each", self._produce_by_topic)
        self._step("restart after SIGKILL", self._restart_killed)
        self._step("list the end offset of each", self._list_ends)
        self._step("retention of all", lambda: time.sleep(_RETENTION_S))

    def _begin(self) -> None:
        print("| step | s | CPU s | stall ms | MiB | open files |\n|---|---:|---:|---:|---:|---:|")
        self._step("an empty node", lambda: None)
        self._step("create the topics", self._create)

    def _step(self, name: str, work: Callable[[], None]) -> None:
        pids = [node.pid for node in self._nodes]
        log_ends = [len(node.log()) for node in self._nodes]
        meter = Meter()
        with meter:
            before = [psutil.Process(pid).cpu_times() for pid in pids]
            work()
            is_same = pids == [node.pid for node in self._nodes]
            after = [psutil.Process(node.pid).cpu_times() for node in self._nodes]
        cpu_s = sum(times.user + times.system for times in after)
        if is_same:
            cpu_s -= sum(times.user + times.system for times in before)
        time.sleep(_SETTLE_S)
        new = "".join(node.log()[end:] for node, end in zip(self._nodes, log_ends, strict=True))
        stall = max([int(found[1]) for line in lines_of(new) if (found := _LONGEST.search(line))], default=0)
        process = psutil.Process(self._node.pid)
        memory = process.memory_full_info().pss / 2**20
        print(
            f"| {name} | {meter.wall_s:.2f} | {cpu_s:.2f} | {stall} | {memory:.1f} | {process.num_fds()} |", flush=True
        )
        for line in new.splitlines():
            if "WARNING" in line or "ERROR" in line:
                print(f"  {line}", file=sys.stderr)

    # ---- steps -------------------------------------------------------------------------------------------

    def _create(self) -> None:
        replicas = len(self._nodes)
        for topic in self._topics:
            config = {"file.delete.delay.ms": "1000"}
            if topic.startswith("synced"):
                config["flush.messages"] = "1"
            wanted = NewTopic(topic, self._width, replicas, config=config)
            created = self._admin.create_topics([wanted], request_timeout=_PATIENCE_S)
            created[topic].result(_PATIENCE_S)

    def _produce(self) -> None:
        self._produce_to(self._topics)
        self._written += 1

    def _produce_to(self, topics: Sequence[str]) -> None:
        settings = {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 4}
        producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
        for partition in range(self._width):
            for topic in topics:
                producer.produce(topic, b"x" * 100, partition=partition, on_delivery=assert_arrived)
            producer.poll(0)
        assert producer.flush(_PATIENCE_S) == 0

    def _produce_by_topic(self) -> None:
        with RawClient(self._bootstrap, _PATIENCE_S) as client:
            for topic in self._topics:
                produce(client, {topic: [one_record(b"x" * 100)] * self._width})
        self._written += 1

    def _list_ends(self) -> None:
        partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(self._width)]
        with RawClient(self._bootstrap, _PATIENCE_S) as client:
            for topic in self._topics:
                request = ListOffsetsRequest(topics=[Topic(name=topic, partitions=partitions)])
                found = unknown = {(int(ErrorCode.OFFSET_NOT_AVAILABLE), -1)}
                while found & unknown:  # until the new leader knows the high watermark
                    answer = client.ask(request, _LIST_VERSION)
                    found = {(one.error_code, one.offset) for some in answer.topics for one in some.partitions}
                assert found == {(0, self._written)}, found

    def _restart_killed(self) -> None:
        self._node.kill()
        self._node.start()

    def _restart(self) -> None:
        self._node.restart()

    def _consumer(self, group: str) -> Consumer:
        settings = {"bootstrap.servers": self._bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        return Consumer({**settings, "enable.auto.commit": False, "log_level": 4})

    def _count(self, consumer: Consumer, expected: int) -> None:
        count, deadline = 0, time.monotonic() + _PATIENCE_S
        while count < expected:
            for message in consumer.consume(10_000, timeout=1.0):
                error = message.error()
                if error is not None:
                    raise KafkaException(error)
                count += 1
            assert time.monotonic() < deadline, f"{count} of {expected} records"

    def _read_all(self) -> None:
        consumer = self._consumer("none")
        consumer.assign([TopicPartition(topic, index, 0) for topic in self._topics for index in range(self._width)])
        self._count(consumer, self._written * self._width * _TOPICS)
        consumer.close()

    def _commit(self) -> None:
        places = [TopicPartition(topic, index, self._written) for topic in self._topics for index in range(self._width)]
        consumer = self._consumer(_GROUP)
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()

    def _list_offsets(self) -> None:
        listed = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(_GROUP)], request_timeout=_PATIENCE_S
        )
        found = listed[_GROUP].result(_PATIENCE_S).topic_partitions
        assert [one.offset for one in found] == [self._written] * self._width * _TOPICS

    def _describe(self) -> None:
        with RawClient(self._node.bootstrap, _PATIENCE_S) as client:
            answer = client.ask(DescribeLogDirsRequest(topics=None), _DESCRIBE_VERSION)
        described = [topic for directory in answer.results for topic in directory.topics if topic.name in self._topics]
        assert sum(len(topic.partitions) for topic in described) == self._width * _TOPICS

    def _delete_records(self) -> None:
        before = [TopicPartition(topic, index, 1) for topic in self._topics for index in range(self._width)]
        deleted = self._admin.delete_records(before, request_timeout=_PATIENCE_S)
        assert all(one.result(_PATIENCE_S).low_watermark == 1 for one in deleted.values())

    def _examine(self) -> None:
        self._node.stop()
        command = [sys.executable, "-P", str(MAIN), "doctor", str(self._node.data_dir)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        self._node.start()
        assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]

    def _delete_half(self) -> None:
        half = self._topics[: _TOPICS // 2]
        deleted = self._admin.delete_topics(half, operation_timeout=_PATIENCE_S)
        for _ in range(3):
            self._produce_to(self._topics[_TOPICS // 2 :])
        for one in deleted.values():
            one.result(_PATIENCE_S)


def main() -> int:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=20_000)
    parser.add_argument("--engine", choices=["segments", "commitlog"], default="commitlog")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--starts", action="store_true")
    options = parser.parse_args()
    settings = {"barnabas.log.storage.engine": options.engine, "group.initial.rebalance.delay.ms": 0}
    with ExitStack() as stack:
        if options.nodes == 1:
            node = barnabas.Broker(settings=settings, start_timeout_s=_PATIENCE_S, stop_timeout_s=_PATIENCE_S)
            nodes = [stack.enter_context(node)]
        else:
            nodes = list(stack.enter_context(barnabas.Cluster(options.nodes, settings=settings)).nodes.values())
        steps = ManyPartitions(nodes, options.partitions)
        if options.starts:
            steps.run_starts()
        else:
            steps.run()
    return 0
