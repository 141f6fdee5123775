"""Sends the flights that left New York in 2013 to a topic; with --check, checks the results of the jobs. See README.md.

python flights.py [--bootstrap HOST:PORT] [--rows N] [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import pandas as pd

from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.demo.flights import FLIGHTS, read_flights
from barnabas.pipeline.demo.produce import produce_flights
from barnabas.pipeline.errors import JobError
from barnabas.pipeline.settings import BrokerSettings

TOPIC = "flights"
DAY_MS = 86_400_000


def send(bootstrap: str, rows: int) -> None:
    """Creates and fills the topic: key = carrier, value = JSON, timestamp = scheduled departure."""
    brokers = Brokers(BrokerSettings(bootstrap=bootstrap))
    if brokers.exists(TOPIC):
        raise JobError(f"The topic {TOPIC} exists already.")
    brokers.create_topic(TOPIC, 6, -1, {"retention.ms": "-1"})  # the default retention would delete old records at once
    produced = produce_flights(bootstrap, TOPIC, read_flights(rows), lambda _: None)
    print(f"sent {produced.records:,} flights to {TOPIC}")


def check(rows: int) -> bool:
    """Compares the windows of `aggregate` with figures computed from the CSV, without Spark and Kafka."""
    flights, departures, minutes = Counter(), Counter(), Counter()
    for flight in read_flights(rows):
        key = (flight.timestamp_ms // DAY_MS * DAY_MS, flight.carrier)
        flights[key] += 1
        if flight.delay_minutes is not None:
            departures[key] += 1
            minutes[key] += flight.delay_minutes
    daily = pd.read_parquet("data/daily/current/windows")
    start_ms = daily.window_start.astype("datetime64[ms, UTC]").astype("int64")
    figures = zip(daily.records, daily.departures, daily.delay_minutes.fillna(0), strict=True)
    found = dict(zip(zip(start_ms, daily.carrier, strict=True), figures, strict=True))
    expected = {key: (flights[key], departures[key], minutes[key]) for key in flights}
    worst = daily[daily.departures >= 20].nlargest(5, "average_delay")
    print(worst[["window_start", "carrier", "departures", "average_delay"]].to_string(index=False))
    print(
        f"{len(found):,} windows, {'all as counted from the CSV' if found == expected else 'NOT as counted from the CSV'}"
    )
    return found == expected


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description="Sends flights for the pipeline's example.")
    parser.add_argument("--bootstrap", default="localhost:9092")
    parser.add_argument("--rows", type=int, default=FLIGHTS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit(0 if check(options.rows) else 1)
    try:
        send(options.bootstrap, options.rows)
    except JobError as failure:
        sys.exit(str(failure))


if __name__ == "__main__":
    main()
