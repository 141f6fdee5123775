"""Windows over a topic: successive runs, late records, interrupted rounds, an archive as input, and refused settings."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from barnabas.client.topic_partition import TopicPartition
from barnabas.pipeline import AggregateSettings, ArchiveSettings, aggregate, archive
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.jobs.aggregate import aggregate_files
from barnabas.pipeline.store.versions import Versions
from tests.pipeline.crashes import Crash, crash
from tests.pipeline.topics import MINUTE_MS, START_MS, create, send

pytestmark = pytest.mark.long

HOUR = 60
Rows = dict[tuple[int, str | None], tuple[int, float | None, bool]]
"""By hour since the start and carrier: records, sum of delays, whether final."""


def flight(minute: float, carrier: str, delay: int | None, partition: int = 0) -> dict[str, Any]:
    value = json.dumps({"carrier": carrier, "delay": delay}).encode()
    return {"value": value, "partition": partition, "timestamp": START_MS + round(minute * MINUTE_MS)}


@pytest.fixture
def settings(kafka_broker: Any, topic: str, tmp_path: Path) -> AggregateSettings:
    """Delays by hour and carrier."""
    (schema := tmp_path / "schema.ddl").write_text("carrier string, delay int")
    return AggregateSettings(
        bootstrap=kafka_broker.bootstrap,
        topic=topic,
        into=tmp_path / "w",
        window="1 hour",
        lateness="30 minutes",
        by=("data.carrier",),
        compute=("sum(data.delay) as delays", "avg(data.delay) as mean"),
        decode="json",
        schema=schema,
    )


def rows_in(into: Path, name: str = "windows") -> Rows:
    """The rows of the current version, read with pyarrow; asserts that each window and group is there once."""
    found: Rows = {}
    for row in pq.read_table(into / "current" / name).to_pylist():
        start = round((row["window_start"].timestamp() * 1000 - START_MS) / MINUTE_MS / HOUR)
        assert row["window_end"].timestamp() - row["window_start"].timestamp() == 3600
        assert (start, row["carrier"]) not in found, "a window is there twice"
        found[start, row["carrier"]] = (row["records"], row["delays"], row.get("is_final", True))
    return found


def expected_rows(flights: list[dict[str, Any]]) -> dict[tuple[int, str], tuple[int, int]]:
    sums: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in flights:
        value = json.loads(one["value"])
        key = sums[(one["timestamp"] - START_MS) // MINUTE_MS // HOUR, value["carrier"]]
        key[0] += 1
        key[1] += value["delay"] or 0
    return {key: (count, delay) for key, (count, delay) in sums.items()}


def without_finality(rows: Rows) -> dict[tuple[int, str | None], tuple[int, float | None]]:
    return {key: row[:2] for key, row in rows.items()}


def write_former_names(into: Path) -> None:
    """Changes an aggregate into one that was written before 2026-11-28."""
    state = into / "_barnabas" / "aggregate.json"
    state.write_text(state.read_text().replace('"computation"', '"asked"'))
    for path in (into / "current" / "late").glob("*.parquet"):
        rows = pq.ParquetFile(path).read()
        former = ["came_in" if name == "arrival_version" else name for name in rows.column_names]
        pq.write_table(rows.rename_columns(former), path)


def test_open_windows_are_updated_and_late_records_are_stored_separately(
    spark: Any, settings: AggregateSettings, topic: str
) -> None:
    brokers = Brokers(settings)
    send(settings.bootstrap, topic, [flight(5, "UA", 10), flight(65, "AA", 1, 1), flight(59, "UA", None, 1)])
    first = aggregate(spark, settings)
    assert (first.records, first.rounds, first.windows, first.final) == (3, 1, 2, 0)
    assert first.watermark == "2026-01-01T00:35:00+00:00"
    assert rows_in(settings.into) == {(0, "UA"): (2, 10, False), (1, "AA"): (1, 1, False)}

    send(
        settings.bootstrap,
        topic,
        [flight(30, "UA", 5), flight(100, "AA", 2), {"value": b"no json", "partition": 1, "timestamp": START_MS}],
    )
    steps: list[dict[str, Any]] = []
    second = aggregate(spark, settings, steps.append)
    assert (second.records, second.malformed, second.late, second.final) == (3, 1, 0, 1)
    assert steps[0]["malformed"] == 1
    assert rows_in(settings.into) == {(0, "UA"): (3, 15, True), (1, "AA"): (2, 3, False)}
    assert rows_in(settings.into, "late") == {}

    send(
        settings.bootstrap,
        topic,
        [flight(31, "UA", 7, 1), flight(32, "DL", 8), flight(61, "AA", 0), flight(62, "UA", 1)],
    )
    third = aggregate(spark, settings)
    assert (third.records, third.late, third.late_ever) == (4, 2, 2)
    assert rows_in(settings.into) == {(0, "UA"): (3, 15, True), (1, "AA"): (3, 3, False), (1, "UA"): (1, 1, False)}
    assert rows_in(settings.into, "late") == {(0, "UA"): (1, 7, True), (0, "DL"): (1, 8, True)}

    before = sorted((settings.into / "versions").rglob("*"))
    nothing = aggregate(spark, settings)
    assert (nothing.rounds, nothing.records, nothing.version, nothing.late_ever) == (0, 0, 3, 2)
    assert sorted((settings.into / "versions").rglob("*")) == before, "a run without new records does nothing"
    state: dict[str, Any] | None = Versions(settings.into, "aggregate").state(dict)
    assert state is not None
    topic_partitions = {TopicPartition(topic, 0): 6, TopicPartition(topic, 1): 4}
    assert brokers.committed(f"barnabas-aggregate-{state['id']}", topic_partitions) == topic_partitions

    write_former_names(settings.into)
    send(settings.bootstrap, topic, [flight(62, "DL", 0, 1), flight(63, "DL", 0, 1), flight(33, "BB", 2, 1)])
    brokers.delete_records({TopicPartition(topic, 1): 5})
    with pytest.raises(JobError, match=r"broker deleted the offsets 4 to 4 of .*-1 before they were read"):
        aggregate(spark, settings)
    fourth = aggregate(spark, replace(settings, fail_on_data_loss=False))
    assert (fourth.records, fourth.lost, rows_in(settings.into)[1, "DL"]) == (2, 1, (1, 0, False))
    late = pq.read_table(settings.into / "current" / "late").to_pylist()
    assert sorted((row["carrier"], row["arrival_version"]) for row in late) == [("BB", 4), ("DL", 3), ("UA", 3)]

    with pytest.raises(JobError, match="--window takes a duration"):
        replace(settings, window="often")
    with pytest.raises(JobError, match="was created with --window 1 hour, not 2 hours"):
        aggregate(spark, replace(settings, window="2 hours"))
    with pytest.raises(JobError, match=r"--by 'data.carier' is not understood: .*carier"):
        aggregate(spark, replace(settings, into=settings.into.with_name("x"), by=("data.carier",)))
    create(settings.bootstrap, other := f"other-{topic}")
    with pytest.raises(JobError, match=f"is the aggregate of the topic {topic} of the cluster"):
        aggregate(spark, replace(settings, topic=other))


def test_another_schema_needs_another_folder(
    spark: Any, settings: AggregateSettings, topic: str, tmp_path: Path
) -> None:
    send(settings.bootstrap, topic, [flight(5, "UA", 10)])
    aggregate(spark, settings)
    (schema := tmp_path / "other.ddl").write_text("carrier string, delay bigint")
    with pytest.raises(JobError, match=r"was created with another schema than .*other\.ddl"):
        aggregate(spark, replace(settings, schema=schema))


def test_many_rounds_give_the_same_result_as_one(
    spark: Any, settings: AggregateSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of different lengths and times make nothing late; small files are merged."""
    flights = [flight(5 * n, ("UA", "AA")[n % 3 % 2], n, 0) for n in range(120)]
    flights += [flight(9 * HOUR + n, "DL", n, 1) for n in range(30)]
    send(settings.bootstrap, topic, flights)
    monkeypatch.setattr(aggregate_files, "MOST_SMALL", 2)
    report = aggregate(spark, replace(settings, max_offsets_per_trigger=40))
    assert (report.records, report.rounds, report.late) == (150, 4, 0)
    assert without_finality(rows_in(settings.into)) == expected_rows(flights)
    assert report.final == sum(row[2] for row in rows_in(settings.into).values())
    assert len(list((settings.into / "current" / "windows").glob("final-*"))) <= 3


