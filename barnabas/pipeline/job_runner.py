"""Runs a job as a command: settings, Spark session, job, report, exit code.

RULES    1. An error that the user can fix is one sentence and exit code 1. An audit that finds differences exits with 3.
         2. The broker is checked before Spark starts, which takes ten seconds. Jobs that read files need no broker.
         3. Scratch files are deleted when the job ends. After a failure Spark's log is kept, and the sentence names its path.
         4. A stopped job (`signals.py`) or a killed JVM is one sentence; py4j and PySpark log nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from barnabas.pipeline.errors import JobError, describe_failure
from barnabas.pipeline.reporting.reporter import OnStep, Reporter
from barnabas.pipeline.settings import BrokerSettings, build_settings, click_options, read_settings
from barnabas.signals import Stopped, StopSignals

AUDIT_FOUND_DIFFERENCES = 3
"""An exit code."""
LOG = "spark.log"
CONTEXT_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark's loggers, which need its own class."""
DISK_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of the disk that the user can fix, also if the exception names no file."""


class Job(NamedTuple):
    """A job with its settings. `run` takes the session, the settings and a listener for its steps."""

    name: str
    help_text: str
    settings: type
    run: Callable[[Any, Any, OnStep], Any]


def job_command(job: Job, all_jobs: Callable[[], Sequence[Job]]) -> click.Command:
    """Returns the click command of a job."""
    from barnabas.pipeline.session import SessionSettings

    common_options = [
        click.Option(
            ["--settings", "file"],
            type=click.Path(path_type=Path, readable=False),
            metavar="FILE",
            help="A TOML file with these settings.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON lines only."),
    ]

    def run(*, file: Path | None, as_json: bool, **given: Any) -> None:
        file_values: Mapping[str, Any] = {}
        if file is not None:
            file_values = read_settings(
                file, job.name, {job.name: (job.settings, SessionSettings) for job in all_jobs()}
            )
        values = {**file_values, **{name: value for name, value in given.items() if value not in (None, ())}}
        raise SystemExit(_run(job, values, as_json=as_json))

    return click.Command(
        job.name,
        callback=run,
        params=[*click_options(job.settings, SessionSettings), *common_options],
        help=job.help_text,
    )


def _run(job: Job, values: Mapping[str, Any], *, as_json: bool) -> int:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from barnabas.pipeline.brokers import Brokers
    from barnabas.pipeline.session import SessionSettings

    settings: Any = build_settings(job.name, job.settings, values)
    session_settings = build_settings(job.name, SessionSettings, values)
    if isinstance(settings, BrokerSettings) and settings.needs_broker:
        Brokers(settings)
    reporter = Reporter(job.name, as_json=as_json, metrics=session_settings.metrics)
    scratch = Path(tempfile.mkdtemp(prefix=f"barnabas-{job.name}-"))
    succeeded = False
    try:
        silence_spark()
        with StopSignals() as stopping:
            report = _run_in_session(job, settings, session_settings, reporter, scratch, stopping)
        succeeded = True
    except Stopped as stopped:
        click.echo(f"{job.name}: {stopped}", err=True)
        return stopped.exit_code
    except (PySparkException, Py4JError, ConnectionError) as failure:  # py4j raises some ConnectionErrors as they are
        log = scratch / LOG
        log_text = log.read_text(errors="replace") if log.exists() else ""
        raise JobError(f"{describe_failure(failure, log_text)} {_save_log(log, job.name)}") from failure
    except OSError as failure:
        if failure.filename is None and failure.errno not in DISK_ERRNOS:
            raise
        raise JobError(f"{failure.filename or 'The disk'} cannot be used: {failure.strerror}.") from failure
    finally:
        reporter.finish(succeeded=succeeded)
        shutil.rmtree(scratch, ignore_errors=True)
    reporter.report(report)
    return 0 if getattr(report, "agrees", True) else AUDIT_FOUND_DIFFERENCES


def _run_in_session(
    job: Job, settings: Any, session_settings: Any, reporter: Reporter, scratch: Path, stopping: StopSignals
) -> Any:
    from barnabas.pipeline.session import start_session, stop_session

    spark, source = start_session(
        f"barnabas-{job.name}", scratch, scratch / LOG, session_settings=session_settings, formats=_formats(settings)
    )
    try:
        stopping.install()  # Spark installs its own handler for SIGINT
        reporter.note(f"Spark {spark.version} on {session_settings.master}, connector: {source}")
        return job.run(spark, settings, reporter.step)
    finally:
        stop_session(spark)


def _formats(settings: Any) -> list[str]:
    """The formats with extra jars (`jars.py`) that the settings or the archive's metadata name."""
    from barnabas.pipeline.spark.jars import FORMATS
    from barnabas.pipeline.store.folder import ArchiveFolder

    names = {getattr(settings, "decode", None), getattr(settings, "format", None)}
    archive = getattr(settings, "archive", None) or getattr(settings, "into", None)
    if archive is not None and (folder := ArchiveFolder(archive)).exists():
        metadata = folder.metadata()
        names |= {metadata.sink, metadata.decoding["format"]}
    return [name for name in FORMATS if name in names]


def _save_log(log: Path, job: str) -> str:
    if not log.exists():
        return ""
    kept_log = Path(tempfile.gettempdir()) / f"barnabas-{job}-spark-{os.getuid()}.log"
    try:
        kept_log.unlink(missing_ok=True)
        shutil.copyfile(log, kept_log)
    except OSError as failure:
        return f"Spark's log could not be kept: {failure.strerror}."
    return f"Spark's log is in {kept_log}."


def silence_spark() -> None:
    """Silences py4j, which logs interruptions and a dead JVM with a traceback, and PySpark, which so logs refused expressions.

    The change is permanent: a py4j thread sends released objects to the JVM until the process ends.
    """
    from pyspark.logger import PySparkLogger

    from barnabas.pipeline.session import ignore_closed_accumulators

    for logger in (logging.getLogger("py4j"), *map(PySparkLogger.getLogger, CONTEXT_LOGGERS)):
        logger.setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_is_not_py4j)
    ignore_closed_accumulators()


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """Drops records that py4j logs under the root logger."""
    return record.module != "java_gateway"
