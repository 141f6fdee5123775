"""Random topics and random queries: the segment source compared with Spark's Kafka source.

    python -m tests.pipeline.sources.random_comparison [--kafka] [--histories N] [--questions N] [--seed SEED]

A history is two or three topics of a live broker with everything that a log can hold: batches of every codec in one
partition, timestamps that jump and decrease (a jump rolls a segment), committed, aborted and open transactions across
segments, large records, tombstones, nulls, headers, LogAppendTime, compaction, log starts inside a segment. A query is
a set of options; its result is rows, or an error. Both sources must give the same result.

RULES    1. One seed determines a history and its queries; it is printed, and `--seed` repeats it.
         2. The cleaner and the transaction markers continue meanwhile. If two results differ, the Kafka source is queried
            again; a result that it does not repeat is not a difference.
         3. Apache Kafka searches a timestamp only in the first segment that is late enough, although its late records may be
            trimmed, or compacted to an empty batch. Trimmed and compacted topics are therefore not queried by timestamp there.
            Barnabas searches further segments. Apache Kafka's last stable offset can be below the log start, the first offset
            of a batch that DeleteRecords has cut; its own clients then fail. Open transactions are therefore not trimmed there.
         4. In the end the broker is stopped, and the checkpoints alone must give the same results.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import ResourceType
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from barnabas import Broker
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.settings import BrokerSettings
from barnabas.pipeline.sources.damage import BadOption, MissingRecords
from barnabas.pipeline.sources.decoding import COLUMN_TYPES, COLUMNS
from barnabas.pipeline.sources.planning import plan
from barnabas.pipeline.sources.segment_options import parse_options
from barnabas.pipeline.sources.segments import NAME, read_task, register
from tests.support.kafka import ApacheKafka
from tests.support.librdkafka import set_configs

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS = ("read_committed", "read_uncommitted")
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
STEPS = 40
SETTINGS = {
    "log.cleaner.backoff.ms": 200,
    "log.initial.task.delay.ms": 200,
    "log.retention.check.interval.ms": 500,
    "log.message.timestamp.after.max.ms": 1 << 40,
    "transaction.state.log.num.partitions": 2,
    "offsets.topic.num.partitions": 2,
}
HASTY = {
    "kafkaConsumer.pollTimeoutMs": "2000",
    "kafka.default.api.timeout.ms": "5000",
    "kafka.request.timeout.ms": "4000",
    "fetchOffset.numRetries": "1",
}
REFUSALS = (BadOption, MissingRecords)
"""The errors allowed for a query; damage is not."""
HEADERS: tuple[list[tuple[str, str | bytes | None]] | None, ...] = (
    None, None, [], [("a", b"1"), ("a", None)], [("", b""), ("größer", b"\xff")],
)  # fmt: skip
Answer = list[tuple[Any, ...]] | str


class Topic(NamedTuple):
    name: str
    partitions: int
    is_compacted: bool

    def topic_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]


class History:
    """Topics filled from one seed."""

    def __init__(self, bootstrap: str, seed: int, *, looks_on: bool) -> None:
        self.seed = seed
        self._looks_on = looks_on
        self._incomplete: set[str] = set()  # names of topics that are trimmed or compacted
        self.rng = random.Random(seed)
        self.bootstrap = bootstrap
        self.brokers = Brokers(BrokerSettings(bootstrap=bootstrap))
        self.topics = [self._topic(number) for number in range(self.rng.randint(2, 3))]
        self.now = dict.fromkeys(self.topics, START_MS)
        self._senders: dict[str, Producer] = {}
        self._open: list[tuple[Producer, Topic]] = []
        self._number = 0

    def _topic(self, number: int) -> Topic:
        rng = self.rng
        settings = {
            "retention.ms": "-1",
            "segment.ms": str(HOUR_MS),
            "segment.bytes": str(1 << 20),
            "segment.index.bytes": str(rng.choice([10 << 20, 120])),
            "index.interval.bytes": str(rng.choice([0, 500, 4096])),
            "file.delete.delay.ms": str(rng.choice([0, 60_000])),
            "message.timestamp.type": rng.choice(["CreateTime"] * 4 + ["LogAppendTime"]),
            "compression.type": rng.choice(["producer"] * 4 + list(CODECS[1:])),
        }
        is_compacted = rng.random() < 0.35
        if is_compacted:
            settings |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
            settings["delete.retention.ms"] = rng.choice(["0", "86400000"])
        name = rng.choice(["", "", "", "__"]) + f"h{self.seed}.{'compacted' if is_compacted else 'plain'}-{number}"
        topic = Topic(name, rng.randint(1, 3), is_compacted)
        if is_compacted:
            self._incomplete.add(name)
        self.brokers.create_topic(name, topic.partitions, 1, settings)
        return topic

    # ---- actions ----------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Fills the topics."""
        acts = [self._send] * 10 + [self._begin] * 3 + [self._send_in_transaction] * 5 + [self._end] * 3
        acts += [self._trim, self._change, self._send_something_big]
        for _ in range(STEPS):
            self.rng.choice(acts)()
        while len(self._open) > self.rng.randint(0, 1):
            self._end()

    def _sender(self, codec: str) -> Producer:
        if codec not in self._senders:
            self._senders[codec] = Producer(self._settings(codec))
        return self._senders[codec]

    def _settings(self, codec: str) -> dict[str, Any]:
        linger = {"linger.ms": self.rng.choice([1, 50])}
        size = {"batch.num.messages": self.rng.choice([1, 7, 10_000]), "message.max.bytes": 1_000_000}
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "compression.type": codec, **linger, **size}

    def _send(self) -> None:
        self._fill(self._sender(self.rng.choice(CODECS)), self.rng.choice(self.topics), self._count())

    def _count(self) -> int:
        return self.rng.choice([1, 2, 5, 30, 30, 200])

    def _fill(self, producer: Producer, topic: Topic, count: int) -> None:
        rng = self.rng
        self.now[topic] += rng.choice([0, 10, 1000, HOUR_MS // 2, HOUR_MS + 1, -5000, -2 * HOUR_MS])
        partitions = rng.choice([[rng.randrange(topic.partitions)], range(topic.partitions)])
        for _ in range(count):
            self._number += 1
            self.now[topic] += rng.choice([0, 1, 7, 900, -300])
            producer.produce(
                topic.name,
                key=self._key(topic),
                value=rng.choice([None, b"", b"%d" % self._number, rng.randbytes(rng.randrange(300)), b"x" * 700]),
                headers=rng.choice(HEADERS),
                partition=rng.choice(partitions),
                timestamp=self.now[topic],
            )
        assert producer.flush(60) == 0

    def _key(self, topic: Topic) -> bytes | None:
        kinds = [b"k%d" % self.rng.randrange(30), b"%d" % self._number, b""]
        return self.rng.choice(kinds if topic.is_compacted else [*kinds, None])

    def _send_something_big(self) -> None:
        topic = self.rng.choice(self.topics)
        value = self.rng.choice([self.rng.randbytes(900_000), b"big " * 200_000])
        producer = self._sender(self.rng.choice(CODECS))
        producer.produce(topic.name, key=b"big", value=value, partition=0, timestamp=self.now[topic])
        assert producer.flush(60) == 0

    def _begin(self) -> None:
        if len(self._open) < 3:
            self._number += 1
            patient = {"transactional.id": f"h{self.seed}-{self._number}", "transaction.timeout.ms": 900_000}
            producer = Producer({**self._settings(self.rng.choice(CODECS)), **patient})
            producer.init_transactions(60)
            producer.begin_transaction()
            self._open.append((producer, self.rng.choice(self.topics)))
            self._fill(*self._open[-1], self._count())

    def _send_in_transaction(self) -> None:
        if self._open:
            self._fill(*self.rng.choice(self._open), self._count())

    def _end(self) -> None:
        if self._open:
            producer, topic = self._open.pop(self.rng.randrange(len(self._open)))
            self.rng.choice([producer.commit_transaction, producer.abort_transaction])(60)
            if self.rng.random() < 0.5:  # the next one of the same producer
                producer.begin_transaction()
                self._open.append((producer, topic))
                self._fill(producer, topic, self._count())

    def _trim(self) -> None:
        topic = self.rng.choice(self.topics)
        if not topic.is_compacted:  # of these a broker does not delete records
            topic_partitions = topic.topic_partitions()
            starts = self.brokers.beginning_offsets(topic_partitions)
            find_ends = self.brokers.high_watermarks if self._looks_on else self.brokers.end_offsets  # rule 3
            ends = find_ends(topic_partitions)
            cuts = {tp: starts[tp] + (ends[tp] - starts[tp]) * self.rng.randrange(6) // 10 for tp in topic_partitions}
            self.brokers.delete_records(cuts)
            self._incomplete.add(topic.name)

    def _change(self) -> None:
        topic = self.rng.choice(self.topics)
        name, value = self.rng.choice(
            [
                ("message.timestamp.type", "LogAppendTime"),
                ("message.timestamp.type", "CreateTime"),
                ("compression.type", self.rng.choice(CODECS[1:])),
                ("compression.type", "producer"),
                ("index.interval.bytes", str(self.rng.choice([0, 4096, 100_000]))),
            ]
        )
        set_configs(self.bootstrap, ResourceType.TOPIC, topic.name, {name: value})

    # ---- queries -----------------------------------------------------------------------------------------------

    def questions(self, count: int) -> Iterator[dict[str, str]]:
        """Yields options for both sources."""
        for _ in range(count):
            topic_partitions, which = self._which()
            yield {
                **which,
                "kafka.isolation.level": self.rng.choice(LEVELS),
                **self._bound("starting", topic_partitions),
                **self._bound("ending", topic_partitions),
                "failOnDataLoss": self.rng.choice(["true", "true", "false"]),
                "includeHeaders": self.rng.choice(["true", "false"]),
            }

    def _which(self) -> tuple[list[TopicPartition], dict[str, str]]:
        rng = self.rng
        topics = rng.sample(self.topics, rng.randint(1, len(self.topics)))
        topic_partitions = [tp for topic in topics for tp in topic.topic_partitions()]
        match rng.randrange(4):
            case 0:
                choices: list[tuple[str, Callable[[str], bool]]] = [
                    (f"h{self.seed}", lambda _: True),
                    (f"^h{self.seed}.*", lambda name: not name.startswith("_")),
                    (f".h{self.seed}.plain-|^h{self.seed}.plain-", lambda name: "plain" in name),
                    (f"_*h{self.seed}\\.compacted-[0-9]$", lambda name: "compacted" in name),
                ]
                pattern, is_it = rng.choice(choices)
                matching = [tp for topic in self.topics for tp in topic.topic_partitions() if is_it(topic.name)]
                if matching:  # the Kafka source finds no record where no topic matches; this one refuses
                    return matching, {"subscribePattern": pattern}
            case 1:
                chosen = rng.sample(topic_partitions, rng.randint(1, len(topic_partitions)))
                return chosen, {"assign": _json(dict.fromkeys(chosen, 0), list)}
        return topic_partitions, {"subscribe": ",".join(topic.name for topic in topics)}

    def _bound(self, which: str, topic_partitions: list[TopicPartition]) -> dict[str, str]:
        rng = self.rng
        has_moments = self._looks_on or not self._incomplete & {tp.topic for tp in topic_partitions}
        form = rng.choice(["none", "none", "word", "offsets", "offsets", *(["time", "times"] if has_moments else [])])
        if form == "none" or not topic_partitions:
            return {}
        if form == "word":
            return {f"{which}Offsets": "earliest" if which == "starting" else "latest"}
        if form == "offsets":
            starts, ends = (
                self.brokers.beginning_offsets(topic_partitions),
                self.brokers.high_watermarks(topic_partitions),
            )
            special = rng.choice([-2, -2, -2, -1] if which == "starting" else [-1, -1, -1, -2])
            slack = rng.choice([0, 0, 0, 3])
            source_options = {
                tp: rng.choice([special, *[rng.randint(max(0, starts[tp] - slack), ends[tp] + slack)] * 3])
                for tp in topic_partitions
            }
            if rng.random() < 0.05:
                source_options.pop(rng.choice(topic_partitions))
            return {f"{which}Offsets": _json(source_options)}
        moments = {tp: self._moment(tp) for tp in topic_partitions}
        strategy = {"startingOffsetsByTimestampStrategy": rng.choice(["error", "latest"])}
        if form == "time":
            found = {f"{which}Timestamp": str(next(iter(moments.values())))}
        else:
            found = {f"{which}OffsetsByTimestamp": _json(moments)}
        return {**found, **strategy} if which == "starting" and rng.random() < 0.7 else found

    def _moment(self, tp: TopicPartition) -> int:
        last = next(moment for topic, moment in self.now.items() if topic.name == tp.topic)
        span = range(START_MS - HOUR_MS, max(last, START_MS) + 2 * HOUR_MS)
        return self.rng.choice([0, 1 << 41, *[self.rng.choice(span)] * 12])


def _json(table: Mapping[TopicPartition, int], kind: type = dict) -> str:
    found: dict[str, dict[str, int]] = {}
    for tp, value in table.items():
        found.setdefault(tp.topic, {})[str(tp.partition)] = value
    if kind is list:
        return json.dumps({topic: [int(number) for number in row] for topic, row in found.items()})
    return json.dumps(found)


# ---- the two results ------------------------------------------------------------------------------------------


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    return (*COLUMNS, *(["headers"] if options["includeHeaders"] == "true" else []))


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    """A table's rows ordered by topic, partition and offset; timestamps as integers."""
    columns = [table[name].cast(pa.int64()) if name == "timestamp" else table[name] for name in table.column_names]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    topic, partition, offset = (table.column_names.index(name) for name in ("topic", "partition", "offset"))
    plain = [tuple(_plain(value) for value in row) for row in rows]
    return sorted(plain, key=lambda row: (row[topic], row[partition], row[offset]))


def _plain(value: Any) -> Any:
    return tuple((one["key"], one["value"]) for one in value) if isinstance(value, list) else value


def through_the_broker(spark: SparkSession, bootstrap: str, options: Mapping[str, str]) -> Answer:
    """The result of Spark's Kafka source."""
    source_options = {"kafka.bootstrap.servers": bootstrap, **HASTY, **options}
    return _answer(lambda: spark.read.format("kafka").options(**source_options).load().select(*columns_of(options)))


def _answer(load: Callable[[], DataFrame]) -> Answer:
    try:
        return rows_of(load().toArrow())
    except (PySparkException, Py4JJavaError) as failure:
        return f"error: {_innermost(failure)}"


def _innermost(failure: Any) -> str:
    cause = getattr(failure, "java_exception", None) or getattr(failure, "_origin", None)
    while cause is not None and cause.getCause() is not None:
        cause = cause.getCause()
    return str(failure if cause is None else cause.toString())[:300]


def from_the_files(data_dir: Path, options: Mapping[str, str]) -> Answer:
    """The result of the segment source without Spark."""
    try:
        wanted = parse_options({"path": str(data_dir), **options})
        batches = [batch for part in plan(wanted) for batch in read_task(part)]
    except REFUSALS as refusal:
        return f"error: {refusal}"
    schema = pa.schema([(name, COLUMN_TYPES[name]) for name in wanted.columns])
    return rows_of(pa.Table.from_batches(batches, schema))


def within_spark(spark: SparkSession, data_dir: Path, options: Mapping[str, str]) -> Answer:
    """The result of the segment source in Spark."""
    return _answer(lambda: spark.read.format(NAME).options(**options).load(str(data_dir)))


def is_same(one: Answer, other: Answer) -> bool:
    """Whether both are the same rows, or both are errors."""
    return one == other or (isinstance(one, str) and isinstance(other, str))


class Difference(NamedTuple):
    """A query with two different results."""

    options: Mapping[str, str]
    through: Answer
    straight: Answer

    def __str__(self) -> str:
        lines = (
            json.dumps(self.options),
            f"   Kafka source: {describe(self.through, self.straight)}",
            f"   segments:     {describe(self.straight, self.through)}",
        )
        return "\n".join(lines)


def describe(answer: Answer, other: Answer) -> str:
    """A result beside the other one, in a line."""
    if isinstance(answer, str):
        return answer.splitlines()[0]
    more = [row for row in answer if row not in set(other)] if not isinstance(other, str) else answer
    return f"{len(answer)} rows; {len(more)} not in the other: {str(more[:1])[-120:]}"


def compare(spark: SparkSession, broker: Any, history: History, count: int) -> list[Difference]:
    """Runs queries on both sources and returns the differences."""
    found = []
    for number, options in enumerate(history.questions(count)):
        source_options = {**options, "kafka.bootstrap.servers": broker.bootstrap}
        straight = partial(within_spark, spark) if number % 10 == 9 else from_the_files
        through = through_the_broker(spark, broker.bootstrap, options)
        while not is_same(through, answer := straight(broker.data_dir, source_options)):
            before, through = through, through_the_broker(spark, broker.bootstrap, options)
            if is_same(before, through):
                found.append(Difference(options, through, answer))
                break
    return found


def everything(history: History) -> list[dict[str, str]]:
    """Options that read all of a history's topics."""
    names = ",".join(topic.name for topic in history.topics)
    base = {"subscribe": names, "includeHeaders": "true"}
    return [{**base, "kafka.isolation.level": level} for level in LEVELS]


def compare_without_broker(data_dir: Path, expected: list[tuple[dict[str, str], Answer]]) -> list[Difference]:
    """Returns the differences between the files of the stopped broker and earlier results (rule 4)."""
    results = [(options, through, from_the_files(data_dir, options)) for options, through in expected]
    return [Difference(*one) for one in results if not is_same(*one[1:])]


def run(spark: SparkSession, broker: Any, seed: int, histories: int, questions: int) -> list[Difference]:
    """Fills and compares histories on a broker, which is stopped at the end; returns the differences."""
    register(spark)
    found, expected, played = [], [], []
    for number in range(histories):
        history = History(broker.bootstrap, seed + number, looks_on=isinstance(broker, Broker))
        history.play()
        played.append(history)  # its open transactions stay open
        print(f"seed {history.seed}: {history.topics}", flush=True)
        of_this = compare(spark, broker, history, questions)
        for one in of_this:
            print(f"seed {seed + number}: {one}", flush=True)
        found += of_this
    for history in played:
        expected += [(one, through_the_broker(spark, broker.bootstrap, one)) for one in everything(history)]
    broker.stop()
    alone = compare_without_broker(broker.data_dir, expected)
    for one in alone:
        print(f"the broker stopped: {one}", flush=True)
    return found + alone


def main() -> int:
    from barnabas.pipeline.session import start_session

    parser = argparse.ArgumentParser(description="The segment source beside Spark's Kafka source, by chance.")
    parser.add_argument("--kafka", action="store_true", help="read from Apache Kafka and its directories")
    parser.add_argument("--histories", type=int, default=3)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite end ends the broker, too
    print(f"--seed {options.seed} --histories {options.histories} --questions {options.questions}")
    kind: Any = ApacheKafka if options.kafka else Broker
    with tempfile.TemporaryDirectory(prefix="histories-", ignore_cleanup_errors=True) as folder:
        spark, _ = start_session("histories", Path(folder), Path(folder) / "spark.log", cores=2)
        try:
            with kind(settings=SETTINGS, data_dir=Path(folder) / "data") as broker:
                found = run(spark, broker, options.seed, options.histories, options.questions)
        finally:
            spark.stop()
    print(f"{len(found)} of {options.histories * options.questions} questions and the looks at a stopped broker differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
