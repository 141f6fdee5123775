"""Consume, transform, produce, killed again and again: each record that was committed arrives once, in its order.

RULES    1. A writer fills a topic in transactions, of which some are aborted; two members of a group carry it into a second
            topic, a third carrier takes one partition of it into a third topic; a committed reader watches all three.
         2. Who is killed next, and how much is carried before, comes from the seed.
         3. In the end each target holds, partition by partition, what the source holds, and the histories of all clients hold
            no anomaly.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.exactly_once.anomalies import AT_ANY_TIME, Partition, anomalies
from tests.exactly_once.carrier import transformed
from tests.exactly_once.client import QUICK
from tests.exactly_once.history import read_histories
from tests.exactly_once.lives import Following, Lives
from tests.support.waiting import until

SOURCE, TARGET, BY_HAND = "source", "target", "by-hand"
PARTITIONS = 3
CARRIERS = ("carrier-a", "carrier-b", "hand")
GROUP = "carriers"
VICTIMS = (*CARRIERS, "writer", "watcher")
BROKER = "broker"
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 3,
    "transaction.state.log.num.partitions": 3,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "auto.create.topics.enable": "false",
}
STALLED_S = 90
"""So long nothing may arrive: somebody who was killed is missed after some seconds, and a machine may be busy."""


class AnyBroker(Protocol):
    """What is done to a broker, ours or another."""

    @property
    def bootstrap(self) -> str: ...
    def start(self) -> object: ...
    def kill(self) -> None: ...


def make_topics(bootstrap: str, topics: dict[str, int], replicas: int = 1) -> None:
    """Topics, each with its number of partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(name, count, replicas) for name, count in topics.items()]).values():
        made.result(60)


def begin_at_the_beginning(bootstrap: str, group: str, topic: str, partitions: int) -> None:
    """A group whose offsets in the first partitions of a topic are 0, and not unknown."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, **QUICK})

    def is_told() -> bool:
        try:
            offsets = [TopicPartition(topic, partition, 0) for partition in range(partitions)]
            told = consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException:  # the coordinator is not there yet
            return False
        return not any(place.error for place in told)

    until(is_told, "the first offset of a group", 60)
    consumer.close()


def kill_again_and_again(
    lives: Lives, broker: AnyBroker, seed: int, count: int, victims: tuple[str, ...], topic: str
) -> None:
    """Kill so many times, now a client and now the broker; before each time something has arrived, and nothing is wrong."""
    dice = random.Random(seed)
    watched = Following(lives.folder, "watcher")
    for number in range(count):
        some = dice.randint(1, 40)
        wait_for_more(lives, watched, topic, watched.of_its_latest_life()[topic] + some)
        look_for_anomalies(lives.folder, AT_ANY_TIME)
        if number % 2:
            broker.kill()
            broker.start()
            lives.kills[BROKER] += 1
        else:
            lives.kill(dice.choice(victims))


def wait_for_more(lives: Lives, watched: Following, topic: str, count: int) -> None:
    """Until the watcher has seen so many records of a topic, whoever fails meanwhile; if they do not come, what is wrong."""

    def arrived() -> bool:
        lives.look()
        return watched.of_its_latest_life()[topic] >= count

    try:
        until(arrived, f"{count} records in {topic}", STALLED_S)
    except AssertionError as error:
        error.add_note(f"There are {dict(watched.of_its_latest_life())}.\n{lives.last_words()}")
        look_for_anomalies(lives.folder)
        raise


def words_of(topics: dict[str, int]) -> list[object]:
    """Topics with their numbers of partitions, as programs take them."""
    return [word for pair in topics.items() for word in pair]


def read_to_the_end(lives: Lives, name: str, topics: dict[str, int]) -> dict[Partition, list[str]]:
    """What a committed reader sees in the end, by partition; it becomes part of the histories."""
    reader = lives.see_through("reader", name, "to-the-end", *words_of(topics))
    found: dict[Partition, list[str]] = defaultdict(list)
    for event in read_histories(lives.folder):
        if event.who == f"{name}-{reader.life}" and event.what == "polled":
            found[event.where].append(event.value)
    return found


def look_for_anomalies(folder: Path, kinds: frozenset[str] | None = None) -> None:
    """Nothing that may not happen is in the histories, or nothing of some kinds."""
    for _ in range(2):  # what is half written the first time is whole the second time
        found = [one for one in anomalies(read_histories(folder)) if kinds is None or one.kind in kinds]
        if not found:
            return
    raise AssertionError("\n".join(f"{kind}: {sentence}" for kind, sentence in found[:20]))


def compare(what: str, found: Sequence[object], wanted: Sequence[object]) -> None:
    """They are the same, one by one."""
    for number, (one, other) in enumerate(zip_longest(found, wanted)):
        assert one == other, f"{what}: record {number} of {len(wanted)} is {one} and should be {other}"


def run(folder: Path, broker: AnyBroker, seed: int, count: int) -> Counter[str]:
    """The whole of it; what was done."""
    topics = {SOURCE: PARTITIONS, TARGET: PARTITIONS, BY_HAND: 1}
    make_topics(broker.bootstrap, topics)
    begin_at_the_beginning(broker.bootstrap, GROUP, SOURCE, PARTITIONS)
    begin_at_the_beginning(broker.bootstrap, CARRIERS[2], SOURCE, 1)
    with Lives(broker.bootstrap, folder) as lives:
        lives.begin("writer", "writer", SOURCE, PARTITIONS)
        lives.begin("reader", "watcher", *words_of(topics))
        for name in CARRIERS[:2]:
            lives.begin("carrier", name, SOURCE, TARGET, GROUP)
        lives.begin("carrier_by_hand", CARRIERS[2], SOURCE, BY_HAND)
        kill_again_and_again(lives, broker, seed, count, VICTIMS, TARGET)
        lives.end("writer")
        source = read_to_the_end(lives, "last-of-source", {SOURCE: PARTITIONS})
        watched = Following(folder, "watcher")
        wait_for_more(lives, watched, TARGET, sum(map(len, source.values())))
        wait_for_more(lives, watched, BY_HAND, len(source[SOURCE, 0]))
        done = Counter(lives.told())
        lives.end(*CARRIERS, "watcher")
        there = read_to_the_end(lives, "last", topics)
    look_for_anomalies(folder)
    for partition in range(PARTITIONS):
        carried = [transformed(value) for value in source[SOURCE, partition]]
        compare(f"{TARGET}-{partition}", there[TARGET, partition], carried)
        if partition == 0:
            compare(f"{BY_HAND}-0", there[BY_HAND, 0], carried)
    done["records"] = sum(map(len, source.values()))
    return done
