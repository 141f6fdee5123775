"""Kafka Streams with `exactly_once_v2` under kills: each word is counted 1, 2, 3, ... without gap or repeat.

RULES    1. A writer fills the source in transactions, some of them aborted; `WordCount.java` counts words with a repartition
            topic, a state store and its changelog; a read_committed reader follows source and target.
         2. The seed determines the victim: the application, at times with its state directory deleted, the broker, or the
            writer.
         3. At the end the counts match the words of the source, and the histories hold no anomaly.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

from tests.exactly_once.loop import (
    StartedBroker,
    assert_equal_records,
    check_for_anomalies,
    kill_repeatedly,
    make_topics,
    read_all,
    topic_arguments,
    wait_for_records,
)
from tests.exactly_once.processes import Command, ProcessGroup, ReadProgress
from tests.support.kafka import tool_command

SOURCE, TARGET = "words", "counts"
PARTITIONS = 3
APPLICATION = "streams"
VICTIMS = (APPLICATION, APPLICATION, APPLICATION, "writer")
STATE_LOSS_INTERVAL = 3
"""Every n-th process of the application starts without its state directory and thus with new transactional ids: transactions
of the previous process end by their timeout.
"""
SETTINGS = (
    "commit.interval.ms=100",
    "num.stream.threads=2",
    "transaction.timeout.ms=5000",
    "session.timeout.ms=3000",
    "heartbeat.interval.ms=300",
    "reconnect.backoff.max.ms=200",
)
WORK_S = 60


def application(bootstrap: str, folder: Path) -> Command:
    """Compiles the program once; the command that starts it."""
    classes, state = folder / "classes", folder / "state"
    program = Path(__file__).parent / "streams" / "WordCount.java"
    java = tool_command("WordCount", bootstrap, state, SOURCE, TARGET, *SETTINGS)
    at = java.index("-cp") + 1
    subprocess.run(["javac", "-cp", java[at], "-d", classes, program], check=True, timeout=WORK_S)
    java[at] = f"{classes}:{java[at]}"

    def command(incarnation: int) -> list[str]:
        if incarnation % STATE_LOSS_INTERVAL == STATE_LOSS_INTERVAL - 1:
            shutil.rmtree(state, ignore_errors=True)
        return java

    return command


def run(folder: Path, broker: StartedBroker, seed: int, count: int) -> Counter[str]:
    """Runs the application; the counts of kills, failures and words."""
    topics = {SOURCE: PARTITIONS, TARGET: PARTITIONS}
    make_topics(broker.bootstrap, topics)
    with ProcessGroup(broker.bootstrap, folder) as processes:
        processes.start_command(APPLICATION, application(broker.bootstrap, folder))
        processes.start("writer", "writer", SOURCE, PARTITIONS)
        processes.start("reader", "watcher", *topic_arguments(topics))
        kill_repeatedly(processes, broker, seed, count, VICTIMS, TARGET)
        processes.stop("writer")
        source = read_all(processes, "last-of-source", {SOURCE: PARTITIONS})
        wait_for_records(processes, ReadProgress(folder, "watcher"), TARGET, sum(map(len, source.values())))
        done = Counter(processes.counts())
        processes.stop("watcher")
        target = read_all(processes, "last", topics)
    words = Counter(value[-1] for values in source.values() for value in values)
    counted: dict[str, list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for value in target[TARGET, partition]:
            word, so_far = value.split()
            counted[word].append(int(so_far))
    check_for_anomalies(folder)
    assert counted.keys() == words.keys()
    for word, count_of_word in words.items():
        assert_equal_records(f"counts of {word}", counted[word], range(1, count_of_word + 1))
    done["records"] = sum(words.values())
    return done
