"""Reads topics and prints their records.

RULES    1. A page is filtered, formatted and written as a whole; signals are deferred meanwhile.
         2. The order of records is that of their partition; partitions are mixed as they arrive.
NOT HERE The options' meaning (`consume.py`), ranges (`offset_ranges.py`), filters and formats (`records/`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

from barnabas.cli.connection import Connection
from barnabas.cli.offset_ranges import numbers, parse_range, resolve
from barnabas.cli.output import note
from barnabas.cli.progress import Progress
from barnabas.cli.records.format_printer import FormatPrinter
from barnabas.cli.records.json_lines import line_of
from barnabas.cli.records.kcat_dialect import kcat_line, parse_kcat_layout
from barnabas.cli.records.layout import parse_layout
from barnabas.cli.records.record_filters import Filter, filters_of
from barnabas.client.cluster import Cluster, Partition
from barnabas.client.errors import ClientError
from barnabas.client.record_batches import Record
from barnabas.client.record_reader import Page, RecordReader
from barnabas.signals import StopSignals

IDLE_S = 0.5
Printer = Callable[[Page, list[Record]], bytes]


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    """The options of the verb."""

    topics: tuple[str, ...]
    offset: str = "start"
    partitions: str | None = None
    regex: bool = False
    follow: bool = False
    count: int | None = None
    read_committed: bool = True
    values: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    layout: str | None = None
    kcat: bool = False
    null: str = ""
    meta_only: bool = False
    quiet: bool = False


def run_consume(connection: Connection, options: ConsumeOptions, stopping: StopSignals) -> None:
    """Prints the records. Raises ClientError."""
    filters = filters_of(options.keys, options.values, options.headers, options.paths)
    printer = printer_of(options)
    wanted = parse_range(options.offset)
    cluster = Cluster(connection.addresses(), connection.settings)
    partitions = partitions_of(cluster, options)
    ranges = resolve(cluster, partitions, wanted, committed=options.read_committed, follow=options.follow)
    reader = RecordReader(cluster, ranges, committed=options.read_committed, on_gap=_note_gap)
    total = None if options.follow else sum(max(0, (stop or 0) - start) for start, stop in ranges.values())
    progress = Progress("consume", None if options.quiet else total)
    limit = options.count
    done = printed = 0
    try:
        for page in reader.pages(IDLE_S):
            if page is None:
                continue
            chosen = _chosen(page.records, filters)
            if limit is not None:
                chosen = chosen[: limit - printed]
            with stopping.deferred():
                _write(printer(page, chosen))
            done, printed = done + len(page.records), printed + len(chosen)
            if not options.quiet:
                progress.show(done, printed)
            if printed == limit:
                return
    finally:
        progress.clear()
        reader.close()


def partitions_of(cluster: Cluster, options: ConsumeOptions) -> list[Partition]:
    """The partitions to read. Raises ClientError."""
    topics = options.topics
    if options.regex:
        try:
            expressions = [re.compile(text) for text in topics]
        except re.error as failure:
            raise ClientError(f"{' '.join(topics)} is no regular expression: {failure}.") from failure
        topics = tuple(name for name in cluster.topics() if any(one.fullmatch(name) for one in expressions))
        if not topics:
            raise ClientError("No topic matches: barnabas topics list shows all.")
    chosen = None if options.partitions is None else set(numbers(options.partitions))
    found = [
        Partition(topic, number)
        for topic in dict.fromkeys(topics)
        for number in cluster.leaders(topic)
        if chosen is None or number in chosen
    ]
    missing = (chosen or set()) - {one.number for one in found}
    if missing:
        raise ClientError(f"There is no partition {min(missing)} of {', '.join(topics)}.")
    return found


def printer_of(options: ConsumeOptions) -> Printer:
    """How pages are printed. Raises ClientError."""
    if options.layout is not None:
        parts = parse_kcat_layout(options.layout) if options.kcat else parse_layout(options.layout)
        return FormatPrinter(parts, options.null).print_page
    if options.kcat:
        return lambda _page, records: b"".join(map(kcat_line, records))
    return _print_json_without_values if options.meta_only else _print_json


def _print_json(_page: Page, records: list[Record]) -> bytes:
    return b"".join(map(line_of, records))


def _print_json_without_values(_page: Page, records: list[Record]) -> bytes:
    return b"".join(line_of(record, has_value=False) for record in records)


def _chosen(records: list[Record], filters: list[Filter]) -> list[Record]:
    if not filters:
        return records
    return [record for record in records if all(one(record) for one in filters)]


def _write(data: bytes) -> None:
    if data:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _note_gap(partition: Partition, wanted: int, start: int) -> None:
    note(f"barnabas: {partition}: records {wanted} to {start - 1} were deleted before they were read.")
