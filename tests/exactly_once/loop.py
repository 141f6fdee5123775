"""The consume-transform-produce loop under kills: every committed record arrives exactly once, in order.

RULES    1. A writer fills a topic in transactions, some of them aborted; two members of a group process it into a second topic;
            a third processor copies one partition into a third topic; a read_committed reader follows all three.
         2. The seed determines the victims, and how many records are processed before each kill.
         3. At the end each target holds, partition by partition, the records of the source, and the histories hold no anomaly.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.exactly_once.anomalies import AT_ANY_TIME, Partition, anomalies
from tests.exactly_once.client import QUICK
from tests.exactly_once.history import read_histories
from tests.exactly_once.processes import ProcessGroup, ReadProgress
from tests.exactly_once.processor import transformed
from tests.support.waiting import until

SOURCE, TARGET, MANUAL = "source", "target", "by-hand"
PARTITIONS = 3
PROCESSORS = ("processor-a", "processor-b", "manual")
GROUP = "processors"
VICTIMS = (*PROCESSORS, "writer", "watcher")
BROKER = "broker"
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "auto.create.topics.enable": "false",
}
NO_OFFSET = re.compile(r"OffsetFetchResponse: .* offset -1, .*: NO_ERROR")
"""What librdkafka logs about an OffsetFetch response without an offset and without an error."""
STALLED_S = 90
"""The limit without any progress: a killed member is replaced after seconds, and the machine may be busy."""


class StartedBroker(Protocol):
    """A broker that can be killed and started."""

    @property
    def bootstrap(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...


def make_topics(bootstrap: str, topics: dict[str, int], replicas: int = 1) -> None:
    """Creates topics with their numbers of partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, count, replicas) for name, count in topics.items()]).values():
        made.result(60)


