"""Kafka Streams with `exactly_once_v2`, killed again and again: each word is counted 1, 2, 3, ... with no gap and no repeat.

RULES    1. A writer fills the source in transactions, of which some are aborted; `WordCount.java` counts words with a
            repartition topic, a state store and its changelog; a committed reader watches source and target.
         2. Who is killed next comes from the seed: the application, sometimes with the loss of its state directory, or the
            broker, or the writer.
         3. In the end the counts are those of the words in the source, and the histories hold no anomaly.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

from tests.exactly_once.lives import Command, Following, Lives
from tests.exactly_once.loop import (
    AnyBroker,
    compare,
    kill_again_and_again,
    look_for_anomalies,
    make_topics,
    read_to_the_end,
    wait_for_more,
    words_of,
)
from tests.support.kafka import tool_command

SOURCE, TARGET = "words", "counts"
PARTITIONS = 3
APPLICATION = "streams"
VICTIMS = (APPLICATION, APPLICATION, APPLICATION, "writer")
FORGETFUL = 3
"""Every so manieth life of the application has lost its state directory, and with it the transactional ids of the life before:
what that one left open ends when its time is over."""
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
    """How the application is started; the program is compiled once."""
    classes, state = folder / "classes", folder / "state"
    program = Path(__file__).parent / "streams" / "WordCount.java"
    java = tool_command("WordCount", bootstrap, state, SOURCE, TARGET, *SETTINGS)
    at = java.index("-cp") + 1
    subprocess.run(["javac", "-cp", java[at], "-d", classes, program], check=True, timeout=WORK_S)
    java[at] = f"{classes}:{java[at]}"

    def command(life: int) -> list[str]:
        if life % FORGETFUL == FORGETFUL - 1:
            shutil.rmtree(state, ignore_errors=True)
        return java

    return command


def run(folder: Path, broker: AnyBroker, seed: int, count: int) -> Counter[str]:
    """The whole of it; what was done."""
    topics = {SOURCE: PARTITIONS, TARGET: PARTITIONS}
    make_topics(broker.bootstrap, topics)
    with Lives(broker.bootstrap, folder) as lives:
        lives.begin_command(APPLICATION, application(broker.bootstrap, folder))
        lives.begin("writer", "writer", SOURCE, PARTITIONS)
        lives.begin("reader", "watcher", *words_of(topics))
        kill_again_and_again(lives, broker, seed, count, VICTIMS, TARGET)
        lives.end("writer")
        source = read_to_the_end(lives, "last-of-source", {SOURCE: PARTITIONS})
        wait_for_more(lives, Following(folder, "watcher"), TARGET, sum(map(len, source.values())))
        done = Counter(lives.told())
        lives.end("watcher")
        target = read_to_the_end(lives, "last", topics)
    words = Counter(value[-1] for values in source.values() for value in values)
    counted: dict[str, list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for value in target[TARGET, partition]:
            word, so_far = value.split()
            counted[word].append(int(so_far))
    look_for_anomalies(folder)
    assert counted.keys() == words.keys()
    for word, so_many in words.items():
        compare(f"counts of {word}", counted[word], range(1, so_many + 1))
    done["records"] = sum(words.values())
    return done
