"""Replays: the sent records, repeated runs, and refused targets."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import Row

from barnabas.pipeline import ArchiveSettings, ReplaySettings, archive, replay
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.replay import window_of
from barnabas.pipeline.kafka.sender import (
    SECONDS_PER_TRANSACTION,
    RateLimiter,
    SendOptions,
    _PartitionSender,
    _transactions,
)
from tests.pipeline.topics import MINUTE_MS, START_MS, begin_transaction, create, minutes, read_all, send, transactional

pytestmark = pytest.mark.long


def as_sent(messages: list[Any]) -> list[tuple[Any, ...]]:
    return [(m.key(), m.value(), m.timestamp()[1], m.headers()) for m in messages]


def expected(records: list[dict[str, Any]], partition: int) -> list[tuple[Any, ...]]:
    return [(r["key"], r["value"], r["timestamp"], r["headers"]) for r in records if r["partition"] == partition]


def test_a_repeated_replay_sends_nothing_twice(spark: Any, kafka_broker: Any, topic: str) -> None:
    """Partitions, keys, values, nulls, headers and timestamps are unchanged."""
    target = f"to-{topic}"
    sent = minutes(300)
    send(kafka_broker.bootstrap, topic, sent)
    settings = ReplaySettings(
        bootstrap=kafka_broker.bootstrap,
        topic=topic,
        to=target,
        start_time="2026-01-01T01:00:00",
        end_time=str(START_MS + 200 * MINUTE_MS),
    )
    first = replay(spark, settings)
    assert (first.sent, first.skipped) == (140, 0)
    second = replay(spark, settings)
    assert (second.sent, second.skipped, second.name) == (0, 140, first.name)
    found = read_all(kafka_broker.bootstrap, target)
    for partition in (0, 1):
        assert as_sent(found[partition]) == expected(sent[60:200], partition)
    assert replay(spark, replace(settings, name="again")).sent == 140


def test_an_interrupted_replay_continues_after_the_last_commit(spark: Any, kafka_broker: Any, tmp_path: Path) -> None:
    """Some records are committed; others are in an open transaction of a killed sender."""
    topic, target = f"half-{tmp_path.name}", f"rest-{tmp_path.name}"
    create(kafka_broker.bootstrap, topic, 1)
    sent = minutes(60, 1)
    send(kafka_broker.bootstrap, topic, sent)
    archive(spark, ArchiveSettings(bootstrap=kafka_broker.bootstrap, into=tmp_path / "a", topic=(topic,)))
    settings = ReplaySettings(
        bootstrap=kafka_broker.bootstrap, topic=topic, to=target, archive=tmp_path / "a", name=target, rate=1000.0
    )
    assert replay(spark, replace(settings, end_offset=20)).sent == 20
    dead = transactional(kafka_broker.bootstrap, f"barnabas-replay-{target}-{topic}-0")
    begin_transaction(dead, target, sent[20:30])
    rest = replay(spark, settings)
    assert (rest.sent, rest.skipped) == (40, 20)
    with pytest.raises(Exception, match=r"fenced|newer"):
        dead.commit_transaction(10)
    assert as_sent(read_all(kafka_broker.bootstrap, target, 1)[0]) == expected(sent, 0)


def test_a_target_that_would_change_or_delete_records_is_refused(spark: Any, kafka_broker: Any, topic: str) -> None:
    send(kafka_broker.bootstrap, topic, minutes(4))
    settings = ReplaySettings(bootstrap=kafka_broker.bootstrap, topic=topic, to=topic)
    with pytest.raises(JobError, match="cannot be replayed into itself"):
        replay(spark, settings)
    for number, (partitions, configs, words) in enumerate(
        (
            (1, {}, "has 1 partitions, but 2 are needed"),
            (2, {"message_timestamp_type": "LogAppendTime"}, "replaces the records' timestamps"),
            (2, {"retention_ms": "3600000"}, "would delete the oldest records at once"),
        )
    ):
        target = f"{topic}-{number}"
        create(kafka_broker.bootstrap, target, partitions, **configs)
        with pytest.raises(JobError, match=words):
            replay(spark, replace(settings, to=target))


@pytest.mark.parametrize("number", ["2", "-1"])
def test_a_partition_that_the_source_does_not_have_is_refused(
    spark: Any, kafka_broker: Any, topic: str, number: str
) -> None:
    send(kafka_broker.bootstrap, topic, minutes(4))
    target = f"none-{topic}"
    settings = ReplaySettings(bootstrap=kafka_broker.bootstrap, topic=topic, to=target, partition=("0", number))
    with pytest.raises(JobError, match=f"has no partition {number} in the source: --partition takes 0 to 1"):
        replay(spark, settings)


def test_a_record_with_timestamp_0_is_refused_instead_of_sent_with_the_current_time(
    kafka_broker: Any, topic: str
) -> None:
    """librdkafka takes 0 for "now"."""
    options = SendOptions({"bootstrap.servers": kafka_broker.bootstrap}, f"group-{topic}")
    row = Row(offset=0, to_topic=topic, to_partition=0, key=None, value=b"value", headers=None, ms=0)
    with pytest.raises(JobError, match=f"The record at offset 0 of {topic}-0 has the timestamp 0"):
        _PartitionSender(options, topic, 0).send([row])
    assert _PartitionSender(options, topic, 0).send([Row(**{**row.asDict(), "ms": 1})]) == (1, 0)
    assert [message.timestamp()[1] for message in read_all(kafka_broker.bootstrap, topic)[0]] == [1]


def test_a_window_is_given_in_iso_8601_or_milliseconds() -> None:
    settings = ReplaySettings(
        topic="a", to="b", start_time="2026-01-01T01:00+01:00", end_time="5", partition=("2", "1")
    )
    assert window_of(settings) == (START_MS, 5, None, None, (1, 2))
    for wrong, words in (({"start_time": "noon"}, "is not a time"), ({"partition": ("x",)}, "takes a number")):
        with pytest.raises(JobError, match=words):
            window_of(replace(settings, **wrong))
    with pytest.raises(JobError, match="more than 0"):
        window_of(replace(settings, rate=0.0))


def test_rows_are_split_into_transactions() -> None:
    parts = [list(part) for part in _transactions(range(45_000), RateLimiter(None))]
    assert [len(part) for part in parts] == [20_000, 20_000, 5_000]
    assert [row for part in parts for row in part] == list(range(45_000))


def test_a_transaction_ends_before_a_long_wait_for_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker would abort it after its timeout, and the task would fail."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    for rate, sizes in ((0.01, [1] * 5), (0.5, [5]), (0.25, [3, 2]), (None, [5])):
        durations = []
        parts = []
        for part in _transactions(range(5), RateLimiter(rate)):
            began = clock[0]
            parts.append(len(list(part)))
            durations.append(clock[0] - began)
        assert parts == sizes, rate
        assert max(durations) <= SECONDS_PER_TRANSACTION
