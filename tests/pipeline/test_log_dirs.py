"""Search and stats on a topic and on a stopped broker's files give the same results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from barnabas import Broker
from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import SearchSettings, StatsSettings, search, stats
from tests.pipeline.topics import MINUTE_MS, START_MS, create, read_all, send, send_transaction, transactional

pytestmark = pytest.mark.long

COUNT = 120
GROUP = "readers"
BINARY_KEY = b"\xff\x00\x01"


def record(number: int) -> dict[str, Any]:
    """A record; every ninth value is not JSON, every tenth is null."""
    flight = {"carrier": "UA" if number % 3 else "AA", "delay": number, "from": {"code": f"A{number % 4}"}}
    value = None if number % 10 == 0 else b"no JSON" if number % 9 == 0 else json.dumps(flight).encode()
    return {
        "key": BINARY_KEY if number % 8 == 0 else f"größe {number % 5}".encode(),
        "value": value,
        "partition": number % 2,
        "timestamp": START_MS + number * MINUTE_MS,
        "headers": [("trace", b"%d" % (number % 6)), ("empty", None)] if number % 2 else None,
    }


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A topic of records, some of them aborted, and a group that has read some."""
    with Broker(data_dir=tmp_path / "data", settings={"offsets.topic.num.partitions": 4}) as broker:
        brokers = create(broker.bootstrap, "flights")
        send(broker.bootstrap, "flights", map(record, range(COUNT // 2)))
        aborting = transactional(broker.bootstrap, "aborting")
        send_transaction(aborting, "flights", map(record, range(20)), commit=False)
        send(broker.bootstrap, "flights", map(record, range(COUNT // 2, COUNT)))
        brokers.commit(GROUP, {TopicPartition("flights", 0): 25, TopicPartition("flights", 1): 40})
        yield broker


def late(number: int) -> int:
    return START_MS + number * MINUTE_MS


def flight(of: dict[str, Any]) -> dict[str, Any]:
    value = of["value"] or b""
    return json.loads(value) if value.startswith(b"{") else {}


SELECTIONS: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
    (
        {"header": ("empty",), "key": "größe 1"},
        lambda one: bool(one["headers"]) and one["key"] == "größe 1".encode(),
    ),
    (
        {"path": ("$.from.code=A2", "$.carrier!=UA")},
        lambda one: flight(one).get("from") == {"code": "A2"} and flight(one)["carrier"] != "UA",
    ),
    (
        {"start_time": str(late(70)), "end_time": "2026-01-01T01:35:00"},
        lambda one: late(70) <= one["timestamp"] < late(95),
    ),
]
"""Conditions that need different parts of a record; `test_search.py` has every condition."""


def expected(is_it: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    return [row for row in map(record, range(COUNT)) if is_it(row)]


def result_lines(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (line["partition"], line["timestamp"][:16], line.get("key"), line["value"], len(line.get("headers", [])))
        for line in lines
    ]


def expected_lines(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    found = []
    for row in rows:
        minute = (row["timestamp"] - START_MS) // MINUTE_MS
        value = row["value"] and row["value"].decode()
        key = None if row["key"] == BINARY_KEY else row["key"].decode()
        moment = f"2026-01-01T{minute // 60:02}:{minute % 60:02}"
        found.append((row["partition"], moment, key, value, len(row["headers"] or [])))
    return found


def test_stats_and_searches_agree_with_the_records(spark: Any, broker: Broker, tmp_path: Path) -> None:
    """Through the broker, and from its files after it stopped."""
    settings = StatsSettings(
        bootstrap=broker.bootstrap, topic=("flights",), group=(GROUP,), window=1800, into=tmp_path / "live"
    )
    report = stats(spark, settings)
    rows = [record(number) for number in range(COUNT)]
    sizes = [len(row["key"]) + len(row["value"] or b"") for row in rows]
    [line] = report.lines
    assert (line["records"], line["bytes"], line["largest_bytes"]) == (COUNT, sum(sizes), max(sizes))
    assert line["tombstones"] == sum(row["value"] is None for row in rows)
    assert (line["first"], line["last"]) == ("2026-01-01T00:00:00.000", "2026-01-01T01:59:00.000")
    assert [(row["records"], row["records_per_s"]) for row in report.rates] == [(30, 30 / 1800)] * 4
    keys = Counter(row["key"] for row in rows)
    assert {row["key"]: row["share"] for row in report.keys} == {
        "0xFF0001" if key == BINARY_KEY else key.decode(): count / COUNT for key, count in keys.items()
    }
    assert [(row["partition"], row["share"]) for row in report.partitions] == [(0, 0.5), (1, 0.5)]
    committed = read_all(broker.bootstrap, "flights")
    ends = {partition: 1 + messages[-1].offset() for partition, messages in committed.items()}
    assert [row["lag"] for row in report.lags] == [ends[0] - 25 + ends[1] - 40]

    broker.stop()
    straight = stats(spark, replace(settings, log_dir=broker.data_dir, into=tmp_path / "files"))
    assert replace(straight, plots="") == replace(report, plots="")
    for folder in (tmp_path / "live", tmp_path / "files"):
        assert {path.name for path in folder.iterdir()} == {"rates.png", "sizes.png", "keys.png", "lag.png"}
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    everything = SearchSettings(topic=("flights",), log_dir=broker.data_dir, limit=COUNT)
    for conditions, is_it in SELECTIONS:
        found = search(spark, replace(everything, **conditions))
        assert result_lines(found.lines) == expected_lines(expected(is_it)), conditions
        assert found.found > 3
    part = search(spark, replace(everything, limit=7))
    assert (part.found, part.is_all, result_lines(part.lines)) == (
        7,
        False,
        expected_lines(expected(lambda _: True)[:7]),
    )
