"""Reads topics and prints their records.

RULES    1. A page is filtered, formatted and written as a whole; signals are deferred meanwhile.
         2. The order of records is that of their partition; partitions are mixed as they arrive.
         3. With --follow, partitions that are created later are read from their start. With --regex too, a topic may be deleted
            while others are read.
NOT HERE The options' meaning (`consume.py`), partitions (`partition_choice.py`), ranges (`offset_ranges.py`), filters and
         formats (`records/`), groups (`group_member.py`, imported only with --group).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barnabas.cli.connection import Connection
from barnabas.cli.offset_ranges import OffsetRange, parse_range, resolve
from barnabas.cli.output import note
from barnabas.cli.partition_choice import PartitionChoice
from barnabas.cli.progress import Progress
from barnabas.cli.records.format_printer import FormatPrinter
from barnabas.cli.records.json_lines import line_of
from barnabas.cli.records.kcat_dialect import kcat_line, parse_kcat_layout
from barnabas.cli.records.layout import parse_layout
from barnabas.cli.records.record_filters import Filter, filters_of
from barnabas.client.cluster import LATEST, Cluster
from barnabas.client.errors import ArgumentError, ClientError, require_text
from barnabas.client.record_batches import Record
from barnabas.client.record_reader import Page, RecordReader
from barnabas.client.topic_partition import TopicPartition
from barnabas.signals import StopSignals

if TYPE_CHECKING:
    from barnabas.cli.group_member import GroupMember

IDLE_S = 0.5
POLL_PERIOD_S = 0.5
"""Between two polls of a group."""
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
    group: str | None = None
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
    output = _Output(options, printer_of(options), filters, stopping)
    wanted = parse_range(options.offset)
    require_text("--group", options.group or "")
    if options.group is not None and options.partitions is not None:
        raise ArgumentError("--partition and --group exclude each other: a group assigns partitions to its members.")
    cluster = connection.cluster()
    choice = PartitionChoice(cluster, options.topics, is_regex=options.regex, partitions=options.partitions)
    partitions = choice.find()
    if options.group is not None:
        _read_as_member(connection, cluster, options, partitions, wanted, output)
        return
    ranges = resolve(cluster, partitions, wanted, committed=options.read_committed, follow=options.follow)

    def on_deleted(topic: str) -> None:
        note(f"barnabas: the topic {topic} was deleted.")
        choice.forget(topic)

    reader = RecordReader(
        cluster,
        ranges,
        committed=options.read_committed,
        on_gap=_note_gap,
        on_deleted=on_deleted if options.regex and options.follow else None,
    )
    total = None if options.follow else sum(max(0, (stop or 0) - start) for start, stop in ranges.values())
    progress = Progress("consume", total)
    read = 0
    try:
        for page in reader.pages(IDLE_S):
            if options.follow and wanted.last is None:
                for created in choice.find_new():
                    reader.add(created)
            if page is None:
                continue
            output.write(page)
            read += len(page.records)
            if not options.quiet:
                progress.show(read, output.printed)
            if output.is_full:
                return
    finally:
        progress.clear()
        reader.close()


def _read_as_member(
    connection: Connection,
    cluster: Cluster,
    options: ConsumeOptions,
    partitions: list[TopicPartition],
    wanted: OffsetRange,
    output: _Output,
) -> None:
    """Reads the partitions that the group assigns, until their end or, with --follow, a signal."""
    from barnabas.cli.group_member import REBALANCE_MS, GroupMember

    assert options.group is not None
    # Says which advertised address does not answer; kafka-python does not.
    cluster.offsets(dict.fromkeys(partitions, LATEST))
    member = GroupMember(connection, options.group, dict.fromkeys(partition.topic for partition in partitions))
    try:
        assigned = member.join()
        if not member.is_joined and not options.follow:
            raise ClientError(
                f"Group {options.group} has not finished its rebalance after {REBALANCE_MS / 1000:g} s: "
                "a member may be busy, or the coordinator may not answer."
            )
        while True:
            ranges = resolve(cluster, sorted(assigned), wanted, committed=options.read_committed, follow=options.follow)
            starts = {partition: first for partition, (first, _) in ranges.items()} | member.committed(assigned)
            output.positions = starts
            reader = RecordReader(
                cluster,
                {partition: (starts[partition], ranges[partition][1]) for partition in assigned},
                committed=options.read_committed,
                on_gap=_note_gap,
            )
            before, assigned = assigned, _read_while_assigned(member, reader, assigned, output)
            if output.is_full or (assigned == before and (assigned or not options.follow)):
                return
    finally:
        member.close()


def _read_while_assigned(
    member: GroupMember,
    reader: RecordReader,
    assigned: frozenset[TopicPartition],
    output: _Output,
) -> frozenset[TopicPartition]:
    """Prints until the end, or until the group assigns other partitions, which are returned."""
    polled_at = time.monotonic()
    try:
        for page in reader.pages(IDLE_S):
            if page is not None:
                output.write(page)
            if output.is_full:
                return assigned
            if time.monotonic() - polled_at > POLL_PERIOD_S:
                member.commit(output.positions)
                polled_at = time.monotonic()
                if (found := member.poll()) != assigned:
                    return found
    finally:
        reader.close()
        member.commit(output.positions)
    return member.poll()


class _Output:
    """Filters, formats and writes pages, up to --count records."""

    def __init__(self, options: ConsumeOptions, printer: Printer, filters: list[Filter], stopping: StopSignals) -> None:
        self._printer = printer
        self._filters = filters
        self._stopping = stopping
        self._limit = options.count
        self.printed = 0
        self.positions: dict[TopicPartition, int] = {}
        """The offset after what was printed or filtered, for each partition."""

    @property
    def is_full(self) -> bool:
        """Whether all wanted records are printed."""
        return self.printed == self._limit

    def write(self, page: Page) -> None:
        """Prints a page (rule 1)."""
        chosen = page.records
        if self._filters:
            chosen = [record for record in chosen if all(accepts(record) for accepts in self._filters)]
        if self._limit is not None:
            chosen = chosen[: self._limit - self.printed]
        with self._stopping.deferred():
            if chosen:
                sys.stdout.buffer.write(self._printer(page, chosen))
                sys.stdout.buffer.flush()
            self.printed += len(chosen)
            self.positions[page.partition] = chosen[-1].offset + 1 if self.is_full else page.next_offset


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


def _note_gap(partition: TopicPartition, wanted: int, start: int) -> None:
    note(f"barnabas: {partition}: records {wanted} to {start - 1} were deleted before they were read.")
