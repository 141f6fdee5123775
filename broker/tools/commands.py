"""The tools' command line.

RULES    1. Options that Kafka's DumpLogSegments has too mean the same here.
         2. A closed output pipe ends the tool without an error message; another error of standard output, such as a full disk,
            is one sentence and exit status 1.
NOT HERE `dump-log` (dump_log.py), `doctor` (doctor.py), `convert` (convert.py).
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TextIO

import click

from broker.config.broker_config import ConfigError
from broker.config.config_loader import load_config
from broker.tools.convert import EXIT_NOT_BEGUN, CannotConvert, Order, run_convert
from broker.tools.convert_report import report_lines
from broker.tools.decoding import DECODINGS
from broker.tools.doctor import EXIT_NOT_CHECKED, run_doctor
from broker.tools.doctor_report import json_objects, text_lines
from broker.tools.dump_batches import Options
from broker.tools.dump_log import as_json, as_text, dump_files, standard_output
from broker.tools.message_json import json_text
from broker.tools.node_identity import CannotCheck

_OUTPUT_ERRORS: Final = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@click.command("dump-log")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("--files", "more_files", metavar="FILE,FILE", help="More files, separated by commas.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object per line.")
@click.option("--deep-iteration", is_flag=True, help="Records too, not only batches.")
@click.option("--print-data-log", is_flag=True, help="Keys and values of records too.")
@click.option("--cluster-metadata-decoder", "decoder", flag_value="cluster-metadata", help="Decode the metadata log.")
@click.option("--offsets-decoder", "decoder", flag_value="offsets", help="Decode records of __consumer_offsets.")
@click.option(
    "--transaction-log-decoder", "decoder", flag_value="transaction-log", help="Decode records of __transaction_state."
)
@click.option("--skip-record-metadata", is_flag=True, help="Only key and value of records.")
@click.option("--index-sanity-check", is_flag=True, help="Only whether an index passes the sanity check of a start.")
@click.option("--verify-index-only", is_flag=True, help="Only the index entries that contradict the log.")
@click.option("--max-bytes", type=click.IntRange(0), help="Only the first bytes of a log.")
@click.option("--partition", metavar="TOPIC-N", help="Of a commit log, only this partition; topic name or topic id.")
def dump_log(
    *,
    files: tuple[str, ...],
    more_files: str | None,
    is_json: bool,
    deep_iteration: bool,
    print_data_log: bool,
    decoder: str | None,
    skip_record_metadata: bool,
    index_sanity_check: bool,
    verify_index_only: bool,
    max_bytes: int | None,
    partition: str | None,
) -> None:
    """Show the contents of files of a log directory, also of a running broker.

    Batches and indexes (.log .index .timeindex .txnindex), producer snapshots (.snapshot), snapshots of the metadata log
    (.checkpoint), log and queue files of a commit log (.clog .queue), the offset and epoch checkpoints, partition.metadata,
    meta.properties, quorum-state. The lines are those of Kafka's DumpLogSegments.
    """
    paths = [*files, *(more_files.split(",") if more_files else [])]
    if not paths:
        raise click.UsageError("Name a file.")
    if partition is not None and not partition.rpartition("-")[2].isdecimal():
        raise click.UsageError(f"--partition {partition}: give it as TOPIC-N, such as orders-0.")
    decoding = None if decoder is None else DECODINGS[decoder]
    with_data = print_data_log or decoding is not None
    options = Options(
        deep_iteration or with_data, with_data, decoding, index_sanity_check, verify_index_only, max_bytes, partition
    )
    status = 1
    with _output() as out:
        show = as_json(out) if is_json else as_text(out, sys.stderr, skip_record_metadata=skip_record_metadata)
        status = dump_files(paths, options, show)
    sys.exit(status)


@click.command()
@click.argument("directories", nargs=-1, required=True, metavar="DIR...")
@click.option("--repair", is_flag=True, help="Repair what a recovery can repair. Copy the directories first.")
@click.option("--read-only", is_flag=True, help="Take no lock: files that a running broker writes may look damaged.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object per line.")
def doctor(*, directories: tuple[str, ...], repair: bool, read_only: bool, is_json: bool) -> None:
    """Check all log directories of a stopped node, and show what the next start would do.

    Exit status: 0 no issues, 1 issues, 2 not checked.
    """
    if repair and read_only:
        raise click.UsageError("--repair changes files, --read-only does not.")
    try:
        with _silence():
            outcome = run_doctor(directories, repair=repair, read_only=read_only, progress=_show_progress)
    except CannotCheck as error:
        click.echo(f"barnabas: {error}", err=True)
        sys.exit(EXIT_NOT_CHECKED)
    with _output() as out:
        for line in map(json_text, json_objects(outcome)) if is_json else text_lines(outcome):
            out.write(line + "\n")
    sys.exit(outcome.status)


@click.command()
@click.option(
    "--log-dir", "directories", metavar="DIR", multiple=True, help="A log directory of the node; name all of them."
)
@click.option("--config", "config_file", metavar="FILE", help="Settings file of the node, instead of --log-dir.")
@click.option("--to", "engine", type=click.Choice(["segments", "commitlog"]), required=True, help="The storage engine.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Only this topic; may be repeated.")
@click.option(
    "--dry-run", "is_dry_run", is_flag=True, help="Only show what would be converted, and the space it needs."
)
def convert(
    *, directories: tuple[str, ...], config_file: str | None, engine: str, topics: tuple[str, ...], is_dry_run: bool
) -> None:
    """Convert the partitions of a stopped node to another storage engine.

    With --to segments, Apache Kafka can start on the log directories afterwards. Compacted topics are always in segments. The
    command may be stopped and repeated: each partition is complete in one of the engines.

    Exit status: 0 converted, 1 a partition could not be converted, 2 not begun.
    """
    try:
        order = _order(directories, config_file, engine, topics)
        with _silence():
            outcome = run_convert(
                order, is_dry_run=is_dry_run, progress=_show_conversion, wall_ms=time.time_ns() // 1_000_000
            )
    except (CannotConvert, ConfigError) as error:
        click.echo(f"barnabas: {error}", err=True)
        sys.exit(EXIT_NOT_BEGUN)
    with _output() as out:
        for line in report_lines(outcome):
            out.write(line + "\n")
    sys.exit(outcome.status)


def _order(directories: tuple[str, ...], config_file: str | None, engine: str, topics: tuple[str, ...]) -> Order:
    if bool(directories) == (config_file is not None):
        raise click.UsageError("Name the log directories with --log-dir, or the settings file with --config.")
    if config_file is None:
        return Order(directories, engine, topics)
    config = load_config(config_file, {})
    file_bytes = config.number("barnabas.commitlog.file.bytes")
    paths = list(dict.fromkeys((*config.log_dirs, config.metadata_log_dir)))
    return Order(paths, engine, topics, config.given, file_bytes)


@contextmanager
def _output() -> Iterator[TextIO]:
    """Standard output, for a `with` block that its errors end (rule 2)."""
    if sys.stdout is None:
        click.echo("barnabas: Standard output is closed.", err=True)
        sys.exit(1)
    out = standard_output()
    try:
        yield out
        out.flush()
    except OSError as error:
        if error.errno not in _OUTPUT_ERRORS:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())  # avoids the interpreter's error message at exit
        if error.errno != errno.EPIPE:
            click.echo(f"barnabas: Standard output cannot be written: {error.strerror}.", err=True)
            sys.exit(1)


@contextmanager
def _silence() -> Iterator[None]:
    """Disable logging: the dry run logs like a real recovery, and the report shows what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)


def _show_progress(done: int, of: int, text: str = "") -> None:
    if sys.stderr.isatty():
        end = "\r" if done < of else "\r\x1b[K"
        sys.stderr.write(f"{done} of {of} partitions{text}{end}")
        sys.stderr.flush()


def _show_conversion(done: int, of: int, size: int, size_of_all: int) -> None:
    _show_progress(done, of, f", {size >> 20:,} of {size_of_all >> 20:,} MiB")