def test_a_version_without_late_records_keeps_all_late_files(spark: Any, tmp_path: Path) -> None:
    """A round without late records links all late files into the next version. Only a round with late records merges
    small files, and files whose column has its former name."""
    assert spark.version
    names = [f"late-{version:08d}-00000.parquet" for version in range(aggregate_files.MOST_SMALL + 1)]
    for folder in ("before/late", "staged"):
        (tmp_path / folder).mkdir(parents=True)
    for name in names:
        pq.write_table(pa.table({"records": [1], "came_in": [1]}), tmp_path / "before" / "late" / name)
    aggregate_files.VersionWriter(tmp_path / "staged", len(names), tmp_path / "before").late(None)
    assert sorted(path.name for path in (tmp_path / "staged" / "late").iterdir()) == names


def test_an_interrupted_round_is_repeated_and_counted_once(
    spark: Any, settings: AggregateSettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash before the commit, and right after it (test_versions.py interrupts the commit itself)."""
    flights = [flight(n, "UA", n, n % 2) for n in range(200)]
    send(settings.bootstrap, topic, flights[:150])
    aggregate(spark, settings)
    send(settings.bootstrap, topic, flights[150:])
    really = Versions.clean_up
    for key, name, held in (
        (aggregate_files.VersionWriter, "late", flights[:150]),
        (Versions, "commit", flights[:150]),
        (Versions, "clean_up", flights),
    ):
        with monkeypatch.context() as patched:
            alive = iter([True])

            def clean_up(versions: Versions, alive: Iterator[bool] = alive) -> None:
                if not next(alive, False):
                    raise Crash
                really(versions)

            if name != "clean_up":
                patched.setattr(key, name, crash)
            patched.setattr(Versions, "clean_up", clean_up)
            with pytest.raises(Crash):
                aggregate(spark, settings)
        assert sum(row[1] for row in _rows_of_state(settings.into)) == len(held)
    assert aggregate(spark, settings).rounds == 0, "the last one was committed"
    assert without_finality(rows_in(settings.into)) == expected_rows(flights)


def _rows_of_state(into: Path) -> list[tuple[int, int, int]]:
    """The rows of the committed version; `current` may still point at the previous one."""
    versions = Versions(into, "aggregate")
    state: dict[str, Any] | None = versions.state(dict)
    assert state is not None
    table = pq.read_table(versions.path(state["version"]) / "windows").to_pylist()
    return [(row["window_start"], row["records"], row["delays"]) for row in table]


def test_an_aggregate_starts_with_the_archive_and_continues_with_the_topic(
    spark: Any, settings: AggregateSettings, archiving: ArchiveSettings, topic: str
) -> None:
    flights = [flight(n, "UA", n, n % 2) for n in range(100)]
    send(settings.bootstrap, topic, flights[:60])
    archive(spark, archiving)
    send(settings.bootstrap, topic, flights[60:])
    live = replace(settings, max_offsets_per_trigger=35)
    stored = replace(live, archive=archiving.into, bootstrap="nobody:1")
    assert (live.needs_broker, stored.needs_broker) == (True, False)
    assert aggregate(spark, stored).records == 60
    assert aggregate(spark, stored).rounds == 0
    assert without_finality(rows_in(live.into)) == expected_rows(flights[:60])
    assert aggregate(spark, live).records == 40
    assert without_finality(rows_in(live.into)) == expected_rows(flights)
    with pytest.raises(JobError, match="holds no topic nothing"):
        aggregate(spark, replace(stored, topic="nothing"))
