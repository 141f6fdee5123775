"""The latest value of each key: on literal rows, and over runs on a topic."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import TableSettings, table
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.table import COLUMNS, is_shown, last_of_partitions, ranked
from tests.pipeline.topics import MINUTE_MS, START_MS, create, send
from tests.support.seeds import seed_of

pytestmark = pytest.mark.long


def literal(spark: Any, *rows: tuple[bytes | None, bytes | None, int, int, int]) -> Any:
    made = spark.createDataFrame(list(rows), "key binary, value binary, partition int, offset bigint, ms bigint")
    return made.selectExpr("key", "value", "partition", "offset", "timestamp_millis(ms) as timestamp")


def values(rows: Any) -> dict[bytes, bytes | None]:
    return {bytes(row.key): row.value and bytes(row.value) for row in rows.collect()}


def test_the_highest_offset_wins_and_between_partitions_the_later_timestamp(spark: Any) -> None:
    records = literal(
        spark,
        (b"a", b"1", 0, 1, 900),
        (b"a", b"2", 0, 2, 100),
        (b"b", b"3", 0, 3, 500),
        (b"b", b"4", 1, 0, 400),
        (b"c", None, 0, 4, 500),
        (None, b"5", 0, 5, 500),
    )
    latest = ranked(last_of_partitions(records))
    assert values(latest.where("place = 1")) == {b"a": b"2", b"b": b"3", b"c": None}
    assert values(latest.where(is_shown())) == {b"a": b"2", b"b": b"3"}
    old = literal(
        spark, (b"a", b"0", 0, 0, 5000), (b"b", b"9", 2, 9, 600), (b"c", b"8", 0, 0, 1), (b"d", b"7", 0, 0, 1)
    )
    latest = ranked(last_of_partitions(old.unionByName(records)))
    assert values(latest.where("place = 1")) == {b"a": b"2", b"b": b"9", b"c": None, b"d": b"7"}


def test_runs_update_a_table(spark: Any, kafka_broker: Any, topic: str, tmp_path: Path) -> None:
    """An interrupted version is written again."""

    def put(start: int, *pairs: tuple[bytes, bytes | None]) -> None:
        records = [
            {"key": key, "value": value, "partition": key[0] % 2, "timestamp": START_MS + (start + n) * MINUTE_MS}
            for n, (key, value) in enumerate(pairs)
        ]
        send(kafka_broker.bootstrap, topic, records)

    def current() -> dict[bytes, bytes | None]:
        return values(spark.read.parquet(str(tmp_path / "t" / "current")))

    settings = TableSettings(bootstrap=kafka_broker.bootstrap, topic=topic, into=tmp_path / "t")
    put(0, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"a", b"4"))
    first = table(spark, settings)
    assert (first.records, first.rows, first.rounds) == (4, 3, 1)
    assert current() == {b"a": b"4", b"b": b"2", b"c": b"3"}
    put(10, (b"b", None), (b"d", b"5"))
    (tmp_path / "t" / "versions" / "00000002").mkdir()
    (tmp_path / "t" / "versions" / "00000002" / "half.parquet").write_text("cut")
    steps: list[dict[str, Any]] = []
    second = table(spark, settings, steps.append)
    assert (second.records, second.rows, second.version) == (2, 3, 2)
    assert current() == {b"a": b"4", b"c": b"3", b"d": b"5"}
    assert [(step["records"], step["behind"]) for step in steps] == [(2, 0)]
    brokers = Brokers(settings)
    read = {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 3}
    group = f"barnabas-table-{topic}"
    assert brokers.committed(group, read) == read, "any tool shows the lag"
    brokers.commit(group, dict.fromkeys(read, 0))  # as if that run had been killed at its last commit
    assert table(spark, settings).rounds == 0
    assert brokers.committed(group, read) == read
    create(kafka_broker.bootstrap, other := f"other-{topic}")
    with pytest.raises(JobError, match=f"is the table of the topic {topic}"):
        table(spark, replace(settings, topic=other))
    assert COLUMNS.startswith("key binary")


def test_an_older_record_of_a_later_round_does_not_restore_a_deleted_key(
    spark: Any, kafka_broker: Any, topic: str, tmp_path: Path
) -> None:
    older = [
        {"key": b"k" if n == 7 else b"%d" % n, "value": b"old", "partition": 1, "timestamp": START_MS + n}
        for n in range(8)
    ]
    deletion = {"key": b"k", "value": None, "partition": 0, "timestamp": START_MS + MINUTE_MS}
    send(kafka_broker.bootstrap, topic, [deletion, *older])
    settings = TableSettings(
        bootstrap=kafka_broker.bootstrap, topic=topic, into=tmp_path / "t", max_offsets_per_trigger=4
    )
    report = table(spark, settings)
    assert report.rounds > 2
    assert report.rows == 7
    assert values(spark.read.parquet(str(tmp_path / "t" / "current"))).keys() == {b"%d" % n for n in range(7)}
    assert (tmp_path / "t" / "current" / "_hidden").exists(), "partition 0 might get an older record"


def test_deletions_are_forgotten_at_the_end_of_the_topic(
    spark: Any, kafka_broker: Any, topic: str, tmp_path: Path
) -> None:
    records = [{"key": b"%d" % n, "value": None, "partition": n % 2} for n in range(8)]
    send(kafka_broker.bootstrap, topic, records)
    settings = TableSettings(
        bootstrap=kafka_broker.bootstrap, topic=topic, into=tmp_path / "t", max_offsets_per_trigger=4
    )
    assert table(spark, settings).rows == 0
    assert (tmp_path / "t" / "versions" / "00000001" / "_hidden").exists()
    assert not (tmp_path / "t" / "current" / "_hidden").exists()


def test_an_older_record_of_the_winning_partition_restores_the_record_of_another(
    spark: Any, kafka_broker: Any, topic: str, tmp_path: Path
) -> None:
    """Rounds give the table that one round over all records gives."""
    settings = TableSettings(bootstrap=kafka_broker.bootstrap, topic=topic, into=tmp_path / "t")
    rng = random.Random(seed := seed_of())
    ends = [0, 0]
    last: dict[bytes, dict[int, tuple[int, int, bytes | None]]] = {}
    for _ in range(4):
        records = []
        for n in range(24):
            key, value, partition = (
                b"%d" % rng.randrange(9),
                None if rng.random() < 0.25 else b"%d" % n,
                rng.randrange(2),
            )
            ms = START_MS + rng.randrange(1000)
            last.setdefault(key, {})[partition] = (ms, ends[partition], value)
            ends[partition] += 1
            records.append({"key": key, "value": value, "partition": partition, "timestamp": ms})
        send(kafka_broker.bootstrap, topic, records)
        table(spark, settings)
        winners = {key: max((*record[:2], part, record[2]) for part, record in of.items()) for key, of in last.items()}
        expected = {key: value for key, (*_, value) in winners.items() if value is not None}
        assert values(spark.read.parquet(str(tmp_path / "t" / "current"))) == expected, f"seed {seed}"
        last = {key: of for key, of in last.items() if len(of) > 1 or key in expected}
