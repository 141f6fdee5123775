"""Reading and counting the flights, without Kafka and Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from barnabas.pipeline.demo.consume import expected_seek
from barnabas.pipeline.demo.flights import Delay, Flight, carrier_names, count_delays, read_flights
from barnabas.pipeline.demo.produce import Produced, Sent
from barnabas.pipeline.demo.report import carriers_by_size, delay_table, draw_delays, year_of


def flight(carrier: str, month: int, delay: int | None) -> Flight:
    return Flight(carrier, month, delay, 0, {})


def test_a_cancelled_flight_has_no_departure_and_no_delay() -> None:
    flights = [flight("UA", 1, 5), flight("UA", 1, None), flight("UA", 1, -2), flight("UA", 2, None)]
    assert count_delays(flights) == {("UA", 1): Delay(3, 2, 3), ("UA", 2): Delay(1, 0, 0)}
    assert Delay(3, 2, 3).average == 1.5
    assert Delay(1, 0, 0).average is None


def test_a_row_becomes_a_typed_record() -> None:
    first = next(read_flights(1))
    assert first.key == b"UA"
    value = json.loads(first.value)
    assert value["flight"] == 1545
    assert value["tailnum"] == "N14228"
    assert value["dep_delay"] == first.delay_minutes == 2
    scheduled = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC)
    assert scheduled.isoformat() == "2013-01-01T10:15:00+00:00", "05:15 in New York"


def test_days_are_sorted_and_times_are_out_of_order() -> None:
    flights = list(read_flights(30_000))
    days = [(one.row["month"], one.row["day"]) for one in flights]
    assert days == sorted(days)
    assert days[-1][0] == 2
    times = [one.timestamp_ms for one in flights]
    assert times != sorted(times)
    assert any(one.delay_minutes is None and one.row["dep_time"] is None for one in flights)


def test_a_look_up_by_time_finds_the_first_offset_at_or_after() -> None:
    sent = [Sent(0, timestamp, checksum) for checksum, timestamp in enumerate([10, 30, 20, 30, 40])]
    produced = Produced({0: sent, 1: [], 2: [Sent(2, 5, 9)]}, {}, 0)
    expected = expected_seek(produced, 25)
    assert expected.offsets == {0: 1, 1: None, 2: None}
    assert expected.first_checksums == {0: 1}
    assert expected.records == 4


def test_the_report_shows_every_carrier_and_draws_a_plot(tmp_path: Path) -> None:
    delays = {("UA", 1): Delay(9, 8, 80), ("OO", 1): Delay(1, 0, 0), ("AA", 2): Delay(20, 20, -10)}
    assert carriers_by_size(delays) == ["AA", "UA", "OO"]
    assert year_of(delays, "AA").average == -0.5
    assert delay_table(delays).row_count == 3
    picture = tmp_path / "folder" / "delays.png"
    draw_delays(delays, carrier_names(), picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
