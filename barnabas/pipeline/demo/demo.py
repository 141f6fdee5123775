"""The demo: a year of real flights through a broker, Spark and consumers, with every figure checked.

RULES    1. The figures are computed once from the CSV; everything read from the broker must agree exactly.
         2. A disagreement is printed, and the demo fails at the end; nothing is retried.
         3. The broker is a new one in a temporary directory, unless an address is given; any Kafka broker works.
         4. Missing requirements (Java, the data, Spark) are one sentence before anything starts.
         5. A signal ends the demo as it ends a job: temporary folders are deleted, and so is the topic on a given broker.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from barnabas.client.client_settings import for_kafka_python
from barnabas.embedded import Broker
from barnabas.pipeline.brokers import Brokers
from barnabas.pipeline.demo.consume import GroupReport, expected_seek, read_with_group, seek_by_time
from barnabas.pipeline.demo.flights import FLIGHTS, Delays, carrier_names, read_flights
from barnabas.pipeline.demo.produce import KEEP_FOR_EVER, PARTITIONS, Produced, produce_flights
from barnabas.pipeline.demo.report import TABLE_WIDTH, delay_table, draw_delays
from barnabas.pipeline.demo.spark_jobs import read_batch, read_stream
from barnabas.pipeline.job_runner import silence_spark
from barnabas.pipeline.session import check_java, start_session, stop_session
from barnabas.pipeline.settings import BrokerSettings
from barnabas.signals import Stopped, StopSignals

GROUP_SIZE = 3


class Options(NamedTuple):
    """The options of the demo."""

    bootstrap: str | None
    rows: int | None
    output: Path
    command_config: Path | None = None


class Demo:
    """One run; prints its steps and collects disagreements."""

    def __init__(self, options: Options, console: Console, stopping: StopSignals | None = None) -> None:
        self._options = options
        self._console = console
        self._stopping = stopping
        self.disagreements: list[str] = []

    def run(self) -> bool:
        """Runs all steps. Returns whether every figure agreed."""
        check_java()
        rows = min(self._options.rows or FLIGHTS, FLIGHTS)
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="barnabas-demo-") as scratch, self._broker() as brokers:
            topic = f"flights-{secrets.token_hex(3)}"
            brokers.create_topic(topic, PARTITIONS, 1, KEEP_FOR_EVER)
            try:
                produced = self._produce(brokers.bootstrap, topic, rows)
                self._consume(brokers, topic, produced)
                self._seek(brokers, topic, produced)
                delays = self._spark(brokers.bootstrap, topic, produced, Path(scratch))
            finally:
                if self._options.bootstrap:
                    brokers.delete_topic(topic)
        self._show(delays)
        self._print(f"{len(self.disagreements)} disagreements, {time.monotonic() - started:.0f} s in all")
        return not self.disagreements

    def _settings(self, bootstrap: str) -> BrokerSettings:
        return BrokerSettings(bootstrap=bootstrap, command_config=self._options.command_config)

    # --- the steps ---

    @contextlib.contextmanager
    def _broker(self) -> Iterator[Brokers]:
        if self._options.bootstrap:
            brokers = Brokers(self._settings(self._options.bootstrap))
            self._print(f"using the broker at {self._options.bootstrap}")
            yield brokers
            return
        with Broker() as broker:
            self._print(broker.ready_line)
            yield Brokers(BrokerSettings(bootstrap=broker.bootstrap))

    def _produce(self, bootstrap: str, topic: str, rows: int) -> Produced:
        started = time.monotonic()
        with self._bar("producing", rows) as on_progress:
            client = for_kafka_python(self._settings(bootstrap).client_settings())
            produced = produce_flights(bootstrap, topic, read_flights(rows), on_progress, **client)
        seconds = time.monotonic() - started
        self._print(
            f"produced {produced.records:,} flights, {produced.value_bytes / 1e6:.0f} MB of JSON, "
            f"in {seconds:.1f} s ({produced.records / seconds:,.0f} a second), keys in "
            f"{sum(1 for sent in produced.partitions.values() if sent)} of {len(produced.partitions)} partitions"
        )
        self._check("flights in the topic", produced.records, rows)
        return produced

    def _consume(self, brokers: Brokers, topic: str, produced: Produced) -> None:
        started = time.monotonic()
        with self._bar("reading with a group of three", produced.records) as on_progress:
            report = read_with_group(brokers, topic, f"{topic}-readers", GROUP_SIZE, on_progress)
        self._print(f"a group of three read {_sum_in_words(report)} flights in {time.monotonic() - started:.1f} s")
        self._check("flights read by the group", report.records, produced.records)
        self._check("checksum of what the group read", report.checksum, produced.checksum)
        self._check("partitions by member", report.partitions_by_member, [len(produced.partitions) // GROUP_SIZE] * 3)
        self._check("flights read twice", report.twice, 0)
        ends = {partition: len(sent) for partition, sent in produced.partitions.items()}
        self._check("offsets that the group committed", report.committed, ends)

    def _seek(self, brokers: Brokers, topic: str, produced: Produced) -> None:
        started = time.monotonic()
        moment_ms = produced.middle_hour_ms()
        moment = f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%d %B %Y, %H:%M} UTC"
        expected = expected_seek(produced, moment_ms)
        with self._bar(f"seeking {moment}", expected.records) as on_progress:
            answer = seek_by_time(brokers, topic, moment_ms, on_progress)
        self._print(
            f"sought {moment} in every partition and read the {answer.records:,} flights from there on "
            f"in {time.monotonic() - started:.1f} s"
        )
        self._check("first offsets at or after the moment", answer.offsets, expected.offsets)
        self._check("flights at those offsets", answer.first_checksums, expected.first_checksums)
        self._check("flights from there to the end", answer.records, expected.records)

    def _spark(self, bootstrap: str, topic: str, produced: Produced, scratch: Path) -> Delays:
        started = time.monotonic()
        client = self._settings(bootstrap).client_settings()
        with self._console.status("starting Spark"):
            spark, source = start_session("barnabas-demo", scratch, self._options.output / "spark.log")
        try:
            if self._stopping is not None:
                self._stopping.install()  # Spark installs its own handler for SIGINT
            self._print(f"Spark {spark.version} in {time.monotonic() - started:.1f} s, connector: {source}")
            started = time.monotonic()
            with self._console.status("Spark reads the topic as a batch"):
                batch = read_batch(spark, bootstrap, topic, client)
            self._print(f"Spark read the topic as a batch in {time.monotonic() - started:.1f} s")
            self._check("figures of Spark's batch", batch, produced.delays)
            started = time.monotonic()
            with self._console.status("Spark reads the topic as a stream"):
                stream = read_stream(spark, bootstrap, topic, scratch / "checkpoint", produced.records, client)
                again = read_stream(spark, bootstrap, topic, scratch / "checkpoint", produced.records, client)
            self._print(
                f"Spark read the topic as a stream of {stream.triggers} triggers, and started it again "
                f"from its checkpoint, in {time.monotonic() - started:.1f} s"
            )
            self._check("figures of Spark's stream", stream.delays, produced.delays)
            self._check("flights in Spark's stream", stream.rows, produced.records)
            self._check("flights in the stream started again", again.rows, 0)
        finally:
            stop_session(spark)
        return stream.delays

    def _show(self, delays: Delays) -> None:
        self._console.print(delay_table(delays))
        picture = self._options.output / "delays.png"
        draw_delays(delays, carrier_names(), picture)
        self._print(f"drawn in {picture}")

    # --- output ---

    def _check(self, what: str, seen: object, expected: object) -> None:
        if seen == expected:
            self._console.print(f"  [green]agrees[/]    {what}", highlight=False)
            return
        self.disagreements.append(what)
        self._console.print(f"  [bold red]DISAGREES[/] {what}: {_difference(seen, expected)}", highlight=False)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def _bar(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(label, total=total)
            yield lambda count: progress.advance(task, count)


def run_demo(options: Options) -> int:
    """Runs the demo in this terminal and returns the exit code."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=TABLE_WIDTH)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < 1 << 30:
        console.print(f"The demo needs 1 GiB in {tempfile.gettempdir()} and there are {free >> 20} MiB: set TMPDIR.")
        return 1
    silence_spark()
    try:
        with StopSignals() as stopping:
            return 0 if Demo(options, console, stopping).run() else 1
    except Stopped as stopped:
        click.echo(f"demo: {stopped}", err=True)
        return stopped.exit_code


def _sum_in_words(report: GroupReport) -> str:
    return f"{' + '.join(f'{count:,}' for count in report.records_by_member)} = {report.records:,}"


def _difference(seen: object, expected: object) -> str:
    if isinstance(seen, dict) and isinstance(expected, dict):
        keys = [key for key in sorted(seen.keys() | expected.keys()) if seen.get(key) != expected.get(key)]
        first = keys[0]
        return f"{len(keys)} of {len(expected)} differ, first {first}: {seen.get(first)}, not {expected.get(first)}"
    return f"{seen}, not {expected}"