def commit_offset_zero(bootstrap: str, group: str, topic: str, partitions: int) -> None:
    """Commits offset 0 for a group in the first partitions of a topic, so that no offset is missing."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUICK})

    def is_committed() -> bool:
        try:
            offsets = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
            committed = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:  # there is no coordinator yet
            return False
        return not any(topic_partition.error for topic_partition in committed)

    until(is_committed, "the first offset of a group", 60)
    consumer.close()


def kill_repeatedly(
    processes: ProcessGroup, broker: StartedBroker, seed: int, count: int, victims: tuple[str, ...], topic: str
) -> None:
    """Kills a client and the broker in turn, `count` times; before each kill records have arrived and there is no anomaly."""
    rng = random.Random(seed)
    progress = ReadProgress(processes.folder, "watcher")
    for number in range(count):
        some = rng.randint(1, 40)
        wait_for_records(processes, progress, topic, progress.latest_counts()[topic] + some)
        check_for_anomalies(processes.folder, AT_ANY_TIME)
        if number % 2:
            broker.kill()
            broker.start()
            processes.kills[BROKER] += 1
        else:
            processes.kill(rng.choice(victims))


def wait_for_records(processes: ProcessGroup, progress: ReadProgress, topic: str, count: int) -> None:
    """Waits until the watcher has read `count` records of a topic; on a timeout it reports the counts and any anomaly."""

    def arrived() -> bool:
        processes.check_running()
        return progress.latest_counts()[topic] >= count

    try:
        until(arrived, f"{count} records in {topic}", STALLED_S)
    except AssertionError as error:
        error.add_note(f"There are {dict(progress.latest_counts())}.\n{processes.last_lines()}")
        check_for_anomalies(processes.folder)
        raise


def topic_arguments(topics: dict[str, int]) -> list[object]:
    """Topics with their numbers of partitions, as program arguments."""
    return [word for pair in topics.items() for word in pair]


def read_all(processes: ProcessGroup, name: str, topics: dict[str, int]) -> dict[Partition, list[str]]:
    """What a read_committed consumer reads at the end, by partition; also part of the histories."""
    processes.run_to_completion("reader", name, "to-the-end", *topic_arguments(topics))
    return read_by(processes.folder, name)


def read_by(folder: Path, name: str) -> dict[Partition, list[str]]:
    """What the last process of a reader polled, by partition."""
    found: dict[str, dict[Partition, list[str]]] = defaultdict(lambda: defaultdict(list))
    for event in read_histories(folder):
        if event.kind == "polled" and event.client.rpartition("-")[0] == name:
            found[event.client][event.topic_partition].append(event.value)
    return found[max(found, key=lambda client: int(client.rpartition("-")[2]))] if found else defaultdict(list)


def check_for_anomalies(folder: Path, kinds: frozenset[str] | None = None) -> None:
    """Raises if the histories hold an anomaly, or one of these kinds."""
    for _ in range(2):  # a line that is half written at first is complete the second time
        found = [one for one in anomalies(read_histories(folder)) if kinds is None or one.kind in kinds]
        if not found:
            return
    raise AssertionError("\n".join(f"{kind}: {sentence}" for kind, sentence in found[:20]))


def assert_equal_records(name: str, found: Sequence[object], wanted: Sequence[object]) -> None:
    """Raises at the first record that differs."""
    for number, (one, other) in enumerate(zip_longest(found, wanted)):
        assert one == other, f"{name}: record {number} of {len(wanted)} is {one} and should be {other}"


def commit_first_offsets(bootstrap: str) -> None:
    """Commits offset 0 for the groups of the processors."""
    commit_offset_zero(bootstrap, GROUP, SOURCE, PARTITIONS)
    commit_offset_zero(bootstrap, PROCESSORS[2], SOURCE, 1)


def start_clients(processes: ProcessGroup, topics: dict[str, int]) -> None:
    """Starts the writer, the processors, and a reader of these topics."""
    processes.start("writer", "writer", SOURCE, PARTITIONS)
    processes.start("reader", "watcher", *topic_arguments(topics))
    for name in PROCESSORS[:2]:
        processes.start("processor", name, SOURCE, TARGET, GROUP)
    processes.start("processor_aiokafka", PROCESSORS[2], SOURCE, MANUAL)


def check_fetched_offsets(folder: Path) -> None:
    """Raises if a processor of librdkafka received no committed offset of its group; all groups have one."""
    for log in folder.glob("processor-*.log"):
        for line in log.read_text(errors="replace").splitlines():
            assert NO_OFFSET.search(line) is None, f"{log.name}: {line}"


def check_result(folder: Path) -> None:
    """Raises if the histories hold an anomaly, or if a target differs from its source in what `last` has read."""
    check_for_anomalies(folder)
    check_fetched_offsets(folder)
    found = read_by(folder, "last")
    for partition in range(PARTITIONS):
        carried = [transformed(value) for value in found[SOURCE, partition]]
        assert_equal_records(f"{TARGET}-{partition}", found[TARGET, partition], carried)
        if partition == 0:
            assert_equal_records(f"{MANUAL}-0", found[MANUAL, 0], carried)


def run(folder: Path, broker: StartedBroker, seed: int, count: int) -> Counter[str]:
    """Runs the loop; the counts of kills, failures and records."""
    topics = {SOURCE: PARTITIONS, TARGET: PARTITIONS, MANUAL: 1}
    make_topics(broker.bootstrap, topics)
    commit_first_offsets(broker.bootstrap)
    with ProcessGroup(broker.bootstrap, folder) as processes:
        start_clients(processes, topics)
        kill_repeatedly(processes, broker, seed, count, VICTIMS, TARGET)
        processes.stop("writer")
        source = read_all(processes, "last-of-source", {SOURCE: PARTITIONS})
        progress = ReadProgress(folder, "watcher")
        wait_for_records(processes, progress, TARGET, sum(map(len, source.values())))
        wait_for_records(processes, progress, MANUAL, len(source[SOURCE, 0]))
        done = Counter(processes.counts())
        processes.stop(*PROCESSORS, "watcher")
        read_all(processes, "last", topics)
    check_result(folder)
    done["records"] = sum(map(len, source.values()))
    return done
