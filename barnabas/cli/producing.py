"""Reads records from an input and writes them.

RULES    1. Input is read in chunks; after LINGER_S without more, what was read is sent.
         2. A signal interrupts reading, not writing: the records read so far are complete.
         3. An input that is malformed ends the verb; the records before are written, a transaction is aborted.
NOT HERE The options' meaning (`produce.py`), formats (`records/`), partitions (`partitioning.py`).
"""

from __future__ import annotations

import os
import re
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from barnabas.cli.connection import Connection
from barnabas.cli.output import note
from barnabas.cli.partitioning import Partitioner
from barnabas.cli.progress import Progress
from barnabas.cli.records.format_parser import FormatParser
from barnabas.cli.records.input_parser import InputParser, LineParser
from barnabas.cli.records.json_lines import parse_line
from barnabas.cli.records.kcat_dialect import parse_kcat_layout, parse_kcat_line
from barnabas.cli.records.layout import parse_layout, unescaped
from barnabas.cli.records.parsed_record import TIMESTAMP_LIMIT, MalformedInput, ParsedRecord
from barnabas.client.errors import ArgumentError, ClientError, require_text
from barnabas.client.record_batches import Header
from barnabas.client.record_writer import RecordWriter, WriteOptions
from barnabas.signals import StopSignals

_TIMESTAMP = re.compile("-?[0-9]{1,19}")
CHUNK_BYTES = 1 << 16
LINGER_S = 0.1
_LONGEST_SLEEP_S = 3600.0
"""time.sleep takes no more than a 64-bit number of nanoseconds."""


@dataclass(frozen=True, kw_only=True)
class ProduceOptions:
    """The options of the verb."""

    topic: str | None = None
    partition: str | None = None
    key: str | None = None
    headers: tuple[str, ...] = ()
    timestamp: str | None = None
    layout: str | None = None
    kcat: bool = False
    lines: bool = False
    key_delimiter: str | None = None
    delimiter: str | None = None
    null: str | None = None
    compression: str = "none"
    acks: str = "all"
    transactional_id: str | None = None
    rate: float | None = None
    source: str | None = None
    may_create: bool = False
    quiet: bool = False


def run_produce(connection: Connection, options: ProduceOptions, stopping: StopSignals) -> None:
    """Writes the records. Raises ClientError."""
    if options.transactional_id == "":
        raise ArgumentError("--transactional-id is empty.")
    require_text("--transactional-id", options.transactional_id or "")
    if options.transactional_id is not None and options.acks != "all":
        raise ArgumentError("--transactional-id needs --acks all.")
    parser = parser_of(options)
    adjust = _adjustment(options)
    with _input(options.source) as source:
        cluster = connection.cluster()
        partitioner = Partitioner(cluster, options.topic, options.partition, may_create=options.may_create)
        acks = {"all": -1, "1": 1, "0": 0}[options.acks]
        writer = RecordWriter(cluster, WriteOptions(acks, options.compression, options.transactional_id))
        producing = _Producing(options, parser, adjust, partitioner, writer)
        is_complete = False
        try:
            producing.run(source, stopping)
            is_complete = True
        finally:
            producing.close(is_complete=is_complete)


def parser_of(options: ProduceOptions) -> InputParser:
    """What cuts the input into records. Raises ClientError."""
    if options.lines:
        return _plain_lines(options)
    if options.layout is not None:
        return FormatParser(parse_kcat_layout(options.layout) if options.kcat else parse_layout(options.layout))
    return LineParser(parse_kcat_line if options.kcat else parse_line)


def _plain_lines(options: ProduceOptions) -> InputParser:
    """Lines of values, or of keys and values; a line without --key-delimiter is a value."""
    between = unescaped(options.key_delimiter) if options.key_delimiter is not None else b""

    def parse(line: bytes) -> ParsedRecord:
        if between and between in line:
            key, _, value = line.partition(between)
            return ParsedRecord(value, key)
        return ParsedRecord(line)

    delimiter = b"\n" if options.delimiter is None else unescaped(options.delimiter)
    return LineParser(parse, delimiter, skips_empty=False)


