"""Search and stats on a topic, its archive, and a stopped broker's files give the same results."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

from barnabas import Broker
from barnabas.pipeline import ArchiveSettings, SearchSettings, StatsSettings, archive, search, stats
from barnabas.pipeline.brokers import TopicPartition
from barnabas.pipeline.errors import JobError
from tests.pipeline.topics import MINUTE_MS, START_MS, create, send, send_transaction, transactional

pytestmark = pytest.mark.long

COUNT, ARCHIVED = 120, 80
GROUP = "readers"
BINARY_KEY = b"\xff\x00\x01"


def record(number: int) -> dict[str, Any]:
    """A record; every ninth value is not JSON, every tenth is null."""
    flight = {"carrier": "UA" if number % 3 else "AA", "delay": number, "from": {"code": f"A{number % 4}"}}
    value = None if number % 10 == 0 else b"no JSON" if number % 9 == 0 else json.dumps(flight).encode()
    return {
        "key": BINARY_KEY if number % 8 == 0 else b"plane %d" % (number % 5),
        "value": value,
        "partition": number % 2,
        "timestamp": START_MS + number * MINUTE_MS,
        "headers": [("trace", b"%d" % (number % 6)), ("empty", None)] if number % 2 else None,
    }


class Inputs(NamedTuple):
    """A topic, its archive and its files. The broker runs until a test reads the files."""

    broker: Broker
    topic: str
    archive: Path
    files: Path


@pytest.fixture(scope="module")
def inputs(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Inputs]:
    """Records, some of them archived, some aborted, and a group that has read some."""
    folder = tmp_path_factory.mktemp("inputs")
    with Broker(data_dir=folder / "data", settings={"offsets.topic.num.partitions": 4}) as broker:
        brokers = create(broker.bootstrap, "flights")
        send(broker.bootstrap, "flights", map(record, range(ARCHIVED)))
        archive(spark, ArchiveSettings(bootstrap=broker.bootstrap, into=folder / "archive", topic=("flights",)))
        aborting = transactional(broker.bootstrap, "aborting")
        send_transaction(aborting, "flights", map(record, range(20)), commit=False)
        send(broker.bootstrap, "flights", map(record, range(ARCHIVED, COUNT)))
        brokers.commit(GROUP, {TopicPartition("flights", 0): 25, TopicPartition("flights", 1): 40})
        yield Inputs(broker, "flights", folder / "archive", folder / "data")


def late(number: int) -> int:
    return START_MS + number * MINUTE_MS


def flight(of: dict[str, Any]) -> dict[str, Any]:
    value = of["value"] or b""
    return json.loads(value) if value.startswith(b"{") else {}


SELECTIONS: list[tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = [
    ({"key": "plane 3"}, lambda one: one["key"] == b"plane 3"),
    ({"key_pattern": r"^\p{Lower}+ [13]$"}, lambda one: bool(re.match(rb"plane [13]$", one["key"]))),
    ({"contains": "no JS"}, lambda one: b"no JS" in (one["value"] or b"")),
    ({"header": ("trace=3",)}, lambda one: ("trace", b"3") in (one["headers"] or [])),
    ({"header": ("empty",), "key": "plane 1"}, lambda one: bool(one["headers"]) and one["key"] == b"plane 1"),
    ({"path": ("$.delay>=100",)}, lambda one: flight(one).get("delay", 0) >= 100),
    (
        {"path": ("$.from.code=A2", "$.carrier!=UA")},
        lambda one: flight(one).get("from") == {"code": "A2"} and flight(one)["carrier"] != "UA",
    ),
    (
        {"start_time": str(late(70)), "end_time": "2026-01-01T01:35:00"},
        lambda one: late(70) <= one["timestamp"] < late(95),
    ),
]


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


def test_topic_and_archive_are_searched_together(spark: Any, inputs: Inputs) -> None:
    live = SearchSettings(bootstrap=inputs.broker.bootstrap, topic=("flights",), limit=COUNT)
    selections = {"header": ("trace=3",), "path": ("$.delay<110",), "start_time": str(late(9))}
    wanted = expected(
        lambda one: (
            ("trace", b"3") in (one["headers"] or [])
            and flight(one).get("delay", COUNT) < 110
            and one["timestamp"] >= late(9)
        )
    )
    assert 10 < len(wanted) < 20
    for settings in (live, replace(live, archive=inputs.archive)):
        report = search(spark, replace(settings, **selections))
        assert result_lines(report.lines) == expected_lines(wanted)
        assert report.is_all
    with pytest.raises(JobError, match="no regular expression"):
        search(spark, replace(live, key_pattern="(a"))
    other = create(inputs.broker.bootstrap, "weather")
    assert other.exists("weather")
    with pytest.raises(JobError, match="holds none of these topics"):
        search(spark, replace(live, topic=("weather",), archive=inputs.archive))


def test_stats_and_searches_agree_with_the_records(spark: Any, inputs: Inputs, tmp_path: Path) -> None:
    """Through the broker, and from its files after it stopped."""
    settings = StatsSettings(
        bootstrap=inputs.broker.bootstrap, topic=("flights",), group=(GROUP,), window=1800, into=tmp_path / "live"
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
    ends = {partition: 1 + max(row["offset"] for row in offsets(spark, inputs, partition)) for partition in (0, 1)}
    assert [row["lag"] for row in report.lags] == [ends[0] - 25 + ends[1] - 40]

    inputs.broker.stop()
    straight = stats(spark, replace(settings, log_dir=inputs.files, into=tmp_path / "files"))
    assert replace(straight, plots="") == replace(report, plots="")
    for folder in (tmp_path / "live", tmp_path / "files"):
        assert {path.name for path in folder.iterdir()} == {"rates.png", "sizes.png", "keys.png", "lag.png"}
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.iterdir())
    everything = SearchSettings(topic=("flights",), log_dir=inputs.files, limit=COUNT)
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


def offsets(spark: Any, inputs: Inputs, partition: int) -> list[Any]:
    options = {"kafka.bootstrap.servers": inputs.broker.bootstrap, "assign": json.dumps({"flights": [partition]})}
    frame = spark.read.format("kafka").options(**options, **{"kafka.isolation.level": "read_committed"}).load()
    rows: list[Any] = frame.select("offset").collect()
    return rows
