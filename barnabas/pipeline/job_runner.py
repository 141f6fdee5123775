"""A job as a command: settings from file and command line, a Spark session, the job, its report, an exit code.

RULES    1. Whatever a user can mend is one sentence and exit code 1; a job whose answer is no (an audit that does not agree)
            ends with 3.
         2. The broker is looked for before Spark is started: that costs ten seconds. Who reads files alone needs none.
         3. Scratch files go when the job has ended. What Spark said is kept when it failed, and the sentence says where.
         4. A job that is stopped (`signals.py`), or whose JVM is killed, says so in one sentence; py4j and PySpark are silent.
NOT HERE Which jobs there are (`command.py`).
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from socketserver import BaseServer
from typing import Any, NamedTuple

import click

from barnabas.pipeline.errors import JobError, sentence_of
from barnabas.pipeline.reporting.reporter import Telling
from barnabas.pipeline.settings import BrokerSettings, filled, options_of, read_settings
from barnabas.pipeline.signals import Stopped, Stopping

ANSWER_IS_NO = 3
LOG = "spark.log"
DISK_SAYS_NO = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)


class Job(NamedTuple):
    """A job and what it takes. `run` gets the session, the settings, and whom to tell of each step."""

    name: str
    words: str
    settings: type
    run: Callable[[Any, Any, Callable[[dict[str, Any]], None]], Any]
    formats: Callable[[Any], Sequence[str]] = lambda _: ()
    """The formats that need jars of their own, by the settings."""


def command_of(job: Job, all_jobs: Callable[[], Sequence[Job]]) -> click.Command:
    """The sub-command of a job."""
    from barnabas.pipeline.session import SessionSettings

    own = [
        click.Option(
            ["--settings", "file"],
            type=click.Path(path_type=Path, readable=False),
            metavar="FILE",
            help="A TOML file with these settings.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Say everything as JSON lines."),
    ]

    def run(*, file: Path | None, as_json: bool, **given: Any) -> None:
        said: Mapping[str, Any] = {}
        if file is not None:
            said = read_settings(file, job.name, {one.name: (one.settings, SessionSettings) for one in all_jobs()})
        values = {**said, **{name: value for name, value in given.items() if value not in (None, ())}}
        raise SystemExit(_run(job, values, as_json=as_json))

    return click.Command(
        job.name, callback=run, params=[*options_of(job.settings, SessionSettings), *own], help=job.words
    )


def _run(job: Job, values: Mapping[str, Any], *, as_json: bool) -> int:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from barnabas.pipeline.brokers import Brokers
    from barnabas.pipeline.session import NoJava, SessionSettings

    settings: Any = filled(job.name, job.settings, values)
    wishes = filled(job.name, SessionSettings, values)
    if isinstance(settings, BrokerSettings) and settings.asks_broker:
        Brokers(settings)
    telling = Telling(job.name, as_json=as_json, metrics=wishes.metrics)
    scratch = Path(tempfile.mkdtemp(prefix=f"barnabas-{job.name}-"))
    succeeded = False
    try:
        _hush_py4j()
        with Stopping() as stopping:
            report = _in_a_session(job, settings, wishes, telling, scratch, stopping)
        succeeded = True
    except Stopped as stopped:
        click.echo(f"{job.name}: {stopped}", err=True)
        return stopped.exit_code
    except NoJava as failure:
        raise JobError(str(failure)) from failure
    except (PySparkException, Py4JError, ConnectionError) as failure:  # the last: py4j lets some of its own through
        log = scratch / LOG
        said = log.read_text(errors="replace") if log.exists() else ""
        raise JobError(f"{sentence_of(failure, said)} {_keep(log, job.name)}") from failure
    except OSError as failure:
        if failure.filename is None and failure.errno not in DISK_SAYS_NO:
            raise
        raise JobError(f"{failure.filename or 'The disk'} cannot be used: {failure.strerror}.") from failure
    finally:
        telling.ended(succeeded=succeeded)
        shutil.rmtree(scratch, ignore_errors=True)
    telling.report(report)
    return 0 if getattr(report, "agrees", True) else ANSWER_IS_NO


def _in_a_session(job: Job, settings: Any, wishes: Any, telling: Telling, scratch: Path, stopping: Stopping) -> Any:
    from barnabas.pipeline.session import start_session, stop_session

    spark, source = start_session(
        f"barnabas-{job.name}", scratch, scratch / LOG, wishes=wishes, formats=job.formats(settings)
    )
    try:
        stopping.listen()  # Spark listens to Ctrl-C in its own way
        telling.note(f"Spark {spark.version} on {wishes.master}, connector: {source}")
        return job.run(spark, settings, telling.step)
    finally:
        stop_session(spark)


def _keep(log: Path, job: str) -> str:
    if not log.exists():
        return ""
    kept = Path(tempfile.gettempdir()) / f"barnabas-{job}-spark-{os.getuid()}.log"
    try:
        kept.unlink(missing_ok=True)
        shutil.copyfile(log, kept)
    except OSError as failure:
        return f"Spark's own words could not be kept: {failure.strerror}."
    return f"Spark's own words are in {kept}."


def _hush_py4j() -> None:
    """It logs an interruption, and a JVM that died, with a trace; we say what it comes to.

    That is for good: a thread of its own tells the JVM of each object that is collected, to the end of this process.
    """
    from pyspark.accumulators import AccumulatorServer

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    logging.root.addFilter(_is_of_others)
    AccumulatorServer.handle_error = _hung_up  # type: ignore[assignment, method-assign]


def _hung_up(server: BaseServer, request: Any, address: Any) -> None:
    """The JVM tells PySpark of its counters over a line of their own, which ends with the JVM."""
    if not isinstance(sys.exception(), EOFError | ConnectionError):
        BaseServer.handle_error(server, request, address)


def _is_of_others(record: logging.LogRecord) -> bool:
    """Some of what py4j says, it says under nobody's name."""
    return record.module != "java_gateway"