class _Producing:
    """One run, from the first byte of the input to its end."""

    def __init__(
        self,
        options: ProduceOptions,
        parser: InputParser,
        adjust: Callable[[ParsedRecord], ParsedRecord] | None,
        partitioner: Partitioner,
        writer: RecordWriter,
    ) -> None:
        self._options = options
        self._parser = parser
        self._adjust = adjust
        self._partitioner = partitioner
        self._writer = writer
        self._count = 0
        self._sent_at = self._started = time.monotonic()

    def run(self, source: int, stopping: StopSignals) -> None:
        """Writes the records of the input."""
        progress = Progress("produce", None if self._options.quiet else _size_of(source))
        done = 0
        try:
            for chunk in _chunks(source):
                done += len(chunk)
                self._add(self._parser.feed(chunk), stopping)
                self._send_if_due(is_idle=not chunk)
                if not self._options.quiet:
                    progress.show(done, self._count)
            self._add(self._parser.finish(), stopping)
        except MalformedInput as failure:
            raise ClientError(f"Record {self._count + 1} of the input is malformed: {failure}.") from failure
        finally:
            progress.clear()

    def close(self, *, is_complete: bool) -> None:
        """Writes what was read; raises the error of a record that was refused."""
        is_transaction = self._options.transactional_id is not None
        self._writer.close(commit=is_complete or not is_transaction)
        if not self._options.quiet:
            seconds = time.monotonic() - self._started
            count = self._writer.written
            records = "1 record" if count == 1 else f"{count:,} records"
            note(f"{records} written in {seconds:.1f} s{_aborted(is_complete, is_transaction)}")

    def _add(self, records: Iterator[ParsedRecord], stopping: StopSignals) -> None:
        if self._options.rate is None:
            with stopping.deferred():
                for record in records:
                    self._append(record)
            return
        for record in records:
            self._wait_for_turn(self._options.rate, stopping)
            with stopping.deferred():
                self._append(record)
                self._send_if_due()

    def _wait_for_turn(self, rate: float, stopping: StopSignals) -> None:
        """Waits until the next record may be written; what was read is sent before a longer wait."""
        due = self._started + self._count / rate
        if due - time.monotonic() > LINGER_S:
            with stopping.deferred():
                self._send_if_due(is_idle=True)
        while (pause := due - time.monotonic()) > 0:
            time.sleep(min(pause, _LONGEST_SLEEP_S))

    def _append(self, record: ParsedRecord) -> None:
        if self._adjust is not None:
            record = self._adjust(record)
        self._writer.append(
            self._partitioner.partition(record), record.key, record.value, record.headers, record.timestamp
        )
        self._count += 1

    def _send_if_due(self, *, is_idle: bool = False) -> None:
        now = time.monotonic()
        if is_idle or now - self._sent_at > LINGER_S:
            self._writer.send()
            self._sent_at = now


def _aborted(is_complete: bool, is_transaction: bool) -> str:  # noqa: FBT001
    return ", and their transaction was aborted" if is_transaction and not is_complete else ""


@contextmanager
def _input(source: str | None) -> Iterator[int]:
    """The file descriptor to read."""
    if source is None:
        if sys.stdin is None:
            raise ClientError("Standard input is closed: name a file with --input.")
        yield sys.stdin.fileno()
        return
    with Path(source).open("rb", buffering=0) as opened:
        yield opened.fileno()


def _chunks(source: int) -> Iterator[bytes]:
    """Yields the input as it arrives, and b"" after LINGER_S without more."""
    while True:
        if not select.select([source], [], [], LINGER_S)[0]:
            yield b""
            continue
        try:
            chunk = os.read(source, CHUNK_BYTES)
        except OSError as failure:
            raise ClientError(f"The input cannot be read: {failure.strerror}.") from failure
        if not chunk:
            return
        yield chunk


def _size_of(source: int) -> int | None:
    status = os.fstat(source)
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _adjustment(options: ProduceOptions) -> Callable[[ParsedRecord], ParsedRecord] | None:
    """What --key, --header, --timestamp and --null change; None if nothing. Raises ClientError."""
    if options.key is None and not options.headers and options.timestamp is None and options.null is None:
        return None
    key = None if options.key is None else os.fsencode(options.key)
    is_json = not options.lines and options.layout is None  # which has a null of its own
    null = None if options.null is None or is_json else os.fsencode(options.null)
    headers = [_header(text) for text in options.headers]
    timestamp = options.timestamp
    if timestamp is not None and timestamp != "now" and not _is_timestamp(timestamp):
        raise ArgumentError(f"--timestamp takes Unix milliseconds or now, not {timestamp}.")

    def adjust(record: ParsedRecord) -> ParsedRecord:
        value, found, pairs = record.value, record.key, record.headers
        if null is not None:
            value = None if value == null else value
            found = None if found == null else found
        record = record._replace(
            value=value, key=key if found is None else found, headers=[*pairs, *headers] if headers else pairs
        )
        if timestamp is not None:
            record = record._replace(timestamp=None if timestamp == "now" else int(timestamp))
        return record

    return adjust


def _is_timestamp(text: str) -> bool:
    return _TIMESTAMP.fullmatch(text) is not None and -TIMESTAMP_LIMIT <= int(text) < TIMESTAMP_LIMIT


def _header(text: str) -> Header:
    name, equals, value = text.partition("=")
    return os.fsencode(name), os.fsencode(value) if equals else None
